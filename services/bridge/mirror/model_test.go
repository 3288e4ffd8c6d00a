package mirror

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"warmpath/routing/blockkey"
	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

type key struct {
	tier pb.Tier
	key  blockkey.Key
}

// truth is what an engine holds, kept as plainly as possible by one who knows
// what its names mean, and of which of them a mirror can know that.
type truth struct {
	w       *world
	repeats Repeats
	copies  [tiers]map[uint64]int
	named   map[uint64]bool
	parents map[uint64]uint64 // of blocks that wait for a name
	lost    bool
}

func newTruth(w *world, repeats Repeats) *truth {
	t := &truth{w: w, repeats: repeats, named: map[uint64]bool{}}
	t.clear()
	return t
}

func (t *truth) clear() {
	for i := range t.copies {
		t.copies[i] = map[uint64]int{}
	}
	t.parents, t.lost = map[uint64]uint64{}, false
}

// keys is every block key in every tier.
func (t *truth) keys() map[key]bool {
	out := map[key]bool{}
	for tier, copies := range t.copies {
		for h := range copies {
			b := t.w.blocks[h]
			end := (b.at + 1) * t.w.size
			for i := range b.prompt.keys {
				first, last := i*t.w.pool, (i+1)*t.w.pool
				if last > end || last <= end-t.w.size {
					continue // the pool block does not end within b
				}
				whole := true
				for _, part := range b.prompt.blocks[first/t.w.size : b.at] {
					whole = whole && copies[part.hash] > 0
				}
				if whole {
					out[key{pb.Tier(tier + 1), b.prompt.keys[i]}] = true
				}
			}
		}
	}
	return out
}

func (t *truth) present(h uint64) bool {
	for i := range t.copies {
		if t.copies[i][h] > 0 {
			return true
		}
	}
	return false
}

func (t *truth) put(tier int, h uint64, announced bool) {
	if t.copies[tier][h] == 0 || !announced && t.repeats == Copies {
		t.copies[tier][h]++
	}
}

func (t *truth) take(tier int, h uint64, n int) {
	if t.copies[tier][h] -= n; t.copies[tier][h] <= 0 {
		delete(t.copies[tier], h)
	}
	if !t.present(h) {
		delete(t.parents, h)
	}
}

// run stores blocks of a prompt that say where they begin, or do not.
func (t *truth) run(tier int, blocks []*block, parented, announced bool) {
	first := blocks[0]
	_, waits := t.parents[first.hash]
	deep := !parented && first.at > 0 && (t.named[first.hash] || waits)
	known := !deep && (first.at == 0 || parented && t.named[first.parent])
	for i, b := range blocks {
		if known = known || t.named[b.hash]; known {
			t.named[b.hash] = true
			delete(t.parents, b.hash)
		} else if i > 0 || parented {
			t.parents[b.hash] = b.parent
		}
		t.put(tier, b.hash, announced || deep)
		for woken := true; woken; {
			woken = false
			for h, parent := range t.parents {
				if t.named[parent] {
					t.named[h], woken = true, true
					delete(t.parents, h)
				}
			}
		}
	}
}

func (t *truth) doubt() bool {
	for i := range t.copies {
		for h := range t.copies[i] {
			if !t.named[h] {
				return true
			}
		}
	}
	return t.lost
}

// follower applies what a mirror says to an index, as a router does.
type follower struct {
	x       *prefix.Index
	epoch   uint32
	batches []*pb.KVBatch
}

func newFollower() *follower { return &follower{x: prefix.New()} }

func (f *follower) begin() {
	f.epoch++
	f.batches = nil
}

func (f *follower) publish(t fataler, events []*pb.KVEvent) {
	b := &pb.KVBatch{Replica: "r", Epoch: make([]byte, 16), Seq: uint64(len(f.batches) + 1), Events: events}
	binary.BigEndian.PutUint32(b.Epoch, f.epoch+1)
	b.SourceSeq = proto.Uint64(b.Seq + 100)
	f.batches = append(f.batches, b)
	batch, err := prefix.FromProto(b, f.x.Position()+1)
	if err != nil {
		t.Fatalf("published: %v", err)
	}
	f.x.Apply(batch)
}

func (f *follower) keys() map[key]bool {
	out := map[key]bool{}
	f.x.Visit(func(e prefix.Entry) bool {
		out[key{e.Tier.ToProto(), e.Key}] = true
		return true
	})
	return out
}

func (f *follower) doubt() string {
	for _, l := range f.x.Lives() {
		return l.Doubt
	}
	return ""
}

