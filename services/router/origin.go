package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/routing/prefix"
	"warmpath/streams"
	"warmpath/streams/snapshot"
)

// How a router began.
const (
	startSnapshot = "snapshot"
	startReplay   = "replay"
)

// origin is how the index came about. Safe for concurrent use.
type origin struct {
	mu      sync.Mutex
	created time.Time // of the KV stream
	start   Start
}

// Start is what a router began with.
type Start struct {
	// From is "snapshot" or "replay"; empty until it is known.
	From string `json:"from"`
	// Seq, Bytes, Entries and Writer are of the snapshot; RestoreUS is the time it
	// took to find, read and restore it.
	Seq       uint64 `json:"seq,omitempty"`
	Bytes     uint64 `json:"bytes,omitempty"`
	Entries   int    `json:"entries,omitempty"`
	Writer    string `json:"writer,omitempty"`
	RestoreUS int64  `json:"restore_us,omitempty"`
	// Head is the end of the KV stream then: the router is ready when it is there.
	Head uint64 `json:"head"`
}

func (o *origin) see(info *jetstream.StreamInfo) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.created, o.start.Head = info.Created, info.State.LastSeq
}

func (o *origin) began(s Start) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.Head = o.start.Head
	o.start = s
}

func (o *origin) begin() Start {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.start
}

// stream returns when the KV stream was made that the index is folded from.
func (o *origin) stream() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.created
}

// progress says how far a starting router has come.
func (r *Router) progress() string {
	s := r.origin.begin()
	position, _ := r.followed()
	switch {
	case s.From == "" && s.Head == 0:
		return ""
	case s.From == "":
		return " (looking for a snapshot)"
	case s.Head <= s.Seq:
		return ""
	}
	return fmt.Sprintf(" (at %d of %d after a start from %s at %d)", max(position, s.Seq), s.Head, s.From, s.Seq)
}

// restore takes the newest snapshot that can be used and returns the sequence that
// the index stands at, 0 for an empty one. Each that cannot be used is logged and
// counted. When the snapshots cannot be looked at in time, the stream is replayed.
func (r *Router) restore(ctx context.Context, info *jetstream.StreamInfo) (position uint64, err error) {
	began := time.Now()
	if info.State.LastSeq == 0 {
		r.origin.began(Start{From: startReplay})
		return 0, nil
	}
	deadline, cancel := context.WithTimeout(ctx, r.cfg.StartTimeout)
	defer cancel()
	for {
		one, index, err := r.findSnapshot(deadline, info)
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case err == nil && index == nil:
			slog.Info("no snapshot of the index; the kv stream is read from its beginning", "router", r.cfg.Name, "pool", r.cfg.Pool)
			r.origin.began(Start{From: startReplay})
			return 0, nil
		case err == nil:
			r.adopt(one, index, time.Since(began))
			return one.Seq, nil
		case errors.Is(err, streams.ErrNoStream) || deadline.Err() != nil:
			r.metrics.snapshotFailures.WithLabelValues(failureRead).Inc()
			slog.Warn("snapshots cannot be read; the kv stream is read from its beginning", "router", r.cfg.Name, "pool", r.cfg.Pool, "error", err)
			r.origin.began(Start{From: startReplay})
			return 0, nil
		}
		slog.Warn("snapshots cannot be read yet", "router", r.cfg.Name, "pool", r.cfg.Pool, "error", err)
		select {
		case <-deadline.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// findSnapshot returns a nil index when there is no snapshot to use.
func (r *Router) findSnapshot(ctx context.Context, info *jetstream.StreamInfo) (snapshot.Snapshot, *prefix.Index, error) {
	wanted := snapshot.Wanted{Created: info.Created, Head: info.State.LastSeq, Refused: func(one snapshot.Snapshot, e *snapshot.DamageError) {
		r.metrics.snapshotsRefused.WithLabelValues(e.Reason).Inc()
		r.refused[one.Name()] = true
		slog.Error("a snapshot was refused; the next older one is tried", "router", r.cfg.Name, "snapshot", one.Name(), "reason", e.Reason, "error", e)
	}}
	return r.snapshots.Index(ctx, wanted, r.indexConfig())
}

// adopt makes a restored index the router's.
func (r *Router) adopt(one snapshot.Snapshot, index *prefix.Index, took time.Duration) {
	stats := index.Stats()
	r.fold.Lock()
	r.held.Store(index)
	r.fold.whole = one.Whole
	for _, life := range index.Lives() {
		r.fold.lives[life.Replica] = life.Epoch
	}
	r.fleet.Lock()
	for name, epoch := range one.Lost {
		if e, ok := epochOf(epoch); ok {
			r.fleet.lost[name] = e
		}
	}
	r.fleet.Unlock()
	r.fold.Unlock()
	r.origin.began(Start{
		From: startSnapshot, Seq: one.Seq, Bytes: one.Size, Entries: stats.Entries, Writer: one.Writer, RestoreUS: took.Microseconds(),
	})
	slog.Info("the index was restored from a snapshot", "router", r.cfg.Name, "pool", r.cfg.Pool, "snapshot", one.Name(),
		"writer", one.Writer, "entries", stats.Entries, "replicas", stats.Replicas, "bytes", one.Size, "took", took)
}
