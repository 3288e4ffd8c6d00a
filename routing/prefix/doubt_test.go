package prefix

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"

	pb "warmpath/schemas/warmpathv1"
)

func lifeOf(t *testing.T, x *Index, replica string) Life {
	t.Helper()
	for _, l := range x.Lives() {
		if l.Replica == replica {
			return l
		}
	}
	t.Fatalf("no life of %s", replica)
	return Life{}
}

// A doubt lasts until the publisher ends it or begins a new epoch, and says
// nothing of holes: those end on their own terms.
func TestDoubt(t *testing.T) {
	x, keys := New(), chain(4)
	steps := []struct {
		name    string
		epoch   int
		seq     uint64
		events  []*pb.KVEvent
		doubt   string
		suspect bool
	}{
		{"a first batch", 1, 1, []*pb.KVEvent{storeEvent(GPU, keys...)}, "", false},
		{"a doubt", 1, 2, []*pb.KVEvent{doubtEvent("unnamed blocks")}, "unnamed blocks", true},
		{"another reason", 1, 3, []*pb.KVEvent{doubtEvent("engine history lost")}, "engine history lost", true},
		{"a clear does not end it", 1, 4, []*pb.KVEvent{clearEvent(), storeEvent(GPU, keys...)}, "engine history lost", true},
		{"delivered again", 1, 2, []*pb.KVEvent{doubtEvent("unnamed blocks")}, "engine history lost", true},
		{"its end", 1, 5, []*pb.KVEvent{doubtEvent("")}, "", false},
		{"begin and end in one batch", 1, 6, []*pb.KVEvent{doubtEvent("a"), doubtEvent("")}, "", false},
		{"a hole and a doubt", 1, 9, []*pb.KVEvent{doubtEvent("a")}, "a", true},
		{"the end leaves the hole", 1, 10, []*pb.KVEvent{doubtEvent("")}, "", true},
		{"a late doubt is older than the end", 1, 7, []*pb.KVEvent{doubtEvent("late")}, "", true},
		{"the hole is filled", 1, 8, nil, "", false},
		{"a hole again", 1, 12, nil, "", true},
		{"a late doubt that nothing ended", 1, 11, []*pb.KVEvent{doubtEvent("late")}, "late", true},
		{"a new epoch", 2, 1, nil, "", false},
	}
	for _, s := range steps {
		b := &pb.KVBatch{Replica: "a", Epoch: epochNumber(s.epoch), Seq: s.seq, Events: s.events}
		x.Apply(mustBatch(t, b, x.Position()+1))
		if l := lifeOf(t, x, "a"); l.Doubt != s.doubt || l.Suspect != s.suspect || one(t, x, "a", keys).Suspect != s.suspect {
			t.Errorf("%s: %+v, want doubt %q, suspect %v", s.name, l, s.doubt, s.suspect)
		}
		x = restored(t, x)
		checkInvariants(t, x)
	}
}

// The reason is bounded and accounted.
func TestDoubtIsBounded(t *testing.T) {
	x := New()
	feed(t, x, "a", 1)
	before := x.Stats().Bytes
	feed(t, x, "a", 2, doubtEvent(strings.Repeat("é", 5000)+"x"))
	l := lifeOf(t, x, "a")
	if len(l.Doubt) > maxDoubt || len(l.Doubt) < maxDoubt-3 || !utf8.ValidString(l.Doubt) {
		t.Errorf("a reason of %d bytes was kept", len(l.Doubt))
	}
	if got := x.Stats().Bytes - before; got != int64(len(l.Doubt)) {
		t.Errorf("a reason of %d bytes counts %d", len(l.Doubt), got)
	}
	x.Drop("a")
	if got := x.Stats().Bytes; got != before-replicaBytes-1 {
		t.Errorf("%d bytes after the drop", got)
	}
}

// Stores and removals without keys, which only carry an engine's own names,
// change nothing.
func TestEventsWithoutKeys(t *testing.T) {
	x, keys := New(), chain(4)
	feed(t, x, "a", 1, storeEvent(GPU, keys...))
	named := func() []*pb.KVEvent {
		events := []*pb.KVEvent{storeEvent(GPU), removeEvent(GPU)}
		events[0].GetStore().Hashes = []uint64{1, 2}
		events[1].GetRemove().Hashes = []uint64{1, 2}
		return events
	}
	if a := feed(t, x, "a", 2, named()...); a != (Applied{}) {
		t.Errorf("applied %+v", a)
	}
	if a := feed(t, x, "a", 4, named()...); a != (Applied{Gap: 1}) {
		t.Errorf("applied after a hole: %+v", a)
	}
	if m := one(t, x, "a", keys); m.Total != 4 {
		t.Errorf("match %+v", m)
	}
}

// TestRestoreVersion1: a snapshot from before doubts is read, and written again
// in the version of today, as the same index.
func TestRestoreVersion1(t *testing.T) {
	x, keys := New(), chain(3)
	feed(t, x, "a", 1, storeEvent(GPU, keys...))
	feed(t, x, "b", 2, storeEvent(CPU, keys[:2]...))
	x.SuspectAll()
	feed(t, x, "c", 1, storeEvent(Disk, keys[:1]...))
	today := x.AppendSnapshot(nil)
	// Without doubts the versions differ in their number alone.
	old := bytes.Clone(today[:len(today)-checksumBytes])
	old[7] = 1
	y, err := Restore(sealed(old), Config{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(y.AppendSnapshot(nil), today) {
		t.Error("an index of version 1 is another one when restored")
	}
	if !lifeOf(t, y, "a").Suspect || !lifeOf(t, y, "b").Suspect || lifeOf(t, y, "c").Suspect {
		t.Errorf("lives %+v", y.Lives())
	}
	for _, version := range []byte{0, snapshotMagic[7] + 1} {
		old[7] = version
		if _, err := Restore(sealed(old), Config{}); err == nil || !strings.Contains(err.Error(), "version 1 to 2") {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// TestRestoreRefusesDoubts that no index can have.
func TestRestoreRefusesDoubts(t *testing.T) {
	x := New()
	feed(t, x, "a", 1, doubtEvent("why"))
	good := x.AppendSnapshot(nil)
	good = good[:len(good)-checksumBytes]
	at := bytes.Index(good, append([]byte{flagDoubt, 1, 3}, "why"...))
	if at < 0 {
		t.Fatal("the doubt is not where it should be")
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"unknown flags":   func(b []byte) []byte { b[at] = 6; return b },
		"seq 0":           func(b []byte) []byte { b[at+1] = 0; return b },
		"seq in future":   func(b []byte) []byte { b[at+1] = 2; return b },
		"a reason as two": func(b []byte) []byte { b[at+2] = 2; return b },
		"a long reason": func(b []byte) []byte {
			long := binary.AppendUvarint(bytes.Clone(b[:at+2]), maxDoubt+1)
			long = append(long, strings.Repeat("w", maxDoubt+1)...)
			return append(long, b[at+6:]...)
		},
	} {
		if _, err := Restore(sealed(spoil(bytes.Clone(good))), Config{}); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
	if _, err := Restore(sealed(good), Config{}); err != nil {
		t.Error(err)
	}
}
