// Package gateway serves the OpenAI API in front of a pool of replicas. Each
// request is tokenized, the router is asked where it goes, and the answer is
// streamed through as it comes. What was decided and how it ended is published
// on ROUTE: Decided before a request is forwarded, Moved when a replica failed
// before its first byte, and exactly one Finished, before the client sees the
// end. When the router is not heard in its budget, the gateway decides by
// itself and says so.
//
// A request passes, in this order: its key (authorize.go) and the key's limits,
// a place among those served (admission.go), its body and tokens (request.go,
// tokens.go), and then for each attempt the decision (decide.go) and the engine
// (dispatch.go, upstream.go), with what is known of the replicas' health
// (health.go).
package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"warmpath/services/gateway/apikey"
	"warmpath/services/gateway/mismatch"
	"warmpath/services/tokensource"
	"warmpath/streams"
)

const (
	// flushTimeout bounds the wait at a stop for events to be acknowledged.
	flushTimeout = 15 * time.Second
	// cutGrace is how long requests may take to record that they were cut off.
	cutGrace = 5 * time.Second
)

// Gateway is one gateway of a pool. Its methods are safe for concurrent use;
// Run is called once.
type Gateway struct {
	cfg      Config
	nc       *nats.Conn
	js       jetstream.JetStream
	log      *slog.Logger
	listener net.Listener
	handler  http.Handler
	metrics  *metrics

	publisher *streams.Publisher
	blocked   atomic.Bool // the publisher was full when last used
	view      *view
	liveFrom  uint64 // owned by followLive
	router    *routerClient
	upstream  *http.Transport

	certificate *certificate  // nil without TLS
	keys        *apikey.Store // nil when everyone may use the gateway
	source      TokenSource
	mismatch    *mismatch.Detector
	probing     atomic.Bool // a comparison with an engine's tokenizer is under way
	probes      sync.WaitGroup
	tracer      *tracer // nil when no spans are exported
	health      *health
	admission   *admission
	life        string // differs between the lives of all gateways
	serial      atomic.Uint64
	recent      recentIDs
	bodies      atomic.Int64
	active      atomic.Int64 // requests whose handler runs
	draining    atomic.Bool
}

// New checks the configuration and opens the listener; nothing is served before
// Run. The metrics go to reg, which also serves /metrics. nc and js stay the
// caller's. A gateway that is never run must be closed with Close.
func New(cfg Config, nc *nats.Conn, js jetstream.JetStream, reg *prometheus.Registry) (*Gateway, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	g := &Gateway{
		cfg: cfg, nc: nc, js: js,
		log:       slog.Default().With("service", "gateway", "name", cfg.Name),
		view:      newView(func() int64 { return time.Now().UnixMicro() }),
		upstream:  newTransport(cfg),
		admission: newAdmission(cfg),
		life:      strings.ToLower(rand.Text()[:8]) + "-",
	}
	if cfg.Keys != "" {
		if g.keys, err = apikey.Open(cfg.Keys); err != nil {
			return nil, err
		}
	}
	if cfg.TLSCert != "" {
		if g.certificate, err = loadCertificate(cfg.TLSCert, cfg.TLSKey); err != nil {
			return nil, err
		}
	}
	if g.tracer, err = newTracer(cfg); err != nil {
		return nil, err
	}
	if g.source, err = g.newSource(reg); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	g.mismatch = mismatch.New(mismatch.Config{Pool: cfg.Pool, Gateway: cfg.Name, WithoutEvents: cfg.WithoutEvents})
	g.health = newHealth(cfg, g.healthChanged)
	g.publisher = streams.NewPublisher(js, streams.PublisherConfig{Name: cfg.Name, OnGap: g.gap})
	g.metrics = newMetrics(reg, g)
	g.router = newRouterClient(cmp.Or(cfg.Requests, nc), cfg.Pool, cfg.RouterBudget, g.circuitChanged)
	g.handler = g.routes(reg)
	if g.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w; choose another --listen", cfg.Listen, err), g.Close())
	}
	return g, nil
}

// Address is the base URL of the API.
func (g *Gateway) Address() string {
	if g.certificate != nil {
		return "https://" + g.listener.Addr().String()
	}
	return "http://" + g.listener.Addr().String()
}

// InFlight is how many requests a replica has from all gateways of the pool, as
// far as this one knows.
func (g *Gateway) InFlight(replica string) int { return int(g.view.inFlight(replica)) }

