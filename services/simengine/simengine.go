// Package simengine is a simulated inference engine: the OpenAI API in front of
// the model in package engine, publishing what enters and leaves its KV cache,
// its load, and that it is there.
package simengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"warmpath/engine"
	"warmpath/routing/blockkey"
	"warmpath/services/httpserver"
	"warmpath/streams"
)

// settleGrace bounds what is still published after a stop.
const settleGrace = 5 * time.Second

// Hooks let the owner of a model clock hold it while a request is on its way.
// Every accepted request is followed by exactly one Finished, also when it is
// aborted. A refused one has neither. Hooks are called without any lock held.
type Hooks struct {
	// Accepted is called when a request is in the engine and the clock is armed for
	// it, with the X-Request-Id it came with.
	Accepted func(requestID string)
	// Finished is called when the engine is through with a request, at that instant
	// of the clock and before the clock's callback returns.
	Finished func(requestID string)
}

// Config is what one simulated replica is. Zero values take the default.
type Config struct {
	// Pool and Replica name it on the streams.
	Pool, Replica string
	// Listen is host:port of the API; port 0 is a free one. 127.0.0.1:8000.
	Listen string
	// Advertise is the base URL under which others reach it; from Listen by default.
	Advertise string
	// Model and GPU choose the rates, see engine.Lookup: llama-3-70b, h100. Model is
	// also the name that requests use.
	Model, GPU string
	// Blocks, BlockTokens, MaxBatch and PrefillBudget are engine.Config's.
	Blocks, BlockTokens, MaxBatch, PrefillBudget int
	// MaxModelTokens bounds prompt and output together: 1048576, or less when the
	// cache holds less.
	MaxModelTokens int
	// MaxBodyBytes bounds a request body: 32 MiB hold two million token ids.
	MaxBodyBytes int64
	// Clock is the time the engine lives in; the wall clock by default.
	Clock Clock
	// ModelTime says that Clock is a model clock: times in answers are true to the
	// model only, tokens after the first are not streamed one by one, and load is
	// published by Settle alone.
	ModelTime bool
	// Timing puts the engine's own durations, by Clock, into answers; with ModelTime
	// they are always there.
	Timing bool
	// Hooks follow requests.
	Hooks Hooks
	// Seed varies the text that is generated.
	Seed uint64
	// Drain bounds how long requests may finish after a stop: 20 s by default; a
	// model clock does not go on after a stop, so with ModelTime it is 0.
	Drain time.Duration
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:8000")
	c.Model = cmp.Or(c.Model, "llama-3-70b")
	c.GPU = cmp.Or(c.GPU, "h100")
	c.MaxModelTokens = cmp.Or(c.MaxModelTokens, 1<<20)
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 32<<20)
	if c.Clock == nil {
		c.Clock = NewWallClock(1)
	}
	if c.Drain == 0 && !c.ModelTime {
		c.Drain = 20 * time.Second
	}
	return c
}

// Server is one simulated replica. Its methods are safe for concurrent use.
type Server struct {
	cfg      Config
	config   engine.Config // with its defaults
	context  int           // tokens of prompt and output together, at most
	rates    engine.Rates
	log      *slog.Logger
	js       jetstream.JetStream
	listener net.Listener
	address  string
	started  time.Time
	metrics  *metrics
	registry *prometheus.Registry

	kv   *streams.Publisher
	load *loadPublisher
	out  *outbox

	// mu guards the engine and what belongs to a request in it.
	mu      sync.Mutex
	engine  *engine.Engine
	tickets map[string]*ticket
	next    uint64 // makes engine ids unique
	armed   time.Duration
	disarm  func()

	announce chan struct{} // asks for a heartbeat now
	draining chan struct{} // closed when nothing new is taken
	closing  chan struct{} // closed when what is left is given up
}

// New listens at once, so that Address is known, and prepares a replica with an
// empty cache in a new epoch. Run serves it. reg may be nil.
func New(cfg Config, nc *nats.Conn, js jetstream.JetStream, reg *prometheus.Registry) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := streams.ValidName(cfg.Pool); err != nil {
		return nil, fmt.Errorf("simengine: pool: %w", err)
	}
	if err := streams.ValidReplica(cfg.Replica); err != nil {
		return nil, fmt.Errorf("simengine: replica: %w", err)
	}
	rates, err := engine.Lookup(cfg.Model, cfg.GPU)
	if err != nil {
		return nil, fmt.Errorf("simengine: %w", err)
	}
	model, err := engine.New(engine.Config{
		Rates: rates, Blocks: cfg.Blocks, BlockTokens: cfg.BlockTokens,
		MaxBatch: cfg.MaxBatch, PrefillBudget: cfg.PrefillBudget, EveryToken: !cfg.ModelTime,
	})
	if err != nil {
		return nil, fmt.Errorf("simengine: %w", err)
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("simengine: listen on %s: %w; choose another --listen", cfg.Listen, err)
	}
	s := &Server{
		cfg: cfg, config: model.Config(),
		context: min(cfg.MaxModelTokens, model.Config().Blocks*model.Config().BlockTokens), rates: rates, js: js, listener: listener,
		log:      slog.With("pool", cfg.Pool, "replica", cfg.Replica),
		address:  cmp.Or(cfg.Advertise, baseURL(listener.Addr())),
		started:  time.Now(),
		engine:   model,
		tickets:  map[string]*ticket{},
		announce: make(chan struct{}, 1),
		draining: make(chan struct{}),
		closing:  make(chan struct{}),
	}
	s.registry = reg
	if reg == nil {
		s.registry = prometheus.NewRegistry()
	}
	s.out = newOutbox(cfg.Pool, cfg.Replica, uint32(s.config.BlockTokens))
	s.metrics = newMetrics(s)
	if err := s.registry.Register(s.metrics); err != nil {
		return nil, errors.Join(fmt.Errorf("simengine: register metrics: %w; give every replica a registry", err), listener.Close())
	}
	s.kv = streams.NewPublisher(js, streams.PublisherConfig{Name: cfg.Replica, OnGap: s.out.gap})
	s.load = newLoadPublisher(js, cfg.Pool, cfg.Replica)
	return s, nil
}

