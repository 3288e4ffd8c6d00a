package bridge

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/prefix"
	"warmpath/services/bridge/feed"
)

// metrics are what is counted where it happens; collector reads the rest from
// the replicas when it is asked.
type metrics struct {
	up       *prometheus.GaugeVec
	reports  prometheus.Counter
	failures *prometheus.CounterVec
	missing  *prometheus.GaugeVec
	ignored  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, b *Bridge) *metrics {
	m := &metrics{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmpath_bridge_engine_up", Help: "1 while the engine answers and is in the fleet."}, []string{"engine"}),
		reports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmpath_bridge_load_reports_total", Help: "Load reports published."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmpath_bridge_failures_total", Help: "What did not work: scrape, pull or load socket of the engine, publishing load or fleet entry."}, []string{"what"}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmpath_bridge_metric_missing", Help: "1 for a load figure that the engine does not report."}, []string{"engine", "figure"}),
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmpath_bridge_ignored_total", Help: "What came and was left out, by reason: no frames of the replica's engine, or (capture) not in the record."}, []string{"replica", "reason"}),
	}
	reg.MustRegister(m.up, m.reports, m.failures, m.missing, m.ignored, newCollector(b))
	return m
}

// collector reads the figures of every replica at once.
type collector struct {
	bridge *Bridge

	exact, present, unnamed, lastEvent           *prometheus.Desc
	batches, events, duplicates, gaps, replayed  *prometheus.Desc
	restarts, losses, badEvents, unknown         *prometheus.Desc
	published, waiting, spool, dropped, epochs   *prometheus.Desc
	ignoredEvents, failedReplays, unknownRemoves *prometheus.Desc
}

func newCollector(b *Bridge) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("warmpath_bridge_"+name, help, append([]string{"replica"}, labels...), nil)
	}
	return &collector{
		bridge:  b,
		exact:   desc("exact", "1 while what is published of the replica is exactly what its engine holds, 0 while it is in doubt or not read."),
		present: desc("blocks", "Engine blocks that the replica holds, by tier.", "tier"),
		unnamed: desc("unnamed_blocks", "Blocks that the replica holds and that cannot be named by key."),
		lastEvent: desc("event_age_seconds",
			"Time since the engine's last batch, by its clock."),
		batches:        desc("batches_total", "Batches taken in, in order."),
		events:         desc("events_total", "Events decoded."),
		duplicates:     desc("duplicate_batches_total", "Batches that came twice."),
		gaps:           desc("gaps_total", "Holes found in the engine's numbering."),
		replayed:       desc("replayed_batches_total", "Batches that the engine was asked for again."),
		failedReplays:  desc("failed_replays_total", "Replays that the engine did not answer."),
		restarts:       desc("engine_restarts_total", "Times that the engine began anew."),
		losses:         desc("history_lost_total", "Times that history was gone for good, by reason.", "reason"),
		badEvents:      desc("bad_events_total", "Events and batches that could not be read."),
		unknown:        desc("unknown_total", "Names in events that this version does not know, by class.", "class"),
		ignoredEvents:  desc("ignored_events_total", "What is left out on purpose, by reason: partial blocks, other attention groups and windows, unknown tiers.", "reason"),
		unknownRemoves: desc("unknown_removals_total", "Removals of blocks that were not there."),
		published:      desc("published_batches_total", "Batches in the KV stream."),
		waiting:        desc("waiting_batches", "Batches that wait for the KV stream."),
		spool:          desc("spool_bytes", "Bytes of them on disk."),
		dropped:        desc("dropped_batches_total", "Batches given up with their epoch, by reason.", "reason"),
		epochs:         desc("epochs_total", "Epochs begun, by reason.", "reason"),
	}
}

// Describe is of prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, out)
}

// Collect is of prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.bridge.State() {
		c.replica(out, s)
	}
}

func (c *collector) replica(out chan<- prometheus.Metric, s Status) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.Replica}, labels...)...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{s.Replica}, labels...)...)
	}
	if s.Read { // else there is nothing that could be exact
		gauge(c.exact, map[bool]float64{true: 1}[s.Events && s.Problem == ""])
	}
	for i, n := range s.Memory.Present {
		gauge(c.present, float64(n), prefix.Tier(i).String())
	}
	gauge(c.unnamed, float64(s.Memory.Unnamed))
	if s.LastEventUS > 0 {
		gauge(c.lastEvent, time.Since(time.UnixMicro(s.LastEventUS)).Seconds())
	}
	counter(c.batches, s.Feed.Batches)
	counter(c.events, s.Decoded.Events)
	counter(c.duplicates, s.Feed.Duplicates)
	counter(c.gaps, s.Feed.Gaps)
	counter(c.replayed, s.Feed.Replayed)
	counter(c.failedReplays, s.Feed.FailedReplays)
	counter(c.restarts, s.Feed.Restarts)
	for _, reason := range []string{feed.LostBeforeStart, feed.LostGap, feed.LostUnverified} { // from 0 on, so that the first one is an increase
		counter(c.losses, s.Feed.Losses[reason], reason)
	}
	counter(c.badEvents, s.Decoded.BadEvents+s.Decoded.BadBatches)
	counter(c.unknown, s.Decoded.UnknownTags, "tag")
	counter(c.unknown, s.Decoded.UnknownFields, "field")
	counter(c.unknown, s.Decoded.UnknownTiers, "medium")
	for reason, n := range map[string]uint64{
		"partial block": s.Memory.PartialSeen, "attention group": s.Memory.OtherGroups,
		"attention window": s.Memory.OtherWindows, "tier": s.Memory.UnknownTiers,
	} {
		counter(c.ignoredEvents, n, reason)
	}
	counter(c.unknownRemoves, s.Memory.UnknownRemovals)
	counter(c.published, s.Outbox.Published)
	gauge(c.waiting, float64(s.Outbox.Waiting))
	gauge(c.spool, float64(s.Outbox.SpoolBytes))
	for reason, n := range s.Outbox.Dropped {
		counter(c.dropped, n, reason)
	}
	for reason, n := range s.Outbox.Epochs {
		counter(c.epochs, n, reason)
	}
}
