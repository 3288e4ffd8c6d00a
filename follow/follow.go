// Package follow lets a gateway written in Go decide in its own process: it keeps
// an index of its own from the pool's streams, as a router does, and answers
// without a network between. It is the router's own code, so decisions are the
// same, and as complete.
//
//	f, err := follow.New(follow.Config{Pool: "chat", Gateway: "edge-1", Publish: true}, nc, js)
//	go f.Run(ctx)
//	<-f.Ready()
//	d, err := f.Decide(ctx, follow.Request{ID: id, TokenIDs: ids})
//	…                               // send the request to d.Address
//	f.Sent(ctx, d)
//	f.Finished(ctx, d, &pb.Finished{Status: pb.Status_STATUS_OK, …})
//
// Every decision counts at once, in this process; Moved and Finished end that.
// With Publish the pool's routers and other followers count it, too, and it can be
// audited. Without, they learn of it only from the engines' load reports.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/router"
	"warmpath/streams"
)

// Config is what one follower is. Pool and Gateway must be given; New puts the
// default that a field's comment names in place of a zero value.
type Config struct {
	// Pool is the pool whose requests are decided.
	Pool string
	// Gateway is the name of the gateway, unique in the pool: decisions are of it,
	// and published on its subject.
	Gateway string
	// Publish lets Sent, Moved and Finished publish on route.<pool>.<gateway>.
	Publish bool
	// Policy decides; Params override its defaults. Default: "ttft".
	Policy string
	Params map[string]float64
	// Seed is mixed into each decision's own seed.
	Seed uint64
	// Tokenizer turns prompts given as text into tokens, the same as in the pool's
	// engines: bytes, engine, or the folder of a model. Default: none, so that
	// requests give token ids or keys.
	Tokenizer string
	// EngineKey is shown to engines that are asked for tokens; empty for none.
	EngineKey string
	// IndexBytes is the hard limit of the index's memory. 0: no limit.
	IndexBytes int64
	// DeadAfter is how old a heartbeat may become before the replica takes nothing
	// new. Default: 15 s.
	DeadAfter time.Duration
	// StartTimeout bounds how long the first look at the streams is retried.
	// Default: 60 s.
	StartTimeout time.Duration
	// Metrics takes the figures, under the names that a router's have. Default: a
	// registry of its own, which nobody reads.
	Metrics *prometheus.Registry
}

// dispatchGrace is how long after a decision a load report may not know of its
// request yet: the way to the engine, as the router's default has it.
const dispatchGrace = 50 * time.Millisecond

// Follower decides where a pool's requests go. Build it with New, then call Run
// once. Everything else is safe for concurrent use.
type Follower struct {
	cfg       Config
	router    *router.Router
	publisher *streams.Publisher // nil when nothing is published
}

// New checks cfg. nc and js stay the caller's, and must outlive Run. Their user
// needs a router's rights to read the streams and, to publish, a gateway's.
func New(cfg Config, nc *nats.Conn, js jetstream.JetStream) (*Follower, error) {
	if err := streams.ValidName(cfg.Gateway); err != nil {
		return nil, fmt.Errorf("gateway: %w; choose another Config.Gateway", err)
	}
	r, err := router.New(router.Config{
		NoService: true, NoSnapshots: true,
		Pool: cfg.Pool, Name: cfg.Gateway, Policy: cfg.Policy, Params: cfg.Params, Seed: cfg.Seed,
		Tokenizer: cfg.Tokenizer, EngineKey: cfg.EngineKey, IndexBytes: cfg.IndexBytes,
		DeadAfter: cfg.DeadAfter, StartTimeout: cfg.StartTimeout,
		Ledger: policy.LedgerConfig{DispatchGrace: dispatchGrace},
	}, nc, js, cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("follow pool %s: %w", cfg.Pool, err)
	}
	f := &Follower{cfg: cfg, router: r}
	if cfg.Publish {
		f.publisher = streams.NewPublisher(js, streams.PublisherConfig{Name: cfg.Gateway})
	}
	return f, nil
}

// flushPatience bounds how long an ending follower waits for what it published.
const flushPatience = 5 * time.Second

// Run follows the streams until ctx ends, then waits a moment for what was
// published to be stored, and returns nil: end it after the last request. It
// returns an error when it cannot go on, such as for a KV stream that was made
// anew; then a new follower is needed, and until it is ready another way to
// decide.
func (f *Follower) Run(ctx context.Context) error {
	err := f.router.Run(ctx)
	if f.publisher == nil {
		return err
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushPatience)
	defer cancel()
	if late := f.publisher.Flush(flush); late != nil {
		slog.Warn("the last events were not confirmed", "gateway", f.cfg.Gateway, "pool", f.cfg.Pool, "error", late)
	}
	return errors.Join(err, f.publisher.Close())
}

// Ready is closed once the follower has caught up with the streams as they were
// when it started. Before, Decide returns ErrNotReady.
func (f *Follower) Ready() <-chan struct{} { return f.router.Ready() }

// State says what the follower knows: where it stands in the KV stream, and each
// replica with its load.
func (f *Follower) State() router.State { return f.router.State() }

// Sent publishes a decision whose request is on its way. Every method that
// publishes does nothing but count in this process unless Config.Publish is set,
// and returns an error when the event was not accepted; ctx bounds the wait for
// room when events are not stored as fast as they come. A message stored once is
// not stored again within the stream's duplicate window, so request ids must not
// be used again within minutes.
func (f *Follower) Sent(ctx context.Context, d *Decision) error {
	return f.publish(ctx, d, "decided", d.Record)
}

// Moved says that a request left its replica before the first byte of an answer,
// because of cause, a short stable word such as dial or timeout. Decide again,
// with the next Attempt and the replica excluded.
func (f *Follower) Moved(ctx context.Context, d *Decision, cause string) error {
	m := &pb.Moved{
		Pool: d.Record.Pool, Gateway: d.Record.Gateway, RequestId: d.Record.RequestId, Attempt: d.Record.Attempt,
		MovedAtUs: time.Now().UnixMicro(), From: d.Replica, Cause: cause,
	}
	f.router.Moved(m)
	return f.publish(ctx, d, "moved", m)
}

// Finished says how a request ended, once, whatever happened. Status is required;
// what the engine reported (prompt, completion and cached tokens) and the times
// are worth giving where they are known: the speed of each replica is learned from
// TtftUs, and E2EUs and Clock go with it. Who, what and when is filled in;
// outcome itself is not changed.
func (f *Follower) Finished(ctx context.Context, d *Decision, outcome *pb.Finished) error {
	done := d.finished(outcome)
	f.router.Finished(done)
	return f.publish(ctx, d, "finished", done)
}
