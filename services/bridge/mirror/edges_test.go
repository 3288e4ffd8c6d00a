package mirror

import (
	"slices"
	"testing"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

// Names that went to make room are found no more, the others still are, with
// twins too.
func TestForgottenTwins(t *testing.T) {
	for _, order := range [][]uint64{{97, 98, 99}, {99, 98, 97}, {98, 97, 99}, {98, 99, 97}} {
		b, keys := newBench(t, Config{MaxBlocks: 3}), chain(1)
		twins := func(name uint64) kvevents.Event {
			e := store(onGPU, 1, 1)
			e.Hashes = []uint64{name}
			return e
		}
		b.apply(twins(97), twins(98), twins(99))
		for i, name := range order {
			b.apply(remove(onGPU, name))
			other := store(onGPU, 1, 1) // takes the place of the oldest name
			other.Hashes, other.Tokens = []uint64{uint64(i)}, tokensFrom(uint32(100*(i+1)), 4)
			b.apply(other)
			left := i < 2
			if got := b.f.keys()[key{onGPU, keys[0]}]; got != left {
				t.Fatalf("%v: after %d removals the key is there: %v", order, i+1, got)
			}
		}
	}
}

// A removal that a repeat has made doubtful is made good by an announcement, and
// a mirror that adopts the events knows.
func TestAnnouncedAfterARemoval(t *testing.T) {
	for _, repeats := range []int{2, 3} {
		b, keys := newBench(t, Config{Capacity: 6}), chain(1)
		for range repeats {
			b.apply(store(onGPU, 1, 1))
		}
		b.apply(remove(onGPU, 1))
		reused := store(onGPU, 1, 1)
		reused.Origin = "REUSED"
		b.apply(reused)
		b.holds("announced", "", keys...)
		if s := b.m.Stats(); s.GPUCopies != repeats-1 {
			t.Errorf("stats %+v", s)
		}
		adopted := mustNew(t, b.m.cfg)
		for _, batch := range b.f.batches {
			if err := adopted.Adopt(batch); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := state(adopted, true), state(b.m, true); !slices.Equal(got, want) {
			t.Errorf("adopted %v, want %v", got, want)
		}
		for range 7 - repeats + 1 {
			b.apply(store(onGPU, 1, 1))
		}
		b.holds("repeats that were none", "", keys...)
	}
}

func TestTooManyCopies(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(1)
	events := make([]kvevents.Event, 1<<16)
	for i := range events {
		events[i] = store(onGPU, 1, 1)
	}
	b.apply(events[1:]...)
	b.holds("as many as can be counted", "", keys...)
	b.apply(events[0])
	b.holds("one more", "too many copies of a block", keys...)
	gone := make([]uint64, 1<<16-1)
	for i := range gone {
		gone[i] = 1
	}
	out := b.apply(remove(onGPU, gone...))
	b.holds("one is left, or none", "too many copies of a block")
	for _, e := range out {
		if n := len(e.GetRemove().GetHashes()); n > maxRun {
			t.Errorf("an event has %d names", n)
		}
	}
	b.apply(kvevents.Event{Kind: kvevents.Cleared}, store(onGPU, 1, 1))
	for range 2000 {
		b.m.Apply([]kvevents.Event{store(onGPU, 1, 1)})
	}
	left := remove(onGPU, 1)
	left.CopiesLeft = []int64{0}
	if out = b.apply(left); len(out) != 2 || len(out[0].GetRemove().Hashes) != maxRun || len(out[1].GetRemove().Keys) != 1 {
		t.Errorf("2001 copies went in %d events", len(out))
	}
}

// An orphan that turns out to be of another block than its name is now.
func TestOrphanOfAnotherBlock(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(3)
	b.apply(store(onGPU, 2, 1))
	b.holds("an orphan", "blocks without a name")
	other := store(onGPU, 1, 2)
	other.Tokens = slices.Concat(tokensFrom(0, 4), tokensFrom(700, 4))
	b.apply(other)
	b.holds("another block has its name", "", keys[0], blockkey.Next(keys[0], tokensFrom(700, 4), nil))
	b.apply(remove(onGPU, 2))
	b.holds("gone", "", keys[0])

	stray := store(onGPU, 2, 1)
	stray.Parent, stray.Tokens = 44, tokensFrom(900, 4)
	b.apply(stray)
	b.holds("its name behind a parent that is unknown", "blocks without a name", keys[0])
	moved := stray
	moved.Parent = 45
	b.apply(moved, remove(onGPU, 2))
	if s := b.m.Stats(); s.Waiting != 4 || s.Unnamed != 1 {
		t.Errorf("stats %+v", s)
	}
	b.apply(remove(onGPU, 2))
	b.holds("both copies went", "", keys[0])
	b.apply(stray, store(onGPU, 2, 1))
	b.holds("its name where it belongs", "", keys[:2]...)
	b.apply(remove(onGPU, 2))
	b.holds("the stray is not a copy of it", "", keys[0])
}

func TestPartialThatComesWhole(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(3)
	short := store(onGPU, 3, 1)
	short.BlockSize, short.Tokens = 3, short.Tokens[:3]
	b.apply(store(onGPU, 1, 1), short)
	b.apply(store(onGPU, 3, 1))
	b.holds("whole, its parent unknown", "blocks without a name", keys[0])
	b.apply(store(onGPU, 2, 1))
	b.holds("its parent came", "", keys...)
	b.apply(short)
	b.apply(remove(onGPU, 3))
	b.holds("a partial block is no copy of a whole one", "", keys[:2]...)
	short.Hashes, short.Parent = []uint64{9}, 3
	whole := store(onGPU, 4, 1)
	whole.Hashes = []uint64{9}
	b.apply(short, whole, remove(onGPU, 9))
	b.holds("partial, then whole, then gone", "", keys[:2]...)
}

func TestMoves(t *testing.T) {
	move := func(name uint64, from, to pb.Tier) kvevents.Event {
		return kvevents.Event{Kind: kvevents.Moved, Hashes: []uint64{name}, FromTier: from, Tier: to}
	}
	keys := chain(2)
	on := func(tier pb.Tier, n int) map[key]bool { return map[key]bool{{tier, keys[n]}: true} }
	b := newBench(t, Config{Repeats: Once})
	b.apply(store(onGPU, 1, 1), move(1, onGPU, onCPU))
	b.holdsAll("to the cpu", "", on(onCPU, 0))
	b.apply(move(1, onGPU, onCPU))
	b.holdsAll("again, from where it is not", "", on(onCPU, 0))
	b.apply(move(1, onCPU, pb.Tier_TIER_UNSPECIFIED))
	b.holdsAll("to a tier that nobody knows", "", nil)
	b.apply(move(1, pb.Tier_TIER_UNSPECIFIED, onGPU))
	b.holdsAll("back from it", "", on(onGPU, 0))
	b.apply(move(2, onGPU, onCPU))
	b.holdsAll("a block that was never stored", "blocks without a name", on(onGPU, 0))
	b.apply(move(2, onCPU, onGPU), store(onGPU, 2, 1), remove(onGPU, 1))
	b.holdsAll("it is stored", "", on(onGPU, 1))
	if s := b.m.Stats(); s.UnknownTiers != 2 || s.UnknownRemovals != 2 {
		t.Errorf("stats %+v", s)
	}
}

func TestVisitStops(t *testing.T) {
	for _, size := range []int{4, 16} {
		b := newBench(t, Config{})
		e := store(onGPU, 1, 16/size)
		e.BlockSize, e.Tokens = size, tokensFrom(0, 16)
		b.apply(e)
		for stop := 1; stop <= 4; stop++ {
			n := 0
			b.m.Visit(func(pb.Tier, blockkey.Key) bool { n++; return n < stop })
			if n != stop {
				t.Errorf("stopped at %d, after %d", stop, n)
			}
		}
	}
}

// An announcement of a block of which a copy had just gone is told as a removal
// and a store; with several keys to a block the removal has them all, so that an
// adopting mirror finds them.
func TestAnnouncedAfterARemovalIsAdopted(t *testing.T) {
	m := mustNew(t, Config{Model: "model", BlockTokens: 16})
	stored := kvevents.Event{Kind: kvevents.Stored, Tier: onGPU, BlockSize: 64, Tokens: tokensFrom(1, 64), Hashes: []uint64{7}}
	announced := stored
	announced.Origin = "REUSED"
	gone := kvevents.Event{Kind: kvevents.Removed, Tier: onGPU, Hashes: []uint64{7}}
	again := mustNew(t, m.cfg)
	source := uint64(0)
	for i, events := range [][]*pb.KVEvent{
		m.Reset(), m.Apply([]kvevents.Event{stored, stored, gone}), m.Apply([]kvevents.Event{announced}), m.Apply([]kvevents.Event{gone}),
	} {
		if err := again.Adopt(&pb.KVBatch{Seq: uint64(i + 1), SourceSeq: &source, BlockTokens: 16, Events: events}); err != nil {
			t.Fatalf("batch %d, %v: %v", i+1, events, err)
		}
	}
	if _, err := again.Adopted(); err != nil || again.Stats().Present != m.Stats().Present {
		t.Errorf("%v: %+v, want %+v", err, again.Stats(), m.Stats())
	}
}
