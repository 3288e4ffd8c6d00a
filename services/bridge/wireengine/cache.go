package wireengine

import (
	"container/list"
	"encoding/binary"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

const tiers = 5 // of pb.Tier, with the unspecified one

// CacheConfig says what kind of cache an engine has.
type CacheConfig struct {
	// Generation decides what its events can say: without a medium there is only
	// the GPU tier, without a place for them no LoRA, salt and images; see Carries.
	Generation kvevents.Generation
	// BlockSize is the tokens of a block; 0 means 16.
	BlockSize int
	// Capacity bounds the blocks of each tier, physical copies not counted apart; 0
	// means 2,048.
	Capacity int
	// Seed makes the same cache do the same.
	Seed uint64
	// Pull is TensorRT-LLM's polled form: a block lies in one tier only, and moves.
	Pull bool
	// LoRAs and Salts are what conversations differ in, beside having none.
	LoRAs, Salts []string
	// Images puts an image into some conversations.
	Images bool
	// OtherGroups also emits events of a sliding-window group, which say nothing of
	// the prefixes held.
	OtherGroups bool
}

// block is what the engine calls by one hash: its tokens, behind those of its
// parent.
type block struct {
	hash   uint64
	parent *block
	root   *variant
	depth  int // blocks before it
	tokens []uint32
	extras []blockkey.Extra
	copies [tiers]int
	// place is its element in the tier's order of use.
	place [tiers]*list.Element
	// children are the known blocks behind it, below those that lie in a tier.
	children int
	below    [tiers]int
}

// variant is what tokens are computed with.
type variant struct {
	lora   string
	loraID int64
	salt   string
}

// Cache is what an engine holds. Its methods return the events that tell a
// change, and nil where there was nothing to do. It is for one goroutine.
type Cache struct {
	cfg    CacheConfig
	rng    *rand.Rand
	blocks map[uint64]*block
	// used is each tier's blocks, the last used first. The blocks of a prompt are
	// used last to first, so that leaves are evicted before what they stand on.
	used     [tiers]*list.List
	talks    []*talk
	hashSeed uint64
	variants []*variant
}

// NewCache is an empty cache.
func NewCache(cfg CacheConfig) *Cache {
	if cfg.BlockSize <= 0 {
		cfg.BlockSize = 16
	}
	if cfg.Capacity <= 0 {
		cfg.Capacity = 2048
	}
	can := Carries(cfg.Generation)
	if cfg.Pull {
		can = Carried{Tiers: true}
	}
	cfg.Images = cfg.Images && can.Extras
	cfg.OtherGroups = cfg.OtherGroups && can.Groups
	c := &Cache{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 4)), hashSeed: cfg.Seed}
	c.variants = variants(cfg, can)
	c.forget()
	return c
}

func variants(cfg CacheConfig, can Carried) []*variant {
	all := []*variant{{}}
	if can.LoRA {
		for i, name := range cfg.LoRAs {
			all = append(all, &variant{lora: name, loraID: int64(i + 1)})
		}
	}
	if can.Salt {
		for _, v := range all[:len(all):len(all)] {
			for _, salt := range cfg.Salts {
				all = append(all, &variant{lora: v.lora, loraID: v.loraID, salt: salt})
			}
		}
	}
	return all
}

func (c *Cache) forget() {
	c.blocks = make(map[uint64]*block)
	for t := range c.used {
		c.used[t] = list.New()
	}
}

// Reset is the engine's end and beginning: all is forgotten, and half of the times
// blocks get other hashes, as of engines whose hash is seeded at random.
func (c *Cache) Reset() {
	c.forget()
	if c.chance(2) {
		c.hashSeed = c.rng.Uint64()
	}
}

// hash is the engine's name of a block: of its tokens, of all before them and of
// what they were computed with. Engines never use 0.
func (c *Cache) hash(parent uint64, depth int, v *variant, tokens []uint32, extras []blockkey.Extra) uint64 {
	b := make([]byte, 0, 256)
	b = binary.LittleEndian.AppendUint64(b, parent)
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	b = append(append(b, v.lora...), 0)
	if depth == 0 {
		b = append(append(b, v.salt...), 0)
	}
	for _, x := range extras {
		b = binary.LittleEndian.AppendUint32(append(b, x.ID...), x.Offset)
	}
	return xxh3.HashSeed(b, c.hashSeed) | 1
}

// name returns the block, which may not be held, of parent and tokens.
func (c *Cache) name(parent *block, v *variant, tokens []uint32, extras []blockkey.Extra) *block {
	depth, above := 0, uint64(0)
	if parent != nil {
		depth, above = parent.depth+1, parent.hash
	}
	h := c.hash(above, depth, v, tokens, extras)
	if b := c.blocks[h]; b != nil {
		return b
	}
	b := &block{hash: h, parent: parent, root: v, depth: depth, tokens: tokens, extras: extras}
	c.blocks[h] = b
	if parent != nil {
		parent.children++
	}
	return b
}

// chain returns the first n blocks of tokens, named if they were not.
func (c *Cache) chain(v *variant, tokens []uint32, extras map[int][]blockkey.Extra, n int) []*block {
	out := make([]*block, 0, n)
	var parent *block
	for i := range n {
		parent = c.name(parent, v, tokens[i*c.cfg.BlockSize:(i+1)*c.cfg.BlockSize], extras[i])
		out = append(out, parent)
	}
	return out
}

