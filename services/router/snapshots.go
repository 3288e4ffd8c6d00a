package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/routing/prefix"
	"warmpath/streams"
	"warmpath/streams/snapshot"
)

// Reasons for which keeping snapshots fails.
const (
	failureRead  = "read"  // the store or the stream could not be looked at
	failureLease = "lease" // the lease could not be asked for
	failureLost  = "lost"  // the lease went to another while writing
	failureFull  = "full"  // the bucket has no room
	failureTTL   = "ttl"   // the bucket is of an earlier version
	failureSave  = "save"  // it could not be written, or not be read back
	failurePrune = "prune" // old ones could not be removed
)

const (
	// saveTimeout ends a write that hangs: a gigabyte takes a minute.
	saveTimeout = 10 * time.Minute
	// lookTimeout ends each look at the streams.
	lookTimeout = 10 * time.Second
	// maxLostSaved bounds a snapshot's description.
	maxLostSaved = 1000
)

// keptSnapshots is what the store had when it was last looked at, and what this
// router last wrote.
type keptSnapshots struct {
	count  int
	newest snapshot.Snapshot // zero: none
	// firstSeq is where the KV stream began then.
	firstSeq uint64
	// uncovered is how many messages after the newest snapshot are gone.
	uncovered uint64

	written      uint64
	writeSeconds float64
	pauseSeconds float64
}

// runSnapshots keeps the pool's snapshots young, in turn with the pool's other
// routers.
func (r *Router) runSnapshots(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.missing.one(partKV):
	}
	ticker := time.NewTicker(r.cfg.SnapshotCheck)
	defer ticker.Stop()
	pause := 0 // looks to leave out after failures
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if pause--; pause >= 0 {
			continue
		}
		if err := r.keepSnapshots(ctx); err != nil && ctx.Err() == nil {
			pause = min(1<<failures, 16) - 1
			failures = min(failures+1, 4)
			slog.Warn("snapshots cannot be kept", "router", r.cfg.Name, "pool", r.cfg.Pool, "error", err)
			continue
		}
		failures, pause = 0, 0
	}
}

// failed counts a failure.
func (r *Router) failed(reason, doing string, err error) error {
	switch {
	case errors.Is(err, snapshot.ErrFull):
		reason = failureFull
	case errors.Is(err, snapshot.ErrNoTTL):
		reason = failureTTL
	}
	r.metrics.snapshotFailures.WithLabelValues(reason).Inc()
	return fmt.Errorf("%s: %w", doing, err)
}

