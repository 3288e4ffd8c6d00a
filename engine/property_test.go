package engine

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// shadow is the naive reader of cache events: a set, and each key's parent.
type shadow map[blockkey.Key]blockkey.Key

func (s shadow) apply(t *rapid.T, event *pb.KVEvent) {
	if store := event.GetStore(); store != nil {
		parent := store.GetParent()
		if store.Parent != nil {
			if _, ok := s[parent]; !ok {
				t.Fatalf("stored a child of %x, which is not resident", parent)
			}
		}
		for _, key := range store.GetKeys() {
			if _, ok := s[key]; ok {
				t.Fatalf("stored %x, which is resident", key)
			}
			s[key] = parent
			parent = key
		}
	}
	for _, key := range event.GetRemove().GetKeys() {
		if _, ok := s[key]; !ok {
			t.Fatalf("removed %x, which is not resident", key)
		}
		delete(s, key)
		for child, parent := range s {
			if parent == key {
				t.Fatalf("removed %x before its child %x", key, child)
			}
		}
	}
}

// checkCache compares the engine's cache with the shadow and with itself.
func checkCache(t *rapid.T, e *Engine, s shadow) {
	c := e.cache
	if len(c.byKey) != len(s) {
		t.Fatalf("%d blocks resident, events give %d", len(c.byKey), len(s))
	}
	for key := range s {
		if !e.Has(key) {
			t.Fatalf("%x is not resident, events say it is", key)
		}
	}
	refs := make([]int32, len(c.blocks))
	for _, r := range e.running {
		for i, b := range r.table {
			refs[b]++
			if i < r.stored && (!c.blocks[b].stored || c.blocks[b].key != r.keys[i]) {
				t.Fatalf("block %d of %s is not under its key", i, r.id)
			}
		}
	}
	held := 0
	for i := range c.blocks {
		if c.blocks[i].refs != refs[i] {
			t.Fatalf("block %d has %d references, tables hold %d", i, c.blocks[i].refs, refs[i])
		}
		if refs[i] > 0 {
			held++
		}
	}
	if held+len(c.free)+c.evictable != len(c.blocks) {
		t.Fatalf("%d held + %d free + %d evictable blocks are not %d", held, len(c.free), c.evictable, len(c.blocks))
	}
	linked := 0
	for i := c.oldest; i != none; i = c.blocks[i].next {
		linked++
	}
	if linked != c.evictable {
		t.Fatalf("%d blocks in the eviction list, counted %d", linked, c.evictable)
	}
	for _, r := range e.waiting {
		keys, depth := r.reusable(e.cfg.BlockTokens), 0
		for depth < len(keys) && e.Has(keys[depth]) {
			depth++
		}
		if got := c.match(keys); got != depth {
			t.Fatalf("match of %s is %d, want %d", r.id, got, depth)
		}
	}
	again := shadow{}
	for _, event := range e.Resident() {
		again.apply(t, event)
	}
	if !reflect.DeepEqual(again, s) {
		t.Fatalf("re-advertising %v gives %v", s, again)
	}
}

// pair is an engine that leaps and one that takes every step, given the same.
type pair struct {
	leap, step *Engine
	events     shadow
}

func (p *pair) outputs(t *rapid.T, now time.Duration) []Output {
	outputs := slices.Clone(p.leap.Advance(now))
	steps := slices.DeleteFunc(slices.Clone(p.step.Advance(now)), func(o Output) bool { return !o.First && !o.Finished })
	if !slices.Equal(outputs, steps) {
		t.Fatalf("leaping gives\n%+v\nstepping\n%+v", outputs, steps)
	}
	changes, stepped := p.leap.Changes(), p.step.Changes()
	if len(changes) != len(stepped) {
		t.Fatalf("leaping changes the cache %d times, stepping %d", len(changes), len(stepped))
	}
	for i, c := range changes {
		if c.At != stepped[i].At || !slices.EqualFunc(c.Events, stepped[i].Events, func(a, b *pb.KVEvent) bool { return proto.Equal(a, b) }) {
			t.Fatalf("change %d: leaping\n%v\nstepping\n%v", i, c, stepped[i])
		}
		for _, event := range c.Events {
			p.events.apply(t, event)
		}
	}
	if p.leap.Stats() != p.step.Stats() || p.leap.Load() != p.step.Load() {
		t.Fatalf("leaping\n%+v %+v\nstepping\n%+v %+v", p.leap.Stats(), p.leap.Load(), p.step.Stats(), p.step.Load())
	}
	checkCache(t, p.leap, p.events)
	checkCache(t, p.step, p.events)
	return outputs
}

