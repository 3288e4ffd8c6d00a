package wireengine

import (
	"fmt"
	"slices"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

const (
	// Enough conversations to fill a cache, few enough that they meet again.
	talks = 24
	// A conversation ends at so many blocks, and another takes its place.
	maxTalk = 96
	// vocabulary is a usual one's size; token 0 stays free for placeholders.
	vocabulary = 128_000
)

// talk is a conversation: tokens that grow, often from what another began with.
type talk struct {
	variant *variant
	tokens  []uint32
	extras  map[int][]blockkey.Extra // by block
	blocks  int                      // said so far
}

func (c *Cache) pick(n int) int { return c.rng.IntN(n) }

// chance is true once in n.
func (c *Cache) chance(n int) bool { return c.rng.IntN(n) == 0 }

// talk picks a conversation, and begins one where none is or one has ended.
func (c *Cache) talk() *talk {
	if c.talks == nil {
		c.talks = make([]*talk, talks)
	}
	i := c.pick(talks)
	if t := c.talks[i]; t == nil || t.blocks >= maxTalk {
		c.talks[i] = c.newTalk(c.talks[c.pick(talks)])
	}
	return c.talks[i]
}

// newTalk begins with some of old's tokens, half of the time within a block.
func (c *Cache) newTalk(old *talk) *talk {
	size := c.cfg.BlockSize
	t := &talk{variant: c.variants[c.pick(len(c.variants))], tokens: make([]uint32, maxTalk*size), extras: map[int][]blockkey.Extra{}}
	for i := range t.tokens {
		t.tokens[i] = 1 + uint32(c.pick(vocabulary-1))
	}
	if c.cfg.Images && c.chance(3) {
		b, at := c.pick(8), c.pick(size)
		t.extras[b] = []blockkey.Extra{{ID: fmt.Sprintf("image-%016x", c.rng.Uint64()), Offset: uint32(at)}}
	}
	if old != nil && !c.chance(4) {
		shared := c.pick(old.blocks*size + 1)
		copy(t.tokens, old.tokens[:shared])
		for b, x := range old.extras {
			if (b+1)*size <= shared {
				t.extras[b] = x
			}
		}
		if c.chance(2) {
			t.variant = old.variant
		}
	}
	return t
}

// Compute is a request: what the cache holds of the next turn of a conversation
// is used, and the rest stored, also where a block behind the first missing one is
// there already.
func (c *Cache) Compute() []kvevents.Event {
	t := c.talk()
	t.blocks = min(t.blocks+1+c.pick(8), maxTalk)
	_, events := c.compute(t.variant, t.tokens, t.extras, t.blocks)
	return events
}

// Complete is a request for a prompt of the caller's. cached is how many of its
// tokens the cache held: whole blocks, and never the prompt's last token, which an
// engine must compute.
func (c *Cache) Complete(prompt []uint32) (cached int, events []kvevents.Event) {
	n := len(prompt) / c.cfg.BlockSize
	hit, events := c.compute(c.variants[0], prompt, nil, n)
	if hit*c.cfg.BlockSize == len(prompt) && hit > 0 {
		hit--
	}
	return hit * c.cfg.BlockSize, events
}

func (c *Cache) compute(v *variant, tokens []uint32, extras map[int][]blockkey.Extra, n int) (hit int, events []kvevents.Event) {
	if n == 0 {
		return 0, nil
	}
	const gpu = pb.Tier_TIER_GPU
	blocks := c.chain(v, tokens, extras, n)
	for hit < n && blocks[hit].copies[gpu] > 0 {
		hit++
	}
	for from := hit; from < n; {
		to := from
		if c.copies() {
			to = n // computed as one run, with second copies of what is there
		}
		for to < n && blocks[to].copies[gpu] == 0 {
			to++
		}
		if to > from {
			events = append(events, c.bring(blocks[from:to])...)
		}
		for from = to; from < n && blocks[from].copies[gpu] > 0; {
			from++
		}
	}
	c.touch(blocks)
	events = append(events, c.evict(gpu)...)
	for _, b := range blocks {
		c.drop(b) // where even the prompt itself did not fit
	}
	return hit, events
}

// bring puts a run on the GPU: by moving it there, where blocks lie once.
func (c *Cache) bring(run []*block) (events []kvevents.Event) {
	if !c.cfg.Pull {
		return c.store(run, pb.Tier_TIER_GPU, true)
	}
	var missing []*block
	flush := func() {
		if len(missing) > 0 {
			events = append(events, c.store(missing, pb.Tier_TIER_GPU, true)...)
			missing = nil
		}
	}
	for _, b := range run {
		if b.copies[pb.Tier_TIER_CPU] == 0 {
			missing = append(missing, b)
			continue
		}
		flush()
		events = append(events, c.move(b, pb.Tier_TIER_CPU, pb.Tier_TIER_GPU))
	}
	flush()
	return events
}

func (c *Cache) move(b *block, from, to pb.Tier) kvevents.Event {
	c.add(b, to)
	c.take(b, from)
	return kvevents.Event{Kind: kvevents.Moved, Hashes: []uint64{b.hash}, FromTier: from, Tier: to}
}

// evict makes a tier fit its capacity: least used leaves go first, with all their
// copies.
func (c *Cache) evict(t pb.Tier) []kvevents.Event {
	var events []kvevents.Event
	for c.used[t].Len() > c.cfg.Capacity {
		b := c.leaf(t)
		for b.copies[t] > 1 {
			events = append(events, c.removed([]*block{b}, t)...)
		}
		events = append(events, c.removed([]*block{b}, t)...)
	}
	return events
}

// leaf is the least used block with nothing behind it in its tier.
func (c *Cache) leaf(t pb.Tier) *block {
	for e := c.used[t].Back(); e != nil; e = e.Prev() {
		if b := e.Value.(*block); b.below[t] == 0 {
			return b
		}
	}
	return nil
}

// Evict removes some least used leaves of a tier.
func (c *Cache) Evict(t pb.Tier) (events []kvevents.Event) {
	var gone []*block
	for range 1 + c.pick(8) {
		b := c.leaf(t)
		if b == nil || b.copies[t] > 1 {
			break
		}
		gone = append(gone, b)
		events = append(events, c.removed([]*block{b}, t)...)
	}
	if c.copies() || len(gone) == 0 {
		return events
	}
	together := events[0]
	together.Hashes = nil
	for _, b := range gone {
		together.Hashes = append(together.Hashes, b.hash)
	}
	return []kvevents.Event{together}
}

// held returns a run of a conversation that is in a tier, from its first block or
// from anywhere.
func (c *Cache) held(t pb.Tier, fromStart bool) []*block {
	for range 8 { // a few tries: the cache may hold little
		talk := c.talk()
		if talk.blocks == 0 {
			continue
		}
		blocks := c.known(talk)
		from := 0
		if !fromStart && len(blocks) > 0 {
			from = c.pick(len(blocks))
		}
		to := from
		for to < len(blocks) && blocks[to].copies[t] > 0 {
			to++
		}
		if to > from {
			return blocks[from : from+1+c.pick(to-from)]
		}
	}
	return nil
}

// known is what has a name of a conversation, without naming more.
func (c *Cache) known(t *talk) (out []*block) {
	var above uint64
	size := c.cfg.BlockSize
	for i := range t.blocks {
		b := c.blocks[c.hash(above, i, t.variant, t.tokens[i*size:(i+1)*size], t.extras[i])]
		if b == nil {
			break
		}
		out, above = append(out, b), b.hash
	}
	return out
}

// Announce tells again, in the full report form, a prefix that is held: from the
// prompt's first block, and without becoming another copy. Where the generation
// can say so it is marked as reused; in vLLM's others it looks like a second copy.
func (c *Cache) Announce() []kvevents.Event {
	run := c.held(pb.Tier_TIER_GPU, true)
	if run == nil {
		return nil
	}
	ev := c.stored(run, pb.Tier_TIER_GPU, true, false)
	if Carries(c.cfg.Generation).Origin {
		ev.Origin = "REUSED"
	}
	c.touch(run)
	return []kvevents.Event{ev}
}

// Duplicate stores a run that is held once more, as a physical copy. Only vLLM's
// cache does that.
func (c *Cache) Duplicate() []kvevents.Event {
	if !c.copies() {
		return nil
	}
	run := c.held(pb.Tier_TIER_GPU, false)
	if run == nil {
		return nil
	}
	return c.store(run, pb.Tier_TIER_GPU, true)
}

// RemoveCopy removes one copy of a block, from anywhere in a conversation: a hole,
// if it was the last.
func (c *Cache) RemoveCopy(t pb.Tier) []kvevents.Event {
	run := c.held(t, false)
	if run == nil {
		return nil
	}
	b := run[len(run)-1]
	if c.tree() && b.below[t] > 0 {
		return nil
	}
	left := int64(b.copies[t] - 1)
	events := c.removed([]*block{b}, t)
	if Carries(c.cfg.Generation).Origin && c.chance(2) {
		events[0].CopiesLeft = []int64{left}
	}
	return events
}

// Offload copies a run from the GPU to the host, in half of the cases without its
// tokens, and may then remove it from the GPU.
func (c *Cache) Offload() []kvevents.Event {
	if !c.cfg.Pull && !Carries(c.cfg.Generation).Tiers {
		return nil
	}
	run := c.held(pb.Tier_TIER_GPU, false)
	if run == nil {
		return nil
	}
	var events []kvevents.Event
	if c.cfg.Pull {
		for _, b := range run {
			events = append(events, c.move(b, pb.Tier_TIER_GPU, pb.Tier_TIER_CPU))
		}
		return append(events, c.evict(pb.Tier_TIER_CPU)...)
	}
	// What is there already is not copied again.
	run = slices.Clone(run)
	for len(run) > 0 && run[0].copies[pb.Tier_TIER_CPU] > 0 {
		run = run[1:]
	}
	if i := slices.IndexFunc(run, func(b *block) bool { return b.copies[pb.Tier_TIER_CPU] > 0 }); i >= 0 {
		run = run[:i]
	}
	if len(run) == 0 {
		return nil
	}
	events = c.store(run, pb.Tier_TIER_CPU, c.chance(2))
	if c.chance(2) {
		for _, b := range slices.Backward(run) {
			if b.copies[pb.Tier_TIER_GPU] == 1 && (!c.tree() || b.below[pb.Tier_TIER_GPU] == 0) {
				events = append(events, c.removed([]*block{b}, pb.Tier_TIER_GPU)...)
			}
		}
	}
	return append(events, c.evict(pb.Tier_TIER_CPU)...)
}

// Clear empties every tier.
func (c *Cache) Clear() []kvevents.Event {
	if c.cfg.Pull { // which has no word for it
		var gone []*block
		for t := range c.used {
			for e := c.used[t].Front(); e != nil; e = e.Next() {
				gone = append(gone, e.Value.(*block))
			}
		}
		c.forget()
		if len(gone) == 0 {
			return nil
		}
		ev := kvevents.Event{Kind: kvevents.Removed}
		for _, b := range gone {
			ev.Hashes = append(ev.Hashes, b.hash)
		}
		return []kvevents.Event{ev}
	}
	c.forget()
	return []kvevents.Event{{Kind: kvevents.Cleared}}
}

// OtherGroup is an event of a sliding-window group: same hashes, another group.
func (c *Cache) OtherGroup() []kvevents.Event {
	run := c.held(pb.Tier_TIER_GPU, false)
	if run == nil || !c.cfg.OtherGroups {
		return nil
	}
	ev := c.stored(run, pb.Tier_TIER_GPU, true, true)
	if c.chance(2) {
		ev = kvevents.Event{Kind: kvevents.Removed, Tier: pb.Tier_TIER_GPU, Hashes: ev.Hashes}
	} else {
		ev.Spec, ev.Window = "sliding_window", 4*c.cfg.BlockSize
	}
	ev.Group, ev.HasGroup = 1, true
	return []kvevents.Event{ev}
}
