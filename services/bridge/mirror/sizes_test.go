package mirror

import (
	"fmt"
	"strings"
	"testing"

	"warmpath/routing/blockkey"
	"warmpath/services/bridge/kvevents"
)

func TestRefused(t *testing.T) {
	b := newBench(t, Config{BlockTokens: 16})
	first := store(onGPU, 1, 1)
	first.BlockSize, first.Tokens = 7, tokensFrom(0, 7)
	b.apply(first)
	b.holds("a size that does not divide", "engine block size refused")
	if want := "engine block size 7 does not divide into pool block size 16; start the engine with --block-size 16 or the pool with 7"; b.m.Refused() != want {
		t.Errorf("refused: %s", b.m.Refused())
	}
	whole := store(onGPU, 2, 1)
	whole.BlockSize, whole.Tokens, whole.HasParent = 32, tokensFrom(0, 32), false
	b.apply(whole)
	keys := blockkey.Chain(nil, blockkey.Root("model", "", ""), whole.Tokens, 16)
	b.holds("it was a partial block", "", keys...)
	b.apply(remove(onGPU, 1))
	if s := b.m.Stats(); s.UnknownRemovals != 0 || s.Partial != 0 || b.m.Refused() != "" {
		t.Errorf("stats %+v", s)
	}
}

// A first block that turned out to be a partial one is taken back.
func TestLargerBlocksCome(t *testing.T) {
	for _, size := range []int{4, 8, 16} { // parts, parts, one key a block
		b := newBench(t, Config{BlockTokens: 16})
		first := store(onGPU, 1, 16/size)
		first.BlockSize = size
		first.Tokens = tokensFrom(0, 16)
		tail := store(onCPU, 1, 1)
		tail.BlockSize, tail.Tokens = size, tokensFrom(0, size)
		b.apply(first, tail)
		if n := len(b.f.keys()); n == 0 || n > 2 {
			t.Fatalf("size %d gives %d keys", size, n)
		}
		whole := store(onGPU, 50, 1)
		whole.BlockSize, whole.Tokens, whole.HasParent = 32, tokensFrom(0, 32), false
		b.apply(whole)
		b.holds(fmt.Sprint("larger than ", size), "", blockkey.Chain(nil, blockkey.Root("model", "", ""), whole.Tokens, 16)...)
		b.apply(kvevents.Event{Kind: kvevents.Moved, Hashes: []uint64{1}, FromTier: onGPU, Tier: onCPU}, remove(onGPU, first.Hashes[1:]...))
		b.apply(remove(onCPU, 1))
		if s := b.m.Stats(); s.UnknownRemovals != 0 {
			t.Errorf("size %d: stats %+v", size, s)
		}
	}
	b := newBench(t, Config{BlockTokens: 4})
	for i := range maxLayouts + 2 {
		e := store(onGPU, 1, 1)
		e.BlockSize = 4 * (i + 1)
		e.Tokens = tokensFrom(0, e.BlockSize)
		b.apply(e)
	}
	if b.m.Doubt() != "engine block size refused" || !strings.Contains(b.m.Refused(), "keeps changing") {
		t.Errorf("ever larger: doubt %q, refused %q", b.m.Doubt(), b.m.Refused())
	}
}

// A tier may have blocks of its own size, whose names are those of the engine's
// blocks that end where they do.
func TestChunksInALowerTier(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(8)
	b.apply(store(onGPU, 1, 8))
	chunk := kvevents.Event{Kind: kvevents.Stored, Tier: onCPU, BlockSize: 16, Tokens: tokensFrom(0, 32), Hashes: []uint64{4, 8}}
	b.apply(chunk)
	want := map[key]bool{}
	for _, k := range keys {
		want[key{onGPU, k}], want[key{onCPU, k}] = true, true
	}
	b.holdsAll("two chunks", "", want)
	b.apply(remove(onGPU, 4))
	delete(want, key{onGPU, keys[3]})
	b.apply(remove(onCPU, 8))
	for _, k := range keys[4:] {
		delete(want, key{onCPU, k})
	}
	b.holdsAll("one chunk and one block less", "", want)
	behind := chunk
	behind.Tokens, behind.Hashes, behind.Parent, behind.HasParent = tokensFrom(16, 16), []uint64{8}, 4, true
	b.apply(remove(onCPU, 4), behind)
	for i, k := range keys {
		delete(want, key{onCPU, k})
		if i >= 4 {
			want[key{onCPU, k}] = true
		}
	}
	b.holdsAll("a chunk behind a block", "", want)
	if err := adoptAll(t, b); err != nil {
		t.Error(err)
	}
	untold := kvevents.Event{Kind: kvevents.Stored, Tier: onCPU, BlockSize: 16, Hashes: []uint64{6}}
	b.apply(untold)
	b.holdsAll("a chunk of unknown tokens", "blocks without a name", want)
}

