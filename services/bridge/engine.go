package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/discovery"
	"warmpath/services/bridge/zmq"
	"warmpath/streams"
)

// engine is one engine: what it says of itself, and a replica for each rank.
type engine struct {
	bridge *Bridge
	cfg    Engine
	client *discovery.Client
	beatMe chan struct{}

	mu       sync.Mutex
	facts    discovery.Engine
	why      error // the engine is not in the fleet
	present  bool
	started  int64
	replicas []*replica
	ready    chan struct{} // closed when replicas are there
}

func newEngine(b *Bridge, cfg Engine) *engine {
	e := &engine{
		bridge: b, cfg: cfg,
		client: discovery.New(cfg.URL, &http.Client{Timeout: engineTimeout}),
		beatMe: make(chan struct{}, 1), ready: make(chan struct{}),
		why: fmt.Errorf("engine %s was not asked yet", cfg.URL),
	}
	e.client.Key = b.cfg.Key
	return e
}

// run keeps the engine in the fleet for as long as it answers, and reads its
// events and its load.
func (e *engine) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { e.attend(ctx); return nil })
	group.Go(func() error {
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil
		}
		e.reportLoad(ctx)
		return nil
	})
	group.Go(func() error {
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil
		}
		for _, r := range e.all() {
			group.Go(func() error { return r.run(ctx) })
		}
		if e.cfg.KVPull {
			e.poll(ctx)
		}
		return nil
	})
	return group.Wait()
}

// all is the engine's replicas; none before the engine was seen.
func (e *engine) all() []*replica {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.replicas
}

// err is why the engine is not in the fleet, nil when it is.
func (e *engine) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.why
}

// announce makes the next heartbeat come now.
func (e *engine) announce() {
	select {
	case e.beatMe <- struct{}{}:
	default:
	}
}

