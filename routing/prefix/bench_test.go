package prefix

import (
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// shape is a pool: each replica holds families of chains, whose first blocks all
// replicas share, the next ones groups of them, and the rest one.
type shape struct {
	replicas, families, blocks        int
	sharedAll, sharedGroup, groupSize int
	eventBlocks                       int
	mixed                             bool
}

// poolShape is 16,384 entries a replica over about 0.55 as many keys.
func poolShape(replicas int) shape {
	return shape{replicas: replicas, families: 4, blocks: 4096, sharedAll: 512, sharedGroup: 2048, groupSize: 8, eventBlocks: 64}
}

func (s shape) entries() int { return s.replicas * s.families * s.blocks }

func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

func (s shape) chain(family, replica int) []blockkey.Key {
	out := make([]blockkey.Key, s.blocks)
	for i := range out {
		owner := uint64(0)
		switch {
		case i < s.sharedAll:
		case i < s.sharedGroup:
			owner = 1 + uint64(replica/s.groupSize)
		default:
			owner = 1000 + uint64(replica)
		}
		out[i] = splitmix(uint64(family)<<48 | owner<<24 | uint64(i))
	}
	return out
}

// batches are the events that fill the pool, all replicas interleaved.
func (s shape) batches(tb testing.TB) []Batch {
	var out []Batch
	seq := make([]uint64, s.replicas)
	for family := range s.families {
		chains := make([][]blockkey.Key, s.replicas)
		for r := range chains {
			chains[r] = s.chain(family, r)
		}
		for off := 0; off < s.blocks; off += s.eventBlocks {
			for r := range s.replicas {
				keys := chains[r][off : off+s.eventBlocks]
				event := storeEvent(GPU, keys...)
				if off > 0 {
					event.GetStore().Parent = &chains[r][off-1]
				}
				events := []*pb.KVEvent{event}
				if s.mixed && off%256 != 0 { // as an engine that writes through, and one that offloads
					events = append(events, storeEvent(Tier(1+off/64%3), keys...))
				}
				seq[r]++
				out = append(out, mustBatch(tb, &pb.KVBatch{Replica: replicaName(r), Epoch: epochNumber(1), Seq: seq[r], Events: events}, uint64(len(out)+1)))
			}
		}
	}
	return out
}

func replicaName(i int) string { return fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256) }

// floor is what nothing can do without: a Go map of replica masks.
func floor(batches []Batch) map[uint64]uint64 {
	m := map[uint64]uint64{}
	number := map[string]int{}
	for _, b := range batches {
		n, ok := number[b.replica]
		if !ok {
			n = len(number)
			number[b.replica] = n
		}
		bit := uint64(1) << (n & 63)
		for _, k := range b.changes[0].keys {
			m[k] |= bit
		}
	}
	return m
}

func matchFloor(m map[uint64]uint64, keys []uint64, depths *[64]int) {
	alive := ^uint64(0)
	for i, k := range keys {
		mask := m[k]
		for dead := alive &^ mask; dead != 0; dead &= dead - 1 {
			depths[bits.TrailingZeros64(dead)] = i
		}
		if alive &= mask; alive == 0 {
			return
		}
	}
	for ; alive != 0; alive &= alive - 1 {
		depths[bits.TrailingZeros64(alive)] = len(keys)
	}
}

