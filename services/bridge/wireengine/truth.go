package wireengine

import (
	"fmt"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// Held is a block of the pool that an engine holds in a tier.
type Held struct {
	Tier pb.Tier
	Key  blockkey.Key
}

// Truth is what the cache holds, in the pool's words: computed from the tokens of
// the blocks that are there, not from events. Where the pool's block is several of
// the engine's, a tier holds it when it holds them all. blockTokens must divide the
// engine's block size, or be divided by it.
func (c *Cache) Truth(model string, blockTokens int) (map[Held]bool, error) {
	size := c.cfg.BlockSize
	if blockTokens <= 0 || (size%blockTokens != 0 && blockTokens%size != 0) {
		return nil, fmt.Errorf("blocks of %d tokens cannot be told in blocks of %d: one must divide the other", size, blockTokens)
	}
	t := &truth{model: model, size: size, pool: blockTokens, last: make(map[*block]blockkey.Key), out: make(map[Held]bool)}
	for _, b := range c.blocks {
		for tier, copies := range b.copies {
			if copies > 0 {
				t.hold(b, pb.Tier(tier))
			}
		}
	}
	return t.out, nil
}

type truth struct {
	model      string
	size, pool int
	// last is the key of the last pool block that ends within or before a block.
	last map[*block]blockkey.Key
	out  map[Held]bool
}

// hold adds the pool's blocks that end in b.
func (t *truth) hold(b *block, tier pb.Tier) {
	if t.pool <= t.size {
		for _, key := range t.keys(b) {
			t.out[Held{tier, key}] = true
		}
		return
	}
	n := t.pool / t.size
	if (b.depth+1)%n != 0 {
		return
	}
	for p, i := b, 0; i < n; p, i = p.parent, i+1 {
		if p.copies[tier] == 0 {
			return
		}
	}
	t.out[Held{tier, t.after(b)}] = true
}

// after is the key of the last pool block that ends within b, or before it.
func (t *truth) after(b *block) blockkey.Key {
	if b == nil {
		panic("wireengine: a chain without its first block")
	}
	if key, ok := t.last[b]; ok {
		return key
	}
	key := t.before(b)
	if keys := t.keys(b); len(keys) > 0 {
		key = keys[len(keys)-1]
	}
	t.last[b] = key
	return key
}

// before is the key that the first pool block ending in b stands on.
func (t *truth) before(b *block) blockkey.Key {
	if b.parent == nil {
		return blockkey.Root(t.model, b.root.lora, b.root.salt)
	}
	return t.after(b.parent)
}

// keys are the pool's blocks that end in b.
func (t *truth) keys(b *block) []blockkey.Key {
	run := []*block{b}
	if n := t.pool / t.size; n > 1 {
		if (b.depth+1)%n != 0 {
			return nil
		}
		for p := b.parent; len(run) < n; p = p.parent {
			run = append([]*block{p}, run...)
		}
	}
	var tokens []uint32
	extras := map[int][]blockkey.Extra{} // by pool block
	for i, e := range run {
		tokens = append(tokens, e.tokens...)
		for _, x := range e.extras {
			at := i*t.size + int(x.Offset)
			extras[at/t.pool] = append(extras[at/t.pool], blockkey.Extra{ID: x.ID, Offset: uint32(at % t.pool)})
		}
	}
	return blockkey.ChainExtras(nil, t.before(run[0]), tokens, t.pool, func(block int) []blockkey.Extra { return extras[block] })
}