// drop forgets names that nothing needs: not held, and nothing behind them.
func (c *Cache) drop(b *block) {
	for b != nil && b.children == 0 && b.copies == [tiers]int{} && c.blocks[b.hash] == b {
		delete(c.blocks, b.hash)
		if b = b.parent; b != nil {
			b.children--
		}
	}
}

// add puts a copy of a block into a tier. Only the GPU holds several.
func (c *Cache) add(b *block, t pb.Tier) {
	if b.copies[t]++; b.copies[t] == 1 {
		b.place[t] = c.used[t].PushFront(b)
		if b.parent != nil {
			b.parent.below[t]++
		}
		return
	}
	if t != pb.Tier_TIER_GPU || !c.copies() {
		b.copies[t] = 1
	}
}

// take removes a copy.
func (c *Cache) take(b *block, t pb.Tier) {
	if b.copies[t]--; b.copies[t] > 0 {
		return
	}
	c.used[t].Remove(b.place[t])
	b.place[t] = nil
	if b.parent != nil {
		b.parent.below[t]--
	}
	c.drop(b)
}

// touch makes a prompt's blocks the last used, its first one last.
func (c *Cache) touch(blocks []*block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		for t, place := range blocks[i].place {
			if place != nil {
				c.used[t].MoveToFront(place)
			}
		}
	}
}

// copies says that the engine may hold a block several times: vLLM does when two
// requests compute it at once. The others have a tree, which has it once.
func (c *Cache) copies() bool {
	return !c.cfg.Pull && c.cfg.Generation <= kvevents.VLLMBatchMap
}

// tree says that only leaves leave the cache.
func (c *Cache) tree() bool {
	return c.cfg.Generation >= kvevents.SGLangLegacy && c.cfg.Generation <= kvevents.SGLangMap
}

// Held counts the blocks in a tier.
func (c *Cache) Held(t pb.Tier) int { return c.used[t].Len() }

// store puts a run of a chain into a tier and tells it. tokens are left out of an
// update that only says where known blocks lie.
func (c *Cache) store(run []*block, t pb.Tier, withTokens bool) []kvevents.Event {
	for _, b := range run {
		c.add(b, t)
	}
	if c.tree() {
		var events []kvevents.Event
		for i := range run { // an event a page
			events = append(events, c.stored(run[i:i+1], t, withTokens, true))
		}
		return events
	}
	return []kvevents.Event{c.stored(run, t, withTokens, true)}
}

// stored is the event of a run.
func (c *Cache) stored(run []*block, t pb.Tier, withTokens, withParent bool) kvevents.Event {
	first := run[0]
	ev := kvevents.Event{Kind: kvevents.Stored, Tier: t, BlockSize: c.cfg.BlockSize, LoRA: first.root.lora}
	if first.root.lora != "" {
		ev.LoRAID, ev.HasLoRAID = first.root.loraID, true
	}
	// vLLM names the salt in the keys of the prompt's first block only.
	if first.depth == 0 || !c.copies() {
		ev.Salt = first.root.salt
	}
	if withParent && first.parent != nil {
		ev.Parent, ev.HasParent = first.parent.hash, true
	}
	any := false
	for _, b := range run {
		ev.Hashes = append(ev.Hashes, b.hash)
		if withTokens {
			ev.Tokens = append(ev.Tokens, b.tokens...)
		}
		ev.Extras = append(ev.Extras, b.extras)
		any = any || len(b.extras) > 0
	}
	if !any {
		ev.Extras = nil
	}
	c.group(&ev)
	return ev
}

// removed takes one copy of each block and tells it: vLLM by one event a block.
func (c *Cache) removed(blocks []*block, t pb.Tier) []kvevents.Event {
	var events []kvevents.Event
	for _, b := range blocks {
		c.take(b, t)
		if len(events) == 0 || c.copies() {
			ev := kvevents.Event{Kind: kvevents.Removed, Tier: t}
			c.group(&ev)
			events = append(events, ev)
		}
		ev := &events[len(events)-1]
		ev.Hashes = append(ev.Hashes, b.hash)
	}
	return events
}

// group names the cache group where the generation does.
func (c *Cache) group(ev *kvevents.Event) {
	if Carries(c.cfg.Generation).Groups {
		ev.HasGroup = true
		if ev.Kind == kvevents.Stored {
			ev.Spec = "full_attention"
		}
	}
}

// Carried is what the events of a generation can say.
type Carried struct {
	Tiers, LoRA, Salt, Extras, Groups, Origin bool
}

// Carries says what a generation's events can carry.
func Carries(g kvevents.Generation) Carried {
	switch g {
	case kvevents.VLLMv090, kvevents.VLLMRank:
		return Carried{LoRA: true}
	case kvevents.VLLMMedium, kvevents.VLLMLoRAName, kvevents.SimulatorArray, kvevents.SimulatorMap:
		return Carried{LoRA: true, Tiers: true}
	case kvevents.VLLMFull:
		return Carried{LoRA: true, Tiers: true, Salt: true, Extras: true, Groups: true}
	case kvevents.VLLMMap, kvevents.VLLMBatchMap:
		return Carried{LoRA: true, Tiers: true, Salt: true, Extras: true, Groups: true, Origin: true}
	case kvevents.SGLangMedium:
		return Carried{Tiers: true}
	case kvevents.SGLangMetadata:
		return Carried{Tiers: true, Salt: true}
	case kvevents.SGLangMap:
		return Carried{Tiers: true, Salt: true, LoRA: true}
	case kvevents.TRTLLMMap:
		return Carried{Tiers: true, LoRA: true}
	}
	return Carried{}
}
