package mirror

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

func adoptAll(t *testing.T, b *bench) error {
	t.Helper()
	m := mustNew(t, b.m.cfg)
	for _, batch := range b.f.batches {
		if err := m.Adopt(batch); err != nil {
			return err
		}
	}
	_, err := m.Adopted()
	return err
}

func TestAdoptRefuses(t *testing.T) {
	b := newBench(t, Config{})
	b.apply(store(onGPU, 1, 3))
	b.apply(remove(onGPU, 3))
	if err := adoptAll(t, b); err != nil {
		t.Fatal(err)
	}
	clone := func(i int) *pb.KVBatch { return proto.Clone(b.f.batches[i]).(*pb.KVBatch) }
	for want, spoil := range map[string]func([]*pb.KVBatch) []*pb.KVBatch{
		"must be whole":      func(all []*pb.KVBatch) []*pb.KVBatch { return all[1:] },
		"comes after 1":      func(all []*pb.KVBatch) []*pb.KVBatch { all[1] = all[2]; return all },
		"has no batch":       func([]*pb.KVBatch) []*pb.KVBatch { return nil },
		"does not say which": func(all []*pb.KVBatch) []*pb.KVBatch { all[2].SourceSeq = nil; return all },
		"in doubt: why": func(all []*pb.KVBatch) []*pb.KVBatch {
			all[2].Events = append(all[2].Events, doubtEvent("why"))
			return all
		},
		"blocks of 8 tokens":   func(all []*pb.KVBatch) []*pb.KVBatch { all[0].BlockTokens = 8; return all },
		"have no engine names": func(all []*pb.KVBatch) []*pb.KVBatch { all[1].Events[0].GetStore().Hashes = nil; return all },
		"0x9 is removed":       func(all []*pb.KVBatch) []*pb.KVBatch { all[2].Events[0].GetRemove().Hashes[0] = 9; return all },
		"names are not of the same": func(all []*pb.KVBatch) []*pb.KVBatch {
			all[2].Events[0].GetRemove().Keys = nil
			return all
		},
		"not of the same blocks": func(all []*pb.KVBatch) []*pb.KVBatch {
			all[2].Events[0].GetRemove().Hashes = nil
			return all
		},
		"removed keys and removed": func(all []*pb.KVBatch) []*pb.KVBatch {
			all[2].Events[0].GetRemove().Keys[0]++
			return all
		},
		"are not of the same blocks": func(all []*pb.KVBatch) []*pb.KVBatch {
			all[2].Events[0].GetRemove().Keys = nil
			all[2].Events = append(all[2].Events, doubtEvent(""))
			return all
		},
		"tier is":        func(all []*pb.KVBatch) []*pb.KVBatch { all[1].Events[0].GetStore().Tier = 9; return all },
		"not known here": func(all []*pb.KVBatch) []*pb.KVBatch { all[1].Events[0].Event = nil; return all },
		"of another block": func(all []*pb.KVBatch) []*pb.KVBatch {
			all[1].Events[0].GetStore().Hashes = []uint64{1, 2, 1}
			return all
		},
	} {
		all := spoil([]*pb.KVBatch{clone(0), clone(1), clone(2)})
		m, err := mustNew(t, b.m.cfg), error(nil)
		for _, batch := range all {
			if err = m.Adopt(batch); err != nil {
				break
			}
		}
		if err == nil {
			_, err = m.Adopted()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("adopted with %v, want %q", err, want)
		}
		if got := m.Reset(); len(got) != 1 || got[0].GetClear() == nil || m.Stats().Names != 0 {
			t.Errorf("%s: a reset gives %v", want, got)
		}
	}
	cut := []*pb.KVBatch{clone(0), clone(1), clone(2), clone(2)}
	cut[2].Events[0].GetRemove().Hashes, cut[3].Events[0].GetRemove().Keys = nil, nil
	cut[3].Seq++
	m := mustNew(t, b.m.cfg)
	for _, batch := range cut {
		if err := m.Adopt(batch); err != nil {
			t.Errorf("a removal that was cut: %v", err)
		}
	}
	if _, err := m.Adopted(); err != nil || !slices.Equal(state(m, true), state(b.m, true)) {
		t.Errorf("a removal that was cut: %v", err)
	}

	ended := newBench(t, Config{})
	ended.apply(store(onGPU, 2, 1))
	ended.apply(store(onGPU, 1, 1))
	if err := adoptAll(t, ended); err != nil {
		t.Errorf("a doubt that ended: %v", err)
	}
	small := newBench(t, Config{BlockTokens: 16})
	small.apply(store(onGPU, 1, 1))
	if err := adoptAll(t, small); err == nil || !strings.Contains(err.Error(), "smaller than the pool's") {
		t.Errorf("parts of a pool block, which are not told: %v", err)
	}
}

