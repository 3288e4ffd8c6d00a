package engine

import (
	"sort"

	"warmpath/routing/blockkey"
)

// none is the absence of a block.
const none int32 = -1

// block is one physical KV block. It is free (no key, no reference), private (no
// key yet, one reference), or stored under a key; a stored block without
// reference is in the eviction list.
type block struct {
	key, parent blockkey.Key
	refs        int32
	prev, next  int32 // eviction list
	stored      bool
	root        bool // first block of a prompt: parent means nothing
}

// cache is a paged KV cache. A key names at most one block, and whoever
// references a block references all blocks before it in its chain. So a parent
// has at least the references of its child and loses the last one later, which
// makes plain least-recently-used order evict leaves first.
type cache struct {
	blocks []block
	byKey  map[blockkey.Key]int32
	free   []int32 // blocks without content; the last one is taken next
	// Eviction list of stored blocks without reference, oldest first.
	oldest, newest int32
	evictable      int
}

func newCache(blocks int) *cache {
	c := &cache{
		blocks: make([]block, blocks),
		byKey:  make(map[blockkey.Key]int32),
		free:   make([]int32, blocks),
		oldest: none,
		newest: none,
	}
	for i := range c.free {
		c.free[i] = int32(blocks - 1 - i)
	}
	return c
}

// available is how many blocks can be taken.
func (c *cache) available() int { return len(c.free) + c.evictable }

// match is how many leading keys are resident. Leaves go first, so residence
// along a chain has one end, and a binary search finds it.
func (c *cache) match(keys []blockkey.Key) int {
	return sort.Search(len(keys), func(i int) bool {
		_, ok := c.byKey[keys[i]]
		return !ok
	})
}

// idle is how many of the resident blocks keys have no reference: taking them
// makes them unavailable to others. References only fall along a chain.
func (c *cache) idle(keys []blockkey.Key) int {
	return len(keys) - sort.Search(len(keys), func(i int) bool {
		return c.blocks[c.byKey[keys[i]]].refs == 0
	})
}

// hold references the resident block of a key.
func (c *cache) hold(key blockkey.Key) int32 {
	i := c.byKey[key]
	b := &c.blocks[i]
	if b.refs == 0 {
		c.unlink(i)
	}
	b.refs++
	return i
}

// take returns a private block with one reference. When it had to evict, evicted
// is true and key is what left. The caller has checked available.
func (c *cache) take() (i int32, key blockkey.Key, evicted bool) {
	if n := len(c.free); n > 0 {
		i = c.free[n-1]
		c.free = c.free[:n-1]
	} else {
		i = c.oldest
		c.unlink(i)
		key, evicted = c.blocks[i].key, true
		delete(c.byKey, key)
	}
	c.blocks[i] = block{refs: 1, prev: none, next: none}
	return i, key, evicted
}

// store names a private block. When the key is resident already, the private
// block is freed, the resident one referenced instead, and added is false.
func (c *cache) store(i int32, key, parent blockkey.Key, root bool) (held int32, added bool) {
	if _, ok := c.byKey[key]; ok {
		c.blocks[i].refs = 0
		c.free = append(c.free, i)
		return c.hold(key), false
	}
	b := &c.blocks[i]
	b.key, b.parent, b.root, b.stored = key, parent, root, true
	c.byKey[key] = i
	return i, true
}

// release drops one reference on each block of a chain, last block first, so
// that leaves become older than their parents.
func (c *cache) release(table []int32) {
	for k := len(table) - 1; k >= 0; k-- {
		i := table[k]
		b := &c.blocks[i]
		b.refs--
		switch {
		case b.refs > 0:
		case b.stored:
			c.link(i)
		default:
			c.free = append(c.free, i)
		}
	}
}

// link makes a block the newest of the eviction list.
func (c *cache) link(i int32) {
	b := &c.blocks[i]
	b.prev, b.next = c.newest, none
	if c.newest == none {
		c.oldest = i
	} else {
		c.blocks[c.newest].next = i
	}
	c.newest = i
	c.evictable++
}

func (c *cache) unlink(i int32) {
	b := &c.blocks[i]
	if b.prev == none {
		c.oldest = b.next
	} else {
		c.blocks[b.prev].next = b.next
	}
	if b.next == none {
		c.newest = b.prev
	} else {
		c.blocks[b.next].prev = b.prev
	}
	b.prev, b.next = none, none
	c.evictable--
}