// TestAgainstNaiveCache runs random traffic through an engine that leaps and one
// that steps, in small caches, so that eviction, preemption and sharing are
// common. Both must give the same, their events must fold to their caches, and
// every request must end.
func TestAgainstNaiveCache(t *testing.T) {
	rates := lookup(t, "llama-3-8b", "l40s")
	preemptions := uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		batch := rapid.IntRange(1, 6).Draw(t, "max batch")
		cfg := Config{
			Rates:         rates,
			Blocks:        rapid.IntRange(4, 40).Draw(t, "blocks"),
			BlockTokens:   rapid.IntRange(1, 8).Draw(t, "block tokens"),
			MaxBatch:      batch,
			PrefillBudget: batch + rapid.IntRange(0, 40).Draw(t, "budget"),
		}
		p := pair{events: shadow{}}
		var err error
		if p.leap, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		cfg.EveryToken = true
		if p.step, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		now, submitted := time.Duration(0), 0
		open := map[string]bool{}
		collect := func() {
			for _, o := range p.outputs(t, now) {
				if !open[o.ID] {
					t.Fatalf("output of %s, which is not open", o.ID)
				}
				if o.Finished {
					delete(open, o.ID)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				// Few distinct tokens in long runs: prompts that share prefixes and fork.
				var prompt []uint32
				for range rapid.IntRange(1, 4).Draw(t, "runs") {
					token := rapid.Uint32Range(0, 2).Draw(t, "token")
					for range rapid.IntRange(1, 12).Draw(t, "length") {
						prompt = append(prompt, token)
					}
				}
				id := fmt.Sprint(submitted)
				submitted++
				q := Request{
					ID: id, Prompt: NewPrompt(7, prompt, cfg.BlockTokens),
					OutputTokens: rapid.IntRange(1, 30).Draw(t, "output"), Seed: uint64(submitted % 2),
				}
				err := p.leap.Submit(now, q)
				if again := p.step.Submit(now, q); fmt.Sprint(err) != fmt.Sprint(again) {
					t.Fatalf("leaping: %v, stepping: %v", err, again)
				}
				if err == nil {
					open[id] = true
				}
				collect()
			},
			"abort": func(t *rapid.T) {
				id := fmt.Sprint(rapid.IntRange(0, max(submitted-1, 0)).Draw(t, "id"))
				if a, b := p.leap.Abort(now, id), p.step.Abort(now, id); a != b {
					t.Fatalf("abort of %s: %t and %t", id, a, b)
				}
				for _, o := range p.outputs(t, now) {
					if o.Finished {
						delete(open, o.ID)
					}
				}
				delete(open, id)
			},
			"wait": func(t *rapid.T) {
				now += time.Duration(rapid.IntRange(0, 100_000_000).Draw(t, "ns"))
				collect()
			},
			"next": func(t *rapid.T) {
				if at, ok := p.leap.Next(); ok {
					now = max(now, at)
				}
				collect()
			},
		})
		for range 100_000 {
			at, ok := p.leap.Next()
			if !ok {
				break
			}
			now = at
			collect()
		}
		if len(open) > 0 || p.leap.busy() || p.step.busy() {
			t.Fatalf("requests %v never end", open)
		}
		if p.leap.cache.available() != cfg.Blocks {
			t.Fatalf("an idle engine holds %d blocks", cfg.Blocks-p.leap.cache.available())
		}
		preemptions += p.leap.Stats().Preemptions
	})
	if preemptions == 0 {
		t.Error("no preemption was tried: the traffic is too light")
	}
}

// TestStridesDoNotMatter gives the same traffic with different calls of Advance
// between, which must not change anything.
func TestStridesDoNotMatter(t *testing.T) {
	run := func(stride time.Duration) (outputs []Output, changes []Change) {
		e := newEngine(t, Config{BlockTokens: 4, Blocks: 60, MaxBatch: 3, PrefillBudget: 20})
		var now time.Duration
		for i := range 30 {
			for at := time.Duration(i) * 37 * time.Millisecond; now < at; {
				now = min(now+stride, at)
				outputs = append(outputs, e.Advance(now)...)
			}
			if err := e.Submit(now, request70b(e, fmt.Sprint(i), tokens(i%3, 10+i), 5+i)); err != nil {
				t.Fatal(err)
			}
		}
		outputs = append(outputs, drain(t, e)...)
		return outputs, e.Changes()
	}
	outputs, changes := run(time.Hour)
	for _, stride := range []time.Duration{time.Second, time.Millisecond, 333 * time.Microsecond} {
		again, rechanges := run(stride)
		if !slices.Equal(outputs, again) {
			t.Errorf("stride %s gives other outputs", stride)
		}
		if fmt.Sprint(changes) != fmt.Sprint(rechanges) {
			t.Errorf("stride %s gives other changes", stride)
		}
	}
}
