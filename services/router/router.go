// Package router answers where a pool's requests go. It folds the pool's KV
// stream into a prefix index, keeps the fleet and its load beside it, learns
// from the live decisions of other routers and gateways, and answers over NATS
// (svc.route.<pool>) and HTTP (POST /v1/route).
//
// Every answer is a complete pb.Decided: from it alone the choice can be
// recomputed, and from the KV stream up to its kv_seq the matches can. To keep
// the second true, the index is a function of the stream and of nothing else.
package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"warmpath/routing/policy"
	"warmpath/routing/prefix"
	"warmpath/routing/replica"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/httpserver"
	"warmpath/streams"
	"warmpath/streams/snapshot"
)

// Config is what one router is. Only Pool must be given: New puts the default
// that a field's comment names in place of a zero value.
type Config struct {
	// Pool is the pool whose requests are routed.
	Pool string
	// Name is this instance, as decisions record it. Default: "router".
	Name string
	// Policy decides; Params override its defaults. Default: "ttft".
	Policy string
	Params map[string]float64
	// Seed is mixed into each decision's own seed. Routers of a pool may differ.
	Seed uint64
	// Listen is the HTTP address. Default: 127.0.0.1:0, a free port.
	Listen string
	// Ledger says how long what decisions added to the load is believed. Its zero
	// values are package policy's defaults; DispatchGrace 0 means none.
	Ledger policy.LedgerConfig
	// PredictionTTL is how long a block that a decision is about to create counts
	// as present when nothing confirms or ends it. Default: 2 minutes, longer than
	// the prefill of any prompt takes behind a queue.
	PredictionTTL time.Duration
	// RouteTail is how many of the newest ROUTE messages a starting router reads to
	// learn what is in flight. Default: 20,000, several minutes of a busy pool.
	RouteTail uint64
	// DeadAfter is how old a heartbeat may become before the replica takes nothing
	// new. Default: 15 s, a few heartbeats.
	DeadAfter time.Duration
	// ForgetAfter is how long a replica must be gone before its blocks leave the
	// index. Default: 10 minutes, longer than a rolling restart of one engine.
	ForgetAfter time.Duration
	// IndexBytes is the hard limit of the index's memory. 0: no limit. Over it the
	// deepest blocks go, and recorded matches can only be derived again by an audit
	// with the same limit.
	IndexBytes int64
	// NoSnapshots makes a router that reads snapshots and writes none.
	NoSnapshots bool
	// SnapshotEvery and SnapshotEvents are the time and the KV messages after which
	// the pool's newest snapshot is too old. Default: 5 minutes and 100,000, whose
	// replay takes a starting router a second or two.
	SnapshotEvery  time.Duration
	SnapshotEvents uint64
	// SnapshotKeep is how many are kept. Default: 3, so that two may be damaged.
	SnapshotKeep int
	// SnapshotCheck is how often it is looked whether one is due. Default: 10 s.
	SnapshotCheck time.Duration
	// SnapshotLease is how long a writer that died keeps others from writing.
	// Default: 30 s; a writer at work renews it.
	SnapshotLease time.Duration
	// StartTimeout bounds how long the first look at the streams is retried.
	// Default: 60 s, which outlasts a NATS leader election and a slow start beside it.
	StartTimeout time.Duration
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	if c.Name == "" {
		c.Name = "router"
	}
	if c.Policy == "" {
		c.Policy = "ttft"
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.RouteTail == 0 {
		c.RouteTail = 20_000
	}
	set(&c.PredictionTTL, 2*time.Minute)
	set(&c.DeadAfter, 15*time.Second)
	set(&c.ForgetAfter, 10*time.Minute)
	set(&c.StartTimeout, time.Minute)
	set(&c.SnapshotEvery, 5*time.Minute)
	set(&c.SnapshotCheck, 10*time.Second)
	set(&c.SnapshotLease, 30*time.Second)
	if c.SnapshotEvents == 0 {
		c.SnapshotEvents = 100_000
	}
	if c.SnapshotKeep <= 0 {
		c.SnapshotKeep = 3
	}
	return c
}

// Router routes the requests of one pool. Build it with New, then call Run once.
// Decide, Ready, Address and State are safe for concurrent use.
type Router struct {
	cfg      Config
	policy   *pb.PolicyRef
	nc       *nats.Conn
	js       jetstream.JetStream
	listener net.Listener
	metrics  *metrics
	registry *prometheus.Registry
	now      func() int64 // wall clock, Unix microseconds

	held        atomic.Pointer[prefix.Index] // replaced once, by a snapshot at the start
	predictions *prefix.Predictions

	// fold guards the index's one writer, and what only the fold knows. It is
	// locked before fleet where both are needed.
	fold struct {
		sync.Mutex
		lives map[string]prefix.Epoch // newest life of each replica in the stream
		whole bool                    // the index has seen every message of the stream
	}

	origin    origin
	snapshots *snapshot.Store
	kept      atomic.Pointer[keptSnapshots] // nil until looked at
	refused   map[string]bool               // damaged snapshots, by name: of the start, then of runSnapshots

	follower atomic.Pointer[streams.Follower] // of the KV stream; nil until it runs

	// fleet guards what is known of the replicas. Entries are never modified.
	fleet struct {
		sync.RWMutex
		*replica.Fleet
		gone map[string]int64 // when a replica left, until it is forgotten
		lost map[string]prefix.Epoch
	}

	// decide makes a decision and its effect on the next one a single step.
	decide struct {
		sync.Mutex
		ledger  *policy.Ledger
		turn    uint64
		own     unconfirmed
		sent    sent
		matches []prefix.Match // scratch
	}

	totals struct {
		decisions, refused, micros atomic.Uint64
	}
	applied atomic.Int64 // age of the newest batch when it was applied, microseconds
	away    atomic.Int64 // when the connection to NATS was last seen to be lost
	started atomic.Bool  // every part has caught up with what there was at the start
	ready   chan struct{}
	missing parts
}

// New checks cfg, registers the metrics with reg (nil for a registry of its
// own) and opens the HTTP listener, which Run closes. nc and js stay the
// caller's, and must outlive Run.
func New(cfg Config, nc *nats.Conn, js jetstream.JetStream, reg *prometheus.Registry) (*Router, error) {
	cfg = cfg.withDefaults()
	if err := streams.ValidName(cfg.Pool); err != nil {
		return nil, fmt.Errorf("pool: %w; give --pool", err)
	}
	if err := streams.ValidReplica(cfg.Name); err != nil {
		return nil, fmt.Errorf("name: %w; give --name", err)
	}
	ref, err := policy.Ref(cfg.Policy, cfg.Params)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	r := &Router{
		cfg: cfg, policy: ref, nc: nc, js: js, registry: reg,
		now:         func() int64 { return time.Now().UnixMicro() },
		predictions: prefix.NewPredictions(cfg.PredictionTTL),
		ready:       make(chan struct{}),
		missing:     newParts(),
	}
	r.held.Store(prefix.NewWith(r.indexConfig()))
	r.refused = map[string]bool{}
	r.fold.whole = true
	r.fold.lives = map[string]prefix.Epoch{}
	r.fleet.Fleet = replica.NewFleet(cfg.DeadAfter)
	r.fleet.gone = map[string]int64{}
	r.fleet.lost = map[string]prefix.Epoch{}
	r.decide.ledger = policy.NewLedger(cfg.Ledger)
	r.decide.own = newUnconfirmed(cfg.PredictionTTL)
	r.decide.sent = sent{}
	if js != nil {
		if r.snapshots, err = snapshot.NewStore(js, cfg.Pool); err != nil {
			return nil, err
		}
	}
	if r.metrics, err = newMetrics(reg, r); err != nil {
		return nil, err
	}
	if r.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen on %s: %w; choose another --listen", cfg.Listen, err)
	}
	return r, nil
}

