// Package bridge stands beside engines and turns what they already publish into
// streams: KV events into KV, load into LOAD, presence into FLEET. The engines
// are not changed.
//
// A frame's way: zmq (or polling) brings it, feed puts frames in order and finds
// what is missing, kvevents decodes, mirror knows what the replica holds and
// names its blocks by key, outbox publishes. What the index holds for a replica
// is what the engine holds, or the replica is in doubt and says why.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"warmpath/services/bridge/zmq"
	"warmpath/services/httpserver"
	"warmpath/streams"
)

const (
	// heartbeat is a third of the FLEET entry's life, so that two may get lost.
	heartbeat = streams.DefaultFleetTTL / 3
	// absentEvery is how often an engine that does not answer is asked: requests wait
	// for it.
	absentEvery = time.Second
	// loadHeartbeat is how long an unchanged load stays unsaid: well below the age
	// at which routers stop believing it.
	loadHeartbeat = 2 * time.Second
	// engineTimeout bounds each question to the engine; it is on the same host.
	engineTimeout = 2 * time.Second
	// publishTimeout bounds each message; the next one is due soon after.
	publishTimeout = 5 * time.Second
	// drainPoll is how often a draining engine is asked whether it is done.
	drainPoll = 200 * time.Millisecond
)

// Bridge bridges the engines of one pool. Build it with New, then call Run once;
// the rest is safe for concurrent use.
type Bridge struct {
	cfg     Config
	js      jetstream.JetStream
	reg     *prometheus.Registry
	metrics *metrics
	capture *zmq.CaptureWriter
	engines []*engine

	mu       sync.Mutex
	draining bool
}

// New checks the configuration. The error names the flag that is wrong.
func New(cfg Config, js jetstream.JetStream, reg *prometheus.Registry) (*Bridge, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	b := &Bridge{cfg: cfg, js: js, reg: reg}
	b.metrics = newMetrics(reg, b)
	for _, e := range cfg.Engines {
		b.engines = append(b.engines, newEngine(b, e))
	}
	return b, nil
}

// Run publishes until ctx ends; then it says that the replicas are draining,
// waits until the engines have finished what they have or DrainTimeout is over,
// and takes them out of the fleet.
func (b *Bridge) Run(ctx context.Context) error {
	// What runs outlives ctx until the engines are drained.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		select {
		case <-ctx.Done():
			b.Drain()
			b.awaitDrained(work)
			stop()
		case <-work.Done():
		}
	}()
	err := b.work(work)
	b.leave() // after the last heartbeat
	return err
}

// work does everything until ctx ends.
func (b *Bridge) work(ctx context.Context) (err error) {
	if b.cfg.Record != "" {
		if b.capture, err = zmq.CreateCapture(b.cfg.Record, b.cfg.RecordBytes); err != nil {
			return fmt.Errorf("--record: %w", err)
		}
		defer func() {
			if n := b.capture.Dropped(); n > 0 {
				slog.Warn("the record is not whole; raise --record-bytes if it was full", "record", b.cfg.Record, "left_out", n)
			}
			err = errors.Join(err, b.capture.Close())
		}()
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range b.engines {
		group.Go(func() error { return e.run(ctx) })
	}
	for _, l := range b.listeners() {
		group.Go(func() error { return l.run(ctx) })
	}
	group.Go(func() error { return httpserver.Run(ctx, b.cfg.Listen, b.handler()) })
	return group.Wait()
}

// Drain says that the replicas take nothing new.
func (b *Bridge) Drain() {
	b.mu.Lock()
	already := b.draining
	b.draining = true
	b.mu.Unlock()
	if already {
		return
	}
	slog.Info("draining", "pool", b.cfg.Pool, "engines", len(b.engines))
	for _, e := range b.engines {
		e.announce()
	}
}

// Resume takes Drain back.
func (b *Bridge) Resume() {
	b.mu.Lock()
	was := b.draining
	b.draining = false
	b.mu.Unlock()
	if !was {
		return
	}
	slog.Info("taking requests again", "pool", b.cfg.Pool, "engines", len(b.engines))
	for _, e := range b.engines {
		e.announce()
	}
}

// Draining says whether the replicas are draining.
func (b *Bridge) Draining() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.draining
}

// awaitDrained waits until no engine has requests, or the timeout.
func (b *Bridge) awaitDrained(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.DrainTimeout)
	defer cancel()
	for _, e := range b.engines {
		for ctx.Err() == nil && e.busy(ctx) {
			select {
			case <-ctx.Done():
			case <-time.After(drainPoll):
			}
		}
	}
}

// leave takes every replica out of the fleet at once, instead of by expiry.
func (b *Bridge) leave() {
	for _, e := range b.engines {
		e.leave()
	}
}

// handler serves health, metrics, state, and draining on request.
func (b *Bridge) handler() http.Handler {
	mux := httpserver.Mux(b.reg, b.healthy)
	mux.HandleFunc("GET /v1/state", b.serveState)
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, _ *http.Request) {
		b.Drain()
		fmt.Fprintln(w, "draining; POST /resume takes it back")
	})
	mux.HandleFunc("POST /resume", func(w http.ResponseWriter, _ *http.Request) {
		b.Resume()
		fmt.Fprintln(w, "taking requests")
	})
	return mux
}

// healthy is nil while every engine answers.
func (b *Bridge) healthy() error {
	var errs []error
	for _, e := range b.engines {
		if err := e.err(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
