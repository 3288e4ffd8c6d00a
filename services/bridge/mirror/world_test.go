package mirror

import (
	"slices"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

// block is one engine block of the world, known wholly.
type block struct {
	hash, parent uint64
	at           int // place in its prompt
	prompt       *prompt
}

// prompt is a sequence of tokens with all that its identity depends on.
type prompt struct {
	lora, salt string
	tokens     []uint32
	extras     map[int][]blockkey.Extra // by engine block
	blocks     []*block
	keys       []blockkey.Key
}

// world is the prompts that an engine may compute, and what its names mean.
type world struct {
	pool, size int
	prompts    []*prompt
	blocks     map[uint64]*block
	hashes     []uint64
}

func newWorld(pool, size int) *world {
	w := &world{pool: pool, size: size, blocks: map[uint64]*block{}}
	n := 6 * max(pool, size)
	base := tokensFrom(1, n)
	branch := append(slices.Clone(base[:2*max(pool, size)+size]), tokensFrom(5000, n)...)
	branch2 := append(slices.Clone(base[:pool]), tokensFrom(9000, n)...)
	w.add(&prompt{tokens: base})
	w.add(&prompt{tokens: branch[:n]})
	w.add(&prompt{tokens: branch2[:n]})
	w.add(&prompt{tokens: base, lora: "adapter"})
	w.add(&prompt{tokens: base, salt: "tenant"})
	w.add(&prompt{tokens: base, extras: map[int][]blockkey.Extra{
		0: {{ID: "image", Offset: uint32(size - 1)}}, 1: {{ID: "image"}, {ID: "other", Offset: uint32(size / 2)}}, 3: {{ID: "third"}},
	}})
	return w
}

func tokensFrom(first uint32, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = first + uint32(i)
	}
	return out
}

// add names the blocks of a prompt as an engine would, by all that is before
// them, and computes its keys from the whole prompt.
func (w *world) add(p *prompt) {
	w.prompts = append(w.prompts, p)
	h := blockkey.Root("engine", p.lora, p.salt)
	for at := range len(p.tokens) / w.size {
		b := &block{parent: h, at: at, prompt: p}
		h = blockkey.Next(h, p.tokens[at*w.size:][:w.size], p.extras[at])
		b.hash = h
		p.blocks = append(p.blocks, b)
		if w.blocks[h] == nil {
			w.blocks[h] = b
			w.hashes = append(w.hashes, h)
		}
	}
	p.keys = blockkey.ChainExtras(nil, blockkey.Root("model", p.lora, p.salt), p.tokens, w.pool, func(i int) []blockkey.Extra {
		var out []blockkey.Extra
		seen := ""
		for at := range len(p.tokens) / w.size {
			for _, e := range p.extras[at] {
				offset := at*w.size + int(e.Offset)
				if offset/w.pool != i {
					continue
				}
				// An item that goes on from the engine block before is no other item.
				if e.Offset != 0 || offset%w.pool == 0 || seen != e.ID {
					out = append(out, blockkey.Extra{ID: e.ID, Offset: uint32(offset % w.pool)})
				}
				seen = e.ID
			}
		}
		return out
	})
}

// event is a store of consecutive blocks.
func (w *world) event(blocks []*block, tier int) kvevents.Event {
	first := blocks[0]
	p := first.prompt
	e := kvevents.Event{
		Kind: kvevents.Stored, Tier: pb.Tier(tier + 1), BlockSize: w.size, LoRA: p.lora, Salt: p.salt,
		Tokens: p.tokens[first.at*w.size:][:len(blocks)*w.size],
	}
	if first.at > 0 {
		e.Parent, e.HasParent = first.parent, true
	}
	for i, b := range blocks {
		e.Hashes = append(e.Hashes, b.hash)
		if x := p.extras[b.at]; x != nil {
			if e.Extras == nil {
				e.Extras = make([][]blockkey.Extra, len(blocks))
			}
			e.Extras[i] = x
		}
	}
	return e
}