func visited(t fataler, m *Mirror) map[key]bool {
	out := map[key]bool{}
	m.Visit(func(tier pb.Tier, k blockkey.Key) bool {
		if out[key{tier, k}] {
			t.Fatalf("Visit gives %v %x twice", tier, k)
		}
		out[key{tier, k}] = true
		return true
	})
	return out
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// machine drives a mirror, the truth and an index.
type machine struct {
	w     *world
	cfg   Config
	m     *Mirror
	truth *truth
	f     *follower
	// partial is partial blocks that are stored, by tier.
	partial map[uint64]int
	// forgetful is true of a mirror that has no room for all names: it may be in
	// doubt where one that remembers would not.
	forgetful bool
}

func newMachine(t fataler, w *world, repeats Repeats) *machine {
	s := &machine{w: w, cfg: Config{Model: "model", BlockTokens: w.pool, Repeats: repeats}, f: newFollower(), partial: map[uint64]int{}}
	s.m = mustNew(t, s.cfg)
	s.truth = newTruth(w, repeats)
	return s
}

func mustNew(t fataler, cfg Config) *Mirror {
	m, err := New(cfg)
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	return m
}

func (s *machine) draw(t *rapid.T) []kvevents.Event {
	var events []kvevents.Event
	for range rapid.IntRange(1, 3).Draw(t, "events") {
		events = append(events, s.drawEvent(t)...)
	}
	return events
}

func (s *machine) drawRun(t *rapid.T) []*block {
	p := s.w.prompts[rapid.IntRange(0, len(s.w.prompts)-1).Draw(t, "prompt")]
	from := 0
	if rapid.IntRange(0, 2).Draw(t, "deep") == 0 {
		from = rapid.IntRange(0, len(p.blocks)-1).Draw(t, "from")
	}
	return p.blocks[from:rapid.IntRange(from+1, len(p.blocks)).Draw(t, "to")]
}

func (s *machine) drawHash(t *rapid.T, tier int) uint64 {
	if held := slices.Sorted(maps.Keys(s.truth.copies[tier])); len(held) > 0 && rapid.IntRange(0, 4).Draw(t, "held") > 0 {
		return rapid.SampledFrom(held).Draw(t, "hash")
	}
	return rapid.SampledFrom(s.w.hashes).Draw(t, "any")
}

func (s *machine) drawEvent(t *rapid.T) []kvevents.Event {
	tier := max(0, rapid.IntRange(-2, 1).Draw(t, "tier"))
	switch kind := rapid.IntRange(0, 29).Draw(t, "kind"); {
	case kind < 10:
		run := s.drawRun(t)
		e := s.w.event(run, tier)
		s.truth.run(tier, run, e.HasParent, false)
		return []kvevents.Event{e}
	case kind < 19:
		return s.drawRemovals(t, tier)
	case kind == 19:
		s.truth.clear()
		s.partial = map[uint64]int{}
		return []kvevents.Event{{Kind: kvevents.Cleared}}
	case kind == 20: // what is there, said again without its place
		return s.drawAnnouncement(t, tier)
	case kind == 21:
		run := s.drawRun(t)
		e := s.w.event(run, tier)
		e.Origin = "REUSED"
		s.truth.run(tier, run, e.HasParent, true)
		return []kvevents.Event{e}
	case kind == 22: // where a block is, and no more
		h := s.drawHash(t, 0)
		s.truth.put(tier, h, false)
		return []kvevents.Event{{Kind: kvevents.Stored, Hashes: []uint64{h}, Tier: pb.Tier(tier + 1)}}
	case kind < 25:
		h := s.drawHash(t, tier)
		if s.truth.copies[tier][h] == 0 {
			return nil
		}
		s.truth.put(1-tier, h, false)
		s.truth.take(tier, h, 1)
		return []kvevents.Event{{Kind: kvevents.Moved, Hashes: []uint64{h}, FromTier: pb.Tier(tier + 1), Tier: pb.Tier(2 - tier)}}
	case kind == 25: // attention that does not count
		e := s.w.event(s.drawRun(t), tier)
		e.Spec, e.Group, e.HasGroup = "sliding_window", 1, true
		gone := kvevents.Event{Kind: kvevents.Removed, Hashes: e.Hashes, Tier: e.Tier, Group: 1, HasGroup: true}
		return []kvevents.Event{e, gone}
	case kind == 26:
		return s.drawPartial(t, tier)
	case kind == 27: // a tier that nobody knows
		e := s.w.event(s.drawRun(t), tier)
		e.Tier = pb.Tier_TIER_UNSPECIFIED
		return []kvevents.Event{e}
	}
	return s.drawClearedTier(t, tier)
}

func (s *machine) drawClearedTier(t *rapid.T, tier int) []kvevents.Event {
	if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		return nil
	}
	e := []kvevents.Event{{Kind: kvevents.Cleared, Tier: pb.Tier(tier + 1)}}
	for _, h := range slices.Collect(maps.Keys(s.truth.copies[tier])) {
		s.truth.take(tier, h, s.truth.copies[tier][h])
	}
	return e
}

