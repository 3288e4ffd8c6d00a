package analytics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the figures of analytics. Labels are tables, streams and reasons:
// few, and never a request.
type metrics struct {
	rows       *prometheus.CounterVec
	batches    *prometheus.CounterVec
	retries    *prometheus.CounterVec
	suspected  *prometheus.CounterVec
	insert     *prometheus.HistogramVec
	lag        *prometheus.GaugeVec
	position   *prometheus.GaugeVec
	open       prometheus.Gauge
	lost       prometheus.Counter
	irregular  *prometheus.CounterVec
	unreadable *prometheus.CounterVec
	holes      *prometheus.CounterVec
	repaired   prometheus.Counter
	restarts   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return m.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_analytics_" + name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return m.NewGaugeVec(prometheus.GaugeOpts{Name: "warmpath_analytics_" + name, Help: help}, labels)
	}
	return &metrics{
		rows:      counter("rows_total", "Rows that ClickHouse confirmed.", "table"),
		batches:   counter("batches_total", "Inserts that ClickHouse confirmed.", "table"),
		retries:   counter("retries_total", "Inserts that were sent again because their outcome was an error or unknown.", "table"),
		suspected: counter("dedup_suspected_total", "Inserts confirmed only when sent again: an earlier try may have been written, and its copy dropped by token.", "table"),
		insert: m.NewHistogramVec(prometheus.HistogramOpts{
			Name: "warmpath_analytics_insert_seconds", Help: "Time of one try of one insert.",
			Buckets:                         []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  100,
			NativeHistogramMinResetDuration: 0,
		}, []string{"table"}),
		lag:        gauge("lag_messages", "Messages of the stream that were not read yet.", "stream"),
		position:   gauge("position", "Sequence of the last message that was read.", "stream"),
		open:       m.NewGauge(prometheus.GaugeOpts{Name: "warmpath_analytics_open_joins", Help: "Requests decided and not ended yet."}),
		lost:       m.NewCounter(prometheus.CounterOpts{Name: "warmpath_analytics_lost_total", Help: "Requests written as lost because no outcome came."}),
		irregular:  counter("irregular_events_total", "Events of ROUTE out of the regular course: unmatched is an outcome or a move without a decision, duplicate repeats an event, late comes after the request has its row.", "reason"),
		unreadable: counter("unreadable_total", "Messages that could not be decoded.", "stream"),
		holes:      counter("holes_total", "Messages that the stream no longer holds.", "stream"),
		repaired:   m.NewCounter(prometheus.CounterOpts{Name: "warmpath_analytics_rollup_repaired_total", Help: "Rows added to the roll-up at a start because ClickHouse had stopped between table and view."}),
		restarts:   counter("follow_restarts_total", "Times a stream was followed anew from what ClickHouse holds.", "stream"),
	}
}
