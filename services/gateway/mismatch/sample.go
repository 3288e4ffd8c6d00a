package mismatch

// sample is what one record is evidence of.
type sample struct {
	at       int64
	replica  string
	chat     bool
	salted   bool
	lora     string
	messages int
	source   string

	// Lengths: comparable when both sides counted the same thing.
	comparable bool
	ours       uint64
	diff       int64 // the engine's length less ours

	// Hits. repeat is how much of the prompt this gateway had sent to the replica
	// before.
	hit      hit
	expected bool // a hit should be reported, as the index says
	guessed  bool // a hit may be reported, as far as can be known without an index
	reported bool
	cached   uint64
	matched  uint64
	repeat   uint64

	block, engineBlock uint64
	kvEvents           bool
	kvProblem          string
	indexed            Indexed
}

// hit says whether prediction and report of one request belong together.
type hit uint8

const (
	neutral hit = iota // nothing to hit, or nothing known
	agree
	over  // predicted, and not served
	under // served, and not predicted
)

// bad reports whether prediction and report disagree.
func (h hit) bad() bool { return h == over || h == under }

const (
	// leastHit is the least number of blocks, and leastTokens of tokens, that
	// count as a hit: below, rounding to blocks of several sizes is as large.
	leastHit    = 2
	leastTokens = 32
	// apart is how many times larger one of prediction and report must be: what
	// is evicted or stored in between takes parts away, rarely most of it.
	apart = 4
)

// sampleOf weighs a record. repeat is what the memory says of its prompt.
// withoutEvents says that hits nobody told of are meant to be so.
func sampleOf(r *Record, repeat uint64, withoutEvents bool) sample {
	block := uint64(max(r.BlockTokens, 1))
	s := sample{
		at: r.FinishedUS, replica: r.Replica, chat: r.Chat, salted: r.Salted, lora: r.LoRA,
		messages: r.Messages, source: r.Source, ours: r.PromptTokens,
		matched: r.Matched, repeat: repeat,
		block: block, engineBlock: uint64(r.EngineBlockTokens),
		kvEvents: r.KVEvents, kvProblem: r.KVProblem, indexed: r.Indexed,
	}
	if n := r.EnginePromptTokens; n != nil && r.PromptTokens > 0 && !r.Media && (r.Source == SourceInProcess || r.Source == SourceEngine) {
		s.comparable, s.diff = true, int64(*n)-int64(r.PromptTokens)
	}
	if r.Source == SourceNone || len(r.Keys) == 0 {
		s.reported = r.CachedTokens != nil
		return s
	}
	// Only what the index says counts: a gateway's own decisions predict hits
	// whatever the engine's tokens are.
	least := max(leastHit*block, leastTokens)
	s.expected = r.Matched >= least
	s.guessed = !s.expected && repeat >= least && (!r.KVEvents || r.Indexed == IndexEmpty)
	if r.CachedTokens == nil {
		return s
	}
	s.reported, s.cached = true, *r.CachedTokens
	switch {
	case !r.KVEvents && withoutEvents:
	case s.cached >= least && r.Matched*apart < min(s.cached, repeat) && repeat >= least:
		// It was sent there before and is there: the index should have known.
		s.hit = under
	case r.Matched >= least && s.cached*apart < r.Matched:
		s.hit = over
	case r.Matched >= least && s.cached >= least:
		s.hit = agree
	}
	return s
}
