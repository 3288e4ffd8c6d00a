// Package bridge stands beside one engine and publishes what is known of it:
// that it is there, and its load. The engine is not changed. KV events are not
// bridged yet, so the router predicts the engine's cache from its own decisions.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/httpserver"
	"warmpath/streams"
)

const (
	// heartbeat is a third of the FLEET entry's life, so that two may get lost.
	heartbeat = streams.DefaultFleetTTL / 3
	// loadHeartbeat is how long an unchanged load stays unsaid: well below the age
	// at which routers stop believing it.
	loadHeartbeat = 2 * time.Second
	// engineTimeout bounds each question to the engine; it is on the same host.
	engineTimeout = 2 * time.Second
	// publishTimeout bounds each message; the next one is due soon after.
	publishTimeout = 5 * time.Second
)

// Config says which engine, and how the fleet knows it.
type Config struct {
	Pool, Replica string
	// Engine is the base URL at which this bridge reaches the engine, Advertise
	// the one at which gateways do; the same when empty.
	Engine, Advertise string
	// Model as the engine serves it; asked from the engine when empty.
	Model string
	// BlockTokens is the pool's block size.
	BlockTokens int
	// Blocks is the capacity of the engine's KV cache; 0 when unknown.
	Blocks uint64
	// LoadEvery is how often the load is looked at; it is published on change.
	LoadEvery time.Duration
	Listen    string
}

// Bridge is one engine's bridge.
type Bridge struct {
	cfg     Config
	js      jetstream.JetStream
	client  *http.Client
	metrics *metrics
	reg     *prometheus.Registry
	// entry is written by the heartbeat's goroutine only.
	entry *pb.FleetEntry
	state state
}

// New checks the configuration. The error names the flag that is wrong.
func New(cfg Config, js jetstream.JetStream, reg *prometheus.Registry) (*Bridge, error) {
	if err := streams.ValidName(cfg.Pool); err != nil {
		return nil, fmt.Errorf("--pool: %w", err)
	}
	if err := streams.ValidReplica(cfg.Replica); err != nil {
		return nil, fmt.Errorf("--replica: %w", err)
	}
	if cfg.BlockTokens <= 0 {
		return nil, fmt.Errorf("--block-tokens is %d; give the pool's block size, such as 16", cfg.BlockTokens)
	}
	if cfg.LoadEvery < 100*time.Millisecond {
		return nil, fmt.Errorf("--load-every is %v; give 100ms or more", cfg.LoadEvery)
	}
	var err error
	if cfg.Engine, err = baseURL("--engine", cfg.Engine); err != nil {
		return nil, err
	}
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.Engine
	}
	if cfg.Advertise, err = baseURL("--advertise", cfg.Advertise); err != nil {
		return nil, err
	}
	b := &Bridge{cfg: cfg, js: js, client: &http.Client{Timeout: engineTimeout}, metrics: newMetrics(reg), reg: reg}
	b.state.set(nil, errors.New("the engine was not asked yet"))
	return b, nil
}

// baseURL checks a URL that a flag names, and drops its trailing slash.
func baseURL(flag, value string) (string, error) {
	value = strings.TrimRight(value, "/")
	if u, err := url.Parse(value); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", fmt.Errorf("%s is %q; give the engine's base URL, such as http://127.0.0.1:8000", flag, value)
	}
	return value, nil
}

// Run publishes until ctx ends, and then takes the replica out of the fleet.
func (b *Bridge) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return httpserver.Run(ctx, b.cfg.Listen, httpserver.Mux(b.reg, b.state.err)) })
	group.Go(func() error { b.present(ctx); return nil })
	group.Go(func() error { b.report(ctx); return nil })
	return group.Wait()
}

// present keeps the fleet entry for as long as the engine answers.
func (b *Bridge) present(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		b.beat(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.leave()
			return
		}
	}
}

// beat asks the engine and publishes that it is there. An engine that does not
// answer is left to expire; when it is back, its cache is taken for a new one.
func (b *Bridge) beat(ctx context.Context) {
	model, err := b.ask(ctx)
	if err != nil {
		b.state.set(nil, err)
		b.metrics.up.Set(0)
		if b.entry != nil {
			slog.Warn("engine does not answer; it leaves the fleet", "engine", b.cfg.Engine, "error", err)
			b.leave()
		}
		return
	}
	now := time.Now().UnixMicro()
	if b.entry == nil {
		epoch, err := uuid.NewV7()
		if err != nil {
			b.state.set(nil, err)
			return
		}
		b.entry = &pb.FleetEntry{
			Pool: b.cfg.Pool, Replica: b.cfg.Replica, Address: b.cfg.Advertise, EngineKind: "openai", Epoch: epoch[:],
			BlockTokens: uint32(b.cfg.BlockTokens), StartedUs: now, Clock: pb.Clock_CLOCK_WALL,
		}
		if b.cfg.Blocks > 0 {
			b.entry.Capacities = []*pb.TierCapacity{{Tier: pb.Tier_TIER_GPU, Blocks: b.cfg.Blocks}}
		}
		slog.Info("engine is in the fleet", "pool", b.cfg.Pool, "replica", b.cfg.Replica, "engine", b.cfg.Engine, "model", model)
	}
	b.entry.Model, b.entry.HeartbeatUs = model, now
	b.metrics.up.Set(1)
	b.state.set(b.entry.Epoch, nil)
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := streams.PutFleet(ctx, b.js, b.entry); err != nil && ctx.Err() == nil {
		b.metrics.failures.WithLabelValues("fleet").Inc()
		slog.Warn("heartbeat was not published", "error", err)
	}
}

// leave takes the replica out of the fleet at once, instead of by expiry.
func (b *Bridge) leave() {
	if b.entry == nil {
		return
	}
	b.entry = nil
	// The bridge's own context may be over: leaving is what is left to do.
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout)
	defer cancel()
	if err := streams.DeleteFleet(ctx, b.js, b.cfg.Pool, b.cfg.Replica); err != nil {
		b.metrics.failures.WithLabelValues("fleet").Inc()
		slog.Warn("replica was not taken out of the fleet; it expires", "error", err)
	}
}

// report publishes the load whenever it changed.
func (b *Bridge) report(ctx context.Context) {
	tick := time.NewTicker(b.cfg.LoadEvery)
	defer tick.Stop()
	var last *pb.LoadReport
	var published time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		epoch := b.state.epoch()
		if epoch == nil {
			last = nil
			continue
		}
		report, err := b.scrape(ctx)
		if err != nil {
			b.metrics.failures.WithLabelValues("scrape").Inc()
			continue
		}
		report.Pool, report.Replica, report.Epoch = b.cfg.Pool, b.cfg.Replica, epoch
		if last != nil && proto.Equal(report, last) && time.Since(published) < loadHeartbeat {
			continue
		}
		published = time.Now()
		last = proto.Clone(report).(*pb.LoadReport)
		report.TimeUs = time.Now().UnixMicro()
		b.publishLoad(ctx, report)
	}
}

func (b *Bridge) publishLoad(ctx context.Context, report *pb.LoadReport) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := streams.PutLoad(ctx, b.js, report); err != nil && ctx.Err() == nil {
		b.metrics.failures.WithLabelValues("load").Inc()
		slog.Warn("load was not published", "error", err)
		return
	}
	b.metrics.reports.Inc()
}
