package router

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pb "warmpath/schemas/warmpathv1"
)

// metrics are what the router counts itself; figures that something else keeps
// are read when scraped, by state.
type metrics struct {
	decisions          *prometheus.CounterVec
	errors             *prometheus.CounterVec
	duration           prometheus.Histogram
	promptTokens       prometheus.Counter
	predictedTokens    prometheus.Counter
	batchAge           prometheus.Histogram
	invalid            *prometheus.CounterVec
	holes              prometheus.Counter
	missingBatches     prometheus.Counter
	routeEvents        *prometheus.CounterVec
	reports            prometheus.Counter
	reportsInvalid     prometheus.Counter
	overruled          prometheus.Counter
	shed               *prometheus.CounterVec
	leasesExpired      prometheus.Counter
	predictionsExpired prometheus.Counter
	forgotten          prometheus.Counter
	learned            prometheus.Counter
	dryRuns            prometheus.Counter
	tokenizing         prometheus.Histogram
	unkeyed            prometheus.Counter
	snapshotFailures   *prometheus.CounterVec
	snapshotsRefused   *prometheus.CounterVec
}

// decisionBuckets are for a decision of tens of microseconds, up to where a
// gateway has fallen back long ago.
var decisionBuckets = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3}

// tokenizeBuckets are for prompts of which most was seen before, up to an engine
// that does not answer.
var tokenizeBuckets = []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1}

// ageBuckets are for the way of an event: engine, bridge, stream, index.
var ageBuckets = []float64{1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1, 10, 60}

func newMetrics(reg prometheus.Registerer, r *Router) (*metrics, error) {
	pool := prometheus.Labels{"pool": r.cfg.Pool}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "warmpath_router_" + name, Help: help, ConstLabels: pool})
	}
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_router_" + name, Help: help, ConstLabels: pool}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "warmpath_router_" + name, Help: help, ConstLabels: pool, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		})
	}
	m := &metrics{
		decisions:          vector("decisions_total", "Decisions taken, by policy and reason.", "policy", "reason"),
		errors:             vector("errors_total", "Requests answered without a decision, by error code.", "code"),
		duration:           histogram("decision_seconds", "Time to answer a request, without transport.", decisionBuckets),
		promptTokens:       counter("prompt_tokens_total", "Prompt tokens of decided requests."),
		predictedTokens:    counter("predicted_cached_tokens_total", "Prompt tokens that decisions expected to be served from cache."),
		batchAge:           histogram("kv_batch_age_seconds", "Age of KV batches when they were applied: from the engine's event to the index.", ageBuckets),
		invalid:            vector("kv_invalid_total", "KV messages that could not be used, by reason.", "reason"),
		holes:              counter("kv_holes_total", "KV messages that the stream no longer held when they were to be read."),
		missingBatches:     counter("kv_missing_batches_total", "Batches missing in replicas' own sequences."),
		routeEvents:        vector("route_events_total", "Messages of ROUTE followed, by kind.", "kind"),
		reports:            counter("load_reports_total", "Load reports taken."),
		reportsInvalid:     counter("load_reports_invalid_total", "Load reports whose kv_used is no share; it counts as not reported."),
		overruled:          counter("overruled_total", "Decisions that the gateway replaced by its own."),
		shed:               vector("shed_total", "Requests refused for load, by reason.", "reason"),
		leasesExpired:      counter("leases_expired_total", "Requests in flight that were given up without an outcome."),
		predictionsExpired: counter("predictions_expired_total", "Predictions that ran out unconfirmed."),
		forgotten:          counter("replicas_forgotten_total", "Lost replicas whose blocks were dropped from the index."),
		learned:            counter("learned_requests_total", "Requests from which the cache of a replica without events was learned."),
		dryRuns:            counter("dry_runs_total", "Decisions that only were asked about."),
		tokenizing:         histogram("tokenize_seconds", "Time to find the tokens of a prompt given as text.", tokenizeBuckets),
		unkeyed:            counter("unkeyed_total", "Prompts given as text whose tokens could not be found, so that load alone decided."),
		snapshotFailures:   vector("snapshot_failures_total", "Snapshots that could not be looked at, written or removed, by reason.", "reason"),
		snapshotsRefused:   vector("snapshots_refused_total", "Snapshots that a starting router could not use, by reason.", "reason"),
	}
	for _, reason := range []string{failureRead, failureLease, failureLost, failureFull, failureTTL, failureSave, failurePrune} {
		m.snapshotFailures.WithLabelValues(reason)
	}
	for _, c := range []prometheus.Collector{
		m.decisions, m.errors, m.duration, m.promptTokens, m.predictedTokens, m.batchAge, m.invalid, m.holes,
		m.missingBatches, m.routeEvents, m.reports, m.reportsInvalid, m.overruled, m.shed, m.leasesExpired, m.predictionsExpired,
		m.forgotten, m.learned, m.dryRuns, m.tokenizing, m.unkeyed, m.snapshotFailures, m.snapshotsRefused, newGauges(r, pool), newIndexGauges(r, pool),
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w; give each router a registry of its own", err)
		}
	}
	return m, nil
}

