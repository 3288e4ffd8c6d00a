package wireengine

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const model = "a/model"

// listener believes every event, by the plainest means, and knows nothing else: a
// count for each hash and tier, and the whole prompt behind each hash.
type listener struct {
	t      *testing.T
	size   int
	copies bool
	loras  []string
	held   map[pb.Tier]map[uint64]int
	named  map[uint64]prefix
}

type prefix struct {
	lora, salt string
	tokens     []uint32
	extras     []blockkey.Extra // offset from the prompt's start
	hashes     []uint64         // of the blocks up to this one
}

func newListener(t *testing.T, c *Cache) *listener {
	l := &listener{t: t, size: c.cfg.BlockSize, copies: c.copies(), loras: c.cfg.LoRAs}
	l.forget()
	return l
}

func (l *listener) forget() {
	l.held, l.named = map[pb.Tier]map[uint64]int{}, map[uint64]prefix{}
	for t := pb.Tier_TIER_GPU; t <= pb.Tier_TIER_REMOTE; t++ {
		l.held[t] = map[uint64]int{}
	}
}

func (l *listener) take(events []kvevents.Event) {
	for i := range events {
		ev := &events[i]
		if ev.HasGroup && ev.Group != 0 {
			continue
		}
		switch ev.Kind {
		case kvevents.Stored:
			l.stored(ev)
		case kvevents.Removed:
			for i, h := range ev.Hashes {
				n := l.held[ev.Tier][h]
				if n == 0 && !ev.EveryTier {
					l.t.Errorf("removed %x from %v, where it is not", h, ev.Tier)
				}
				l.held[ev.Tier][h] = max(0, n-1)
				if ev.CopiesLeft != nil && ev.CopiesLeft[i] != int64(n-1) {
					l.t.Errorf("removed %x: %d copies are left, told %d", h, n-1, ev.CopiesLeft[i])
				}
			}
		case kvevents.Moved:
			for _, h := range ev.Hashes {
				l.held[ev.FromTier][h]--
				l.held[ev.Tier][h]++
			}
		case kvevents.Cleared:
			for t := range l.held {
				clear(l.held[t])
			}
		}
	}
}

func (l *listener) stored(ev *kvevents.Event) {
	p := prefix{lora: ev.LoRA, salt: ev.Salt}
	if p.lora == "" && ev.HasLoRAID {
		p.lora = l.loras[ev.LoRAID-1]
	}
	if ev.HasParent {
		var ok bool
		if p, ok = l.named[ev.Parent]; !ok {
			l.t.Fatalf("stored behind %x, which was never told", ev.Parent)
		}
	}
	for i, h := range ev.Hashes {
		if len(ev.Tokens) > 0 {
			p.tokens = append(slices.Clip(p.tokens), ev.Tokens[i*l.size:(i+1)*l.size]...)
			if ev.Extras != nil {
				for _, x := range ev.Extras[i] {
					p.extras = append(slices.Clip(p.extras), blockkey.Extra{ID: x.ID, Offset: uint32(len(p.hashes)*l.size) + x.Offset})
				}
			}
			p.hashes = append(slices.Clip(p.hashes), h)
			l.named[h] = p
		} else if _, ok := l.named[h]; !ok {
			l.t.Fatalf("stored %x without tokens before it was told with them", h)
		}
		if l.copies && ev.Origin != "REUSED" {
			l.held[ev.Tier][h]++
		} else if l.held[ev.Tier][h] == 0 {
			l.held[ev.Tier][h] = 1
		}
	}
}

// holds is what the pool's blocks are of all that, each told by hashing its whole
// prompt anew.
func (l *listener) holds(pool int) map[Held]bool {
	out := map[Held]bool{}
	for tier, hashes := range l.held {
		for h, n := range hashes {
			if n == 0 {
				continue
			}
			p := l.named[h]
			keys := blockkey.ChainExtras(nil, blockkey.Root(model, p.lora, p.salt), p.tokens, pool, func(block int) (in []blockkey.Extra) {
				for _, x := range p.extras {
					if int(x.Offset)/pool == block {
						in = append(in, blockkey.Extra{ID: x.ID, Offset: x.Offset % uint32(pool)})
					}
				}
				return in
			})
			for i, key := range keys {
				// The engine's blocks under the pool's block i, which must all be held.
				whole := i*pool/l.size >= len(p.hashes)-max(1, pool/l.size)
				for j := i * pool / l.size; j*l.size < (i+1)*pool; j++ {
					whole = whole && hashes[p.hashes[j]] > 0
				}
				if whole {
					out[Held{tier, key}] = true
				}
			}
		}
	}
	return out
}

