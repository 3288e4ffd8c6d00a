package mirror

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

const (
	onGPU = pb.Tier_TIER_GPU
	onCPU = pb.Tier_TIER_CPU
)

// bench is a mirror and a reader of what it says.
type bench struct {
	t *testing.T
	m *Mirror
	f *follower
}

func newBench(t *testing.T, cfg Config) *bench {
	t.Helper()
	if cfg.BlockTokens == 0 {
		cfg.BlockTokens = 4
	}
	cfg.Model = "model"
	b := &bench{t: t, m: mustNew(t, cfg), f: newFollower()}
	b.f.publish(t, b.m.Reset())
	return b
}

func (b *bench) apply(events ...kvevents.Event) []*pb.KVEvent {
	b.t.Helper()
	out := b.m.Apply(events)
	b.f.publish(b.t, out)
	checkInvariants(b.t, b.m)
	if all := visited(b.t, b.m); !maps.Equal(all, b.f.keys()) {
		b.t.Fatalf("readers have %d keys, the mirror says %d", len(b.f.keys()), len(all))
	}
	if b.f.doubt() != b.m.Doubt() {
		b.t.Fatalf("readers know of the doubt %q, there is %q", b.f.doubt(), b.m.Doubt())
	}
	return out
}

// holds checks that exactly these keys are on the gpu, and the doubt.
func (b *bench) holds(what, doubt string, keys ...blockkey.Key) {
	b.t.Helper()
	want := map[key]bool{}
	for _, k := range keys {
		want[key{onGPU, k}] = true
	}
	b.holdsAll(what, doubt, want)
}

func (b *bench) holdsAll(what, doubt string, want map[key]bool) {
	b.t.Helper()
	if got := b.f.keys(); !maps.Equal(got, want) {
		b.t.Errorf("%s: readers have %v, want %v", what, got, want)
	}
	if got := b.m.Doubt(); got != doubt {
		b.t.Errorf("%s: the doubt is %q, want %q", what, got, doubt)
	}
}

// store is one of blocks 1, 2, 3… as an engine with blocks of 4 tokens sees them.
func store(tier pb.Tier, first uint64, n int) kvevents.Event {
	e := kvevents.Event{Kind: kvevents.Stored, Tier: tier, BlockSize: 4, Tokens: tokensFrom(uint32(4*(first-1)), 4*n)}
	for i := range uint64(n) {
		e.Hashes = append(e.Hashes, first+i)
	}
	if first > 1 {
		e.Parent, e.HasParent = first-1, true
	}
	return e
}

func remove(tier pb.Tier, names ...uint64) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Removed, Tier: tier, Hashes: names}
}

// chain is the keys of blocks 1 to n.
func chain(n int) []blockkey.Key {
	return blockkey.Chain(nil, blockkey.Root("model", "", ""), tokensFrom(0, 4*n), 4)
}

func TestCopies(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(2)
	b.apply(store(onGPU, 1, 2), store(onGPU, 1, 2))
	out := b.apply(remove(onGPU, 2))
	b.holds("one of two copies went", "", keys...)
	if len(out) != 1 || len(out[0].GetRemove().Keys) != 0 || !slices.Equal(out[0].GetRemove().Hashes, []uint64{2}) {
		t.Errorf("it is told as %v", out)
	}
	b.apply(remove(onGPU, 2, 1))
	b.holds("the last copy of the second went", "", keys[0])
	b.apply(remove(onGPU, 1))
	b.holds("both are gone", "")

	gone := remove(onGPU, 1)
	gone.CopiesLeft = []int64{1}
	b.apply(store(onGPU, 1, 1), store(onGPU, 1, 1), store(onGPU, 1, 1), gone)
	if got := b.m.Stats(); got.GPUCopies != 1 {
		t.Errorf("the engine says that one copy is left: %+v", got)
	}
	gone.CopiesLeft = []int64{3}
	b.apply(gone)
	if got := b.m.Stats(); got.GPUCopies != 3 {
		t.Errorf("the engine says that three copies are left: %+v", got)
	}
	gone.CopiesLeft = []int64{0}
	b.apply(gone)
	b.holds("the engine says that none is left", "")

	all := remove(onGPU, 1)
	all.EveryTier = true
	b.apply(store(onGPU, 1, 1), store(onGPU, 1, 1), all)
	b.holds("the engine says that it is gone from everywhere", "")
	unknown := b.m.Stats().UnknownRemovals
	if b.apply(all); b.m.Stats().UnknownRemovals != unknown {
		t.Error("a removal from a tier that was not meant counts as unknown")
	}
	if b.apply(remove(onGPU, 1)); b.m.Stats().UnknownRemovals != unknown+1 {
		t.Error("a removal of nothing is not counted")
	}
}

