package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/services/gateway/apikey"
)

// metrics are the gateway's figures for Prometheus.
type metrics struct {
	requests   *prometheus.CounterVec
	ttft       *prometheus.HistogramVec
	tpot       prometheus.Histogram
	routeWait  prometheus.Histogram
	fallbacks  *prometheus.CounterVec
	moved      *prometheus.CounterVec
	prompt     prometheus.Counter
	predicted  prometheus.Counter
	cached     prometheus.Counter
	unreported prometheus.Counter
	unkeyed    prometheus.Counter
	idsChanged *prometheus.CounterVec
	lost       *prometheus.CounterVec
	gaps       prometheus.Counter
	circuit    prometheus.Gauge
	queueWait  prometheus.Histogram
	rejected   *prometheus.CounterVec
	perKey     *prometheus.CounterVec
	keyReloads *prometheus.CounterVec
	skips      *prometheus.CounterVec
	mismatch   *prometheus.GaugeVec
	mismatches *prometheus.CounterVec
}

// ofKey counts a request of a key. Names come from the key file only, so that
// their number is the operator's.
func (m *metrics) ofKey(client *apikey.Client, status string) {
	if client != nil {
		m.perKey.WithLabelValues(keyName(client), status).Inc()
	}
}

// Buckets from the fastest hit on a small model to a long prompt in a queue.
var secondsBuckets = []float64{.005, .01, .025, .05, .1, .2, .4, .8, 1.5, 3, 6, 12, 25, 50, 100, 200, 400}

func newMetrics(reg prometheus.Registerer, g *Gateway) *metrics {
	const namespace = "warmpath_gateway"
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	watch := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value))
	}
	m := &metrics{
		requests: counters("requests_total", "Requests by how they ended: ok, cancelled, upstream_error, client_error (the engine refused it), no_replica, refused (here, by its form, key or limits), overloaded.", "status"),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: "ttft_seconds", Buckets: secondsBuckets,
			Help: "Arrival to first content, by what the engine reports of its cache: hit (at least half of the prompt), miss, unknown; in the clock of --clock."}, []string{"cache"}),
		tpot: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "tpot_seconds",
			Buckets: []float64{.002, .005, .01, .015, .02, .03, .04, .06, .1, .2, .5, 1}, Help: "Mean time per output token after the first."}),
		routeWait: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "route_wait_seconds",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2}, Help: "Time a request waited for its decision."}),
		fallbacks:  counters("fallbacks_total", "Decisions taken by the gateway itself, by why the router was not heard.", "cause"),
		moved:      counters("moved_total", "Requests that left a replica before its first byte, by cause.", "cause"),
		prompt:     counter("prompt_tokens_total", "Prompt tokens of requests whose engine reported its cached tokens."),
		predicted:  counter("predicted_cached_tokens_total", "Cached tokens that decisions predicted, over the same requests."),
		cached:     counter("cached_tokens_total", "Cached tokens that engines reported."),
		unreported: counter("cached_tokens_unreported_total", "Finished answers whose engine did not report cached tokens."),
		unkeyed:    counter("unkeyed_requests_total", "Requests routed without block keys, because their token ids are not known; those without a prompt to reuse, such as embeddings, not counted."),
		idsChanged: counters("request_ids_replaced_total", "X-Request-Id values that were not kept as they were: invalid, or duplicate (used shortly before, and given an ending).", "reason"),
		lost:       counters("events_lost_total", "Events that could not be handed to the publisher, by kind.", "kind"),
		gaps:       counter("publish_gaps_total", "Runs of events that the publisher gave up."),
		circuit:    gauge("router_circuit_open", "1 while requests do not wait for the router after timeouts."),
	}
	m.queueWait = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "queue_wait_seconds",
		Buckets: []float64{.001, .01, .1, .5, 1, 2, 5, 10, 30}, Help: "Time from a request's arrival until it had a place."})
	m.rejected = counters("rejected_total", "Requests that no engine saw, by reason: invalid, no_key, unknown_key, disabled_key, model_not_allowed; a key's requests_per_second, tokens_per_minute or concurrent; queue_full, queue_timeout, client_left (while it waited), bodies.", "reason")
	m.perKey = counters("key_requests_total", "Requests by the name of their API key and by how they ended.", "key", "status")
	m.keyReloads = counters("key_reloads_total", "Changes of the key file that were seen: ok, or failed (the keys from before stay in force).", "outcome")
	m.skips = counters("replica_skips_total", "How often a replica was skipped for a while, after failures in a row.", "replica")
	reg.MustRegister(m.ttft, m.tpot, m.routeWait, m.queueWait)
	watch("in_flight", "Requests being served now.", func() float64 { return float64(g.admission.inUse()) })
	watch("queue_length", "Requests that wait for a place.", func() float64 { return float64(g.admission.waiting.Load()) })
	watch("publish_pending", "Events published and not acknowledged yet.", func() float64 { return float64(g.publisher.Stats().InFlight) })
	watch("live_replicas", "Replicas of the pool with a recent heartbeat.", func() float64 { return float64(len(g.view.Live())) })
	watch("replicas_skipped", "Replicas that are skipped now, after failures in a row.", func() float64 { return float64(len(g.health.skipped(time.Now()))) })
	m.mismatch = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "mismatch",
		Help: "1 while predicted and actual hits do not belong together, by replica (empty: the whole pool) and likely cause."}, []string{"replica", "cause"})
	reg.MustRegister(m.mismatch)
	m.mismatches = counters("mismatches_total", "Mismatch alarms raised, by likely cause.", "cause")
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: "publish_lost_total", Help: "Events that the publisher gave up."},
		func() float64 { return float64(g.publisher.Stats().Lost) }))
	return m
}