// baseURL is how this machine is reached at a listener's address.
func baseURL(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return "http://" + addr.String()
	}
	host, err := os.Hostname()
	if err != nil {
		host = "127.0.0.1"
	}
	return fmt.Sprintf("http://%s", net.JoinHostPort(host, fmt.Sprint(tcp.Port)))
}

// Address is the base URL of the API, without a trailing slash.
func (s *Server) Address() string { return s.address }

// Run serves until ctx ends. Then it takes nothing new and says so in FLEET, lets
// requests finish, publishes what is left, removes its entry and returns nil. It
// must be called once.
func (s *Server) Run(ctx context.Context) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	tasks, background := errgroup.WithContext(background)
	tasks.Go(func() error { return s.publish(background) })
	tasks.Go(func() error { return s.heartbeat(background) })
	if !s.cfg.ModelTime {
		tasks.Go(func() error { return s.reportLoad(background) })
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	served := make(chan error, 1)
	go func() { served <- httpserver.Serve(serving, s.listener, s.handler()) }()
	s.log.Info("replica serves", "address", s.address, "model", s.cfg.Model, "gpu", s.cfg.GPU,
		"blocks", s.config.Blocks, "block_tokens", s.config.BlockTokens)

	var err error
	select {
	case err = <-served:
		close(s.draining)
		close(s.closing)
	case <-ctx.Done():
		s.drain()
		stopServing()
		err = <-served
	}
	return errors.Join(err, s.finish(stop, tasks))
}

// drain announces the stop and waits for requests to finish, for as long as
// Config.Drain allows; then it gives up the rest.
func (s *Server) drain() {
	close(s.draining)
	s.askHeartbeat()
	deadline := time.NewTimer(s.cfg.Drain)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for s.open() > 0 {
		select {
		case <-deadline.C:
			s.log.Warn("requests did not finish in time and are given up", "requests", s.open())
			close(s.closing)
			return
		case <-poll.C:
		}
	}
	close(s.closing)
}

// finish publishes what is left and ends the background tasks.
func (s *Server) finish(stop func(), tasks *errgroup.Group) error {
	s.mu.Lock()
	if s.disarm != nil {
		s.disarm()
	}
	s.disarm, s.engine = nil, nil // a late callback of the clock finds nothing to do
	s.mu.Unlock()
	grace, cancel := context.WithTimeout(context.Background(), settleGrace)
	defer cancel()
	err := s.settleKV(grace)
	stop()
	err = errors.Join(err, tasks.Wait())
	if gone := streams.DeleteFleet(grace, s.js, s.cfg.Pool, s.cfg.Replica); gone != nil {
		err = errors.Join(err, fmt.Errorf("delete fleet entry: %w", gone))
	}
	return errors.Join(err, s.kv.Close(), s.load.close())
}

// Settle waits until every change of the cache so far is acknowledged by its
// stream, and the current load is published if it differs from the last report.
func (s *Server) Settle(ctx context.Context) error {
	if err := s.settleKV(ctx); err != nil {
		return err
	}
	if err := s.publishLoad(ctx, false); err != nil {
		return fmt.Errorf("settle load of %s: %w", s.cfg.Replica, err)
	}
	return nil
}

func (s *Server) settleKV(ctx context.Context) error {
	for {
		if err := s.out.wait(ctx); err != nil {
			return fmt.Errorf("settle kv of %s: %w", s.cfg.Replica, err)
		}
		if err := s.kv.Flush(ctx); err != nil {
			return fmt.Errorf("settle kv of %s: %w", s.cfg.Replica, err)
		}
		// A gap reported by the flush has started a new epoch, which is to be published.
		if s.out.idle() {
			return nil
		}
	}
}

func (s *Server) handler() http.Handler {
	mux := httpserver.Mux(s.registry, s.ready)
	s.routes(mux)
	return mux
}

// ready is an error while the replica drains.
func (s *Server) ready() error {
	if s.isDraining() {
		return errDraining
	}
	return nil
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// root is the key before a prompt's first block.
func (s *Server) root(salt string) blockkey.Key { return blockkey.Root(s.cfg.Model, "", salt) }
