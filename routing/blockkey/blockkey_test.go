package blockkey_test

import (
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"warmpath/routing/blockkey"
)

// XXH3-64 of nothing and of "a", as the algorithm's own test suite has them:
// the library computes the hash that the definition names.
func TestHashIsXXH3(t *testing.T) {
	for in, want := range map[string]uint64{"": 0x2d06800538d394c2, "a": 0xe6c632b61e964e1f} {
		if got := xxh3.HashString(in); got != want {
			t.Errorf("XXH3_64(%q) = %016x, want %016x", in, got, want)
		}
	}
}

func TestRootsDiffer(t *testing.T) {
	seen := map[blockkey.Key][3]string{}
	for _, in := range [][3]string{
		{"", "", ""}, {"m", "", ""}, {"", "m", ""}, {"", "", "m"},
		{"m", "l", ""}, {"m", "", "l"}, {"ml", "", ""}, {"m", "l", "s"}, {"m", "s", "l"}, {"m", "ls", ""},
	} {
		k := blockkey.Root(in[0], in[1], in[2])
		if other, ok := seen[k]; ok {
			t.Errorf("%q and %q have the same root", in, other)
		}
		seen[k] = in
	}
}

func TestChainProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 200).Draw(t, "tokens")
		block := rapid.IntRange(1, 40).Draw(t, "block")
		root := rapid.Uint64().Draw(t, "root")
		keys := blockkey.Chain(nil, root, tokens, block)
		if len(keys) != len(tokens)/block {
			t.Fatalf("%d keys of %d tokens in blocks of %d", len(keys), len(tokens), block)
		}
		// Block by block is the same as at once.
		parent := root
		for i, k := range keys {
			parent = blockkey.Next(parent, tokens[i*block:(i+1)*block], nil)
			if parent != k {
				t.Fatalf("block %d: Next %016x, Chain %016x", i, parent, k)
			}
		}
		// What stands in dst stays, and no extras are the same as none.
		dst := blockkey.ChainExtras([]blockkey.Key{42}, root, tokens, block, func(int) []blockkey.Extra { return nil })
		if dst[0] != 42 || !slices.Equal(dst[1:], keys) {
			t.Fatal("ChainExtras without extras differs from Chain")
		}
		// A change of one token changes its block's key and all later ones, no earlier one.
		if len(keys) == 0 {
			return
		}
		at := rapid.IntRange(0, len(keys)*block-1).Draw(t, "changed token")
		changed := slices.Clone(tokens)
		changed[at]++
		other := blockkey.Chain(nil, root, changed, block)
		for i := range keys {
			if same := other[i] == keys[i]; same != (i < at/block) {
				t.Fatalf("token %d changed, block %d: same key is %v", at, i, same)
			}
		}
	})
}

func TestExtrasChangeKeys(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	seen := map[blockkey.Key]int{}
	for i, x := range [][]blockkey.Extra{
		nil,
		{{ID: "a"}},
		{{ID: "b"}},
		{{ID: "a", Offset: 1}},
		{{ID: "a"}, {ID: "b"}},
		{{ID: "b"}, {ID: "a"}},
		{{ID: "ab"}},
	} {
		k := blockkey.Next(7, tokens, x)
		if j, ok := seen[k]; ok {
			t.Errorf("extras %d and %d give the same key", i, j)
		}
		seen[k] = i
	}
}

func TestNoBlocksBelowOneToken(t *testing.T) {
	for _, block := range []int{0, -1} {
		if keys := blockkey.Chain(nil, 1, []uint32{1, 2}, block); keys != nil {
			t.Errorf("block of %d tokens: %v", block, keys)
		}
		if keys := blockkey.ChainExtras(nil, 1, []uint32{1, 2}, block, func(int) []blockkey.Extra { return nil }); keys != nil {
			t.Errorf("block of %d tokens: %v", block, keys)
		}
	}
}

func TestChainDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 8192)
	for _, block := range []int{1, 16, 64, 512, 1024} {
		dst := make([]blockkey.Key, 0, len(tokens)/block)
		if n := testing.AllocsPerRun(10, func() { dst = blockkey.Chain(dst[:0], 1, tokens, block) }); n != 0 {
			t.Errorf("block of %d tokens: %v allocations", block, n)
		}
	}
	if n := testing.AllocsPerRun(10, func() { blockkey.Next(1, tokens[:16], nil) }); n != 0 {
		t.Errorf("Next: %v allocations", n)
	}
}

func BenchmarkChain(b *testing.B) {
	tokens := make([]uint32, 12_288)
	for i := range tokens {
		tokens[i] = uint32(i) * 7919 % 151936
	}
	for _, bench := range []struct {
		name  string
		block int
	}{{"block16", 16}, {"block64", 64}, {"block512", 512}} {
		b.Run(bench.name, func(b *testing.B) {
			dst := make([]blockkey.Key, 0, len(tokens))
			b.ReportAllocs()
			b.SetBytes(int64(4 * len(tokens)))
			for b.Loop() {
				dst = blockkey.Chain(dst[:0], 1, tokens, bench.block)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(tokens)), "ns/token")
		})
	}
}
