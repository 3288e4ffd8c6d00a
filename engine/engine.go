// Package engine models an inference engine: a paged KV cache with prefix reuse,
// continuous batching, and the time that steps take. It is a state machine
// without clock, goroutine or randomness: the same calls give the same outputs.
//
// Time is model time since some start, given by the caller, never going back. A
// step that begins at t takes in every request submitted at t or before; it is
// formed once the caller's time has passed t. Times between calls do not matter:
// advancing in many small strides or in one gives the same.
//
// The rules are vLLM's: requests are served in order of arrival; running ones
// first, a token each, then prompts in chunks within the step's budget; full
// blocks can be reused as soon as their chunk is scheduled; at least the last
// token is computed; when a block is missing the youngest request gives up its
// blocks and starts over. Two differences: a request is admitted only when its
// whole prompt fits (and keeps one block free for each running one), and two
// requests that compute the same block share it, as in SGLang.
package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Config is the size and speed of an engine. Zero values take the default.
type Config struct {
	// Rates are needed; see Lookup.
	Rates Rates
	// BlockTokens is the tokens in a block; 16 as in vLLM.
	BlockTokens int
	// Blocks is the size of the cache; by default what Rates leaves room for.
	Blocks int
	// MaxBatch bounds running requests: vLLM's max_num_seqs, 256.
	MaxBatch int
	// PrefillBudget bounds the tokens computed in a step, generated ones included:
	// vLLM's max_num_batched_tokens, 8192 on an H100.
	PrefillBudget int
	// MaxWaiting bounds requests that wait: 16384.
	MaxWaiting int
	// EveryToken reports every token as an output of its own, which costs a step
	// each; else steps of which only the sum matters are taken at once.
	EveryToken bool
}

func (c Config) withDefaults() (Config, error) {
	if c.Rates.Flops <= 0 || c.Rates.FlopsPerToken <= 0 || c.Rates.Bandwidth <= 0 {
		return c, fmt.Errorf("rates are empty; take them from engine.Lookup")
	}
	c.BlockTokens = cmp.Or(c.BlockTokens, 16)
	c.MaxBatch = cmp.Or(c.MaxBatch, 256)
	c.PrefillBudget = cmp.Or(c.PrefillBudget, 8192)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 16384)
	if c.BlockTokens < 1 || c.BlockTokens > 1<<16 {
		return c, fmt.Errorf("block tokens %d; give 1 to 65536", c.BlockTokens)
	}
	if c.Blocks == 0 {
		c.Blocks = c.Rates.Blocks(c.BlockTokens)
	}
	if c.Blocks < 1 || c.Blocks > 1<<28 {
		return c, fmt.Errorf("blocks %d; give 1 to %d", c.Blocks, 1<<28)
	}
	if c.MaxBatch < 1 || c.PrefillBudget < c.MaxBatch {
		return c, fmt.Errorf("prefill budget %d and max batch %d; the budget must hold a token for each running request", c.PrefillBudget, c.MaxBatch)
	}
	return c, nil
}

// Engine is one replica. It is not safe for concurrent use.
type Engine struct {
	cfg   Config
	costs costs
	cache *cache

	byID    map[string]*request
	waiting []*request // in the order in which they are served
	running []*request // oldest admission first

	now  time.Duration
	free instant // when the next step may begin; not before now while a step is active
	step step

	outputs []Output
	changes []Change
	stats   Stats
}

// New returns an idle engine at time 0 with an empty cache.
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	return &Engine{cfg: cfg, costs: cfg.Rates.costs(), cache: newCache(cfg.Blocks), byID: map[string]*request{}}, nil
}

// Config is the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Submit takes in a request at now. It returns ErrTooLarge for one that can
// never fit, ErrOverloaded when too many wait, ErrDuplicate and ErrInvalid. The
// engine keeps the prompt's keys.
func (e *Engine) Submit(now time.Duration, q Request) error {
	e.catchUp(now)
	if err := e.cfg.validate(q); err != nil {
		return err
	}
	if _, ok := e.byID[q.ID]; ok {
		return fmt.Errorf("submit %s: %w", q.ID, ErrDuplicate)
	}
	if len(e.waiting) >= e.cfg.MaxWaiting {
		return fmt.Errorf("submit %s: %w: the limit is %d; try later or elsewhere", q.ID, ErrOverloaded, e.cfg.MaxWaiting)
	}
	if !e.busy() && e.free.ceil() < e.now {
		e.free = instant{ns: e.now}
	}
	r := newRequest(q, e.now)
	e.byID[q.ID] = r
	e.waiting = append(e.waiting, r)
	e.step.shorten()
	e.stats.Submitted++
	return nil
}

