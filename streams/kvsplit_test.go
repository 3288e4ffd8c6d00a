package streams_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

func storeEvent(parent *uint64, keys, hashes []uint64) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: pb.Tier_TIER_GPU, Parent: parent, Keys: keys, Hashes: hashes}}}
}

func removeEvent(keys, hashes []uint64) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: pb.Tier_TIER_GPU, Keys: keys, Hashes: hashes}}}
}

// links lists what events mean: each stored block with its parent and name, and
// each removal, in order.
func links(t *rapid.T, events []*pb.KVEvent) (out [][3]uint64) {
	for _, e := range events {
		if s := e.GetStore(); s != nil {
			parent, perBlock := s.GetParent(), 1
			if n := len(s.GetHashes()); n > 0 {
				if perBlock = len(s.GetKeys()) / n; perBlock*n != len(s.GetKeys()) {
					t.Fatalf("%d keys, %d hashes", len(s.GetKeys()), n)
				}
			}
			for i, k := range s.GetKeys() {
				name := uint64(0)
				if len(s.GetHashes()) > 0 {
					name = s.GetHashes()[i/perBlock]
				}
				out = append(out, [3]uint64{parent, k, name})
				parent = k
			}
			continue
		}
		if e.GetClear() != nil {
			out = append(out, [3]uint64{0, 0, 1})
		}
	}
	return out
}

func TestSplitKVKeepsTheMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		next := uint64(100)
		words := func(n int) (out []uint64) {
			for range n {
				next++
				out = append(out, next)
			}
			return out
		}
		events := []*pb.KVEvent{{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{}}}}
		var gone, names []uint64
		for range rapid.IntRange(0, 6).Draw(t, "events") {
			blocks, perBlock := rapid.IntRange(1, 20).Draw(t, "blocks"), rapid.IntRange(1, 4).Draw(t, "per block")
			var parent *uint64
			if rapid.Bool().Draw(t, "parented") {
				parent = &next
			}
			hashes := words(blocks)
			if rapid.Bool().Draw(t, "unnamed") {
				hashes = nil
			}
			keys := words(blocks * perBlock)
			p := parent
			if p != nil {
				v := *p
				p = &v
			}
			events = append(events, storeEvent(p, keys, hashes), removeEvent(keys[:len(keys)/2], hashes))
			gone, names = append(gone, keys[:len(keys)/2]...), append(names, hashes...)
		}
		limit := rapid.IntRange(1, 60).Draw(t, "limit")
		var all []*pb.KVEvent
		for _, batch := range streams.SplitKV(events, limit) {
			if len(batch) == 0 {
				t.Fatal("an empty batch")
			}
			n := 0
			for _, e := range batch {
				n += len(e.GetStore().GetKeys()) + len(e.GetStore().GetHashes()) + len(e.GetRemove().GetKeys()) + len(e.GetRemove().GetHashes())
			}
			if n > max(limit, 5) { // an engine block is never cut: at most 4 keys and a name here
				t.Fatalf("a batch of %d words at limit %d", n, limit)
			}
			all = append(all, batch...)
		}
		if !slices.Equal(links(t, all), links(t, events)) {
			t.Fatal("stores differ")
		}
		var goneNow, namesNow []uint64
		for _, e := range all {
			goneNow, namesNow = append(goneNow, e.GetRemove().GetKeys()...), append(namesNow, e.GetRemove().GetHashes()...)
		}
		if !slices.Equal(gone, goneNow) || !slices.Equal(names, namesNow) {
			t.Fatal("removals differ")
		}
	})
}