// TestEventsTellTheTruth has a listener that sees the bytes of every event and
// nothing else, in every generation, and compares what it believes.
func TestEventsTellTheTruth(t *testing.T) {
	type variant struct {
		name string
		cfg  CacheConfig
	}
	all := []variant{{"pull", CacheConfig{Pull: true}}}
	for _, g := range kvevents.Generations() {
		all = append(all, variant{g.String(), CacheConfig{Generation: g}})
	}
	for i, v := range all {
		t.Run(v.name, func(t *testing.T) {
			cfg := v.cfg
			cfg.Seed, cfg.BlockSize, cfg.Capacity = uint64(i), []int{16, 8, 4}[i%3], 200
			cfg.LoRAs, cfg.Salts, cfg.Images, cfg.OtherGroups = []string{"sql", "chat"}, []string{"tenant-a", "tenant-b"}, true, true
			c := NewCache(cfg)
			l, dec := newListener(t, c), kvevents.NewDecoder(kvevents.Limits{})
			var p pull
			p.begin(cfg)
			kinds := map[kvevents.Kind]int{}
			var most [tiers]int
			for step := range 400 {
				events := c.Step()
				if step == 200 {
					events = append(events, c.Clear()...)
				}
				for k := range events {
					kinds[events[k].Kind]++
				}
				l.take(overTheWire(t, dec, &p, cfg, events))
				for tier := range most {
					most[tier] = max(most[tier], c.Held(pb.Tier(tier)))
					if c.Held(pb.Tier(tier)) > 200 {
						t.Fatalf("%d blocks in tier %d", c.Held(pb.Tier(tier)), tier)
					}
				}
				if step%100 != 99 && step != 200 {
					continue
				}
				for _, pool := range []int{c.cfg.BlockSize, c.cfg.BlockSize / 2, 2 * c.cfg.BlockSize, 4 * c.cfg.BlockSize} {
					got, err := c.Truth(model, pool)
					if err != nil {
						t.Fatal(err)
					}
					if want := l.holds(pool); !maps.Equal(got, want) {
						t.Fatalf("step %d, pool blocks of %d: the engine holds %d, the listener believes %d", step, pool, len(got), len(want))
					}
				}
			}
			t.Log(kinds, most)
			if most[pb.Tier_TIER_GPU] < 180 {
				t.Errorf("the cache never held more than %d blocks", most[pb.Tier_TIER_GPU])
			}
			if can := Carries(cfg.Generation).Tiers || cfg.Pull; can != (most[pb.Tier_TIER_CPU] > 50) {
				t.Errorf("%d blocks on the host at most, though tiers are %v", most[pb.Tier_TIER_CPU], can)
			}
		})
	}
}

func overTheWire(t *testing.T, dec *kvevents.Decoder, p *pull, cfg CacheConfig, events []kvevents.Event) []kvevents.Event {
	t.Helper()
	if cfg.Pull {
		e := &Engine{pull: *p}
		e.pull.add(events)
		body, err := Pull(e)
		if err != nil {
			t.Fatal(err)
		}
		*p = e.pull
		pulled, err := kvevents.DecodePull(body)
		if err != nil {
			t.Fatal(err)
		}
		var out []kvevents.Event
		for _, ev := range pulled {
			if ev.Bad != "" || ev.Unknown != "" {
				t.Fatalf("%+v of %s", ev, body)
			}
			out = append(out, ev.Events...)
		}
		return out
	}
	batch, err := dec.Decode(kvevents.AppendBatch(nil, cfg.Generation, kvevents.Batch{TimeUS: 1, Events: events}))
	if err != nil || batch.Skipped > 0 || batch.Unknown > 0 {
		t.Fatalf("%+v, %v", batch, err)
	}
	return batch.Events
}