func fill(batches []Batch) *Index {
	x := New()
	for _, b := range batches {
		x.Apply(b)
	}
	return x
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkFill builds the index of a whole pool, and the floor of the same.
func BenchmarkFill(b *testing.B) {
	for _, s := range []shape{poolShape(64), poolShape(1024), {64, 4, 4096, 512, 2048, 8, 64, true}} {
		if s.replicas > 64 && testing.Short() {
			continue
		}
		batches := s.batches(b)
		name := fmt.Sprintf("%dreplicas", s.replicas)
		if s.mixed {
			name += "mixed"
		}
		b.Run(name, func(b *testing.B) {
			before := heap()
			var x *Index
			entries := 0
			for b.Loop() {
				x = fill(batches)
				entries += x.stats.Entries
			}
			b.ReportMetric(float64(entries)/b.Elapsed().Seconds()/1e6, "Mentries/s")
			n := float64(x.stats.Entries)
			b.ReportMetric(float64(heap()-before)/n, "heapB/entry")
			b.ReportMetric(float64(x.bytes())/n, "bytes/entry")
			b.ReportMetric(float64(len(x.AppendSnapshot(nil)))/n, "diskB/entry")
			runtime.KeepAlive(x)
		})
		if s.mixed {
			continue
		}
		b.Run(name+"/floor", func(b *testing.B) {
			before := heap()
			var m map[uint64]uint64
			for b.Loop() {
				m = floor(batches)
			}
			b.ReportMetric(float64(b.N*s.entries())/b.Elapsed().Seconds()/1e6, "Mentries/s")
			b.ReportMetric(float64(heap()-before)/float64(s.entries()), "heapB/entry")
			runtime.KeepAlive(m)
		})
	}
}

// BenchmarkMatchPool matches prompts of a whole pool.
func BenchmarkMatchPool(b *testing.B) {
	for _, replicas := range []int{64, 1024} {
		s := poolShape(replicas)
		if replicas > 64 && testing.Short() {
			continue
		}
		batches := s.batches(b)
		x, m := fill(batches), floor(batches)
		for _, blocks := range []int{256, 2048} {
			keys := s.chain(1, 5)[:blocks]
			name := fmt.Sprintf("%dreplicas%dblocks", replicas, blocks)
			b.Run(name, func(b *testing.B) {
				dst := make([]Match, 0, replicas)
				b.ReportAllocs()
				for b.Loop() {
					dst, _ = x.Match(dst[:0], keys, nil)
				}
			})
			b.Run(name+"/floor", func(b *testing.B) {
				var depths [64]int
				for b.Loop() {
					matchFloor(m, keys, &depths)
				}
			})
		}
		b.Run(fmt.Sprintf("%dreplicasCold256", replicas), func(b *testing.B) {
			// Another chain each time: the slots come from memory.
			var chains [][]blockkey.Key
			for r := range min(replicas, 256) {
				for f := range 4 {
					chains = append(chains, s.chain(f, r)[2048:2304])
				}
			}
			dst := make([]Match, 0, replicas)
			i := 0
			for b.Loop() {
				dst, _ = x.Match(dst[:0], chains[i%len(chains)], nil)
				i += 13
			}
		})
	}
}

// BenchmarkMatchSwept matches prompts of a router that did other things meanwhile:
// before each, the processor's caches are filled with something else.
func BenchmarkMatchSwept(b *testing.B) {
	s := poolShape(64)
	x := fill(s.batches(b))
	var chains [][]blockkey.Key
	for r := range 64 {
		for f := range 4 {
			chains = append(chains, s.chain(f, r)[:387])
		}
	}
	other := make([]uint64, 24<<20/8)
	dst := make([]Match, 0, 64)
	var matching time.Duration
	for i := 0; b.Loop(); i += 13 {
		for at := 0; at < len(other); at += 8 {
			other[at]++
		}
		began := time.Now()
		dst, _ = x.Match(dst[:0], chains[i%len(chains)], nil)
		matching += time.Since(began)
	}
	b.ReportMetric(float64(matching.Nanoseconds())/float64(b.N), "ns/match")
}

// BenchmarkMatchBusy matches while a writer applies without pause, and reports
// the median and the slowest of a hundred.
func BenchmarkMatchBusy(b *testing.B) {
	s := poolShape(64)
	batches := s.batches(b)
	for _, blocks := range []int{256, 2048} {
		b.Run(fmt.Sprintf("%dblocks", blocks), func(b *testing.B) {
			x := fill(batches)
			keys := s.chain(1, 5)[:blocks]
			var stop atomic.Bool
			var writer sync.WaitGroup
			applied := 0
			writer.Go(func() { churn(x, s, &stop, &applied) })
			dst := make([]Match, 0, 64)
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				dst, _ = x.Match(dst[:0], keys, nil)
				took = append(took, time.Since(start))
			}
			elapsed := b.Elapsed().Seconds()
			stop.Store(true)
			writer.Wait()
			slices.Sort(took)
			p50, p99 := took[len(took)/2], took[len(took)*99/100]
			b.ReportMetric(float64(p50), "p50-ns")
			b.ReportMetric(float64(p99), "p99-ns")
			b.ReportMetric(float64(p99)/float64(p50), "p99/p50")
			b.ReportMetric(float64(applied)/elapsed/1e6, "Mentries/s")
		})
	}
}

