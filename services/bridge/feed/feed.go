// Package feed puts what one publisher of an engine sent in order: it finds what
// was lost on the way, asks the engine for it again, tells a batch that came
// twice from an engine that began anew, and says so when history is gone.
//
// An engine's batches carry a number that begins again with each of its lives,
// and nothing that names the life. So the last batch before a doubtful place is
// asked for again, and must be the one known.
package feed

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/zeebo/xxh3"
)

const (
	// remembered is how many batches can be told apart from others of their number.
	remembered = 4096
	// attempts and attemptPause bound how often a replay is tried until the history
	// counts as lost. An engine under load answers late, not never.
	attempts     = 3
	attemptPause = 200 * time.Millisecond
	// keptPause is the first of some pauses for an engine that publishes a batch
	// before it keeps it for replay: microseconds, unless it is not scheduled.
	keptPause = 10 * time.Millisecond
	// proofUS is how long an engine that showed its life is believed when more old
	// batches come: they come in bursts.
	proofUS = 1_000_000
	// shortReplay is below the buffers that engines keep (10,000 batches): a replay
	// of fewer batches that begins at 1 is of an engine that counts from 1, not of
	// one whose batch 0 fell out of its buffer.
	shortReplay = 1000
)

// Reasons of Lost and Doubt, in the words of events and metrics.
const (
	// LostBeforeStart: the engine published before the bridge listened, and does not
	// have all of it any more.
	LostBeforeStart = "history before the bridge"
	// LostGap: batches are missing and the engine does not have them any more.
	LostGap = "engine history lost"
	// LostUnverified: nobody can say whether the engine is in the life known.
	LostUnverified = "engine life unverified"
	// DoubtDisconnected: the engine is not connected, so it may have gone on unseen.
	DoubtDisconnected = "engine disconnected"
)

// Batch is one numbered message of an engine.
type Batch struct {
	Seq     uint64
	Payload []byte
	// AtUS is when it arrived, Unix microseconds.
	AtUS int64
}

// Sink takes what happened, in order.
type Sink interface {
	// Begin says that the engine's cache is new and empty: the next batch is its first.
	Begin()
	// Batch is the next batch. It returns the time that the batch carries, 0 when it
	// has none.
	Batch(b Batch) (timeUS int64)
	// Lost says that batches before the next one are gone for good.
	Lost(reason string)
	// Doubt says that the cache may be another than the batches told, or with an
	// empty reason that it is not.
	Doubt(reason string)
	// TimeUS reads the time that a payload carries without handing it on, 0 when it
	// has none.
	TimeUS(payload []byte) int64
}

// Replay asks the engine for its batches from a number on and hands them over in
// order. An error means that not all came; the error of handle is returned as it
// is.
type Replay func(ctx context.Context, from uint64, handle func(Batch) error) error

// Config says how the engine numbers and repeats.
type Config struct {
	// First is the number of an engine's first batch, 0 or 1; below 0 it is found out.
	First int
	// Replay is nil when the engine repeats nothing.
	Replay Replay
}

// Stats counts what a feed has seen.
type Stats struct {
	// Batches handed on, Duplicates that came twice, Gaps found and Replayed batches
	// that filled them, Restarts of the engine, Losses by reason, FailedReplays.
	Batches, Duplicates, Gaps, Replayed, Restarts, FailedReplays uint64
	Losses                                                       map[string]uint64
}

// Feed orders one publisher. It belongs to one goroutine.
type Feed struct {
	cfg  Config
	sink Sink
	log  *slog.Logger

	// next is the number expected; known is false before anything is. fresh is true
	// while the engine has published nothing, so that its numbering is open.
	next  uint64
	known bool
	fresh bool
	// prints are fingerprints of the last batches, by number modulo their count;
	// lastTime is that of the last batch where no fingerprint is known.
	prints   [remembered]print
	lastTime int64
	// away is true from a lost connection until the life is verified.
	away bool
	// provedUS is when an old batch last made the engine show its life.
	provedUS int64
	stats    Stats
}

type print struct {
	seq   uint64
	hash  uint64
	valid bool
}