// Close releases what New took. Run does it by itself.
func (g *Gateway) Close() error {
	if g.listener != nil {
		_ = g.listener.Close() // closed already when it served
	}
	g.router.close()
	g.upstream.CloseIdleConnections()
	g.probes.Wait()
	if source, ok := g.source.(*tokensource.Source); ok && source != nil {
		source.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return errors.Join(g.publisher.Close(), g.tracer.close(ctx))
}

// Run serves until ctx ends. Then it takes no new requests, lets those in flight
// finish within the drain timeout, waits until their events are acknowledged,
// and returns nil.
func (g *Gateway) Run(ctx context.Context) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group errgroup.Group
	follows := map[string]func(context.Context) error{
		"fleet": g.followFleet, "load": g.followLoad, "live decisions": g.followLive, "sweep": g.sweep,
	}
	if g.keys != nil {
		follows["keys"] = g.watchKeys
	}
	for what, follow := range follows {
		group.Go(func() error { return keep(life, what, follow) })
	}
	requests, cut := context.WithCancelCause(life)
	defer cut(nil)
	server := &http.Server{
		Handler:           g.handler,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	serve := func() error { return server.Serve(g.listener) }
	if g.certificate != nil {
		server.TLSConfig = &tls.Config{GetCertificate: g.certificate.get, MinVersion: tls.VersionTLS12}
		serve = func() error { return server.ServeTLS(g.listener, "", "") }
	}
	go func() { served <- serve() }()
	if g.keys == nil && !isLoopback(g.listener.Addr()) {
		g.log.Warn("the gateway can be reached from other machines, and everyone may use it; give --keys", "address", g.Address())
	}
	g.log.Info("serving", "pool", g.cfg.Pool, "address", g.Address(), "tokenizer", g.cfg.Tokenizer, "clock", g.cfg.Clock)

	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("serve %s: %w", g.cfg.Listen, err)
	}
	g.drain(server, cut)
	err = errors.Join(err, g.flush())
	stop()
	return errors.Join(err, group.Wait(), g.Close())
}

// drain stops taking requests and waits for those in flight. After the drain
// timeout they are cut off, and record that.
func (g *Gateway) drain(server *http.Server, cut context.CancelCauseFunc) {
	g.draining.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), g.cfg.DrainTimeout)
	defer cancel()
	err := server.Shutdown(ctx)
	if err == nil {
		return
	}
	g.log.Warn("requests did not finish in the drain timeout, and are cut off", "timeout", g.cfg.DrainTimeout)
	cut(errStopped)
	for end := time.Now().Add(cutGrace); g.active.Load() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			g.log.Error("requests did not end after they were cut off", "requests", g.active.Load())
			break
		}
	}
	_ = server.Close() // what is left are connections without a request
}

// flush waits until every event is acknowledged or given up.
func (g *Gateway) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := g.publisher.Flush(ctx); err != nil {
		return fmt.Errorf("publish the last events: %w; decisions or outcomes may be missing from stream %s", err, streams.RouteStream)
	}
	return nil
}

// gap is told of events that the publisher gave up.
func (g *Gateway) gap(first, last streams.Message) {
	g.metrics.gaps.Inc()
	g.log.Error("events were lost: the stream did not take them in time", "first", first.ID, "last", last.ID)
}

func (g *Gateway) circuitChanged(open bool) {
	if open {
		g.metrics.circuit.Set(1)
		g.log.Warn("the router does not answer in its budget; requests do not wait for it until it does", "budget", g.cfg.RouterBudget)
		return
	}
	g.metrics.circuit.Set(0)
	g.log.Info("the router answers again")
}

func (g *Gateway) healthChanged(replica string, skipped bool) {
	if skipped {
		g.metrics.skips.WithLabelValues(replica).Inc()
		g.log.Warn("a replica failed several times in a row, and is skipped for a while", "replica", replica)
		return
	}
	g.log.Info("a replica is tried again", "replica", replica)
}

// ready is nil while requests can be served.
func (g *Gateway) ready() error {
	if g.draining.Load() {
		return errors.New("the gateway is stopping")
	}
	if len(g.view.Live()) == 0 {
		return fmt.Errorf("no replica of pool %s is known yet", g.cfg.Pool)
	}
	return nil
}