func TestOnce(t *testing.T) {
	b, keys := newBench(t, Config{Repeats: Once}), chain(2)
	b.apply(store(onGPU, 1, 2))
	if out := b.apply(store(onGPU, 1, 2)); len(out) != 0 {
		t.Errorf("what is no news is told: %v", out)
	}
	b.apply(remove(onGPU, 2))
	b.holds("stored twice and removed once", "", keys[0])
}

// An engine that repeats itself shows it when it claims more than it has room
// for; what it removed meanwhile is gone then.
func TestRepeatsThatCannotBeCopies(t *testing.T) {
	b, keys := newBench(t, Config{Capacity: 6}), chain(4)
	b.apply(store(onGPU, 1, 4), store(onGPU, 1, 2))
	b.apply(remove(onGPU, 2))
	b.holds("a removal of what may be there twice", "", keys...)
	out := b.apply(store(onGPU, 1, 1), store(onGPU, 1, 1))
	b.holds("seven copies in six blocks", "", keys[0], keys[2], keys[3])
	if s := b.m.Stats(); !s.Announces || s.Collapses != 1 || s.GPUCopies != 3 {
		t.Errorf("stats %+v", s)
	}
	last := out[len(out)-1].GetRemove()
	if last == nil || len(last.Keys)+len(last.Hashes) > 0 {
		t.Errorf("a mirror that adopts this does not learn of it: %v", out)
	}
	b.apply(store(onGPU, 1, 1), remove(onGPU, 1))
	b.holds("a repeat counts no more", "", keys[2], keys[3])

	adopted := mustNew(t, b.m.cfg)
	for _, batch := range b.f.batches {
		if err := adopted.Adopt(batch); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := adopted.Adopted(); err != nil || !slices.Equal(state(adopted, true), state(b.m, true)) {
		t.Errorf("adopted %v, %v, want %v", err, state(adopted, true), state(b.m, true))
	}
	b.f.begin()
	again := b.m.Resident()
	b.f.publish(t, again)
	adopted = mustNew(t, b.m.cfg)
	for _, batch := range b.f.batches {
		if err := adopted.Adopt(batch); err != nil {
			t.Fatal(err)
		}
	}
	if !adopted.once {
		t.Errorf("told again, it is lost that repeats are announcements: %v", again)
	}
}

func TestRepeatsWithinTheCapacityAreCopies(t *testing.T) {
	b := newBench(t, Config{Capacity: 3})
	b.apply(store(onGPU, 1, 4)) // a capacity that is wrong is no proof
	b.apply(remove(onGPU, 1, 2))
	b.apply(store(onGPU, 3, 1))
	if s := b.m.Stats(); s.Announces || s.GPUCopies != 3 {
		t.Errorf("stats %+v", s)
	}
}

func TestAnnouncements(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(4)
	b.apply(store(onGPU, 1, 3))
	deep := store(onGPU, 2, 3)
	deep.HasParent = false
	b.apply(deep)
	b.holds("a run without its place that is known to be deep", "", keys...)
	reused := store(onGPU, 1, 4)
	reused.Origin = "REUSED"
	b.apply(reused, reused)
	b.apply(remove(onGPU, 1, 2, 3, 4))
	b.holds("announced, and removed once", "")
	b.apply(deep)
	b.holds("announced by a name that is remembered", "", keys[1:]...)
}

// A name that comes again for other tokens is of another block now.
func TestReplacedNames(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(3)
	b.apply(store(onGPU, 1, 3), store(onCPU, 2, 1), store(onGPU, 2, 1))
	other := store(onGPU, 2, 1)
	other.Tokens = tokensFrom(700, 4)
	b.apply(other)
	want := blockkey.Next(keys[0], other.Tokens, nil)
	b.holds("the second block is another", "", keys[0], keys[2], want)
	if s := b.m.Stats(); s.Replaced != 1 {
		t.Errorf("stats %+v", s)
	}
	root := store(onGPU, 3, 1)
	root.HasParent = false
	root.Tokens = tokensFrom(800, 4)
	b.apply(root)
	b.holds("the third is at the beginning", "", keys[0], want, blockkey.Next(blockkey.Root("model", "", ""), root.Tokens, nil))
}

// In parts of a pool block, those that stand on a part that is another now are
// not known any more.
func TestReplacedParts(t *testing.T) {
	b := newBench(t, Config{BlockTokens: 16})
	root := blockkey.Root("model", "", "")
	key := blockkey.Chain(nil, root, tokensFrom(0, 16), 16)
	b.apply(store(onGPU, 1, 4))
	b.holds("four parts", "", key...)
	other := store(onGPU, 2, 1)
	other.Tokens = tokensFrom(700, 4)
	b.apply(other)
	b.holds("the second is another", "blocks without a name")
	b.apply(remove(onGPU, 3, 4))
	b.holds("the others went", "")
	b.apply(store(onGPU, 3, 2))
	tokens := slices.Concat(tokensFrom(0, 4), tokensFrom(700, 4), tokensFrom(8, 8))
	b.holds("they came behind it", "", blockkey.Next(root, tokens, nil))
}

// Blocks that an engine tells apart may have one key.
func TestTwins(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(1)
	twin := store(onGPU, 1, 1)
	twin.Hashes = []uint64{99}
	third := twin
	third.Hashes = []uint64{98}
	b.apply(store(onGPU, 1, 1), twin, third)
	b.apply(remove(onGPU, 99))
	b.apply(remove(onGPU, 1))
	b.holds("one of three is there", "", keys...)
	b.apply(remove(onGPU, 98))
	b.holds("none is", "")
}

func TestOrphans(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(5)
	b.apply(store(onGPU, 4, 2), store(onGPU, 3, 1), store(onCPU, 5, 1))
	b.holds("without the beginning", "blocks without a name")
	b.apply(remove(onGPU, 5), store(onGPU, 4, 1))
	out := b.apply(store(onGPU, 1, 2))
	b.holdsAll("the beginning came", "", map[key]bool{
		{onGPU, keys[0]}: true, {onGPU, keys[1]}: true, {onGPU, keys[2]}: true, {onGPU, keys[3]}: true, {onCPU, keys[4]}: true,
	})
	if s := b.m.Stats(); s.Named != 3 || s.Unnamed != 0 || s.Waiting != 0 {
		t.Errorf("stats %+v", s)
	}
	if end := out[len(out)-1].GetDoubt(); end == nil || end.Reason != "" {
		t.Errorf("the doubt does not end last: %v", out)
	}
	b.apply(remove(onGPU, 4))
	b.apply(remove(onGPU, 4))
	b.holdsAll("both copies of one went", "", map[key]bool{
		{onGPU, keys[0]}: true, {onGPU, keys[1]}: true, {onGPU, keys[2]}: true, {onCPU, keys[4]}: true,
	})

	ring := newBench(t, Config{})
	one, two := store(onGPU, 7, 1), store(onGPU, 8, 1)
	one.Parent, two.Parent = 8, 7
	ring.apply(one, two)
	ring.holds("each the other's parent", "blocks without a name")
	ring.apply(remove(onGPU, 7, 8))
	ring.holds("gone", "")
}

func TestOrphansAreBounded(t *testing.T) {
	m := mustNew(t, Config{BlockTokens: 512, Model: "model"})
	for i := range uint64(maxWaitingTokens/512 + 10) {
		m.Apply([]kvevents.Event{{
			Kind: kvevents.Stored, Tier: onGPU, BlockSize: 512, Tokens: make([]uint32, 512), Hashes: []uint64{i + 10}, Parent: 1, HasParent: true,
		}})
	}
	if s := m.Stats(); s.Waiting > maxWaitingTokens || s.Waiting < maxWaitingTokens-512 || s.Unnamed != maxWaitingTokens/512+10 {
		t.Errorf("stats %+v", s)
	}
	m.Apply([]kvevents.Event{{Kind: kvevents.Cleared}})
	if s := m.Stats(); s.Waiting != 0 || m.Doubt() != "" || s.Names != 0 {
		t.Errorf("stats %+v after a clear", s)
	}
}

func TestRunsThatDoNotFit(t *testing.T) {
	keys := chain(4)
	long := store(onGPU, 2, 2)
	long.Tokens = tokensFrom(4, 12)
	short := store(onGPU, 2, 3)
	short.Tokens = short.Tokens[:6]
	trailing := store(onGPU, 2, 1)
	trailing.Tokens = tokensFrom(4, 7)
	own := store(onGPU, 2, 2)
	own.Parent = 3
	sizeless := store(onGPU, 2, 2)
	sizeless.BlockSize = 0
	huge := store(onGPU, 2, 1)
	huge.BlockSize = 2662439576
	for _, c := range []struct {
		name  string
		event kvevents.Event
		doubt string
		keys  []blockkey.Key
		undo  []uint64
	}{
		{"more tokens than blocks", long, "blocks without a name", keys[:1], []uint64{2, 3}},
		{"fewer tokens than blocks", short, "blocks without a name", keys[:2], []uint64{4}},
		{"tokens of a block that is not named", trailing, "", keys[:2], nil},
		{"a block that is its own parent", own, "blocks without a name", keys[:1], []uint64{2, 3}},
		{"no block size", sizeless, "", keys[:3], nil},
		{"a block size that is damaged", huge, "", keys[:1], []uint64{2}},
	} {
		b := newBench(t, Config{})
		b.apply(store(onGPU, 1, 1))
		b.apply(c.event)
		b.holds(c.name, c.doubt, c.keys...)
		if c.undo != nil {
			b.apply(remove(onGPU, c.undo...))
			b.holds(c.name+", removed", "", c.keys...)
		}
		if s := b.m.Stats(); s.BlockSize != 4 || s.UnknownRemovals != 0 {
			t.Errorf("%s: stats %+v", c.name, s)
		}
	}
}

// A block that claims to stand on itself is not named by it, and not told twice.
func TestOwnParent(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(2)
	own := store(onGPU, 2, 1)
	own.Parent = 2
	b.apply(store(onGPU, 1, 2), own)
	b.holds("known before", "", keys...)
	b.apply(remove(onGPU, 2))
	b.holds("one of two copies went", "", keys...)
	if s := b.m.Stats(); s.OwnParents != 1 || s.Replaced != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestRootsThatAreUnknown(t *testing.T) {
	numbered := store(onGPU, 1, 1)
	numbered.LoRAID, numbered.HasLoRAID = 7, true
	salted := store(onGPU, 1, 1)
	salted.Salt = "a\x00b"
	b := newBench(t, Config{LoRAs: map[int64]string{7: "seven"}})
	b.apply(numbered)
	b.holds("an adapter with a name", "", blockkey.Next(blockkey.Root("model", "seven", ""), numbered.Tokens, nil))
	for name, e := range map[string]kvevents.Event{"an adapter without a name": numbered, "a salt that may be another root": salted} {
		b := newBench(t, Config{})
		b.apply(e)
		b.holds(name, "blocks without a name")
	}
}

func TestGroupsAndWindows(t *testing.T) {
	in := func(e kvevents.Event, spec string, group, window int) kvevents.Event {
		e.Spec, e.Group, e.HasGroup, e.Window = spec, group, group >= 0, window
		return e
	}
	keys := chain(3)
	b := newBench(t, Config{})
	b.apply(in(store(onGPU, 1, 1), "sliding_window", 0, 0), in(store(onGPU, 1, 2), "full_attention", 1, 0))
	b.apply(in(store(onGPU, 3, 1), "mla_attention", 2, 0), in(remove(onGPU, 1), "", 0, 0), in(remove(onGPU, 2), "", 1, 0))
	b.holds("the first group of full attention", "", keys[0])
	b.apply(in(store(onGPU, 1, 1), "full_attention", 0, 0))
	b.holds("it was not the first", "attention groups mixed", keys[0])
	b.apply(kvevents.Event{Kind: kvevents.Cleared}, in(store(onGPU, 1, 1), "", 0, 0))
	b.holds("cleared", "", keys[0])
	if s := b.m.Stats(); s.OtherGroups != 3 {
		t.Errorf("stats %+v", s)
	}
	if err := adoptAll(t, b); err == nil || !strings.Contains(err.Error(), "no engine names") {
		t.Errorf("what depends on a group that is not told is adopted: %v", err)
	}

	b = newBench(t, Config{})
	b.apply(in(store(onGPU, 1, 2), "", -1, 4096), in(store(onGPU, 3, 1), "", -1, 512), in(remove(onGPU, 1), "", -1, 512))
	b.holds("the largest window", "", keys[:2]...)
	b.apply(in(store(onGPU, 1, 1), "", -1, 8192))
	b.holds("it was not the largest", "attention windows mixed", keys[:2]...)
	if s := b.m.Stats(); s.OtherWindows != 2 {
		t.Errorf("stats %+v", s)
	}
}

func TestMemoryBound(t *testing.T) {
	b, keys := newBench(t, Config{MaxBlocks: 3}), chain(5)
	b.apply(store(onGPU, 1, 3), remove(onGPU, 3), store(onGPU, 3, 1))
	b.holds("full", "", keys[:3]...)
	b.apply(store(onGPU, 4, 2))
	b.holds("too full", "memory bound", keys[:3]...)
	b.apply(remove(onGPU, 1, 2, 3))
	b.holds("emptied: what else there is, is unknown", "memory bound")
	b.apply(kvevents.Event{Kind: kvevents.Cleared}, store(onGPU, 3, 2))
	b.holds("by a name that is remembered", "", keys[2:4]...)
	b.apply(remove(onGPU, 3, 4), store(onGPU, 5, 1))
	b.holds("by the youngest name", "", keys[4])
	b.apply(store(onGPU, 2, 1))
	b.holds("by a name that went", "blocks without a name", keys[4])
	if s := b.m.Stats(); s.Names > 3 || s.Forgotten == 0 || s.NoRoom == 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestLostAndReset(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(4)
	b.apply(store(onGPU, 1, 3))
	b.f.begin()
	b.f.publish(t, b.m.Lost("replay too short"))
	b.holds("lost", "engine history lost: replay too short")
	b.apply(store(onGPU, 4, 1))
	b.holds("names are kept", "engine history lost: replay too short", keys[3])
	b.apply(kvevents.Event{Kind: kvevents.Cleared}, store(onGPU, 1, 1))
	b.holds("cleared", "", keys[0])
	b.f.begin()
	b.f.publish(t, b.m.Reset())
	b.holds("reset", "")
	b.apply(store(onGPU, 4, 1))
	b.holds("names are not kept", "blocks without a name")
}

// What belongs together is one event, and nothing is put in another order.
func TestJoinedEvents(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(6)
	out := b.apply(store(onGPU, 1, 2), store(onGPU, 3, 2), remove(onGPU, 3), remove(onGPU, 4), remove(onGPU, 2), store(onCPU, 3, 2), store(onGPU, 5, 1))
	want := []*pb.KVEvent{
		{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: onGPU, Keys: keys[:4], Hashes: []uint64{1, 2, 3, 4}}}},
		{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: onGPU, Keys: []uint64{keys[2], keys[3], keys[1]}, Hashes: []uint64{3, 4, 2}}}},
		{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: onCPU, Parent: &keys[1], Keys: keys[2:4], Hashes: []uint64{3, 4}}}},
		{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: onGPU, Parent: &keys[3], Keys: keys[4:5], Hashes: []uint64{5}}}},
	}
	if len(out) != len(want) {
		t.Fatalf("told as %v", out)
	}
	for i := range want {
		if !proto.Equal(out[i], want[i]) {
			t.Errorf("event %d is %v, want %v", i, out[i], want[i])
		}
	}
	long := newBench(t, Config{}).apply(store(onGPU, 1, 2*maxRun+1))
	if len(long) != 3 || len(long[0].GetStore().Keys) != maxRun || *long[1].GetStore().Parent != long[0].GetStore().Keys[maxRun-1] {
		t.Errorf("a long run is told in %d events", len(long))
	}
}

