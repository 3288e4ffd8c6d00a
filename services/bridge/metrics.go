package bridge

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	up       prometheus.Gauge
	reports  prometheus.Counter
	failures *prometheus.CounterVec
	missing  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "warmpath_bridge_engine_up", Help: "1 while the engine answers and is in the fleet."}),
		reports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmpath_bridge_load_reports_total", Help: "Load reports published."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmpath_bridge_failures_total", Help: "What did not work: scrape of the engine, publishing load or fleet entry."}, []string{"what"}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmpath_bridge_metric_missing", Help: "1 for a load figure that the engine does not report, by its newest name."}, []string{"metric"}),
	}
	reg.MustRegister(m.up, m.reports, m.failures, m.missing)
	return m
}
