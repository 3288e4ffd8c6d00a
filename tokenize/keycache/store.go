package keycache

import (
	"sync"

	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
)

// id names an entry: a seeded 128-bit hash of what it was computed from.
type id = xxh3.Uint128

// entry is a segment's tokens, or a prefix's keys. It is immutable but for its
// place in the list of its shard.
type entry struct {
	id id
	// tokens of a segment, or those of a prefix after its last full block.
	tokens []uint32
	// keys of the blocks that a prefix's last segment completed; last is the key
	// of the prefix's last full block, count the tokens of its last segment.
	keys  []blockkey.Key
	last  blockkey.Key
	count int

	newer, older *entry
}

// overhead is about what an entry takes besides its slices: itself, its place in
// the map with the map's spare room, and the rounding of allocations.
const overhead = 256

func (e *entry) bytes() int64 {
	return overhead + 4*int64(cap(e.tokens)) + 8*int64(cap(e.keys))
}

// shards spread the lock; a power of two.
const shards = 16

// store is a bounded map of entries that forgets the least recently used first.
// Safe for concurrent use.
type store struct {
	shards [shards]shard
}

type shard struct {
	mu        sync.Mutex
	byID      map[id]*entry
	newest    *entry
	oldest    *entry
	bytes     int64
	budget    int64
	evictions uint64
	_         [64]byte // shards do not share a cache line
}

func newStore(budget int64) *store {
	s := &store{}
	for i := range s.shards {
		s.shards[i].byID = map[id]*entry{}
		s.shards[i].budget = budget / shards
	}
	return s
}

func (s *store) shard(name id) *shard { return &s.shards[name.Lo%shards] }

// get returns an entry, or nil.
func (s *store) get(name id) *entry {
	sh := s.shard(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.byID[name]
	if e != nil && e != sh.newest {
		sh.unlink(e)
		sh.link(e)
	}
	return e
}

// put adds an entry and evicts what no longer fits. An entry that is there
// already stays; one that is larger than a shard is not kept.
func (s *store) put(e *entry) {
	sh := s.shard(e.id)
	size := e.bytes()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if _, known := sh.byID[e.id]; known || size > sh.budget {
		return
	}
	sh.byID[e.id] = e
	sh.bytes += size
	sh.link(e)
	for sh.bytes > sh.budget {
		old := sh.oldest
		sh.unlink(old)
		delete(sh.byID, old.id)
		sh.bytes -= old.bytes()
		sh.evictions++
	}
}

func (sh *shard) link(e *entry) {
	e.newer, e.older = nil, sh.newest
	if sh.newest != nil {
		sh.newest.newer = e
	} else {
		sh.oldest = e
	}
	sh.newest = e
}

func (sh *shard) unlink(e *entry) {
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		sh.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		sh.oldest = e.newer
	}
}

// totals adds up the shards.
func (s *store) totals() (entries int, bytes int64, evictions uint64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		entries += len(sh.byID)
		bytes += sh.bytes
		evictions += sh.evictions
		sh.mu.Unlock()
	}
	return entries, bytes, evictions
}
