package prefix

import (
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
)

// TestLarge builds the largest pool that the index is made for, 4,096 replicas
// and 100 million entries, and prints what it costs. It needs 8 GB and a minute.
func TestLarge(t *testing.T) {
	if os.Getenv("WARMPATH_LARGE") == "" {
		t.Skip("set WARMPATH_LARGE=1 to build an index of 100 million entries")
	}
	s := poolShape(4096)
	s.families = 6
	batches := s.batches(t)
	before := heap()
	x := New()
	var took []time.Duration
	began := time.Now()
	for _, b := range batches {
		start := time.Now()
		x.Apply(b)
		took = append(took, time.Since(start))
	}
	elapsed := time.Since(began)
	slices.Sort(took)
	stats := x.Stats()
	t.Logf("%d entries, %d keys, %d sets in %v: %.1f M/s", stats.Entries, stats.Keys, stats.Sets, elapsed, float64(stats.Entries)/elapsed.Seconds()/1e6)
	t.Logf("a batch: p50 %v, p99 %v, p99.99 %v, worst %v", took[len(took)/2], took[len(took)*99/100], took[len(took)*9999/10000], took[len(took)-1])
	t.Logf("%.1f bytes an entry, %.1f of heap", float64(stats.Bytes)/float64(stats.Entries), float64(heap()-before)/float64(stats.Entries))
	dst := make([]Match, 0, 4096)
	for _, blocks := range []int{256, 2048} {
		keys := s.chain(1, 5)[:blocks]
		start := time.Now()
		for range 100 {
			dst, _ = x.Match(dst[:0], keys, nil)
		}
		t.Logf("match of %d: %v", blocks, time.Since(start)/100)
	}
	start := time.Now()
	x.Apply(Batch{replica: x.sorted[7].name, epoch: x.sorted[7].epoch, seq: x.sorted[7].seq + 1, changes: []change{{kind: clearAll}}})
	t.Logf("clear: %v", time.Since(start))
	start = time.Now()
	x.Apply(Batch{replica: x.sorted[9].name, epoch: x.sorted[9].epoch, seq: x.sorted[9].seq + 1})
	t.Logf("a batch that sweeps: %v", time.Since(start))
	start = time.Now()
	data := x.AppendSnapshot(nil)
	t.Logf("snapshot: %v, %.2f bytes an entry", time.Since(start), float64(len(data))/float64(stats.Entries))
	start = time.Now()
	y, err := Restore(data, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("restore: %v", time.Since(start))
	if a, b := x.Stats(), y.Stats(); a != b {
		t.Errorf("restored %+v, want %+v", b, a)
	}
	runtime.KeepAlive(batches)
}
