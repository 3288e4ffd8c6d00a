package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/snapshot"
	"warmpath/streams/streamstest"
)

// quick makes a router look often whether a snapshot is due, and write one
// whenever anything is new.
var quick = Config{SnapshotCheck: 10 * time.Millisecond, SnapshotEvents: 1}

func (e *env) store() *snapshot.Store {
	e.Helper()
	s, err := snapshot.NewStore(e.js, testPool)
	if err != nil {
		e.Fatal(err)
	}
	return s
}

func (e *env) snapshots() []snapshot.Snapshot {
	e.Helper()
	all, err := e.store().List(e.context())
	if err != nil {
		e.Fatal(err)
	}
	return all
}

// saved waits until there is a snapshot at a sequence.
func (e *env) saved(seq uint64) {
	e.Helper()
	e.until(fmt.Sprintf("a snapshot at %d", seq), func() bool {
		all := e.snapshots()
		return len(all) > 0 && all[0].Seq == seq
	})
}

// snapshotAt has a router of its own write a snapshot of the stream as it is.
func (e *env) snapshotAt(seq uint64) {
	e.Helper()
	r := e.router(quick)
	e.saved(seq)
	r.wrote()
	r.stop()
}

// wrote waits until the router is done with a snapshot, old ones removed.
func (r *running) wrote() {
	r.env.Helper()
	r.env.until("a snapshot", func() bool {
		kept := r.kept.Load()
		return kept != nil && kept.written > 0
	})
}

// folded is the snapshot of an index that has read the whole stream.
func (e *env) folded() []byte {
	e.Helper()
	index, head := prefix.New(), e.kv().State.LastSeq
	read := errors.New("read")
	err := streams.Follow(e.context(), e.js, streams.FollowConfig{Stream: streams.KVStream(testPool)}, func(ev streams.Event) error {
		if _, step, err := streams.KVBatch(ev); err == nil {
			index.Apply(step)
		}
		if ev.Seq == head {
			return read
		}
		return nil
	})
	if !errors.Is(err, read) {
		e.Fatal(err)
	}
	return index.AppendSnapshot(nil)
}

func (e *env) kv() *jetstream.StreamInfo {
	e.Helper()
	s, err := e.js.Stream(e.context(), streams.KVStream(testPool))
	if err != nil {
		e.Fatal(err)
	}
	return s.CachedInfo()
}

// trim takes what is before a sequence away from the KV stream.
func (e *env) trim(before uint64) {
	e.Helper()
	s, err := e.js.Stream(e.context(), streams.KVStream(testPool))
	if err != nil {
		e.Fatal(err)
	}
	if err := s.Purge(e.context(), jetstream.WithPurgeSequence(before)); err != nil {
		e.Fatal(err)
	}
}

// busy publishes random changes of some engines and returns the last sequence.
func busy(engines []*engine, rng *rand.Rand, n int) (last uint64) {
	for range n {
		one := engines[rng.IntN(len(engines))]
		keys := keysOf(rng.IntN(6), 12)
		switch rng.IntN(12) {
		default:
			last = one.holds(keys[:1+rng.IntN(12)])
		case 5:
			last = one.publish(stored(pb.Tier_TIER_CPU, keys[rng.IntN(12):]))
		case 6, 7:
			last = one.publish(removed(pb.Tier_TIER_GPU, keys[rng.IntN(12):]))
		case 8:
			last = one.publish(&pb.KVEvent{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{Reason: "test"}}})
		case 9:
			one.restart()
			last = one.holds(keys[:4])
		case 10:
			one.seq += uint64(rng.IntN(2)) // a gap, sometimes
			last = one.holds(keys[:2])
		}
	}
	return last
}

func (e *env) engines(n int) []*engine {
	e.Helper()
	var out []*engine
	for i := range n {
		out = append(out, e.engine(fmt.Sprintf("engine-%d", i)))
	}
	return out
}

// damage changes the bytes of a snapshot under its description.
func (e *env) damage(seq uint64) {
	e.Helper()
	bucket, err := e.js.ObjectStore(e.context(), streams.IndexBucket)
	if err != nil {
		e.Fatal(err)
	}
	name := fmt.Sprintf("%s/%d", testPool, seq)
	info, err := bucket.GetInfo(e.context(), name)
	if err != nil {
		e.Fatal(err)
	}
	data, err := bucket.GetBytes(e.context(), name)
	if err != nil {
		e.Fatal(err)
	}
	data[len(data)/2] ^= 0x10
	msg := nats.NewMsg("$O.INDEX.C." + info.NUID)
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	msg.Data = data
	if _, err := e.js.PublishMsg(e.context(), msg); err != nil {
		e.Fatal(err)
	}
}