// A chunk tier's blocks end on the borders of the pool's; others cannot be told.
func TestChunksBehindParts(t *testing.T) {
	b := newBench(t, Config{BlockTokens: 8})
	b.apply(store(onGPU, 1, 3))
	chunk := func(name, parent uint64, from uint32) kvevents.Event {
		return kvevents.Event{
			Kind: kvevents.Stored, Tier: onCPU, BlockSize: 8, Tokens: tokensFrom(from, 8), Hashes: []uint64{name}, Parent: parent, HasParent: true,
		}
	}
	keys := blockkey.Chain(nil, blockkey.Root("model", "", ""), tokensFrom(0, 24), 8)
	want := map[key]bool{{onGPU, keys[0]}: true, {onCPU, keys[1]}: true}
	b.apply(chunk(4, 2, 8))
	b.holdsAll("behind two parts", "", want)
	b.apply(chunk(5, 3, 12))
	b.holdsAll("behind one part", "blocks without a name", want)
	b.apply(remove(onCPU, 5), chunk(70, 7, 24), chunk(6, 71, 16))
	b.apply(store(onGPU, 4, 4))
	want[key{onGPU, keys[1]}], want[key{onGPU, keys[2]}] = true, true
	b.holdsAll("behind one that is unknown, and then a part", "blocks without a name", want)
	b.apply(remove(onCPU, 70))
	b.holdsAll("a block of the same name in another tier says nothing of it", "blocks without a name", want)
	b.apply(remove(onCPU, 6))
	b.holdsAll("gone", "", want)
}

// Wherever the engine's blocks end, the same images in the same places give the
// keys of the whole prompt.
func TestExtrasInAnyBlockSize(t *testing.T) {
	tokens := tokensFrom(0, 64)
	at := func(i int) []blockkey.Extra { // of pool blocks of 16
		return [][]blockkey.Extra{{{ID: "a", Offset: 2}, {ID: "b", Offset: 9}}, nil, {{ID: "c"}}, {{ID: "a", Offset: 15}}}[i]
	}
	want := blockkey.ChainExtras(nil, blockkey.Root("model", "", ""), tokens, 16, at)
	for _, size := range []int{1, 2, 4, 8, 16, 32, 64} {
		e := kvevents.Event{Kind: kvevents.Stored, Tier: onGPU, BlockSize: size, Tokens: tokens}
		for i := range 64 / size {
			e.Hashes = append(e.Hashes, uint64(i+1))
			var here []blockkey.Extra
			for p := range 4 {
				for _, x := range at(p) {
					if offset := 16*p + int(x.Offset); offset/size == i {
						here = append(here, blockkey.Extra{ID: x.ID, Offset: uint32(offset % size)})
					}
				}
			}
			if size == 4 && i == 1 { // a reaches into the next engine block
				here = append([]blockkey.Extra{{ID: "a"}}, here...)
			}
			e.Extras = append(e.Extras, here)
		}
		b := newBench(t, Config{BlockTokens: 16})
		b.apply(e)
		b.holds(fmt.Sprint("blocks of ", size), "", want...)
	}
}

// A tier-only update in blocks of another size does not say what it holds.
func TestUpdateOfAnotherSize(t *testing.T) {
	b, keys := newBench(t, Config{}), chain(4)
	b.apply(store(onGPU, 1, 4), kvevents.Event{Kind: kvevents.Stored, Tier: onCPU, BlockSize: 16, Hashes: []uint64{4}})
	b.holds("a chunk", "blocks without a name", keys...)
	b.apply(remove(onCPU, 4), kvevents.Event{Kind: kvevents.Stored, Tier: onCPU, BlockSize: 4, Hashes: []uint64{4}}, remove(onGPU, 1, 2, 3, 4))
	b.holdsAll("a block", "", map[key]bool{{onCPU, keys[3]}: true})
}
