// Package router answers where a pool's requests go. It folds the pool's KV
// stream into a prefix index, keeps the fleet and its load beside it, learns
// from the live decisions of other routers and gateways, and answers over NATS
// (svc.route.<pool>) and HTTP (POST /v1/route).
//
// A request (pb.RouteRequest) gives its prompt in one of these forms:
//
//   - keys: the keys of all its full blocks, and prompt_tokens, its length;
//   - token_ids;
//   - prompt: a completion's text;
//   - chat: the JSON body of a chat completion request, as the client sent it.
//     Its model, cache_salt and user are taken where the request has no model, salt
//     and session_id;
//   - prompt_tokens alone: nothing of it is known, and it is decided by load.
//
// A model that is none of the pool's, but listed by the fleet as an adapter, is
// taken as one. Text and chat need the pool's tokenizer, --tokenizer. Over HTTP a
// request is protobuf's JSON form, in which chat may also be the object itself.
// Over NATS it is protobuf, or JSON when it begins with a brace or its header
// Content-Type says application/json; then the answer is JSON, too. Either way the
// header Accept: application/x-protobuf makes the answer protobuf, whose decision
// can be published as it is.
//
// Every answer is a complete pb.Decided: from it alone the choice can be
// recomputed, and from the KV stream up to its kv_seq the matches can. To keep
// the second true, the index is a function of the stream and of nothing else.
// Whoever asks sends the request to the address of the answer and publishes the
// decision, and how it went, on route.<pool>.<gateway>; with dry_run it does
// neither, and the decision counts for nothing.
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

// Router routes the requests of one pool. Build it with New, then call Run once.
// Decide, Ready, Address and State are safe for concurrent use.
type Router struct {
	cfg      Config
	policy   *pb.PolicyRef
	nc       *nats.Conn
	js       jetstream.JetStream
	listener net.Listener // nil without service
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

	texts     texts
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
	if cfg.Requests == nil {
		cfg.Requests = nc
	}
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
	if r.texts, err = r.newTexts(reg); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if cfg.NoService {
		return r, nil
	}
	if r.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen on %s: %w; choose another --listen", cfg.Listen, err)
	}
	return r, nil
}

// index is the prefix index. The fold alone changes it.
func (r *Router) index() *prefix.Index { return r.held.Load() }

func (r *Router) indexConfig() prefix.Config { return prefix.Config{MaxBytes: r.cfg.IndexBytes} }

// Address is the base URL of the HTTP side; empty when there is none.
func (r *Router) Address() string {
	if r.listener == nil {
		return ""
	}
	return "http://" + r.listener.Addr().String()
}

// Ready is closed once the router has caught up with the streams as they were
// when it started, and has joined the queue group of its pool unless it has no
// service.
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
	defer r.texts.close()
	group, ctx := errgroup.WithContext(ctx)
	if r.cfg.NoService {
		group.Go(func() error { return r.runAlone(ctx) })
	} else {
		group.Go(func() error { return httpserver.Serve(ctx, r.listener, r.handler()) })
		group.Go(func() error { return ended(ctx, "serve", r.runService(ctx)) })
	}
	group.Go(func() error { return ended(ctx, "fold", r.runFold(ctx)) })
	group.Go(func() error { return ended(ctx, "snapshots", r.runSnapshots(ctx)) })
	group.Go(func() error { return ended(ctx, "fleet", r.runFleet(ctx)) })
	group.Go(func() error { return ended(ctx, "load", r.runLoad(ctx)) })
	group.Go(func() error { return ended(ctx, "live", r.runLive(ctx)) })
	group.Go(func() error { return ended(ctx, "sweep", r.runSweep(ctx)) })
	return group.Wait()
}

// begin lets decisions be taken, when every part has caught up.
func (r *Router) begin() {
	r.sweep(r.now()) // what the tail of ROUTE left open longer than its lease
	r.started.Store(true)
}

// runAlone is what a router without service does in place of runService.
func (r *Router) runAlone(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.missing.all():
	}
	r.begin()
	slog.Info("router is ready, for its own process", "router", r.cfg.Name, "pool", r.cfg.Pool, "policy", r.policy.Name, "kv_seq", r.index().Position())
	close(r.ready)
	<-ctx.Done()
	r.started.Store(false)
	return nil
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