// New makes a feed that knows nothing yet.
func New(cfg Config, sink Sink, log *slog.Logger) *Feed {
	return &Feed{cfg: cfg, sink: sink, log: log, stats: Stats{Losses: map[string]uint64{}}}
}

// Resume continues after batch last of an earlier life of the bridge; timeUS is
// the time that batch carried. Nothing is handed on before the engine has shown
// that it is in the same life.
func (f *Feed) Resume(last uint64, timeUS int64) {
	f.known, f.next, f.lastTime, f.away = true, last+1, timeUS, true
	f.sink.Doubt(DoubtDisconnected)
}

// Stats returns the counts so far.
func (f *Feed) Stats() Stats { return f.stats }

// Last is the number of the last batch handed on; ok is false before the first.
func (f *Feed) Last() (seq uint64, ok bool) {
	if !f.known || f.fresh {
		return 0, false
	}
	return f.next - 1, true
}

// Live takes a batch as it comes.
func (f *Feed) Live(ctx context.Context, b Batch) {
	switch {
	case !f.known:
		f.start(ctx, &b)
		return
	case f.away && f.cfg.Replay == nil:
		f.unverified(ctx, b)
		return
	case f.away:
		f.verify(ctx)
	}
	if f.fresh {
		f.first(ctx, b)
		return
	}
	f.follow(ctx, b)
}

// follow takes a batch of a life of which batches are known.
func (f *Feed) follow(ctx context.Context, b Batch) {
	switch {
	case b.Seq == f.next:
		f.accept(b)
	case b.Seq > f.next:
		f.gap(ctx, b)
	case f.seen(b), f.stale(ctx, b):
		f.stats.Duplicates++
	default:
		f.restart(ctx, &b)
	}
}

// Connected says that the engine is connected, for the first time or again: what
// it published meanwhile is asked for.
func (f *Feed) Connected(ctx context.Context) {
	switch {
	case f.cfg.Replay == nil:
	case !f.known:
		f.start(ctx, nil)
	default:
		f.verify(ctx)
	}
}

// Disconnected says that the engine is not connected any more.
func (f *Feed) Disconnected() {
	if f.known && !f.away {
		f.away = true
		f.sink.Doubt(DoubtDisconnected)
	}
}

// Idle is called when nothing came for a while: a batch that was lost is not
// followed by another that shows it.
func (f *Feed) Idle(ctx context.Context) { f.Connected(ctx) }

// start finds out where the engine is. b is the first live batch, nil before one
// came.
func (f *Feed) start(ctx context.Context, b *Batch) {
	if f.cfg.Replay != nil && f.beginningOf(ctx, b) {
		switch {
		case b == nil:
		case f.fresh && b.Seq != f.next:
			// The engine's buffer does not have what it sent.
			f.late(*b)
		case b.Seq < f.next:
			// It was replayed, or is older than what the engine still has.
			f.stats.Duplicates++
		default:
			f.follow(ctx, *b)
		}
		return
	}
	if b == nil {
		return
	}
	f.known, f.fresh, f.away = true, false, false
	f.next = b.Seq
	if b.Seq == f.lowest() {
		f.sink.Begin()
	} else {
		if b.Seq == 1 && f.cfg.First < 0 && f.cfg.Replay == nil {
			f.log.Warn("the engine's batch 1 is the first that came: it counts from 1, or batch 0 was missed",
				"remedy", "give --kv-first 1 if it counts from 1, as simulators do, or a --kv-replay that tells")
		}
		f.lose(LostBeforeStart)
	}
	f.accept(*b)
}

// lowest is the number that nothing comes before.
func (f *Feed) lowest() uint64 { return uint64(max(f.cfg.First, 0)) }

// late takes a batch before which something is missing that cannot be had.
func (f *Feed) late(b Batch) {
	f.next, f.fresh = b.Seq, false
	f.lose(LostBeforeStart)
	f.accept(b)
}

// beginningOf is beginning for an engine that has published b, nil for none: it is
// given time to keep b, which shows how it counts.
func (f *Feed) beginningOf(ctx context.Context, b *Batch) bool {
	for i := range attempts {
		if !f.beginning(ctx) {
			return false
		}
		if b == nil || !f.fresh || b.Seq == f.next {
			return true
		}
		select {
		case <-ctx.Done():
			return true
		case <-time.After(keptPause << i):
		}
		f.known, f.fresh = false, false
	}
	return f.beginning(ctx)
}