func (s *machine) drawRemovals(t *rapid.T, tier int) []kvevents.Event {
	e := kvevents.Event{Kind: kvevents.Removed, Tier: pb.Tier(tier + 1)}
	left := rapid.IntRange(0, 4).Draw(t, "says what is left") == 0
	for range rapid.IntRange(1, 4).Draw(t, "removals") {
		h := s.drawHash(t, tier)
		e.Hashes = append(e.Hashes, h)
		n := s.truth.copies[tier][h]
		if left {
			e.CopiesLeft = append(e.CopiesLeft, max(0, int64(n)-1))
		}
		if n > 0 {
			s.truth.take(tier, h, 1)
		}
	}
	return []kvevents.Event{e}
}

func (s *machine) drawAnnouncement(t *rapid.T, tier int) []kvevents.Event {
	run := s.drawRun(t)
	if run[0].at == 0 {
		if len(run) == 1 {
			return nil
		}
		run = run[1:]
	}
	if _, waits := s.truth.parents[run[0].hash]; !waits && !s.truth.named[run[0].hash] {
		return nil // nobody could know where it belongs
	}
	if s.forgetful {
		return nil // its name may be forgotten, also while a tier update told of it (DESIGN.md)
	}
	e := s.w.event(run, tier)
	e.HasParent, e.Parent = false, 0
	s.truth.run(tier, run, false, true)
	return []kvevents.Event{e}
}

// drawPartial draws a block that is shorter than the others, which must be known
// to have come, or the end of one.
func (s *machine) drawPartial(t *rapid.T, tier int) []kvevents.Event {
	if held := slices.Sorted(maps.Keys(s.partial)); len(held) > 0 && rapid.Bool().Draw(t, "ends") {
		h := held[0]
		at := s.partial[h]
		delete(s.partial, h)
		return []kvevents.Event{{Kind: kvevents.Removed, Hashes: []uint64{h}, Tier: pb.Tier(at + 1)}}
	}
	h := uint64(77)
	if _, held := s.partial[h]; s.w.size == 1 || s.m.Stats().BlockSize == 0 || tier != 0 || held {
		return nil
	}
	s.partial[h] = tier
	p := s.w.prompts[0]
	return []kvevents.Event{{
		Kind: kvevents.Stored, Hashes: []uint64{h}, Parent: p.blocks[0].hash, HasParent: true, Tier: pb.Tier(tier + 1),
		BlockSize: s.w.size - 1, Tokens: p.tokens[s.w.size:][:s.w.size-1],
	}}
}

func (s *machine) check(t *rapid.T) {
	t.Helper()
	checkInvariants(t, s.m)
	got, doubt := s.f.keys(), s.m.Doubt()
	if said := s.f.doubt(); said != doubt {
		t.Fatalf("readers know of the doubt %q, there is %q", said, doubt)
	}
	if all := visited(t, s.m); !maps.Equal(got, all) {
		t.Fatalf("readers have %d keys, the mirror says %d", len(got), len(all))
	}
	want := s.truth.keys()
	if doubt == "" && !maps.Equal(got, want) {
		t.Fatalf("without a doubt readers have\n%s\nwant\n%s", s.names(got), s.names(want))
	}
	if !s.forgetful && (doubt != "") != s.truth.doubt() {
		t.Fatalf("doubt is %q, want %v", doubt, s.truth.doubt())
	}
}

func (s *machine) names(keys map[key]bool) string {
	var out []string
	for i, p := range s.w.prompts {
		for j, k := range p.keys {
			for tier := range tiers {
				if keys[key{pb.Tier(tier + 1), k}] {
					out = append(out, fmt.Sprintf("%d/%d@%d", i, j, tier))
				}
			}
		}
	}
	return fmt.Sprint(len(keys), out)
}

