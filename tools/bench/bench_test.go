package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"warmpath/routing/blockkey"
	"warmpath/routing/prefix"
)

func TestShapesHaveWhatTheySay(t *testing.T) {
	for _, c := range []struct {
		name                   string
		shape                  shape
		entries, blocks, steps int
	}{
		{name: "base", shape: base, entries: 1_048_576, blocks: 575_488, steps: 16_384},
		{name: "quick", shape: base.quick(), entries: 131_072, blocks: 71_936, steps: 2048},
		{name: "tenfold", shape: tenfold, entries: 10_485_760, blocks: 5_754_880, steps: 163_840},
		{name: "wide", shape: wide.quick(), entries: 262_144, blocks: 143_616, steps: 4096},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.shape.entries(); got != c.entries {
				t.Errorf("entries() is %d, not %d", got, c.entries)
			}
			if got := c.shape.blocks(); got != c.blocks {
				t.Errorf("blocks() is %d, not %d", got, c.blocks)
			}
			entries, steps := 0, 0
			distinct := make(map[blockkey.Key]struct{}, c.blocks)
			for s := range newFleet(c.shape).steps() {
				steps++
				entries += len(s.keys)
				if len(s.keys) != c.shape.event || s.tier != prefix.GPU {
					t.Fatalf("step %d stores %d blocks in %v", steps, len(s.keys), s.tier)
				}
				if (s.offset == 0) != (s.parent == nil) {
					t.Fatalf("step %d at block %d has parent %v", steps, s.offset, s.parent)
				}
				for _, k := range s.keys {
					distinct[k] = struct{}{}
				}
			}
			if entries != c.entries || steps != c.steps || len(distinct) != c.blocks {
				t.Errorf("%d steps store %d entries over %d blocks", steps, entries, len(distinct))
			}
		})
	}
}

// The events of all replicas interleave, and a replica's chain comes in its order.
func TestStepsInterleave(t *testing.T) {
	f := newFleet(base.quick())
	at := make([]int, f.replicas)
	i := 0
	for s := range f.steps() {
		if s.replica != i%f.replicas {
			t.Fatalf("step %d is of replica %d", i, s.replica)
		}
		if s.offset != at[s.replica]%f.chain {
			t.Fatalf("step %d is at block %d, after %d", i, s.offset, at[s.replica])
		}
		want := f.prompt(i/f.replicas/(f.chain/f.event), s.replica, f.chain)[s.offset : s.offset+f.event]
		if !slices.Equal(s.keys, want) {
			t.Fatalf("step %d has keys of another part of the chain", i)
		}
		if s.parent != nil && *s.parent != f.prompt(i/f.replicas/(f.chain/f.event), s.replica, f.chain)[s.offset-1] {
			t.Fatalf("step %d has another parent than the block before", i)
		}
		at[s.replica] += f.event
		i++
	}
}

// 256 blocks are held by all 64 replicas; of 2,048 all hold 512, eight all.
func TestDepths(t *testing.T) {
	b := &bench{}
	f := b.filled(base)
	count := func(n int) map[int]int {
		depths := map[int]int{}
		for r := range f.replicas {
			depths[f.depth(5, n, r)]++
		}
		return depths
	}
	if got := count(256); len(got) != 1 || got[256] != 64 {
		t.Errorf("depths of 256 blocks: %v", got)
	}
	if got := count(2048); len(got) != 2 || got[512] != 56 || got[2048] != 8 {
		t.Errorf("depths of 2048 blocks: %v", got)
	}
	if got := count(4096); len(got) != 3 || got[512] != 56 || got[2048] != 7 || got[4096] != 1 {
		t.Errorf("depths of 4096 blocks: %v", got)
	}
	for _, n := range []int{1, 256, 512, 2048, 4096} {
		if err := f.verify(f.prompts(n)); err != nil {
			t.Errorf("%d blocks: %v", n, err)
		}
	}
	if got := len(f.floor.masks[0]); got != f.blocks() {
		t.Errorf("the floor has %d keys", got)
	}
}

func TestMixedTiersUseAllTiers(t *testing.T) {
	var per [prefix.NumTiers]int
	b := &bench{quick: true}
	for s := range newFleet(b.size(mixed)).steps() {
		per[s.tier]++
	}
	for tier, n := range per {
		if n < 50 {
			t.Errorf("%v: %d steps", prefix.Tier(tier), n)
		}
	}
	f := b.filled(mixed)
	if err := f.verify(f.prompts(256)); err != nil {
		t.Error(err)
	}
	stats := f.index.Stats()
	if stats.Entries <= f.entries() {
		t.Errorf("%d entries: no block is in two tiers", stats.Entries)
	}
}

// What the writer does beside readers leaves what they look at as it was.
func TestChurnLeavesPromptsAlone(t *testing.T) {
	b := &bench{quick: true}
	f := b.filled(base)
	prompts := f.prompts(256)
	work := f.churn(256)
	for i := range 2 * len(work.turns) {
		one := work.turn()
		f.turn(one)
		f.floor.turn(one)
		if i%101 == 0 {
			if err := f.verify(prompts); err != nil {
				t.Fatalf("after turn %d: %v", i, err)
			}
		}
	}
	if got := f.index.Stats(); got.Entries != f.entries() || got.UnknownRemovals != 0 || got.Gaps != 0 {
		t.Errorf("after two rounds: %+v", got)
	}
}

