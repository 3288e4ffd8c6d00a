package clickhouse

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The kinds of statements that metrics tell apart.
const (
	kindSelect = "select"
	kindInsert = "insert"
	kindOther  = "other"
)

type metrics struct {
	seconds    *prometheus.HistogramVec
	exceptions *prometheus.CounterVec
	inserted   prometheus.Counter
}

func newMetrics(reg *prometheus.Registry, e *Engine) *metrics {
	m := &metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:                           "warmpath_clickhouse_query_seconds",
			Help:                           "Time from a request's arrival to its answer's end, waiting included.",
			Buckets:                        prometheus.ExponentialBuckets(0.001, 4, 9),
			NativeHistogramBucketFactor:    1.1,
			NativeHistogramMaxBucketNumber: 100,
		}, []string{"kind"}),
		exceptions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmpath_clickhouse_exceptions_total",
			Help: "Queries that ended in an exception, by ClickHouse's error code.",
		}, []string{"kind", "code"}),
		inserted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmpath_clickhouse_inserted_rows_total",
			Help: "Rows written by inserts, those of materialized views included; rows of a repeated insert count although they are dropped.",
		}),
	}
	reg.MustRegister(m.seconds, m.exceptions, m.inserted,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "warmpath_clickhouse_running", Help: "Statements that run.",
		}, func() float64 { return float64(e.running.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "warmpath_clickhouse_waiting", Help: "Requests that wait for a place.",
		}, func() float64 { return float64(e.waiting.Load()) }),
	)
	return m
}

func (m *metrics) observe(kind string, took time.Duration, err error) {
	m.seconds.WithLabelValues(kind).Observe(took.Seconds())
	if err != nil {
		m.exceptions.WithLabelValues(kind, strconv.Itoa(asException(err).Code)).Inc()
	}
}
