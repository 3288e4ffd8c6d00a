package router

import (
	"github.com/prometheus/client_golang/prometheus"
)

// indexGauges reads what the index, its snapshots and the start are, once a scrape.
type indexGauges struct {
	r *Router
	bytes, evicted, late, tiers, suspect, restarts,
	startHead, restoredEntries, restoredSeq, restoreSeconds,
	count, seq, size, age, writeSeconds, pauseSeconds, written, first, uncovered *prometheus.Desc
}

func newIndexGauges(r *Router, pool prometheus.Labels) *indexGauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("warmpath_router_"+name, help, labels, pool)
	}
	return &indexGauges{
		r:               r,
		bytes:           desc("index_bytes", "Memory of the prefix index."),
		evicted:         desc("index_evicted_total", "Entries that went because the index would have passed its limit."),
		late:            desc("kv_late_batches_total", "Missing batches that came after all."),
		tiers:           desc("index_tier_entries", "Blocks in the index by tier.", "tier"),
		suspect:         desc("replica_suspect", "1 for a replica of which a part of the event history is missing.", "replica"),
		restarts:        desc("follower_restarts_total", "Times that following the KV stream broke off and went on."),
		startHead:       desc("start_head_seq", "End of the KV stream when the router started: it is ready when it has come so far."),
		restoredEntries: desc("restored_entries", "Blocks that the index started with from a snapshot; 0 after a full replay."),
		restoredSeq:     desc("restored_seq", "Sequence of the KV stream that the start's snapshot stands at; 0 after a full replay."),
		restoreSeconds:  desc("restore_seconds", "Time that finding, reading and restoring the snapshot took."),
		count:           desc("snapshots", "Snapshots of the pool that a starting router could use."),
		seq:             desc("snapshot_seq", "Sequence of the KV stream that the newest snapshot stands at."),
		size:            desc("snapshot_bytes", "Size of the newest snapshot."),
		age:             desc("snapshot_age_seconds", "Age of the newest snapshot."),
		writeSeconds:    desc("snapshot_write_seconds", "Time that this router's last snapshot took to write, read back and prune."),
		pauseSeconds:    desc("snapshot_pause_seconds", "Time that the index took no batches for this router's last snapshot."),
		written:         desc("snapshots_written_total", "Snapshots written by this router."),
		first:           desc("kv_stream_first_seq", "First sequence that the KV stream still holds."),
		uncovered:       desc("snapshot_uncovered_messages", "KV messages after the newest snapshot that the stream no longer holds: above 0, a router that starts has to suspect every replica."),
	}
}

// Describe implements prometheus.Collector.
func (g *indexGauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		g.bytes, g.evicted, g.late, g.tiers, g.suspect, g.restarts, g.startHead, g.restoredEntries, g.restoredSeq, g.restoreSeconds,
		g.count, g.seq, g.size, g.age, g.writeSeconds, g.pauseSeconds, g.written, g.first, g.uncovered,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *indexGauges) Collect(out chan<- prometheus.Metric) {
	gauge, counter := senders(out)
	s := g.r.State()
	gauge(g.bytes, float64(s.Index.Bytes))
	counter(g.evicted, float64(s.Index.Evicted))
	counter(g.late, float64(s.Index.Late))
	for tier, n := range s.Index.Tiers {
		gauge(g.tiers, float64(n), tier)
	}
	for _, life := range g.r.index().Lives() {
		gauge(g.suspect, map[bool]float64{true: 1}[life.Suspect], life.Replica)
	}
	restarts := uint64(0)
	if f := g.r.follower.Load(); f != nil {
		restarts = f.Restarts()
	}
	counter(g.restarts, float64(restarts))
	gauge(g.startHead, float64(s.Start.Head))
	gauge(g.restoredEntries, float64(s.Start.Entries))
	gauge(g.restoredSeq, float64(s.Start.Seq))
	gauge(g.restoreSeconds, float64(s.Start.RestoreUS)/1e6)
	kept := g.r.kept.Load()
	if kept == nil { // not looked at yet
		counter(g.written, 0)
		return
	}
	gauge(g.count, float64(kept.count))
	gauge(g.first, float64(kept.firstSeq))
	gauge(g.uncovered, float64(kept.uncovered))
	gauge(g.writeSeconds, kept.writeSeconds)
	gauge(g.pauseSeconds, kept.pauseSeconds)
	counter(g.written, float64(kept.written))
	if kept.newest.Seq > 0 {
		gauge(g.seq, float64(kept.newest.Seq))
		gauge(g.size, float64(kept.newest.Size))
		gauge(g.age, s.Snapshot.AgeSeconds)
	}
}
