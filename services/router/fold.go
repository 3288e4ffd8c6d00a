package router

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// idleLook is how long the KV stream is silent before a starting router looks
// whether anything is left to read at all.
const idleLook = 250 * time.Millisecond

// runFold folds the pool's KV stream into the index: from the newest snapshot that
// can be used, or from its first message.
func (r *Router) runFold(ctx context.Context) error {
	stream := streams.KVStream(r.cfg.Pool)
	info, err := atStart(ctx, r, "head of "+stream, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		s, err := r.js.Stream(ctx, stream)
		if err != nil {
			return nil, err
		}
		return s.CachedInfo(), nil
	})
	if err != nil {
		return err
	}
	head := info.State.LastSeq
	r.origin.see(info)
	position, err := r.restore(ctx, info)
	if err != nil {
		return err
	}
	if position >= head {
		r.missing.caughtUp(partKV)
	}
	follower := streams.NewFollower(r.js, streams.FollowConfig{
		Stream: stream,
		From:   position + 1,
		OnHole: r.foldHole,
		Idle:   idleLook,
		OnIdle: func() error { return r.foldIdle(ctx, stream, head) },
	})
	r.follower.Store(follower)
	return follower.Run(ctx, func(e streams.Event) error {
		r.foldEvent(e)
		if e.Seq >= head {
			r.missing.caughtUp(partKV)
		}
		return nil
	})
}

// foldIdle notices that nothing is left below head: the stream's last messages
// may have been deleted one by one, and then none of them arrives.
func (r *Router) foldIdle(ctx context.Context, stream string, head uint64) error {
	if r.started.Load() {
		return nil
	}
	position := r.follower.Load().Position()
	if position < head {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		s, err := r.js.Stream(ctx, stream)
		if err != nil {
			return nil // the follower meets a lost stream itself, and says so
		}
		info, err := s.Info(ctx, jetstream.WithDeletedDetails(true))
		if err != nil {
			return nil
		}
		deleted := info.State.Deleted
		for seq := position + 1; seq <= head; seq++ {
			if !slices.Contains(deleted, seq) {
				return nil
			}
		}
	}
	r.missing.caughtUp(partKV)
	return nil
}

// foldHole takes note of messages that the stream no longer holds. Whose they were
// is not known, so every replica may have changed unseen.
func (r *Router) foldHole(from, to uint64) {
	r.metrics.holes.Add(float64(to - from + 1))
	r.fold.Lock()
	r.fold.whole = false
	suspected := r.index().SuspectAll()
	r.fold.Unlock()
	slog.Warn("kv stream has a hole; every replica known so far is suspect until its next epoch",
		"router", r.cfg.Name, "pool", r.cfg.Pool, "from", from, "to", to, "replicas", suspected)
}

// foldEvent applies one message. One that cannot be used is counted and left
// out, which the replica's next batch shows as a gap; an audit leaves out the
// same ones.
func (r *Router) foldEvent(e streams.Event) {
	batch, step, err := streams.KVBatch(e)
	if err != nil {
		r.foldInvalid(e, err)
		return
	}
	r.fold.Lock()
	applied := r.index().Apply(step)
	if epoch, ok := epochOf(batch.Epoch); ok && !applied.Stale {
		r.fold.lives[batch.Replica] = epoch
	}
	r.fold.Unlock()
	if applied.NewEpoch {
		r.began(batch)
	}

	age := max(0, r.now()-batch.EventTimeUs)
	r.applied.Store(age)
	if r.started.Load() { // how old the history is says nothing of the way here
		r.metrics.batchAge.Observe(float64(age) / 1e6)
	}
	r.foldNotes(batch, applied)
}

// foldNotes tells people and metrics what an applied batch meant.
func (r *Router) foldNotes(batch *pb.KVBatch, applied prefix.Applied) {
	if applied.Gap > 0 {
		r.metrics.missingBatches.Add(float64(applied.Gap))
		slog.Warn("a replica's events have a gap; its matches are suspect until they come or its next epoch",
			"router", r.cfg.Name, "replica", batch.Replica, "epoch", hex.EncodeToString(batch.Epoch), "seq", batch.Seq, "missing", applied.Gap)
	}
}

// began notes that a replica's cache starts anew, in a life that is whole.
func (r *Router) began(batch *pb.KVBatch) {
	epoch, _ := epochOf(batch.Epoch)
	r.fleet.Lock()
	if lost, ok := r.fleet.lost[batch.Replica]; ok && lost != epoch {
		delete(r.fleet.lost, batch.Replica)
	}
	r.fleet.Unlock()
	slog.Debug("a replica's cache began a new life", "router", r.cfg.Name, "replica", batch.Replica, "epoch", hex.EncodeToString(batch.Epoch))
}

func (r *Router) foldInvalid(e streams.Event, err error) {
	var invalid *streams.InvalidKVError
	if errors.As(err, &invalid) {
		r.metrics.invalid.WithLabelValues(invalid.Reason).Inc()
	}
	slog.Warn("a kv message cannot be used", "router", r.cfg.Name, "subject", e.Subject, "seq", e.Seq, "error", err)
}

// lives lists the replicas of which the index may hold something.
func (r *Router) lives() []string {
	r.fold.Lock()
	defer r.fold.Unlock()
	return slices.Collect(maps.Keys(r.fold.lives))
}

// maxLost bounds the memory of forgotten cache lives. Beyond it all go: a
// replica that returns in a forgotten life is suspect anyway.
const maxLost = 10_000

// forget takes a replica's blocks out of the index. Its cache life is
// remembered: what the stream says of it later is not the whole of it, so it
// counts for nothing until the replica begins a new one.
func (r *Router) forget(name string) {
	r.fold.Lock()
	life, known := r.fold.lives[name]
	delete(r.fold.lives, name)
	r.index().Drop(name)
	r.fleet.Lock()
	delete(r.fleet.gone, name)
	if len(r.fleet.lost) >= maxLost {
		clear(r.fleet.lost)
	}
	if known {
		r.fleet.lost[name] = life
	}
	r.fleet.Unlock()
	r.fold.Unlock() // a snapshot has the blocks, or that they are lost
	r.predictions.DropReplica(name)
	r.decide.Lock()
	r.decide.ledger.Forget(name)
	r.decide.Unlock()
	r.metrics.forgotten.Inc()
	slog.Info("a lost replica was forgotten", "router", r.cfg.Name, "replica", name)
}

func epochOf(b []byte) (e prefix.Epoch, ok bool) {
	if len(b) != len(e) {
		return e, false
	}
	copy(e[:], b)
	return e, true
}

// newer says whether epoch a began after b. Epochs are UUIDv7: their bytes are
// in the order of time.
func newer(a, b []byte) bool { return bytes.Compare(a, b) > 0 }

// followed is where the fold stands in the stream, read or found missing, and
// how far the stream's end is known to be ahead of it.
func (r *Router) followed() (position, lag uint64) {
	if f := r.follower.Load(); f != nil {
		return f.Position(), f.Lag()
	}
	return 0, 0
}

// measureHead learns where the KV stream ends, for the lag. An error is left to
// the follower, which meets it too.
func (r *Router) measureHead(ctx context.Context) {
	if f := r.follower.Load(); f != nil {
		ctx, cancel := context.WithTimeout(ctx, sweepEvery)
		defer cancel()
		_, _ = f.Head(ctx)
	}
}