func TestSnapshotAndTailAreTheFullReplay(t *testing.T) {
	e := newEnv(t)
	rng := rand.New(rand.NewPCG(3, 4))
	engines := e.engines(5)
	for round := range 4 {
		e.snapshotAt(busy(engines, rng, 100))
		r := e.launch(Config{NoSnapshots: true}) // starts while the tail grows
		last := busy(engines, rng, 30)
		<-r.Ready()
		r.reaches(last)
		s := r.State()
		if s.Start.From != startSnapshot || s.Start.Seq != uint64(130*round+100) || s.Start.Entries == 0 || s.Start.Bytes == 0 {
			t.Errorf("round %d: started from %+v", round, s.Start)
		}
		if !bytes.Equal(r.index().AppendSnapshot(nil), e.folded()) {
			t.Errorf("round %d: snapshot and tail give another index than the full replay", round)
		}
		for _, one := range engines {
			one.beat()
		}
		r.knows(5, "live")
		var decisions []*pb.Decided
		for i := range 6 {
			decisions = append(decisions, r.mustDecide(request(keysOf(i, 12))))
		}
		e.audit(decisions...)
		r.stop()
	}
	all := e.snapshots()
	if len(all) != 3 || !all[0].Whole {
		t.Errorf("kept %+v", all)
	}
}

func TestADamagedSnapshotIsPassedOver(t *testing.T) {
	e := newEnv(t)
	rng := rand.New(rand.NewPCG(5, 6))
	engines := e.engines(3)
	var at []uint64
	for range 2 {
		at = append(at, busy(engines, rng, 40))
		e.snapshotAt(at[len(at)-1])
	}
	last := busy(engines, rng, 10)
	start := func(want Start, refused int) {
		t.Helper()
		r := e.router(Config{NoSnapshots: true})
		r.reaches(last)
		s := r.State().Start
		if s.From != want.From || s.Seq != want.Seq {
			t.Errorf("started from %+v, want %+v", s, want)
		}
		if !bytes.Equal(r.index().AppendSnapshot(nil), e.folded()) {
			t.Error("the index is another than the full replay's")
		}
		_, text := r.get("/metrics")
		mustContain(t, text, fmt.Sprintf(`warmpath_router_restored_seq{pool="chat"} %d`, want.Seq))
		if line := fmt.Sprintf(`warmpath_router_snapshots_refused_total{pool="chat",reason="digest"} %d`, refused); refused > 0 {
			mustContain(t, text, line)
		}
		r.stop()
	}
	start(Start{From: startSnapshot, Seq: at[1]}, 0)
	e.damage(at[1])
	start(Start{From: startSnapshot, Seq: at[0]}, 1)
	e.damage(at[0])
	start(Start{From: startReplay}, 2)

	// A router that found them damaged writes another one.
	e.snapshotAt(last)
	start(Start{From: startSnapshot, Seq: last}, 0)
}

// What stands in the stream before the snapshot is not needed; what comes after
// it, and is gone, makes every replica suspect until its next life.
func TestATrimmedStream(t *testing.T) {
	e := newEnv(t)
	a, b := e.engine("a"), e.engine("b")
	keys := keysOf(1, 10)
	a.holds(keys)
	at := b.holds(keys[:5])
	e.snapshotAt(at)
	b.holds(keys[:7])
	e.trim(at + 1)
	r := e.router(Config{NoSnapshots: true, SnapshotCheck: 10 * time.Millisecond})
	r.knows(2, "live")
	d := r.mustDecide(request(keys))
	if c := candidate(d, "a"); c.GpuBlocks != 10 || c.Suspect {
		t.Errorf("trimmed up to the snapshot: %v", c)
	}
	if c := candidate(d, "b"); c.GpuBlocks != 7 || c.Suspect {
		t.Errorf("trimmed up to the snapshot: %v", c)
	}
	r.stop()

	last := b.holds(keys[:8])
	e.trim(last)
	r = e.router(Config{NoSnapshots: true, SnapshotCheck: 10 * time.Millisecond})
	r.knows(2, "live")
	d = r.mustDecide(request(keys))
	if c := candidate(d, "a"); c.GpuBlocks != 10 || !c.Suspect {
		t.Errorf("trimmed after the snapshot: %v", c)
	}
	if c := candidate(d, "b"); c.GpuBlocks != 8 || !c.Suspect {
		t.Errorf("trimmed after the snapshot: %v", c)
	}
	e.until("the metric", func() bool {
		_, text := r.get("/metrics")
		return strings.Contains(text, `warmpath_router_snapshot_uncovered_messages{pool="chat"} 1`)
	})
	a.restart()
	a.beat()
	r.reaches(a.holds(keys[:3]))
	if c := candidate(r.mustDecide(request(keys)), "a"); c.GpuBlocks != 3 || c.Suspect {
		t.Errorf("in a new life: %v", c)
	}
	r.stop()

	// The suspicion is in the next snapshot, which says that it is not whole.
	e.snapshotAt(e.kv().State.LastSeq)
	if e.snapshots()[0].Whole {
		t.Error("the snapshot says it is whole")
	}
	r = e.router(Config{NoSnapshots: true})
	r.knows(2, "live")
	d = r.mustDecide(request(keys))
	if candidate(d, "a").Suspect || !candidate(d, "b").Suspect {
		t.Errorf("restored: %v", d.Candidates)
	}
}

