package engine

import (
	"fmt"
	"time"

	"warmpath/routing/blockkey"
)

// Prompt is what the engine needs of a prompt: the keys of its full blocks and
// the tokens after them. It is immutable, and kept while its request lives.
type Prompt struct {
	Root   blockkey.Key
	Keys   []blockkey.Key
	Tail   []uint32
	Tokens int
}

// NewPrompt cuts tokens into blocks. It keeps no reference to tokens.
func NewPrompt(root blockkey.Key, tokens []uint32, blockTokens int) Prompt {
	full := len(tokens) / blockTokens
	return Prompt{
		Root:   root,
		Keys:   blockkey.Chain(make([]blockkey.Key, 0, full), root, tokens, blockTokens),
		Tail:   append([]uint32(nil), tokens[full*blockTokens:]...),
		Tokens: len(tokens),
	}
}

// Request is what to compute.
type Request struct {
	// ID is unique among the requests in the engine.
	ID     string
	Prompt Prompt
	// OutputTokens is how many tokens to generate, at least 1.
	OutputTokens int
	// Seed determines the generated tokens: those of NewText(Seed).
	Seed uint64
}

// Output is progress of one request: its first token, each token when
// Config.EveryToken is set, and its end. Times are model time.
type Output struct {
	ID string
	// At is the end of the step that generated the last token so far.
	At time.Duration
	// Tokens is how many tokens have been generated.
	Tokens int
	// First marks the first token, Finished the last.
	First, Finished bool
	// CachedTokens is how many prompt tokens were not computed, by the engine's
	// rule: whole blocks, and never the last token.
	CachedTokens int
	// Submitted, Started and FirstAt are when the request came, when its first
	// step began, and when its first token was there.
	Submitted, Started, FirstAt time.Duration
}

// request is a request in the engine.
type request struct {
	id       string
	prompt   int // prompt tokens
	wanted   int // tokens at the end: prompt and output
	tokens   int // tokens there are: prompt and generated
	computed int // tokens whose KV is there
	cached   int // at first admission

	root blockkey.Key
	keys []blockkey.Key // of full blocks, grows with the output
	tail []uint32       // tokens after those that keys cover
	text Text           // stands at the first generated token that is not in tail or keys

	table  []int32 // physical blocks
	stored int     // leading blocks of table that have their key

	submitted, started, first time.Duration
	admitted                  bool // was admitted at least once
	aborted                   bool // leaves when the step ends
}

func newRequest(q Request, now time.Duration) *request {
	return &request{
		id:     q.ID,
		prompt: q.Prompt.Tokens, wanted: q.Prompt.Tokens + q.OutputTokens, tokens: q.Prompt.Tokens,
		root: q.Prompt.Root,
		// Clipped: the engine appends, and the caller's prompt stays as it is.
		keys:      q.Prompt.Keys[:len(q.Prompt.Keys):len(q.Prompt.Keys)],
		tail:      append([]uint32(nil), q.Prompt.Tail...),
		text:      NewText(q.Seed),
		submitted: now,
	}
}

// validate says whether a request is well formed and can ever fit.
func (c Config) validate(q Request) error {
	p := q.Prompt
	switch {
	case q.ID == "":
		return fmt.Errorf("%w: id is empty; give every request an id", ErrInvalid)
	case p.Tokens < 1:
		return fmt.Errorf("%w: prompt has no tokens; give at least one", ErrInvalid)
	case len(p.Keys) != p.Tokens/c.BlockTokens || len(p.Tail) != p.Tokens%c.BlockTokens:
		return fmt.Errorf("%w: prompt was not cut into blocks of %d tokens; use NewPrompt", ErrInvalid, c.BlockTokens)
	case q.OutputTokens < 1:
		return fmt.Errorf("%w: output tokens %d; ask for at least one", ErrInvalid, q.OutputTokens)
	}
	// The last generated token is never attended to, so it needs no room.
	if need := blocksFor(p.Tokens+q.OutputTokens-1, c.BlockTokens); need > c.Blocks {
		return fmt.Errorf("%w: %d prompt and %d output tokens need %d blocks of %d tokens, the cache has %d; shorten the prompt or max_tokens",
			ErrTooLarge, p.Tokens, q.OutputTokens, need, c.BlockTokens, c.Blocks)
	}
	return nil
}

func blocksFor(tokens, blockTokens int) int { return (tokens + blockTokens - 1) / blockTokens }

// name makes sure that the first full blocks have keys; their tokens exist.
func (r *request) name(full, blockTokens int) {
	for len(r.keys) < full {
		for len(r.tail) < blockTokens {
			r.tail = append(r.tail, uint32(r.text.Next()))
		}
		r.keys = append(r.keys, blockkey.Next(r.parent(len(r.keys)), r.tail, nil))
		r.tail = r.tail[:0]
	}
}

// parent is the key before block i.
func (r *request) parent(i int) blockkey.Key {
	if i == 0 {
		return r.root
	}
	return r.keys[i-1]
}

// reusable are the keys a prefix match may use: the last token is always computed.
func (r *request) reusable(blockTokens int) []blockkey.Key {
	return r.keys[:min(len(r.keys), (r.tokens-1)/blockTokens)]
}

func (r *request) output(at time.Duration) Output {
	return Output{
		ID: r.id, At: at, Tokens: r.tokens - r.prompt,
		Finished:     r.tokens == r.wanted,
		CachedTokens: r.cached,
		Submitted:    r.submitted, Started: r.started, FirstAt: r.first,
	}
}