func TestSameSeedSameCache(t *testing.T) {
	run := func(seed uint64) (all []kvevents.Event, truth map[Held]bool) {
		c := NewCache(CacheConfig{Generation: kvevents.VLLMMap, Seed: seed, Salts: []string{"s"}, Images: true, Capacity: 100})
		for i := range 300 {
			if i == 150 {
				c.Reset()
			}
			all = append(all, c.Step()...)
		}
		truth, err := c.Truth(model, 16)
		if err != nil {
			t.Fatal(err)
		}
		return all, truth
	}
	a, truthA := run(1)
	b, truthB := run(1)
	if !reflect.DeepEqual(a, b) || !maps.Equal(truthA, truthB) {
		t.Error("the same seed did two things")
	}
	if c, _ := run(2); reflect.DeepEqual(a, c) {
		t.Error("another seed did the same")
	}
}

func TestTruthByHand(t *testing.T) {
	c := NewCache(CacheConfig{BlockSize: 2})
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7}
	cached, events := c.Complete(prompt)
	if cached != 0 || len(events) != 1 || len(events[0].Hashes) != 3 || !slices.Equal(events[0].Tokens, prompt[:6]) {
		t.Fatalf("got %d, %+v", cached, events)
	}
	if cached, events = c.Complete(prompt); cached != 6 || events != nil {
		t.Errorf("again: %d, %v", cached, events)
	}
	if cached, _ = c.Complete(prompt[:6]); cached != 4 {
		t.Errorf("a prompt that is held whole has %d cached tokens: its last must be computed", cached)
	}
	root := blockkey.Root(model, "", "")
	for pool, want := range map[int][]blockkey.Key{
		1: blockkey.Chain(nil, root, prompt[:6], 1),
		2: blockkey.Chain(nil, root, prompt, 2),
		4: blockkey.Chain(nil, root, prompt, 4),
		8: nil,
	} {
		got, err := c.Truth(model, pool)
		if err != nil || len(got) != len(want) {
			t.Errorf("pool blocks of %d: %v, %v", pool, got, err)
		}
		for _, key := range want {
			if !got[Held{pb.Tier_TIER_GPU, key}] {
				t.Errorf("pool blocks of %d: %x is missing", pool, key)
			}
		}
	}
	for _, pool := range []int{0, 3, -2} {
		if _, err := c.Truth(model, pool); err == nil {
			t.Errorf("pool blocks of %d were told", pool)
		}
	}
	// The second copy goes, the block stays; the first goes, and so does the block.
	blocks := c.chain(c.variants[0], prompt, nil, 3)
	c.store(blocks[1:2], pb.Tier_TIER_GPU, true)
	for want := 3; want >= 2; want-- {
		c.removed(blocks[1:2], pb.Tier_TIER_GPU)
		if got, _ := c.Truth(model, 2); len(got) != want {
			t.Errorf("%d blocks are held, want %d", len(got), want)
		}
	}
}

func TestNamesDoNotPileUp(t *testing.T) {
	c := NewCache(CacheConfig{Generation: kvevents.VLLMMap, Capacity: 64})
	for range 1000 {
		c.Step()
	}
	held := c.Held(pb.Tier_TIER_GPU) + c.Held(pb.Tier_TIER_CPU)
	if len(c.blocks) > held*maxTalk {
		t.Errorf("%d names for %d blocks", len(c.blocks), held)
	}
	for _, b := range c.blocks {
		children, below := 0, [tiers]int{}
		for _, other := range c.blocks {
			if other.parent == b {
				children++
				for tier, n := range other.copies {
					if n > 0 {
						below[tier]++
					}
				}
			}
		}
		if children != b.children || below != b.below || (b.parent != nil && c.blocks[b.parent.hash] != b.parent) {
			t.Fatal(fmt.Sprint("counts of a block are wrong: ", children, b.children, below, b.below))
		}
	}
}