func TestFloorIsRestoredAsSaved(t *testing.T) {
	b := &bench{quick: true}
	f := b.filled(wide)
	data := f.floor.save(nil)
	f.floor = newFloor(f.replicas)
	f.floor.load(data)
	if err := f.verify(f.prompts(256)); err != nil {
		t.Error(err)
	}
	f.floor.forget(0)
	depths := make([]int, f.replicas)
	f.floor.match(depths, f.prompt(0, 1, 64))
	if depths[0] != 0 || depths[1] != 64 {
		t.Errorf("replica 0 was forgotten: %v", depths[:2])
	}
}

func TestBounds(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		bound  *bound
		figure Figure
		text   string
		holds  bool
	}{
		{valueAtMost(5), Figure{Value: 5}, "value <= 5", true},
		{valueAtMost(5), Figure{Value: 5.001}, "value <= 5", false},
		{valueAtMost(0), Figure{}, "value <= 0", true},
		{ratioAtMost(1.5), Figure{Ratio: number(1.5)}, "ratio <= 1.5", true},
		{ratioAtMost(1.5), Figure{Ratio: number(1.6)}, "ratio <= 1.5", false},
		{ratioAtMost(1.5), Figure{}, "ratio <= 1.5", false},
		{ratioAtLeast(0.8), Figure{Ratio: number(0.8)}, "ratio >= 0.8", true},
		{ratioAtLeast(0.8), Figure{Ratio: number(0.79)}, "ratio >= 0.8", false},
	} {
		if got := c.bound.String(); got != c.text {
			t.Errorf("bound is %q, not %q", got, c.text)
		}
		if got := c.bound.holds(c.figure); got != c.holds {
			t.Errorf("%s of %+v holds: %v", c.text, c.figure, got)
		}
	}
}

func TestFiguresAreMedians(t *testing.T) {
	f := pair{values: []float64{2, 90, 4}, floors: []float64{1, 10, 4}}.figure("x", "s")
	if f.Value != 4 || *f.Floor != 4 || *f.Ratio != 2 {
		t.Errorf("value %v, floor %v, ratio %v", f.Value, *f.Floor, *f.Ratio)
	}
	if f := (pair{values: []float64{1, 3}}).figure("x", "s"); f.Value != 2 || f.Floor != nil || f.Ratio != nil {
		t.Errorf("without a floor: %+v", f)
	}
	if f := (pair{values: []float64{0}, floors: []float64{0}}).figure("x", "s"); *f.Floor != 0 || f.Ratio != nil {
		t.Errorf("with a floor of nothing: %+v", f)
	}
	v := []float64{3, 1, 2, 4}
	if quantile(v, 0.5) != 2.5 || quantile(v, 0.99) != 4 || quantile(v, 1) != 4 || v[0] != 3 {
		t.Errorf("quantiles of %v", v)
	}
}

// A missed bound is named, printed, and an error of the run.
func TestMissedBounds(t *testing.T) {
	var text bytes.Buffer
	b := &bench{out: newOutput(&text, false)}
	floor, ratio := 2.0, 0.5
	for _, f := range []Figure{{Name: "slow", Value: 1, Unit: "entries/s", Floor: &floor, Ratio: &ratio}, {Name: "note", Value: 1_234_567, Unit: "ns"}} {
		limit := ratioAtLeast(0.8)
		if f.Name == "note" {
			limit = nil
		}
		if err := b.report(f, limit); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.out.close(); err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(text.String()) {
		rows = append(rows, strings.Fields(line))
	}
	want := [][]string{
		{"slow", "1", "entries/s", "2", "0.5", "ratio", ">=", "0.8", "MISSED"},
		{"note", "1", "234", "567", "ns", "-", "-", "-", "-"},
	}
	if !slices.EqualFunc(rows, want, slices.Equal) {
		t.Errorf("table is %q", rows)
	}
	if !slices.Equal(b.missed, []string{"slow"}) {
		t.Errorf("missed are %v", b.missed)
	}
}

// A quick run prints every figure, cold start included, and judges none.
func TestQuick(t *testing.T) {
	var out bytes.Buffer
	if err := (&Index{JSON: true, Quick: true, Rounds: 1}).run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(&out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), `{"machine":{"go":"go`) {
		t.Fatalf("first line is %s", lines.Text())
	}
	seen := map[string]bool{}
	bounds := 0
	for lines.Scan() {
		var f map[string]any
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		for _, key := range []string{"name", "value", "unit", "floor", "ratio", "bound", "ok"} {
			if _, there := f[key]; !there {
				t.Errorf("%s has no %s", lines.Text(), key)
			}
		}
		if len(f) != 7 || f["ok"] != nil {
			t.Errorf("%s", lines.Text())
		}
		if f["bound"] != "" {
			bounds++
		}
		name, _ := f["name"].(string)
		if seen[name] {
			t.Errorf("figure %s twice", name)
		}
		seen[name] = true
	}
	for _, want := range []string{"apply, one writer", "memory, all in, 1,024 replicas", "allocations per match", "restore of 1 M entries", "cold start, snapshot and 2 000 events"} {
		if !seen[want] {
			t.Errorf("no figure %q among %v", want, seen)
		}
	}
	if bounds < 15 {
		t.Errorf("%d figures have bounds", bounds)
	}
}

func TestOnly(t *testing.T) {
	var out bytes.Buffer
	if err := (&Index{Quick: true, Rounds: 1, Only: []string{"memory"}}).run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if n := strings.Count(text, "\n"); n != 3 || !strings.HasPrefix(text, "# go") || !strings.Contains(text, "\nmemory, all in") {
		t.Errorf("printed %s", text)
	}
	err := (&Index{Quick: true, Rounds: 1, Only: []string{"memroy"}}).run(t.Context(), &out)
	if err == nil || !strings.Contains(err.Error(), "--only memroy: no such part; there are apply, match") {
		t.Errorf("error is %v", err)
	}
}
