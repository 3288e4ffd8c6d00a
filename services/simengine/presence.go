package simengine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/engine"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

const (
	// heartbeatEvery is a third of the time after which an entry expires.
	heartbeatEvery = streams.DefaultFleetTTL / 3
	// heartbeatTimeout keeps a heartbeat from outliving the next one.
	heartbeatTimeout = heartbeatEvery
	// loadEvery bounds load reports to 10 a second.
	loadEvery = 100 * time.Millisecond
	// loadHeartbeat is how often an unchanged load is reported again, so that a
	// fresh report can be told from a replica that hangs.
	loadHeartbeat = time.Second
	// loadGiveUp is short: an old report is worth nothing, and a new one follows.
	loadGiveUp = 2 * time.Second
)

// heartbeat keeps the replica's entry in FLEET until ctx ends.
func (s *Server) heartbeat(ctx context.Context) error {
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	for {
		if err := s.putFleet(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("heartbeat was not stored", "error", err)
		}
		select {
		case <-ticker.C:
		case <-s.announce:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Server) askHeartbeat() {
	select {
	case s.announce <- struct{}{}:
	default:
	}
}

func (s *Server) putFleet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	clock := pb.Clock_CLOCK_WALL
	if s.cfg.ModelTime {
		clock = pb.Clock_CLOCK_MODEL
	}
	return streams.PutFleet(ctx, s.js, &pb.FleetEntry{
		Pool: s.cfg.Pool, Replica: s.cfg.Replica, Address: s.address,
		EngineKind: "simengine", EngineVersion: "1", Model: s.cfg.Model,
		Epoch: s.out.current(), BlockTokens: uint32(s.config.BlockTokens),
		Capacities:  []*pb.TierCapacity{{Tier: pb.Tier_TIER_GPU, Blocks: uint64(s.config.Blocks)}},
		Draining:    s.isDraining(),
		KvEvents:    true,
		StartedUs:   s.started.UnixMicro(),
		HeartbeatUs: time.Now().UnixMicro(),

		PrefillTokensPerSecond: s.rates.PrefillTokensPerSecond(),
		Clock:                  clock,
	})
}

// loadPublisher publishes load reports, one at a time.
type loadPublisher struct {
	pool, replica string
	publisher     *streams.Publisher

	mu   sync.Mutex
	last engine.Load
	any  bool // a report was published
}

func newLoadPublisher(js jetstream.JetStream, pool, replica string) *loadPublisher {
	return &loadPublisher{
		pool: pool, replica: replica,
		publisher: streams.NewPublisher(js, streams.PublisherConfig{Name: replica + " load", MaxInFlight: 1, GiveUp: loadGiveUp}),
	}
}

func (p *loadPublisher) close() error {
	// A report in flight is worth nothing to a replica that is gone.
	_ = p.publisher.Close()
	return nil
}

// publishLoad publishes the current load and waits until it is stored; unless
// always, only if it changed.
func (s *Server) publishLoad(ctx context.Context, always bool) error {
	p := s.load
	p.mu.Lock()
	defer p.mu.Unlock()
	s.mu.Lock()
	if s.engine == nil {
		s.mu.Unlock()
		return nil
	}
	now := s.engine.Load()
	s.mu.Unlock()
	if p.any && now == p.last && !always {
		return nil
	}
	running, waiting, queued := uint32(now.Running), uint32(now.Waiting), uint64(now.QueuedPrefillTokens)
	at := time.Now().UnixMicro()
	epoch := s.out.current()
	m, err := streams.NewMessage(streams.LoadSubject(p.pool, p.replica), fmt.Sprintf("%s/%d", p.replica, at), &pb.LoadReport{
		Pool: p.pool, Replica: p.replica, Epoch: epoch, TimeUs: at,
		Running: &running, Waiting: &waiting, QueuedPrefillTokens: &queued, KvUsed: &now.KVUsed,
	})
	if err != nil {
		return err
	}
	if err := p.publisher.Publish(ctx, m); err != nil {
		return err
	}
	if err := p.publisher.Flush(ctx); err != nil {
		return err
	}
	p.last, p.any = now, true
	return nil
}

// reportLoad publishes the load when it changes, and now and then, until ctx ends.
func (s *Server) reportLoad(ctx context.Context) error {
	ticker := time.NewTicker(loadEvery)
	defer ticker.Stop()
	var reported time.Time
	for {
		always := time.Since(reported) >= loadHeartbeat
		if err := s.publishLoad(ctx, always); err != nil && ctx.Err() == nil {
			s.log.Warn("load was not published", "error", err)
		}
		if always {
			reported = time.Now()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
