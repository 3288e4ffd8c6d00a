package route

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	pb "warmpath/schemas/warmpathv1"
)

// Report is what the command prints with --json.
type Report struct {
	// Kind is chat, completion or token ids.
	Kind string `json:"kind"`
	// TextBytes is the length of the rendered text; 0 when an engine rendered it, or
	// there is none.
	TextBytes int `json:"text_bytes"`
	// Tokens is the prompt's length, an estimate when Unkeyed says why it has no
	// keys. TokensBy made them, from TokenSource.
	Tokens      uint64 `json:"tokens"`
	TokensBy    string `json:"tokens_by"`
	TokenSource string `json:"token_source"`
	Unkeyed     string `json:"unkeyed,omitempty"`
	// Keys counts the full blocks of BlockTokens; FirstKey and LastKey are hex.
	Keys        int    `json:"keys"`
	FirstKey    string `json:"first_key,omitempty"`
	LastKey     string `json:"last_key,omitempty"`
	BlockTokens uint32 `json:"block_tokens"`

	Pool  string `json:"pool"`
	Model string `json:"model"`
	LoRA  string `json:"lora,omitempty"`
	// Router decided, with its index at KVSeq of the KV stream, whose newest batch
	// was IndexAgeUS old when it was applied; deciding took DecideUS.
	Router     string `json:"router"`
	KVSeq      uint64 `json:"kv_seq"`
	IndexAgeUS int64  `json:"index_age_us"`
	DecideUS   uint64 `json:"decide_us"`

	Policy        string             `json:"policy"`
	PolicyVersion uint32             `json:"policy_version"`
	Params        map[string]float64 `json:"params"`

	// Chosen is at Address, with Rank to ask for where it has one. Reason is score,
	// tie, explore, steal or only; FirstChoice is what the policy preferred before
	// explore and steal.
	Chosen                string  `json:"chosen"`
	Address               string  `json:"address"`
	Rank                  *uint32 `json:"data_parallel_rank,omitempty"`
	Reason                string  `json:"reason"`
	FirstChoice           string  `json:"first_choice"`
	PredictedCachedTokens uint64  `json:"predicted_cached_tokens"`

	Candidates []Candidate `json:"candidates"`

	params []*pb.Param // in their order
}

// Candidate is one replica as the decision saw it.
type Candidate struct {
	Replica string `json:"replica"`
	// GPU and Held count blocks of the prompt that are held from its start on the
	// GPU, and in any tier; Tiers are the latter by best tier. Soon counts those
	// with what decisions under way are about to make.
	GPU   uint32            `json:"gpu_blocks"`
	Held  uint32            `json:"total_blocks"`
	Tiers map[string]uint32 `json:"tiers"`
	Soon  uint32            `json:"predicted_blocks"`
	// Suspect says that a part of the replica's events is missing.
	Suspect bool `json:"suspect"`
	// ExpectedCachedTokens is what the policy expects from the cache.
	ExpectedCachedTokens uint64 `json:"expected_cached_tokens"`

	QueuedPrefillTokens    uint64  `json:"queued_prefill_tokens"`
	InFlight               uint32  `json:"in_flight"`
	Running                uint32  `json:"running"`
	Waiting                uint32  `json:"waiting"`
	KVUsed                 float64 `json:"kv_used"`
	ReportAgeUS            *int64  `json:"report_age_us,omitempty"`
	PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"`

	Score float64 `json:"score"`
	// Ineligible is why it could not be chosen; empty when it could.
	Ineligible string `json:"ineligible,omitempty"`
}

func newReport(in *request, k *known, a *answer) *Report {
	d := a.Decision
	r := &Report{
		Kind: in.kind, TextBytes: max(k.textBytes, a.textBytes), Tokens: d.PromptTokens, TokensBy: k.by, TokenSource: k.source, Unkeyed: a.unkeyed,
		Keys: len(d.Keys), BlockTokens: d.BlockTokens,
		Pool: d.Pool, Model: d.Model, LoRA: d.Lora, Router: d.Decider, KVSeq: d.KvSeq, IndexAgeUS: d.IndexAgeUs, DecideUS: d.DecideUs,
		Policy: d.Policy.GetName(), PolicyVersion: d.Policy.GetVersion(), Params: map[string]float64{}, params: d.Policy.GetParams(),
		Chosen: d.Chosen, Address: a.Address, Rank: a.DataParallelRank, FirstChoice: d.FirstChoice,
		Reason:                word(d.Reason.String(), "DECISION_REASON_"),
		PredictedCachedTokens: d.PredictedCachedTokens,
		Candidates:            []Candidate{},
	}
	if d.TokenSource != "" { // the router made them
		r.TokenSource = d.TokenSource
	}
	if len(d.Keys) > 0 {
		r.FirstKey, r.LastKey = fmt.Sprintf("%016x", d.Keys[0]), fmt.Sprintf("%016x", d.Keys[len(d.Keys)-1])
	}
	for _, p := range r.params {
		r.Params[p.Name] = p.Value
	}
	for _, c := range d.Candidates {
		r.Candidates = append(r.Candidates, newCandidate(c))
	}
	return r
}

func newCandidate(c *pb.Candidate) Candidate {
	load := c.Load
	out := Candidate{
		Replica: c.Replica, GPU: c.GpuBlocks, Held: c.TotalBlocks, Tiers: map[string]uint32{}, Soon: max(c.PredictedBlocks, c.TotalBlocks), Suspect: c.Suspect,
		ExpectedCachedTokens: c.ExpectedCachedTokens,
		QueuedPrefillTokens:  load.GetQueuedPrefillTokens(), InFlight: load.GetInFlight(), Running: load.GetRunning(), Waiting: load.GetWaiting(),
		KVUsed: load.GetKvUsed(), PrefillTokensPerSecond: c.PrefillTokensPerSecond, Score: c.Score, Ineligible: c.Ineligible,
	}
	if load != nil {
		out.ReportAgeUS = load.ReportAgeUs
	}
	for _, t := range c.Tiers {
		out.Tiers[word(t.Tier.String(), "TIER_")] += t.Blocks
	}
	return out
}

// word is an enum value's name without its enum's, in lower case.
func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

func (r *Report) writeJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(r)
}
