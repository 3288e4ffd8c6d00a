package mismatch

import (
	"warmpath/routing/blockkey"
	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
)

// Where a prompt's tokens came from, as Decided.token_source has it.
const (
	SourceInProcess = "in_process"
	SourceEngine    = "engine"
	SourceClient    = "client"
	SourceNone      = "none"
)

// Indexed says whether the router's index holds anything of a replica.
type Indexed uint8

// What is known of a replica's place in the index.
const (
	IndexUnknown Indexed = iota
	IndexHolds
	IndexEmpty
)

// Record is one request that ended well: what was predicted, and what its engine
// reported. Optional figures are nil when the engine did not say.
type Record struct {
	// DecidedUS and FinishedUS are when it was routed and when it ended.
	DecidedUS, FinishedUS int64
	Replica               string
	LoRA                  string
	// Salted says that the request's keys have a cache salt.
	Salted bool
	// Chat says that a chat template made the prompt; Messages is how many
	// messages it made it of, 0 when that is not known.
	Chat     bool
	Messages int
	// Media says that the prompt has images or the like, which the engine counts
	// by rules of its own.
	Media bool
	// Source is where the tokens came from.
	Source string

	// Keys are the prompt's block keys, of BlockTokens tokens each.
	Keys        []blockkey.Key
	BlockTokens uint32
	// EngineBlockTokens is what the replica's fleet entry says; 0 when unknown.
	EngineBlockTokens uint32
	// KVEvents and KVProblem are those of the fleet entry.
	KVEvents  bool
	KVProblem string
	// Indexed is whether the index holds anything of the replica.
	Indexed Indexed

	// PromptTokens is the prompt's length as counted here; 0 when unknown.
	PromptTokens uint64
	// EnginePromptTokens and CachedTokens are the engine's usage figures.
	EnginePromptTokens, CachedTokens *uint64
	// Matched is how many tokens the index alone said are held, and Predicted how
	// many with those too that earlier decisions are about to create.
	Matched, Predicted uint64
}

// RecordOf takes from a request's events and its replica's fleet entry, which may
// be nil, what they have. The caller adds Salted, Chat, Messages and Media. It reports false for a request that says nothing: one
// that did not end well, or whose decision is not the one that ended it.
func RecordOf(d *pb.Decided, f *pb.Finished, e *pb.FleetEntry) (Record, bool) {
	if d == nil || f.GetStatus() != pb.Status_STATUS_OK || d.Chosen != f.Replica || d.Attempt != f.Attempt {
		return Record{}, false
	}
	r := Record{
		DecidedUS: d.DecidedAtUs, FinishedUS: f.FinishedAtUs,
		Replica: d.Chosen, LoRA: d.Lora, Source: d.TokenSource,
		Keys: d.Keys, BlockTokens: d.BlockTokens,
		EngineBlockTokens: e.GetBlockTokens(), KVEvents: e.GetKvEvents(), KVProblem: e.GetKvProblem(),
		PromptTokens: d.PromptTokens, EnginePromptTokens: f.PromptTokens, CachedTokens: f.CachedTokens,
		Predicted: d.PredictedCachedTokens,
	}
	for _, c := range d.Candidates {
		if c.Replica != d.Chosen {
			continue
		}
		r.Matched = policy.ExpectedCached(max(c.GpuBlocks, c.TotalBlocks), d.BlockTokens, d.PromptTokens)
		switch {
		case c.IndexedBlocks == nil: // a decider without an index
		case c.GetIndexedBlocks() == 0:
			r.Indexed = IndexEmpty
		default:
			r.Indexed = IndexHolds
		}
		if c.Suspect { // the router itself says that it may be wrong
			r.Matched = min(r.Matched, r.Predicted)
		}
	}
	return r, true
}

// Probe is a comparison with the engine's own tokenizer for one request. Nil
// fields were not compared.
type Probe struct {
	// Replica is the one that was asked, and Chat says that the prompt was a chat's.
	Replica string
	Chat    bool
	// SameText: the same text gave the same tokens. SameChat: the same messages did.
	SameText, SameChat *bool
	// FirstDifference is the position of the first token that differs between the
	// two for the same messages; -1 when unknown.
	FirstDifference int
}

// cause returns what a probe proves, or nothing.
func (p *Probe) cause() string {
	switch {
	case p == nil:
		return ""
	case p.SameText != nil && !*p.SameText:
		return Tokenizer
	case p.SameChat != nil && !*p.SameChat && p.SameText != nil:
		return Template
	}
	return ""
}

// better returns the probe that proves more.
func (p *Probe) better(other *Probe) *Probe {
	if p == nil || p.cause() == "" && (other.cause() != "" || !other.clears()) {
		return other
	}
	return p
}

// clears reports whether a probe proves that text becomes tokens as in the engine.
func (p *Probe) clears() bool {
	return p != nil && p.SameChat != nil && *p.SameChat && (p.SameText == nil || *p.SameText)
}