func TestResidentIsInChains(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(6)
	for name := uint64(6); name > 0; name-- { // so that the slab has them in another order
		b.apply(store(onGPU, name, 1))
	}
	out := b.m.Resident()
	if len(out) != 2 || out[0].GetClear() == nil || !slices.Equal(out[1].GetStore().Keys, keys) {
		t.Errorf("told again as %v", out)
	}
}

// What the caller doubts is told as any other doubt, and ends with its word.
func TestSuspect(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(1)
	b.f.publish(t, b.m.Suspect("engine not connected"))
	b.apply(store(onGPU, 1, 1))
	b.holds("suspect", "engine not connected", keys...)
	if out := b.m.Suspect("engine not connected"); len(out) != 0 {
		t.Errorf("what readers know is told again: %v", out)
	}
	b.f.publish(t, b.m.Suspect(""))
	b.holds("not suspect", "", keys...)
	if b.f.doubt() != "" {
		t.Errorf("readers know of %q", b.f.doubt())
	}
}

func TestNewRefuses(t *testing.T) {
	for want, cfg := range map[string]Config{
		"block tokens": {}, "max blocks": {BlockTokens: 16, MaxBlocks: -1}, "model": {BlockTokens: 16, Model: "a\x00"},
		"repeats": {BlockTokens: 16, Repeats: 2}, "capacity": {BlockTokens: 16, Capacity: -1},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