// attend asks the engine at every heartbeat, and more often while it is away.
func (e *engine) attend(ctx context.Context) {
	for {
		e.beat(ctx)
		again := heartbeat
		if e.err() != nil {
			again = absentEvery
		}
		timer := time.NewTimer(again)
		select {
		case <-timer.C:
		case <-e.beatMe:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// beat asks the engine and publishes that it is there. An engine that does not
// answer leaves the fleet.
func (e *engine) beat(ctx context.Context) {
	facts, err := e.client.Discover(ctx, e.cfg.Model)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if errors.Is(err, discovery.ErrModel) {
			err = fmt.Errorf("%w; name one by --model", err)
		}
		e.absent(err)
		return
	}
	e.seen(facts)
	for _, r := range e.all() {
		e.put(ctx, r)
	}
}

// absent notes that the engine does not answer, and takes it out of the fleet.
func (e *engine) absent(err error) {
	e.mu.Lock()
	was, said := e.present, e.why != nil && e.why.Error() == err.Error()
	e.present, e.why = false, err
	e.mu.Unlock()
	e.bridge.metrics.up.WithLabelValues(e.cfg.Replica).Set(0)
	if !was {
		if !said {
			slog.Warn("engine does not answer; it is waited for", "replica", e.cfg.Replica, "error", err)
		}
		e.unseen()
		return
	}
	slog.Warn("engine does not answer; it leaves the fleet", "engine", e.cfg.URL, "error", err)
	for _, r := range e.all() {
		r.engineGone()
	}
	e.leave()
}

// unseen reads the events of an engine that has not answered yet, if everything
// needed is configured: it may publish before it serves, and what it says then
// may not come again.
func (e *engine) unseen() {
	e.mu.Lock()
	defer e.mu.Unlock()
	told := e.cfg.KVListen != "" || e.cfg.KV != EventsAuto && e.cfg.KV != eventsOff
	if e.replicas != nil || e.cfg.Model == "" || !told {
		return
	}
	slog.Info("the engine's events are read before it answers, by what is configured", "engine", e.cfg.URL)
	e.replicas = e.makeReplicas(discovery.Engine{Kind: discovery.OpenAI, Model: e.cfg.Model})
	close(e.ready)
}

// seen takes what the engine says. The first time it makes the replicas.
func (e *engine) seen(facts discovery.Engine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	back := !e.present
	e.facts, e.present, e.why = facts, true, nil
	e.bridge.metrics.up.WithLabelValues(e.cfg.Replica).Set(1)
	if !back {
		return
	}
	e.started = time.Now().UnixMicro()
	slog.Info("engine is in the fleet", "pool", e.bridge.cfg.Pool, "replica", e.cfg.Replica, "engine", e.cfg.URL,
		"kind", facts.Kind, "version", facts.Version, "model", facts.Model, "block_tokens", facts.BlockTokens, "unknown", facts.Missing)
	if e.replicas == nil {
		e.replicas = e.makeReplicas(facts)
		close(e.ready)
		return
	}
	for _, r := range e.replicas {
		r.engineBack(facts)
	}
}

// makeReplicas makes one replica for each rank.
func (e *engine) makeReplicas(facts discovery.Engine) []*replica {
	ranks := e.cfg.Ranks
	if ranks == 0 {
		ranks = max(facts.Ranks, 1)
	}
	out := make([]*replica, ranks)
	for rank := range ranks {
		name := e.cfg.Replica
		if ranks > 1 {
			name = fmt.Sprintf("%s.dp%d", name, rank)
		}
		out[rank] = newReplica(e, name, rank, ranks > 1, e.source(facts, rank), facts)
	}
	return out
}

// source is where a rank's events come from.
func (e *engine) source(facts discovery.Engine, rank int) source {
	s := source{topic: e.cfg.Topic, listen: e.cfg.KVListen, pull: e.cfg.KVPull, replay: e.cfg.KVReplay}
	switch e.cfg.KV {
	case eventsOff:
	case EventsAuto:
		if s.listen == "" && !s.pull && facts.KVEvents.Enabled {
			s.dial = facts.KVEvents.Endpoint
			if s.replay == "" {
				s.replay = facts.KVEvents.ReplayEndpoint
			}
			if s.topic == "" {
				s.topic = facts.KVEvents.Topic
			}
		}
	default:
		s.dial = e.cfg.KV
	}
	for _, endpoint := range []*string{&s.dial, &s.listen, &s.replay} {
		if *endpoint == "" || rank == 0 {
			continue
		}
		at, err := zmq.AtRank(*endpoint, rank)
		if err != nil {
			s.err = fmt.Errorf("rank %d: %w", rank, err)
		}
		*endpoint = at
	}
	return s
}

// put writes a replica's FLEET entry.
func (e *engine) put(ctx context.Context, r *replica) {
	entry := e.entry(r)
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := streams.PutFleet(ctx, e.bridge.js, entry); err != nil && ctx.Err() == nil {
		e.bridge.metrics.failures.WithLabelValues("fleet").Inc()
		slog.Warn("heartbeat was not published", "replica", r.name, "error", err)
	}
}

// entry is what the fleet should know of a replica now.
func (e *engine) entry(r *replica) *pb.FleetEntry {
	status := r.status()
	e.mu.Lock()
	defer e.mu.Unlock()
	epoch := status.Epoch
	entry := &pb.FleetEntry{
		Pool: e.bridge.cfg.Pool, Replica: r.name, Address: e.cfg.Advertise,
		EngineKind: string(e.facts.Kind), EngineVersion: e.facts.Version, Model: e.facts.Model, Loras: e.facts.LoRAs,
		Epoch: epoch[:], BlockTokens: uint32(e.bridge.cfg.BlockTokens), KvEvents: status.Events, KvProblem: status.Problem,
		StartedUs: e.started, HeartbeatUs: time.Now().UnixMicro(), Clock: pb.Clock_CLOCK_WALL, Draining: e.bridge.Draining(),
	}
	if r.ranked {
		rank := uint32(r.rank)
		entry.DataParallelRank = &rank
	}
	for _, m := range e.client.Missing() {
		entry.MissingLoad = append(entry.MissingLoad, m.Figure)
	}
	if blocks := e.capacity(); blocks > 0 {
		entry.Capacities = []*pb.TierCapacity{{Tier: pb.Tier_TIER_GPU, Blocks: blocks}}
	}
	return entry
}

// capacity is the gpu tier in blocks of the pool's size, 0 when unknown.
func (e *engine) capacity() uint64 {
	if e.cfg.Blocks > 0 {
		return e.cfg.Blocks
	}
	return e.facts.GPUBlocks * uint64(e.facts.BlockTokens) / uint64(e.bridge.cfg.BlockTokens)
}

// leave takes the engine's replicas out of the fleet. The bridge's own context
// may be over: leaving is what is left to do.
func (e *engine) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout)
	defer cancel()
	for _, r := range e.all() {
		if err := streams.DeleteFleet(ctx, e.bridge.js, e.bridge.cfg.Pool, r.name); err != nil {
			e.bridge.metrics.failures.WithLabelValues("fleet").Inc()
			slog.Warn("replica was not taken out of the fleet; it expires", "replica", r.name, "error", err)
		}
	}
}