// beginning replays everything that the engine has. It returns false when
// nothing could be had because the engine did not answer.
func (f *Feed) beginning(ctx context.Context) bool {
	var held []Batch // while it is open whether the engine counts from 1
	flush := func() {
		for _, b := range held {
			f.take(b)
		}
		held = nil
	}
	err := f.replay(ctx, 0, func(b Batch) error {
		switch {
		case f.known:
			f.take(b)
		case len(held) > 0:
			if b.Seq <= held[len(held)-1].Seq {
				return nil // a second try
			}
			if held = append(held, b); len(held) == shortReplay {
				f.known, f.next = true, held[0].Seq
				f.lose(LostBeforeStart)
				flush()
			}
		case b.Seq == f.lowest():
			f.known, f.next = true, b.Seq
			f.sink.Begin()
			f.take(b)
		case b.Seq == 1 && f.cfg.First < 0:
			held = append(held, b)
		default:
			f.known, f.next = true, b.Seq
			f.lose(LostBeforeStart)
			f.take(b)
		}
		return nil
	})
	switch {
	case f.known: // what an interrupted replay left out is a gap, found by the next batch
	case err != nil:
		return false
	case len(held) > 0:
		f.known, f.next = true, held[0].Seq
		f.sink.Begin()
		flush()
	default:
		// A buffer always holds the last batch: nothing was published in this life.
		f.known, f.fresh, f.next = true, true, f.lowest()
		f.sink.Begin()
	}
	f.away = false
	return true
}

// first takes the first batch of an engine that had published nothing.
func (f *Feed) first(ctx context.Context, b Batch) {
	switch {
	case b.Seq == f.next:
		f.accept(b)
	case f.cfg.Replay != nil:
		// The numbering may begin at 1, or the first batches were lost.
		f.known, f.fresh = false, false
		f.start(ctx, &b)
	default:
		f.late(b)
	}
}

// accept hands on the batch expected.
func (f *Feed) accept(b Batch) {
	f.prints[b.Seq%remembered] = print{seq: b.Seq, hash: xxh3.Hash(b.Payload), valid: true}
	f.next, f.fresh = b.Seq+1, false
	f.stats.Batches++
	f.lastTime = f.sink.Batch(b)
}

// take hands on a replayed batch, whether it is the one expected or a later one.
func (f *Feed) take(b Batch) {
	switch {
	case b.Seq < f.next:
		return
	case b.Seq > f.next:
		f.next = b.Seq
		f.lose(LostGap)
	}
	f.stats.Replayed++
	f.accept(b)
}

// seen says whether a batch of an earlier number is the one handed on before.
func (f *Feed) seen(b Batch) bool {
	p := f.prints[b.Seq%remembered]
	if p.valid && p.seq == b.Seq {
		return p.hash == xxh3.Hash(b.Payload)
	}
	// The batch that a resumed feed ended at has no fingerprint, but a time.
	return b.Seq+1 == f.next && f.lastTime != 0 && f.sink.TimeUS(b.Payload) == f.lastTime
}

// stale says whether a batch of an earlier number, of which no fingerprint is
// known, is an old one of this life: one that waited in a queue while a replay went
// past it and past what the engine still has. It is older than the last batch, and
// the engine still has that one.
func (f *Feed) stale(ctx context.Context, b Batch) bool {
	if p := f.prints[b.Seq%remembered]; p.valid && p.seq == b.Seq {
		return false
	}
	at := f.sink.TimeUS(b.Payload)
	if at == 0 || at >= f.lastTime {
		return false
	}
	if f.cfg.Replay == nil || b.AtUS-f.provedUS < proofUS {
		return true
	}
	f.provedUS = b.AtUS
	met := false
	err := f.replay(ctx, f.next-1, func(b Batch) error {
		met = b.Seq+1 == f.next && f.seen(b)
		return errMet
	})
	return met || err != nil && !errors.Is(err, errMet)
}