// decided counts one decision.
func (m *metrics) decided(d *pb.Decided) {
	m.decisions.WithLabelValues(d.Policy.Name, word(d.Reason.String(), "DECISION_REASON_")).Inc()
	m.promptTokens.Add(float64(d.PromptTokens))
	m.predictedTokens.Add(float64(d.PredictedCachedTokens))
}

// gauges reads figures from where they are kept, once a scrape.
type gauges struct {
	r *Router
	position, head, lag, age, ready,
	replicas, suspects, entries, gaps, stale, duplicates, unknown,
	fleet, inFlight, predictions *prometheus.Desc
}

func newGauges(r *Router, pool prometheus.Labels) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("warmpath_router_"+name, help, labels, pool)
	}
	return &gauges{
		r:           r,
		position:    desc("kv_applied_seq", "Sequence of the KV stream that the index stands at."),
		head:        desc("kv_stream_last_seq", "Last sequence of the KV stream, as last looked at."),
		lag:         desc("kv_lag", "Messages of the KV stream not read yet."),
		age:         desc("index_age_seconds", "Age of the newest batch when it was applied."),
		ready:       desc("ready", "1 once the router answers."),
		replicas:    desc("index_replicas", "Replicas in the index."),
		suspects:    desc("index_suspects", "Replicas whose event history has a hole."),
		entries:     desc("index_entries", "Blocks in the index, one per replica, tier and key."),
		gaps:        desc("gaps_total", "Gaps in replicas' own sequences."),
		stale:       desc("kv_stale_total", "Batches of an earlier epoch, ignored."),
		duplicates:  desc("kv_duplicates_total", "Batches seen before, ignored."),
		unknown:     desc("kv_unknown_removals_total", "Removals of blocks that the index did not hold."),
		fleet:       desc("fleet_replicas", "Replicas of the pool by state.", "state"),
		inFlight:    desc("in_flight", "Requests sent to a replica and not finished, as the ledger counts them.", "replica"),
		predictions: desc("predictions", "Decisions whose blocks are expected and not confirmed yet."),
	}
}

// senders put a figure of a given moment into a scrape.
func senders(out chan<- prometheus.Metric) (gauge func(d *prometheus.Desc, v float64, labels ...string), counter func(d *prometheus.Desc, v float64)) {
	gauge = func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter = func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	return gauge, counter
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		g.position, g.head, g.lag, g.age, g.ready, g.replicas, g.suspects, g.entries, g.gaps,
		g.stale, g.duplicates, g.unknown, g.fleet, g.inFlight, g.predictions,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	gauge, counter := senders(out)
	s := g.r.State()
	gauge(g.position, float64(s.KV.Position))
	gauge(g.head, float64(s.KV.LastSeq))
	gauge(g.lag, float64(s.KV.Lag))
	gauge(g.age, float64(s.KV.IndexAgeUS)/1e6)
	gauge(g.ready, map[bool]float64{true: 1}[s.Ready])
	gauge(g.replicas, float64(s.Index.Replicas))
	gauge(g.suspects, float64(s.Index.Suspects))
	gauge(g.entries, float64(s.Index.Entries))
	counter(g.gaps, float64(s.Index.Gaps))
	counter(g.stale, float64(s.Index.Stale))
	counter(g.duplicates, float64(s.Index.Duplicates))
	counter(g.unknown, float64(s.Index.UnknownRemovals))
	gauge(g.predictions, float64(s.Predictions))

	states := map[string]int{"live": 0, "draining": 0, "dead": 0}
	for _, one := range s.Replicas {
		states[one.State]++
		gauge(g.inFlight, float64(one.InFlight), one.Replica)
	}
	for state, n := range states {
		gauge(g.fleet, float64(n), state)
	}
}