// keepSnapshots looks whether a snapshot is due, and writes it when no other
// router does.
func (r *Router) keepSnapshots(ctx context.Context) error {
	due, err := r.lookAtSnapshots(ctx)
	if err != nil || due == "" || r.cfg.NoSnapshots {
		return err
	}
	look, done := context.WithTimeout(ctx, lookTimeout)
	lease, err := r.snapshots.Acquire(look, r.cfg.Name, r.cfg.SnapshotLease)
	done()
	if errors.Is(err, snapshot.ErrHeld) {
		return nil // the next look finds what it wrote
	}
	if err != nil {
		return r.failed(failureLease, "acquire the lease", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = lease.Release(ctx) // it expires otherwise
	}()
	// Another may have written between the look and the lease.
	if due, err = r.lookAtSnapshots(ctx); err != nil || due == "" {
		return err
	}
	return r.writeSnapshot(ctx, lease, due)
}

// lookAtSnapshots finds the newest snapshot and says why another one is due, ""
// when none is.
func (r *Router) lookAtSnapshots(ctx context.Context) (due string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	stream, err := r.js.Stream(ctx, streams.KVStream(r.cfg.Pool))
	if err != nil {
		return "", r.failed(failureRead, "ask for the kv stream", err)
	}
	info := stream.CachedInfo()
	created := r.origin.stream()
	if !info.Created.Equal(created) {
		return "", nil // the follower meets it too, and ends the router
	}
	all, err := r.snapshots.List(ctx)
	if err != nil {
		return "", r.failed(failureRead, "list snapshots", err)
	}
	all = slices.DeleteFunc(all, func(one snapshot.Snapshot) bool {
		return !one.Created.Equal(created) || one.Seq > info.State.LastSeq || r.refused[one.Name()]
	})
	kept := keptSnapshots{count: len(all), firstSeq: info.State.FirstSeq}
	before := r.kept.Load()
	if before != nil {
		kept.written, kept.writeSeconds, kept.pauseSeconds = before.written, before.writeSeconds, before.pauseSeconds
	}
	if len(all) > 0 {
		kept.newest = all[0]
	}
	if first := info.State.FirstSeq; first > kept.newest.Seq+1 {
		kept.uncovered = first - 1 - kept.newest.Seq
		if before == nil || before.uncovered == 0 {
			slog.Warn("the kv stream begins after the newest snapshot: a router that starts now has to suspect every replica",
				"router", r.cfg.Name, "pool", r.cfg.Pool, "first_seq", first, "snapshot_seq", kept.newest.Seq)
		}
	}
	r.kept.Store(&kept)
	return r.snapshotDue(kept, info), nil
}

// snapshotDue says why the pool needs another snapshot.
func (r *Router) snapshotDue(kept keptSnapshots, info *jetstream.StreamInfo) string {
	position, newest := r.index().Position(), kept.newest
	first, last := info.State.FirstSeq, info.State.LastSeq
	switch {
	case position <= newest.Seq:
		return "" // nothing is new, or this router is behind
	case newest.Seq == 0:
		return "there is none"
	case position-newest.Seq >= r.cfg.SnapshotEvents:
		return "events"
	case r.now()-newest.Written.UnixMicro() >= r.cfg.SnapshotEvery.Microseconds():
		return "time"
	case last > first && newest.Seq < first+(last-first)/2 && position > first+(last-first)/2:
		return "trim" // what it stands at is soon no longer stored
	}
	return ""
}

// writeSnapshot saves the index as it is now, and removes what that replaces.
func (r *Router) writeSnapshot(ctx context.Context, lease *snapshot.Lease, due string) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	writing, stop := r.whileHeld(ctx, lease)
	about, data := r.takeSnapshot()
	pause := time.Since(began)
	one, err := r.snapshots.Save(writing, about, data)
	if err == nil {
		err = r.prune(writing, one)
	} else {
		err = r.failed(failureSave, "write a snapshot", err)
	}
	if lost := stop(); lost != nil {
		return errors.Join(r.failed(failureLost, "renew the lease", lost), err)
	}
	if one.Seq == 0 {
		return err
	}
	took := time.Since(began)
	delete(r.refused, one.Name())
	kept := *r.kept.Load()
	kept.newest = one
	kept.uncovered = 0
	kept.written++
	kept.writeSeconds, kept.pauseSeconds = took.Seconds(), pause.Seconds()
	r.kept.Store(&kept)
	slog.Info("a snapshot of the index was written", "router", r.cfg.Name, "pool", r.cfg.Pool, "snapshot", one.Name(),
		"bytes", one.Size, "took", took, "due", due)
	return err
}

func (r *Router) prune(ctx context.Context, verified snapshot.Snapshot) error {
	if _, err := r.snapshots.Prune(ctx, verified, r.cfg.SnapshotKeep); err != nil {
		return r.failed(failurePrune, "remove old snapshots", err)
	}
	return nil
}

// takeSnapshot encodes the index. Decisions go on meanwhile; the fold waits.
func (r *Router) takeSnapshot() (snapshot.About, []byte) {
	r.fold.Lock()
	defer r.fold.Unlock()
	data := r.index().AppendSnapshot(nil)
	about := snapshot.About{
		Seq: r.index().Position(), Created: r.origin.stream(), Writer: r.cfg.Name, Whole: r.fold.whole, Lost: map[string][]byte{},
	}
	r.fleet.RLock()
	defer r.fleet.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(r.fleet.lost)) {
		if len(about.Lost) == maxLostSaved {
			break // those that return are suspect, as they are in any case
		}
		epoch := r.fleet.lost[name]
		about.Lost[name] = append(make([]byte, 0, len(prefix.Epoch{})), epoch[:]...)
	}
	return about, data
}

// whileHeld returns a context that ends when the lease does. stop ends the
// renewing and says why the lease was lost, nil when it was not.
func (r *Router) whileHeld(ctx context.Context, lease *snapshot.Lease) (held context.Context, stop func() error) {
	held, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	finish := make(chan struct{})
	go func() {
		every := time.NewTicker(max(r.cfg.SnapshotLease/3, 100*time.Millisecond))
		defer every.Stop()
		for {
			select {
			case <-finish:
				done <- nil
				return
			case <-every.C:
			}
			// Other errors may pass before the lease does; Save ends by itself.
			if err := lease.Renew(held); errors.Is(err, snapshot.ErrLost) {
				cancel()
				done <- err
				return
			}
		}
	}()
	return held, func() error {
		close(finish)
		err := <-done
		cancel()
		return err
	}
}