// adopted is a mirror that goes on from what b has published.
func adopted(b *bench) *Mirror {
	b.t.Helper()
	m := mustNew(b.t, b.m.cfg)
	for _, batch := range b.f.batches {
		if err := m.Adopt(batch); err != nil {
			b.t.Fatal(err)
		}
	}
	if _, err := m.Adopted(); err != nil {
		b.t.Fatal(err)
	}
	return m
}

// An orphan's copies, and what went of them, are told when it has a name.
func TestOrphansWithCopies(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(2)
	b.apply(store(onGPU, 2, 1), store(onGPU, 2, 1), store(onGPU, 2, 1), remove(onGPU, 2))
	b.apply(store(onGPU, 1, 1))
	b.holds("named", "", keys...)
	if got, want := state(adopted(b), true), state(b.m, true); !slices.Equal(got, want) {
		t.Errorf("adopted %v, want %v", got, want)
	}
	b.f.begin()
	b.f.publish(t, b.m.Resident())
	if got, want := state(adopted(b), true), state(b.m, true); !slices.Equal(got, want) {
		t.Errorf("told again and adopted %v, want %v", got, want)
	}
}

// A mirror that took over knows which of several attention groups counts.
func TestGroupAfterAdoption(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(2)
	in := func(e kvevents.Event, group int) kvevents.Event {
		e.Spec, e.Group, e.HasGroup = "full_attention", group, true
		return e
	}
	b.apply(in(store(onGPU, 1, 1), 0))
	b.m = adopted(b)
	b.apply(in(store(onGPU, 2, 1), 1), in(remove(onGPU, 1), 1))
	b.holds("another group", "", keys[0])
	b.apply(in(store(onGPU, 2, 1), 0))
	b.holds("the group", "", keys...)
}

// A mirror with less room than the one before it does not take over.
func TestAdoptWithoutRoom(t *testing.T) {
	b := newBench(t, Config{})
	b.apply(store(onGPU, 1, 4))
	m, err := mustNew(t, Config{BlockTokens: 4, MaxBlocks: 3}), error(nil)
	for _, batch := range b.f.batches {
		err = m.Adopt(batch)
	}
	if err == nil || !strings.Contains(err.Error(), "more than 3 blocks") {
		t.Errorf("adopted with %v", err)
	}
}

// An engine that evicts from the middle of a prompt stores what is missing of it
// in one run behind the last block that is there: each stands where its name says,
// and only what is new continues the prompt.
func TestMiddleComesBack(t *testing.T) {
	for _, pool := range []int{4, 8, 2} {
		b := newBench(t, Config{BlockTokens: pool})
		root := blockkey.Root("model", "", "")
		keys := blockkey.Chain(nil, root, tokensFrom(0, 8*4), pool)
		b.apply(store(onGPU, 1, 6))
		b.apply(remove(onGPU, 1), remove(onGPU, 3), remove(onGPU, 6))
		// 5 is the last that is there; 1 and 3 come back before it, 6 behind it, and
		// 7 and 8 are new.
		run := store(onGPU, 6, 3)
		run.Hashes = append([]uint64{1, 3}, run.Hashes...)
		run.Tokens = slices.Concat(tokensFrom(0, 4), tokensFrom(8, 4), run.Tokens)
		b.apply(run)
		b.holds(fmt.Sprintf("pool blocks of %d: all", pool), "", keys...)
		if pool != 8 { // of parts not everything is told
			if err := adoptAll(t, b); err != nil {
				t.Errorf("pool blocks of %d: another mirror cannot go on: %v", pool, err)
			}
		}
		if s := b.m.Stats(); s.Replaced != 0 {
			t.Errorf("stats %+v", s)
		}
		b.apply(remove(onGPU, 1, 2, 3, 4, 5, 6, 7, 8))
		b.holds("none", "")
	}
}

// A suspicion that the caller clears up itself does not cost the memory; any
// other doubt does, also behind it.
func TestAdoptSuspicion(t *testing.T) {
	const reason = "engine not connected"
	adopt := func(b *bench) (*Mirror, error) {
		m := mustNew(t, b.m.cfg)
		for _, batch := range b.f.batches {
			if err := m.Adopt(batch); err != nil {
				return nil, err
			}
		}
		_, err := m.Adopted(reason)
		return m, err
	}
	b := newBench(t, Config{})
	b.apply(store(onGPU, 1, 3))
	b.f.publish(t, b.m.Suspect(reason))
	m, err := adopt(b)
	if err != nil || m.Doubt() != reason {
		t.Fatalf("got %v; the doubt is %q", err, m.Doubt())
	}
	if out := m.Suspect(""); len(out) != 1 || m.Doubt() != "" {
		t.Errorf("the end of it is told as %v", out)
	}
	b.apply(store(onGPU, 7, 1)) // nobody knows what is before it
	if _, err := adopt(b); err == nil {
		t.Error("blocks without a name were adopted")
	}
}