// churn stores and removes chains of a pool until it is told to stop.
func churn(x *Index, s shape, stop *atomic.Bool, applied *int) {
	var batches []Batch
	for r := range s.replicas {
		keys := make([]blockkey.Key, s.eventBlocks)
		for i := range keys {
			keys[i] = splitmix(1<<60 | uint64(r)<<20 | uint64(i))
		}
		batches = append(batches,
			Batch{replica: replicaName(r), epoch: Epoch(epochNumber(1)), changes: []change{{kind: store, keys: keys}}},
			Batch{replica: replicaName(r), epoch: Epoch(epochNumber(1)), changes: []change{{kind: remove, keys: keys}}})
	}
	seq, position := x.sorted[0].seq, x.position // all replicas are as far
	for !stop.Load() {
		for i := range batches {
			b := batches[i]
			position++
			b.seq, b.position = seq+1+uint64(i%2), position
			if a := x.Apply(b); a.Stored+a.Removed != len(b.changes[0].keys) {
				panic("the churn is not what it should be")
			}
			*applied += len(b.changes[0].keys)
		}
		seq += 2
	}
}

// BenchmarkClear clears the replicas of a full index, one after the other, and
// reports how long it took until a match no longer counted one: the slowest, and
// the slowest of a hundred, because a neighbour on the machine is felt too.
func BenchmarkClear(b *testing.B) {
	for _, replicas := range []int{64, 640} {
		s := poolShape(replicas)
		if replicas > 64 && testing.Short() {
			continue
		}
		batches := s.batches(b)
		b.Run(fmt.Sprintf("%dMentries", s.entries()>>20), func(b *testing.B) {
			x := fill(batches)
			runtime.GC()
			var took []time.Duration
			for r := 0; b.Loop(); r++ {
				one := x.sorted[r%replicas]
				batch := Batch{replica: one.name, epoch: one.epoch, seq: one.seq + 1, position: x.position + 1, changes: []change{{kind: clearAll}}}
				start := time.Now()
				x.Apply(batch)
				took = append(took, time.Since(start))
				// For the next round, when this replica's turn comes again.
				batch.seq++
				batch.changes = []change{{kind: store, keys: batches[r%replicas].changes[0].keys}}
				x.Apply(batch)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
			b.ReportMetric(float64(took[len(took)-1]), "worst-ns")
		})
	}
}

// BenchmarkSnapshot writes and restores a full index.
func BenchmarkSnapshot(b *testing.B) {
	s := poolShape(64)
	x := fill(s.batches(b))
	data := x.AppendSnapshot(nil)
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			data = x.AppendSnapshot(data[:0])
		}
	})
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			if _, err := Restore(data, Config{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkMatchMany matches long prompts of all replicas in turn, more than the
// processor's nearer caches hold.
func BenchmarkMatchMany(b *testing.B) {
	s := poolShape(64)
	batches := s.batches(b)
	x, m := fill(batches), floor(batches)
	var chains [][]blockkey.Key
	for r := range s.replicas {
		chains = append(chains, s.chain(r%4, r)[:2048], s.chain(r%4, r)[2048:])
	}
	b.Run("2048blocks", func(b *testing.B) {
		dst := make([]Match, 0, 64)
		for i := 0; b.Loop(); i++ {
			dst, _ = x.Match(dst[:0], chains[i%len(chains)], nil)
		}
	})
	b.Run("2048blocks/floor", func(b *testing.B) {
		var depths [64]int
		for i := 0; b.Loop(); i++ {
			matchFloor(m, chains[i%len(chains)], &depths)
		}
	})
}