// index is the prefix index. The fold alone changes it.
func (r *Router) index() *prefix.Index { return r.held.Load() }

func (r *Router) indexConfig() prefix.Config { return prefix.Config{MaxBytes: r.cfg.IndexBytes} }

// Address is the base URL of the HTTP side.
func (r *Router) Address() string { return "http://" + r.listener.Addr().String() }

// Ready is closed once the router has caught up with the streams as they were
// when it started, and has joined the queue group of its pool.
func (r *Router) Ready() <-chan struct{} { return r.ready }

// errNotReady says what a starting router still waits for.
var errNotReady = errors.New("the router is starting")

// health is nil once the router answers.
func (r *Router) health() error {
	if r.started.Load() {
		return nil
	}
	waits := r.missing.waits()
	for i, part := range waits {
		if part == partKV {
			waits[i] += r.progress()
		}
	}
	return fmt.Errorf("%w: still reading %s", errNotReady, strings.Join(waits, ", "))
}

// Run folds and answers until ctx ends, then finishes the requests it has and
// returns nil. It returns an error when a part cannot go on.
func (r *Router) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return httpserver.Serve(ctx, r.listener, r.handler()) })
	group.Go(func() error { return ended(ctx, "fold", r.runFold(ctx)) })
	group.Go(func() error { return ended(ctx, "snapshots", r.runSnapshots(ctx)) })
	group.Go(func() error { return ended(ctx, "fleet", r.runFleet(ctx)) })
	group.Go(func() error { return ended(ctx, "load", r.runLoad(ctx)) })
	group.Go(func() error { return ended(ctx, "live", r.runLive(ctx)) })
	group.Go(func() error { return ended(ctx, "sweep", r.runSweep(ctx)) })
	group.Go(func() error { return ended(ctx, "serve", r.runService(ctx)) })
	return group.Wait()
}

