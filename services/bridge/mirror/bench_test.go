package mirror

import (
	"runtime"
	"testing"

	"warmpath/services/bridge/kvevents"
)

// runs is stores of 64 blocks each, half of them behind others, and their
// removals, of tokens and names that are like an engine's.
func runs(n, size int) (stores, removals []kvevents.Event) {
	const blocks = 64
	mix := func(x uint64) uint64 {
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		return x ^ x>>31
	}
	for i := range n {
		e := kvevents.Event{Kind: kvevents.Stored, Tier: onGPU, BlockSize: size, Tokens: tokensFrom(uint32(i)<<12, blocks*size)}
		for j := range blocks {
			e.Hashes = append(e.Hashes, mix(uint64(i*blocks+j+1)))
		}
		if i%2 == 1 {
			e.Parent, e.HasParent = stores[i-1].Hashes[blocks-1], true
		}
		stores = append(stores, e)
		removals = append(removals, kvevents.Event{Kind: kvevents.Removed, Tier: onGPU, Hashes: e.Hashes})
	}
	return stores, removals
}

// BenchmarkApply stores and removes runs of 64 blocks, in a cache of 2^18 blocks
// that is always full, so that what is stored was there before and is not now.
func BenchmarkApply(b *testing.B) {
	for name, size := range map[string]int{"engine16": 16, "engine64": 64, "engine4": 4} {
		b.Run(name, func(b *testing.B) {
			stores, removals := runs(8192, size)
			m, err := New(Config{Model: "model", BlockTokens: 16})
			if err != nil {
				b.Fatal(err)
			}
			for _, e := range stores[:4096] {
				m.Apply([]kvevents.Event{e})
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				in, out := (n+4096)%8192, n%8192
				if len(m.Apply(stores[in:in+1])) != 1 || len(m.Apply(removals[out:out+1])) != 1 {
					b.Fatal("not told in one event each")
				}
				n++
			}
			b.ReportMetric(float64(64*n)/b.Elapsed().Seconds(), "stores+removals/s")
		})
	}
}

// BenchmarkFill stores blocks that were never there.
func BenchmarkFill(b *testing.B) {
	stores, _ := runs(1<<14, 16)
	for b.Loop() {
		m, err := New(Config{Model: "model", BlockTokens: 16})
		if err != nil {
			b.Fatal(err)
		}
		before := heap()
		for i := range stores {
			m.Apply(stores[i : i+1])
		}
		b.ReportMetric(float64(heap()-before)/float64(m.Stats().Names), "B/block")
	}
	b.ReportMetric(float64(b.N*len(stores)*64)/b.Elapsed().Seconds(), "stores/s")
}

// heap collects twice, so that it is what is kept.
func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