// step does one thing.
func (s *machine) step(t *rapid.T) {
	switch what := rapid.IntRange(0, 29).Draw(t, "step"); what {
	case 0:
		s.f.begin()
		s.f.publish(t, s.m.Lost("test"))
		s.truth.clear()
		s.truth.lost = true
		s.partial = map[uint64]int{}
	case 1:
		s.f.begin()
		s.f.publish(t, s.m.Resident())
	case 2:
		s.f.begin()
		s.f.publish(t, s.m.Reset())
		s.truth = newTruth(s.w, s.cfg.Repeats)
		s.partial = map[uint64]int{}
	case 3, 4:
		s.adopt(t)
	default:
		s.f.publish(t, s.m.Apply(s.draw(t)))
	}
}

// adopt goes on with a mirror that knows no more than what was published, if
// there is nothing that only the other one knows: names from before the epoch,
// and partial blocks.
func (s *machine) adopt(t *rapid.T) {
	m := mustNew(t, s.cfg)
	err := error(nil)
	for _, b := range s.f.batches {
		if err = m.Adopt(b); err != nil {
			break
		}
	}
	source := uint64(0)
	if err == nil {
		source, err = m.Adopted()
	}
	if err != nil {
		if exact := s.m.Doubt() == "" && !s.forgetful && s.w.size >= s.w.pool && len(s.f.batches) > 0; exact {
			t.Fatalf("not adopted: %v", err)
		}
		return
	}
	if s.m.Doubt() != "" || source != uint64(len(s.f.batches)+100) {
		t.Fatalf("adopted with the doubt %q, up to %d", s.m.Doubt(), source)
	}
	checkInvariants(t, m)
	if got, want := state(m, false), state(s.m, false); !slices.Equal(got, want) {
		t.Fatalf("adopted\n%v\nwant\n%v", got, want)
	}
	if slices.Equal(state(m, true), state(s.m, true)) && len(s.partial) == 0 {
		m.stats = s.m.stats
		s.m = m
	}
}

// state is all that decides how a mirror goes on, partial blocks aside; names
// that are nowhere with absent.
func state(m *Mirror, absent bool) []string {
	out := []string{fmt.Sprint(m.once, m.present, m.copies, m.unnamed)}
	for n := range m.slab.all() {
		one := m.slab.at(n)
		if one.is(flagPartial) || one.gone() && !absent {
			continue
		}
		out = append(out, fmt.Sprintf("%x %x %x %v %v %v %x %x", one.name, m.keysOf(n), one.prev, one.copies,
			one.is(flagFirst), m.layouts[one.layout].size, one.shown, one.absorbed))
	}
	slices.Sort(out)
	return out
}

// TestMirrorIsTheTruth: with any ratio of block sizes, what readers are told is
// what the engine holds, or they are told to doubt it, and not otherwise.
func TestMirrorIsTheTruth(t *testing.T) {
	for _, c := range []struct{ pool, size int }{{16, 16}, {16, 32}, {16, 64}, {16, 8}, {16, 4}, {16, 1}, {4, 4}} {
		for _, repeats := range []Repeats{Copies, Once} {
			t.Run(fmt.Sprintf("engine%d_pool%d_repeats%d", c.size, c.pool, repeats), func(t *testing.T) {
				w := newWorld(c.pool, c.size)
				rapid.Check(t, func(t *rapid.T) {
					s := newMachine(t, w, repeats)
					s.f.publish(t, s.m.Reset())
					for range rapid.IntRange(1, 40).Draw(t, "steps") {
						s.step(t)
						s.check(t)
					}
				})
			})
		}
	}
}

// TestLittleRoom: a mirror that forgets names, or cannot remember what is there,
// is never wrong without a doubt.
func TestLittleRoom(t *testing.T) {
	for _, c := range []struct{ pool, size, room int }{{16, 16, 5}, {16, 16, 12}, {16, 32, 7}, {16, 8, 1}, {16, 4, 9}, {16, 2, 60}} {
		t.Run(fmt.Sprintf("engine%d_pool%d_room%d", c.size, c.pool, c.room), func(t *testing.T) {
			w := newWorld(c.pool, c.size)
			rapid.Check(t, func(t *rapid.T) {
				s := newMachine(t, w, Repeats(rapid.IntRange(0, 1).Draw(t, "repeats")))
				s.cfg.MaxBlocks, s.forgetful = c.room, true
				s.m = mustNew(t, s.cfg)
				s.f.publish(t, s.m.Reset())
				for range rapid.IntRange(1, 40).Draw(t, "steps") {
					s.step(t)
					s.check(t)
					if n := s.m.Stats().Names; n > c.room {
						t.Fatalf("%d blocks are remembered, there is room for %d", n, c.room)
					}
				}
			})
		})
	}
}