// ended makes the end that ctx asked for a clean one.
func ended(ctx context.Context, part string, err error) error {
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("%s: %w", part, err)
}

// sweepEvery is how often leases, predictions and the index's lost replicas are
// looked at: often against leases of seconds, seldom against decisions.
const sweepEvery = time.Second

// runSweep ends what has run out.
func (r *Router) runSweep(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			r.sweep(r.now())
			r.measureHead(ctx)
		}
	}
}

func (r *Router) sweep(now int64) {
	if !r.nc.IsConnected() {
		r.away.Store(now)
	}
	r.decide.Lock()
	leases := r.decide.ledger.Expire(now)
	r.decide.own.expire(now)
	r.decide.sent.expire(now)
	r.decide.Unlock()
	r.metrics.leasesExpired.Add(float64(leases))
	r.metrics.predictionsExpired.Add(float64(r.predictions.Expire(now)))
	for _, name := range r.forgettable(now) {
		r.forget(name)
	}
}

// atStart runs a first look at the streams until it succeeds, since NATS may
// come up after the router, but not for longer than StartTimeout.
func atStart[T any](ctx context.Context, r *Router, what string, look func(context.Context) (T, error)) (T, error) {
	deadline, cancel := context.WithTimeout(ctx, r.cfg.StartTimeout)
	defer cancel()
	for {
		attempt, done := context.WithTimeout(deadline, 5*time.Second)
		value, err := look(attempt)
		done()
		if err == nil {
			return value, nil
		}
		slog.Warn("streams cannot be read yet", "router", r.cfg.Name, "what", what, "error", err)
		select {
		case <-deadline.Done():
			return value, fmt.Errorf("%s: %w; is NATS up, and was `warmpath streams apply` run for pool %s?", what, err, r.cfg.Pool)
		case <-time.After(500 * time.Millisecond):
		}
	}
}
