package bridge

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/discovery"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
	"warmpath/streams"
)

// loadTopic is what SGLang publishes its load under unless it says otherwise.
const loadTopic = "load"

// reporter publishes the load of one replica whenever it changed.
type reporter struct {
	replica   *replica
	last      *pb.LoadReport
	published time.Time
}

// reportLoad publishes the load of the engine's ranks until ctx ends.
func (e *engine) reportLoad(ctx context.Context) {
	reporters := make([]*reporter, 0, len(e.all()))
	for _, r := range e.all() {
		reporters = append(reporters, &reporter{replica: r})
	}
	if socket, topic := e.loadSocket(); socket != "" {
		var group sync.WaitGroup
		for _, r := range reporters {
			group.Go(func() { r.subscribe(ctx, socket, topic) })
		}
		group.Wait()
		return
	}
	tick := time.NewTicker(e.bridge.cfg.LoadEvery)
	defer tick.Stop()
	missing := map[string]bool{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if e.err() != nil {
			continue // it does not answer, which is said
		}
		loads, err := e.client.Load(ctx)
		if err != nil {
			e.bridge.metrics.failures.WithLabelValues("scrape").Inc()
			continue
		}
		e.sayMissing(missing)
		for _, l := range loads {
			if l.Rank < len(reporters) {
				reporters[l.Rank].report(ctx, l)
			} else if len(reporters) == 1 {
				reporters[0].report(ctx, l) // a rank that is served alone keeps its number
			}
		}
	}
}

// sayMissing says once of each load figure that the engine does not report it.
func (e *engine) sayMissing(said map[string]bool) {
	for _, m := range e.client.Missing() {
		if said[m.Figure] {
			continue
		}
		said[m.Figure] = true
		e.bridge.metrics.missing.WithLabelValues(e.cfg.Replica, m.Figure).Set(1)
		slog.Warn("engine does not report a load figure; it is left out, not read as zero", "engine", e.cfg.URL, "figure", m.Figure, "why", m.Why)
		e.announce()
	}
}

// report publishes a load that differs from the last one.
func (p *reporter) report(ctx context.Context, l discovery.Load) {
	b := p.replica.engine.bridge
	epoch := p.replica.status().Epoch
	report := &pb.LoadReport{
		Pool: b.cfg.Pool, Replica: p.replica.name, Epoch: epoch[:],
		Running: l.Running, Waiting: l.Waiting, QueuedPrefillTokens: l.QueuedPrefillTokens, KvUsed: l.KVUsed,
	}
	p.replica.load.Store(&l)
	if p.last != nil && proto.Equal(report, p.last) && time.Since(p.published) < loadHeartbeat {
		return
	}
	p.published = time.Now()
	p.last = proto.Clone(report).(*pb.LoadReport)
	report.TimeUs = time.Now().UnixMicro()
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := streams.PutLoad(ctx, b.js, report); err != nil && ctx.Err() == nil {
		b.metrics.failures.WithLabelValues("load").Inc()
		slog.Warn("load was not published", "replica", p.replica.name, "error", err)
		return
	}
	b.metrics.reports.Inc()
}

// loadSocket is where SGLang publishes rank 0's load, and under which topic;
// empty when it does not.
func (e *engine) loadSocket() (endpoint, topic string) {
	switch e.cfg.LoadSocket {
	case eventsOff:
		return "", ""
	case "", EventsAuto:
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.facts.KVEvents.LoadEndpoint, e.facts.KVEvents.LoadTopic
	}
	return e.cfg.LoadSocket, loadTopic
}

// subscribe reads SGLang's load socket, which speaks on every change. Reports
// come at most at LoadEvery, the last of them always.
func (p *reporter) subscribe(ctx context.Context, socket, topic string) {
	b := p.replica.engine.bridge
	endpoint, err := zmq.AtRank(socket, p.replica.rank)
	if err != nil {
		slog.Error("the load socket of a rank is unknown", "socket", socket, "error", err)
		return
	}
	newest := make(chan kvevents.LoadStat, 1)
	var pacing sync.WaitGroup
	pacing.Go(func() { p.pace(ctx, newest) })
	defer pacing.Wait()
	err = zmq.Subscribe(ctx, zmq.Subscription{Endpoint: endpoint, Topic: topic}, func(f zmq.Frame) {
		stat, err := kvevents.DecodeLoad(f.Payload)
		if err != nil {
			b.metrics.failures.WithLabelValues("load socket").Inc()
			return
		}
		select {
		case <-newest: // replaced
		default:
		}
		newest <- stat
	})
	if err != nil {
		slog.Error("the load socket cannot be read", "socket", endpoint, "error", err)
	}
}

// pace reports the newest load, at most every LoadEvery, and repeats it as a
// heartbeat.
func (p *reporter) pace(ctx context.Context, newest <-chan kvevents.LoadStat) {
	tick := time.NewTicker(p.replica.engine.bridge.cfg.LoadEvery)
	defer tick.Stop()
	var load *discovery.Load
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case stat := <-newest:
			load = loadOf(stat)
		default:
		}
		if load != nil && p.replica.engine.err() == nil {
			p.report(ctx, *load)
		}
	}
}

// loadOf reads SGLang's report. Its tokens are those in the cache that requests
// hold, not tokens that wait.
func loadOf(s kvevents.LoadStat) *discovery.Load {
	count := func(n int64) *uint32 {
		if n < 0 {
			return nil
		}
		v := uint32(n)
		return &v
	}
	l := &discovery.Load{Rank: int(s.Rank), Running: count(s.Running), Waiting: count(s.Waiting)}
	if s.QueuedTokens >= 0 {
		queued := uint64(s.QueuedTokens)
		l.QueuedPrefillTokens = &queued
	}
	if s.MaxTokens > 0 && s.Tokens >= 0 {
		used := min(float64(s.Tokens)/float64(s.MaxTokens), 1)
		l.KVUsed = &used
	}
	return l
}

// busy says whether the engine still has requests, as far as it says.
func (e *engine) busy(ctx context.Context) bool {
	if e.err() != nil {
		return false
	}
	for _, r := range e.all() {
		if r.busy() {
			return true
		}
	}
	return ctx.Err() == nil && len(e.all()) == 0
}