// Abort drops a request: at once while it waits, at the end of the step that is
// under way when it runs. Its blocks become evictable. It reports whether the
// request was in the engine; an aborted one gives no more outputs.
func (e *Engine) Abort(now time.Duration, id string) bool {
	e.catchUp(now)
	r, ok := e.byID[id]
	if !ok {
		return false
	}
	delete(e.byID, id)
	e.stats.Aborted++
	e.step.shorten() // also when it waits: the next in the queue may fit
	if i := slices.Index(e.waiting, r); i >= 0 {
		e.waiting = slices.Delete(e.waiting, i, i+1)
		return true
	}
	r.aborted = true
	if !e.step.active {
		e.sweep()
	}
	return true
}

// Advance moves time to now and returns what happened, in order. The result is
// valid until the next call of any method that moves time.
func (e *Engine) Advance(now time.Duration) []Output {
	e.catchUp(now)
	outputs := e.outputs
	e.outputs = e.outputs[:0]
	return outputs
}

// Changes returns what steps did to the cache since the last call, in order.
func (e *Engine) Changes() []Change {
	changes := e.changes
	e.changes = nil
	return changes
}

// Next is when Advance should be called next: the end of a step that matters, or
// just after the start of one. It is false when nothing is left to do.
func (e *Engine) Next() (at time.Duration, ok bool) {
	if e.step.active {
		return e.step.end(e.costs, e.step.count).ceil(), true
	}
	if !e.busy() {
		return 0, false
	}
	return e.free.ceil() + 1, true
}

func (e *Engine) busy() bool { return e.step.active || len(e.running)+len(e.waiting) > 0 }

// catchUp takes every step that began or ended by now.
func (e *Engine) catchUp(now time.Duration) {
	e.now = max(e.now, now)
	for {
		switch {
		case e.step.active:
			if !e.complete() {
				return
			}
		case e.busy() && e.free.ceil() < e.now:
			e.form()
		default:
			return
		}
	}
}

// Load is the engine's load at one instant.
type Load struct {
	Running, Waiting int
	// QueuedPrefillTokens are prompt tokens not computed yet, less those that the
	// cache would serve now.
	QueuedPrefillTokens int
	// KVUsed is the share of blocks that requests hold, 0 to 1.
	KVUsed float64
}

// Load returns the load.
func (e *Engine) Load() Load {
	l := Load{Running: len(e.running), Waiting: len(e.waiting)}
	for _, r := range e.waiting {
		l.QueuedPrefillTokens += r.tokens - e.cache.match(r.reusable(e.cfg.BlockTokens))*e.cfg.BlockTokens
	}
	for _, r := range e.running {
		// A decoding request lacks its last token only, which is not a prompt's.
		if left := r.tokens - r.computed; left > 1 || r.tokens == r.prompt {
			l.QueuedPrefillTokens += left
		}
	}
	l.KVUsed = float64(e.cfg.Blocks-e.cache.available()) / float64(e.cfg.Blocks)
	return l
}

// Stats are totals since New.
type Stats struct {
	Submitted, Finished, Aborted, Preemptions uint64
	Steps                                     uint64
	// QueriedTokens and CachedTokens count prompt tokens at first admission, and
	// those of them that were served from the cache.
	QueriedTokens, CachedTokens uint64
	// PrefillTokens are prompt tokens computed, after preemptions again;
	// GeneratedTokens are sampled.
	PrefillTokens, GeneratedTokens uint64
	// StoredBlocks and EvictedBlocks count changes of the cache.
	StoredBlocks, EvictedBlocks uint64
}

// Stats returns the totals.
func (e *Engine) Stats() Stats { return e.stats }
