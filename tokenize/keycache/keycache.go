// Package keycache turns prompt texts into block keys, and remembers what it
// computed by prefix: the next turn of a conversation costs its new part, and
// requests that begin alike share the work.
//
// The tokens of a text are not in general the tokens of its parts. So a text is
// cut only where the tokenizer provably begins anew (Cuts), and each segment's
// tokens are remembered by its content, each prefix's keys by root, block size
// and all segments up to it. What is remembered never changes a result: keys and
// tokens are always those of the whole text at once. DESIGN.md says why.
package keycache

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
)

// Tokenizer appends the token ids of a text, added tokens in it recognized and
// none added around it. It must be a function of the text alone, and safe for
// concurrent use.
type Tokenizer interface {
	Append(dst []uint32, text string) []uint32
}

// Config bounds a cache. Zero values take the defaults that the fields name.
type Config struct {
	// Cuts are where texts may be cut; without any, only a text seen before as a
	// whole is found again. See ReadCuts.
	Cuts Cuts
	// MaxBytes bounds the memory of what is remembered. Default 256 MiB: about 50
	// million tokens, of which each takes 5 bytes with its share of a key.
	MaxBytes int64
}

// Cache is a tokenizer with a memory. Safe for concurrent use.
type Cache struct {
	tokenizer Tokenizer
	segmenter *segmenter
	store     *store
	budget    int64
	// The seeds keep others from preparing texts whose hashes collide, and names of
	// segments apart from names of prefixes.
	segmentSeed, prefixSeed uint64

	requests, tokens, reused atomic.Uint64
}

// New returns an empty cache before a tokenizer.
func New(tokenizer Tokenizer, cfg Config) (*Cache, error) {
	if cfg.MaxBytes < 0 {
		return nil, fmt.Errorf("keycache: max bytes %d is negative; leave it out or give a size", cfg.MaxBytes)
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 256 << 20
	}
	return &Cache{
		tokenizer: tokenizer, segmenter: newSegmenter(cfg.Cuts),
		store: newStore(cfg.MaxBytes), budget: cfg.MaxBytes,
		segmentSeed: rand.Uint64(), prefixSeed: rand.Uint64(),
	}, nil
}

// Prompt is a text and what its keys depend on besides.
type Prompt struct {
	Text string
	// Before and After are tokens around the text's own, such as a BOS token.
	Before, After []uint32
	// Root is the key before the first block, see blockkey.Root.
	Root blockkey.Key
	// BlockTokens is the tokens in a block; below 1 there are no keys.
	BlockTokens int
	// IDs asks for the token ids too.
	IDs bool
}

// Result is filled in by Keys. It may be used again, which saves allocations;
// the slices are then overwritten.
type Result struct {
	// Keys are those of the prompt's full blocks.
	Keys []blockkey.Key
	// Tokens is the length of the prompt.
	Tokens int
	// Reused is how many of them were neither tokenized nor hashed again.
	Reused int
	// IDs are the tokens, when they were asked for; else empty.
	IDs []uint32

	work []uint32 // tokens after the last full block, then those of a segment
}

// Keys computes a prompt's keys and length into r.
func (c *Cache) Keys(r *Result, p Prompt) {
	r.Keys, r.IDs, r.Tokens, r.Reused = r.Keys[:0], r.IDs[:0], 0, 0
	state := c.begin(r, p)
	if p.Text != "" {
		w := c.segmenter.walk(p.Text)
		for more := true; more; {
			var segment string
			segment, more = w.segment()
			c.segment(&state, segment, more)
		}
	}
	state.add(p.After)
	c.requests.Add(1)
	c.tokens.Add(uint64(r.Tokens))
	c.reused.Add(uint64(r.Reused))
}

// state is a prefix on the way: its name, its last key, and in r.work its tokens
// after the last full block.
type state struct {
	r      *Result
	id     id
	last   blockkey.Key
	block  int
	keepID bool
}