// errMet ends a replay whose first batch was wanted only.
var errMet = errors.New("the first batch came")

// gap fills the numbers before b, or says that they are lost, and takes b.
func (f *Feed) gap(ctx context.Context, b Batch) {
	f.stats.Gaps++
	if f.cfg.Replay != nil {
		f.catchUp(ctx)
	}
	switch {
	case b.Seq > f.next:
		f.next = b.Seq
		f.lose(LostGap)
	case b.Seq == f.next:
	case f.seen(b), f.stale(ctx, b): // it was replayed too
		return
	default:
		f.restart(ctx, &b)
		return
	}
	f.accept(b)
}

// verify finds out whether the engine is in the life known, and catches up.
func (f *Feed) verify(ctx context.Context) {
	if f.catchUp(ctx) && f.away {
		f.away = false
		f.sink.Doubt("")
	}
}

// errAnew ends a replay that shows another life of the engine.
var errAnew = errors.New("the engine began anew")

// catchUp replays from the last batch known on, which must come and be the same.
// It returns false when the engine could not be asked.
func (f *Feed) catchUp(ctx context.Context) bool {
	from, known := f.next, !f.fresh
	if known {
		from--
	}
	met := !known
	err := f.replay(ctx, from, func(b Batch) error {
		switch {
		case met && f.fresh && b.Seq != f.next:
			return errAnew // its numbering is another, or its first batches are gone
		case met:
		case b.Seq > from:
			// The batch known has left the engine's buffer. A connection that held shows
			// that it is the same engine; else nothing does.
			met = true
			if f.away && b.Seq == f.next {
				f.lose(LostUnverified)
			}
		case f.seen(b):
			met = true
			return nil
		default:
			return errAnew
		}
		f.take(b)
		return nil
	})
	if errors.Is(err, errAnew) || err == nil && !met && f.away {
		f.restart(ctx, nil)
		return true
	}
	return err == nil
}

// restart begins with the engine's new life. b is the live batch that showed it,
// nil when a replay did.
func (f *Feed) restart(ctx context.Context, b *Batch) {
	f.stats.Restarts++
	f.log.Info("engine began anew", "expected", f.next)
	away := f.away
	f.known, f.fresh, f.away = false, false, false
	f.prints = [remembered]print{}
	f.start(ctx, b)
	if !f.known {
		// It cannot be asked now, and until it can nothing is known of its cache.
		f.known, f.fresh, f.away, f.next = true, true, true, f.lowest()
		f.sink.Begin()
		f.sink.Doubt(DoubtDisconnected)
	} else if away {
		f.sink.Doubt("")
	}
}

// unverified takes the first batch after a lost connection when nothing can be
// asked again. That its number is the one expected proves nothing: an engine
// that began anew may have come as far.
func (f *Feed) unverified(ctx context.Context, b Batch) {
	if f.fresh && b.Seq == f.lowest() {
		f.away = false
		f.sink.Doubt("")
		f.accept(b)
		return
	}
	if b.Seq < f.next {
		if f.seen(b) || f.stale(ctx, b) {
			f.stats.Duplicates++
			return
		}
		f.restart(ctx, &b)
		return
	}
	f.next, f.fresh, f.away = b.Seq, false, false
	f.lose(LostUnverified)
	f.sink.Doubt("")
	f.accept(b)
}

// lose says that history is gone. What the next batches bring is known again,
// but not what there was.
func (f *Feed) lose(reason string) {
	f.stats.Losses[reason]++
	f.log.Warn("engine history is gone; what the replica holds is in doubt until its cache is cleared", "reason", reason, "next", f.next)
	f.sink.Lost(reason)
}

// replay asks the engine, a few times.
func (f *Feed) replay(ctx context.Context, from uint64, handle func(Batch) error) error {
	var err error
	for i := range attempts {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(attemptPause << i):
			}
		}
		if err = f.cfg.Replay(ctx, from, handle); err == nil || errors.Is(err, errAnew) || errors.Is(err, errMet) {
			return err
		}
		f.stats.FailedReplays++
		if ctx.Err() != nil {
			return err
		}
		f.log.Warn("engine did not replay its history", "from", from, "error", err)
	}
	return err
}