// Of two routers one writes at a time, and what one has written is not written
// again by the other.
func TestTwoRoutersOneWriter(t *testing.T) {
	e := newEnv(t)
	a := e.engine("a")
	cfg := Config{SnapshotCheck: 5 * time.Millisecond, SnapshotEvents: 10, SnapshotEvery: time.Hour}
	publish := func() (last uint64) {
		for i := range 10 {
			last = a.holds(keysOf(i, 3))
		}
		return last
	}
	last := publish()
	one, two := e.router(cfg), e.router(cfg)
	const rounds = 6
	for range rounds {
		e.saved(last)
		last = publish()
	}
	e.saved(last)
	written := func() (n uint64) {
		for _, r := range []*running{one, two} {
			if kept := r.kept.Load(); kept != nil {
				n += kept.written
			}
		}
		return n
	}
	e.until("both know it, and the writer is done", func() bool {
		return one.State().Snapshot.Seq == last && two.State().Snapshot.Seq == last && written() > rounds
	})
	if n := written(); n != rounds+1 {
		t.Errorf("%d snapshots were written, not %d", n, rounds+1)
	}
	e.until("three are kept", func() bool { return len(e.snapshots()) == 3 })
}

// A writer that died in the middle is followed when its lease has expired, and
// what it left is cleared away.
func TestADeadWriterIsFollowed(t *testing.T) {
	e := newEnv(t)
	last := e.engine("a").holds(keysOf(1, 10))
	if _, err := e.store().Acquire(e.context(), "dead", time.Second); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := e.js.Publish(e.context(), "$O.INDEX.C.chat.1.dead", make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	e.router(quick)
	e.saved(last)
	if w := e.snapshots()[0].Writer; w != "router" {
		t.Errorf("written by %s", w)
	}
	e.until("no chunks of the dead one", func() bool {
		s, err := e.js.Stream(e.context(), "OBJ_INDEX")
		if err != nil {
			t.Fatal(err)
		}
		info, err := s.Info(e.context(), jetstream.WithSubjectFilter("$O.INDEX.C.chat.1.>"))
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Subjects["$O.INDEX.C.chat.1.dead"] == 0
	})
}

// The lease is lost while writing: the writer stops, and says so.
func TestALostLeaseEndsTheWriting(t *testing.T) {
	e := newEnv(t)
	r := e.router(Config{SnapshotCheck: time.Hour, SnapshotLease: time.Second})
	lease, err := e.store().Acquire(e.context(), "r", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	held, stop := r.whileHeld(context.Background(), lease)
	s, err := e.js.Stream(e.context(), "OBJ_INDEX")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(e.context(), jetstream.WithPurgeSubject("$O.INDEX.M.>")); err != nil {
		t.Fatal(err)
	}
	if _, err := e.store().Acquire(e.context(), "other", time.Minute); err != nil {
		t.Fatal(err)
	}
	select {
	case <-held.Done():
	case <-time.After(patience):
		t.Error("the writing goes on")
	}
	if err := stop(); !errors.Is(err, snapshot.ErrLost) {
		t.Errorf("got %v", err)
	}
}

// A stream that was made anew has other contents under the same sequences.
func TestSnapshotsOfAnEarlierStreamAreRefused(t *testing.T) {
	e := newEnv(t)
	a := e.engine("a")
	a.holds(keysOf(1, 10))
	e.snapshotAt(a.holds(keysOf(2, 10)))
	if err := e.js.DeleteStream(e.context(), streams.KVStream(testPool)); err != nil {
		t.Fatal(err)
	}
	e.apply()
	a.restart()
	a.beat()
	var last uint64
	for i := range 5 {
		last = a.holds(keysOf(i+3, 10))
	}
	r := e.router(quick)
	if s := r.State().Start; s.From != startReplay {
		t.Errorf("started from %+v", s)
	}
	_, text := r.get("/metrics")
	mustContain(t, text, `warmpath_router_snapshots_refused_total{pool="chat",reason="stream"} 1`)
	e.until("only the new stream's", func() bool {
		all := e.snapshots()
		return len(all) == 1 && all[0].Seq == last
	})
	e.until("the metrics", func() bool {
		_, text = r.get("/metrics")
		return strings.Contains(text, `warmpath_router_snapshots_written_total{pool="chat"} 1`)
	})
	mustContain(t, text, fmt.Sprintf(`warmpath_router_snapshot_seq{pool="chat"} %d`, last), `warmpath_router_snapshot_age_seconds{pool="chat"}`,
		`warmpath_router_snapshot_bytes{pool="chat"}`, `warmpath_router_snapshot_write_seconds{pool="chat"}`,
		`warmpath_router_snapshot_failures_total{pool="chat",reason="full"} 0`, `warmpath_router_snapshot_uncovered_messages{pool="chat"} 0`,
		`warmpath_router_restored_entries{pool="chat"} 0`, `warmpath_router_kv_stream_first_seq{pool="chat"} 1`)
}

// What one router has forgotten, another one that starts from its snapshot has
// forgotten too.
func TestForgottenLivesAreInTheSnapshot(t *testing.T) {
	e := newEnv(t)
	a, b := e.engine("a"), e.engine("b")
	keys := keysOf(1, 10)
	a.holds(keys)
	r := e.router(Config{ForgetAfter: time.Hour, SnapshotCheck: time.Hour, SnapshotEvents: 1})
	r.knows(2, "live")
	if err := streams.DeleteFleet(e.context(), e.js, testPool, "a"); err != nil {
		t.Fatal(err)
	}
	r.knows(1, "live")
	r.sweep(r.now() + 2*time.Hour.Microseconds())
	r.reaches(b.holds(keys[:2]))
	if err := r.keepSnapshots(e.context()); err != nil {
		t.Fatal(err)
	}
	r.stop()
	last := a.holds(keys[:4])
	a.beat()
	b.beat()
	r = e.router(Config{NoSnapshots: true})
	r.knows(2, "live")
	r.reaches(last)
	if s := r.State().Start; s.From != startSnapshot {
		t.Errorf("started from %+v", s)
	}
	d := r.mustDecide(request(keys))
	if c := candidate(d, "a"); c.TotalBlocks != 0 || !c.Suspect || len(c.Epoch) != 0 {
		t.Errorf("candidate %v", c)
	}
	e.audit(d)
}

func TestWithoutABucketTheStreamIsReplayed(t *testing.T) {
	e := newEnv(t)
	last := e.engine("a").holds(keysOf(1, 10))
	if err := e.js.DeleteStream(e.context(), "OBJ_INDEX"); err != nil {
		t.Fatal(err)
	}
	r := e.router(quick)
	r.reaches(last)
	if s := r.State().Start; s.From != startReplay {
		t.Errorf("started from %+v", s)
	}
	e.until("the failure is counted", func() bool {
		_, text := r.get("/metrics")
		return strings.Contains(text, `warmpath_router_snapshot_failures_total{pool="chat",reason="read"}`) &&
			!strings.Contains(text, `warmpath_router_snapshot_failures_total{pool="chat",reason="read"} 0`)
	})
	e.apply() // and a router that runs takes it up
	e.saved(last)
}

// As the user that the router's role is.
func TestSnapshotsWithTheRolesRights(t *testing.T) {
	server := streamstest.StartRoles(t, streams.Roles([]string{testPool}))
	operator := envAt(t, server.URL(streams.RoleOperator))
	operator.apply()
	a := operator.engine("a")
	mine := envAt(t, server.URL(streams.RoleRouter))
	for i := range 5 {
		last := a.holds(keysOf(i, 5))
		r := mine.router(quick)
		if s := r.State().Start; i > 0 && (s.From != startSnapshot || s.Seq != last-1) {
			t.Errorf("started from %+v", s)
		}
		operator.saved(last)
		r.wrote()
		r.stop()
	}
	if n := len(operator.snapshots()); n > 3 {
		t.Errorf("%d are kept", n)
	}
}

// What a starting router does can be seen.
func TestProgressIsVisible(t *testing.T) {
	e := newEnv(t)
	last := e.engine("a").holds(keysOf(1, 4))
	r := offline(t, 0)
	r.started.Store(false)
	mustContain(t, r.health().Error(), partKV)
	r.origin.see(e.kv())
	mustContain(t, r.health().Error(), "looking for a snapshot")
	r.origin.began(Start{From: startReplay})
	mustContain(t, r.health().Error(), fmt.Sprintf("at 0 of %d after a start from replay at 0", last))
}