func (c *Cache) begin(r *Result, p Prompt) state {
	s := state{r: r, last: p.Root, block: p.BlockTokens, keepID: p.IDs}
	r.work = r.work[:0]
	head := make([]byte, 0, 64)
	head = binary.LittleEndian.AppendUint64(head, p.Root)
	head = binary.LittleEndian.AppendUint64(head, uint64(int64(p.BlockTokens)))
	for _, t := range p.Before {
		head = binary.LittleEndian.AppendUint32(head, t)
	}
	s.id = xxh3.Hash128Seed(head, c.prefixSeed)
	s.add(p.Before)
	return s
}

// add puts tokens after the prefix without remembering it.
func (s *state) add(tokens []uint32) {
	s.r.work = append(s.r.work, tokens...)
	s.r.Tokens += len(tokens)
	if s.keepID {
		s.r.IDs = append(s.r.IDs, tokens...)
	}
	s.chain()
}

// chain turns the full blocks of r.work into keys and returns how many.
func (s *state) chain() int {
	r := s.r
	if s.block < 1 {
		r.work = r.work[:0]
		return 0
	}
	before := len(r.Keys)
	r.Keys = blockkey.Chain(r.Keys, s.last, r.work, s.block)
	added := len(r.Keys) - before
	if added > 0 {
		s.last = r.Keys[len(r.Keys)-1]
		r.work = r.work[:copy(r.work, r.work[added*s.block:])]
	}
	return added
}

// segment adds a segment to the prefix. closed says that text comes after it, so
// that others may have it too.
func (c *Cache) segment(s *state, text string, closed bool) {
	r := s.r
	content := xxh3.HashString128Seed(text, c.segmentSeed)
	s.id = c.join(s.id, content)
	known := c.store.get(s.id)
	if known != nil && !s.keepID {
		r.Keys = append(r.Keys, known.keys...)
		r.work = append(r.work[:0], known.tokens...)
		r.Tokens += known.count
		r.Reused += known.count
		s.last = known.last
		return
	}
	tail := len(r.work)
	e := c.store.get(content)
	if e != nil {
		r.work = append(r.work, e.tokens...)
	} else {
		r.work = c.tokenizer.Append(r.work, text)
	}
	tokens := r.work[tail:]
	count := len(tokens)
	if s.keepID {
		r.IDs = append(r.IDs, tokens...)
	}
	if e == nil && closed {
		c.store.put(&entry{id: content, tokens: slices.Clone(tokens)})
	}
	r.Tokens += count
	if known != nil { // only its tokens were asked for in addition
		r.Keys = append(r.Keys, known.keys...)
		r.work = append(r.work[:0], known.tokens...)
		s.last = known.last
		return
	}
	added := s.chain()
	c.store.put(&entry{
		id: s.id, tokens: slices.Clone(r.work), keys: slices.Clone(r.Keys[len(r.Keys)-added:]), last: s.last, count: count,
	})
}

// join names the prefix that a segment makes of another.
func (c *Cache) join(prefix, segment id) id {
	var b [32]byte
	binary.LittleEndian.PutUint64(b[0:], prefix.Lo)
	binary.LittleEndian.PutUint64(b[8:], prefix.Hi)
	binary.LittleEndian.PutUint64(b[16:], segment.Lo)
	binary.LittleEndian.PutUint64(b[24:], segment.Hi)
	return xxh3.Hash128Seed(b[:], c.prefixSeed)
}

// Stats are figures of a cache. Requests, Tokens, Reused and Evictions are totals
// since New.
type Stats struct {
	// Entries and Bytes are what is remembered now, MaxBytes their bound.
	Entries         int
	Bytes, MaxBytes int64
	Evictions       uint64
	// Requests are calls of Keys, Tokens their prompts' lengths, and Reused the
	// part of them that was remembered.
	Requests, Tokens, Reused uint64
}

// Stats returns the figures.
func (c *Cache) Stats() Stats {
	s := Stats{MaxBytes: c.budget, Requests: c.requests.Load(), Tokens: c.tokens.Load(), Reused: c.reused.Load()}
	s.Entries, s.Bytes, s.Evictions = c.store.totals()
	return s
}
