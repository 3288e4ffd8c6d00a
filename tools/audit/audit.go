package audit

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"

	"warmpath/routing/policy"
	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// Difference is one thing that a recorded decision says and the streams do not.
type Difference struct {
	Pool      string `json:"pool"`
	RequestID string `json:"request_id"`
	Attempt   uint32 `json:"attempt"`
	// Seq is the decision's position in the route stream.
	Seq        uint64 `json:"seq"`
	Field      string `json:"field"`
	Recorded   string `json:"recorded"`
	Recomputed string `json:"recomputed"`
}

func (d Difference) String() string {
	return fmt.Sprintf("route seq %d, request %s attempt %d: %s is %s, recomputed %s",
		d.Seq, d.RequestID, d.Attempt, d.Field, d.Recorded, d.Recomputed)
}

// Result is what an audit found.
type Result struct {
	Decisions int `json:"decisions"`
	// Fallbacks are decisions that a gateway took without a router; they claim no
	// matches, so only their choice is recomputed.
	Fallbacks int `json:"fallbacks"`
	// Recomputed counts choices that were run again, MatchesChecked candidates
	// whose match was derived again from the KV stream.
	Recomputed     int `json:"recomputed"`
	MatchesChecked int `json:"matches_checked"`
	Moved          int `json:"moved"`
	Finished       int `json:"finished"`
	// Mismatches are alarms of gateways and their ends, which are part of no request.
	Mismatches int `json:"mismatches"`
	// Undigested are events without a digest, where those are allowed.
	Undigested int `json:"undigested"`
	// BeforeRange are outcomes of decisions that stand before the first event read.
	BeforeRange int `json:"before_range"`
	// Open are decided requests without an outcome yet.
	Open int `json:"open"`
	// Unverifiable are decisions whose KV history is no longer stored.
	Unverifiable int `json:"unverifiable"`
	// Bases are where the fold of each pool's KV stream began.
	Bases []Base `json:"bases"`
	// Differing are the events with a difference; Differences lists the first ones.
	Differing   int          `json:"differing"`
	Differences []Difference `json:"differences"`
}

// maxDifferences bounds how many differences are listed; all are counted.
const maxDifferences = 100

// reader hands over a stream's events from one sequence to another, inclusive;
// 0 as the last means all there are.
type reader interface {
	Read(ctx context.Context, stream string, from, to uint64, handle func(streams.Event) error) error
}

// recorded is a decision and where it stands.
type recorded struct {
	seq      uint64
	decision *pb.Decided
}

// auditor derives decisions again. Its memory grows with the decisions audited,
// not with the KV stream.
type auditor struct {
	pool      string // "" for every pool
	result    Result
	decisions map[string][]recorded // by pool
	requests  map[string]*request   // by request id
	faulty    map[uint64]bool       // route sequences with a difference
	// allowUndigested passes events that carry no digest.
	allowUndigested bool
	// first and last are the sequences read so far.
	first, last uint64
	base        *base // of the pool that is being audited
}

// request is what the route stream said of a request so far.
type request struct {
	chosen   map[uint32]string // by attempt
	finished bool
}

func newAuditor(pool string) *auditor {
	return &auditor{
		pool: pool, decisions: map[string][]recorded{}, requests: map[string]*request{}, faulty: map[uint64]bool{},
		result: Result{Differences: []Difference{}, Bases: []Base{}},
	}
}

// alarm is a mismatch as differences name it: it belongs to no request.
type alarm struct{ *pb.Mismatch }

// GetRequestId says what it is instead.
func (alarm) GetRequestId() string { return "(mismatch)" }

// GetAttempt is always 0.
func (alarm) GetAttempt() uint32 { return 0 }

// add takes the next event of the route stream.
func (a *auditor) add(e streams.Event) error {
	message, err := streams.Decode(e.Schema, e.Data)
	if err != nil {
		return fmt.Errorf("route seq %d: %w", e.Seq, err)
	}
	a.checkOrder(e)
	if m, ok := message.(interface{ GetPool() string }); ok && a.pool != "" && m.GetPool() != a.pool {
		return nil
	}
	if m, ok := message.(*pb.Mismatch); ok {
		a.result.Mismatches++
		a.checkDigest(e, alarm{m})
		return nil
	}
	event, ok := message.(routed)
	if !ok {
		return fmt.Errorf("route seq %d: %s is no event of the route stream", e.Seq, e.Schema)
	}
	a.checkDigest(e, event)
	a.checkPlace(e, event)
	switch m := message.(type) {
	case *pb.Decided:
		a.decide(e.Seq, m)
	case *pb.Moved:
		a.result.Moved++
		a.expectChosen(e.Seq, m, m.From)
	case *pb.Finished:
		a.finished(e.Seq, m)
	}
	return nil
}

// finish derives every decision again. kv names a pool's KV stream, begin gives the
// index that its fold starts from.
func (a *auditor) finish(ctx context.Context, source reader, kv func(pool string) string, begin beginner) (*Result, error) {
	pools := make([]string, 0, len(a.decisions))
	for pool := range a.decisions {
		pools = append(pools, pool)
	}
	sort.Strings(pools)
	for _, pool := range pools {
		if err := a.auditPool(ctx, source, pool, kv(pool), begin); err != nil {
			return nil, fmt.Errorf("pool %s: %w", pool, err)
		}
	}
	for _, r := range a.requests {
		if !r.finished {
			a.result.Open++
		}
	}
	a.result.Differing = len(a.faulty)
	return &a.result, nil
}

// auditPool folds the pool's KV stream once, and stops at each decision's
// position to look at what the index holds there.
func (a *auditor) auditPool(ctx context.Context, source reader, pool, kv string, begin beginner) error {
	decisions := a.decisions[pool]
	for _, r := range decisions {
		a.recompute(r)
	}
	exact := slices.DeleteFunc(slices.Clone(decisions), func(r recorded) bool { return isFallback(r.decision) })
	if len(exact) == 0 {
		return nil
	}
	sort.SliceStable(exact, func(i, j int) bool { return exact[i].decision.KvSeq < exact[j].decision.KvSeq })
	var err error
	if a.base, err = begin(ctx, pool, kv, exact[0].decision.KvSeq); err != nil {
		return err
	}
	if a.base == nil {
		a.result.Unverifiable += len(exact)
		return nil
	}
	a.result.Bases = append(a.result.Bases, Base{Pool: pool, SnapshotSeq: a.base.seq, Whole: a.base.whole})
	index, next, at := a.base.index, 0, a.base.seq
	for ; next < len(exact) && exact[next].decision.KvSeq < at; next++ {
		a.result.Unverifiable++
	}
	var matches []prefix.Match
	checkUpTo := func(end uint64) { // decisions whose position is before end
		for ; next < len(exact) && exact[next].decision.KvSeq < end; next++ {
			matches, _ = index.Match(matches[:0], exact[next].decision.Keys, nil)
			a.compareMatches(exact[next], matches)
		}
	}
	if end := exact[len(exact)-1].decision.KvSeq; end > at {
		err = source.Read(ctx, kv, at+1, end, func(e streams.Event) error {
			checkUpTo(e.Seq)
			if e.Seq > at+1 {
				index.SuspectAll() // a router that met the hole did so too
			}
			at = e.Seq
			if _, step, err := streams.KVBatch(e); err == nil { // else a router skipped it too, and counted it
				index.Apply(step)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	checkUpTo(at + 1)
	for ; next < len(exact); next++ {
		r := exact[next]
		a.differ(difference(r, "kv_seq", fmt.Sprint(r.decision.KvSeq), fmt.Sprintf("at most %d, the stream's end", at)))
	}
	return nil
}

func isFallback(d *pb.Decided) bool {
	return d.Reason == pb.DecisionReason_DECISION_REASON_FALLBACK
}

// recompute runs the choice again from the decision alone.
func (a *auditor) recompute(r recorded) {
	d := r.decision
	if isFallback(d) {
		a.result.Fallbacks++
	}
	// A prompt whose tokens nobody knew has a length that was estimated, and no keys.
	unkeyed := len(d.Keys) == 0 && d.TokenSource == "none"
	if d.BlockTokens > 0 && !unkeyed && uint64(len(d.Keys)) != d.PromptTokens/uint64(d.BlockTokens) {
		a.differ(difference(r, "keys", fmt.Sprintf("%d keys", len(d.Keys)),
			fmt.Sprintf("%d full blocks of %d in %d tokens", d.PromptTokens/uint64(d.BlockTokens), d.BlockTokens, d.PromptTokens)))
	}
	again, err := policy.Recompute(d)
	if err != nil {
		a.differ(difference(r, "choice", d.Chosen, err.Error()))
		return
	}
	a.result.Recomputed++
	for _, field := range []struct{ name, recorded, recomputed string }{
		{"chosen", d.Chosen, again.Chosen},
		{"first_choice", d.FirstChoice, again.FirstChoice},
		{"reason", d.Reason.String(), again.Reason.String()},
		{"predicted_cached_tokens", fmt.Sprint(d.PredictedCachedTokens), fmt.Sprint(again.PredictedCachedTokens)},
	} {
		if field.recorded != field.recomputed {
			a.differ(difference(r, field.name, field.recorded, field.recomputed))
		}
	}
	for i, c := range d.Candidates {
		if !proto.Equal(c, again.Candidates[i]) {
			a.differ(difference(r, "candidate "+c.Replica,
				fmt.Sprintf("score %v, expected cached %d", c.Score, c.ExpectedCachedTokens),
				fmt.Sprintf("score %v, expected cached %d", again.Candidates[i].Score, again.Candidates[i].ExpectedCachedTokens)))
		}
	}
}

// compareMatches holds a decision's candidates against what the index held at
// the decision's position. A replica that the index does not know holds nothing.
func (a *auditor) compareMatches(r recorded, matches []prefix.Match) {
	byReplica := make(map[string]prefix.Match, len(matches))
	for _, m := range matches {
		byReplica[m.Replica] = m
	}
	unverifiable := false
	for _, c := range r.decision.Candidates {
		m := byReplica[c.Replica]
		uncertain := a.base.uncertain(c, m)
		if !bytes.Equal(c.Epoch, m.Epoch[:]) {
			// The router knew from FLEET that the life in the index was over, or had
			// forgotten it: it must not have claimed anything of it.
			m = prefix.Match{Suspect: c.Suspect}
		}
		want, got := candidateMatch(c), indexMatch(m)
		if want != got && uncertain {
			unverifiable = true
			continue
		}
		a.result.MatchesChecked++
		if want != got {
			a.differ(difference(r, "match of "+c.Replica, want, got))
		}
	}
	if unverifiable {
		a.result.Unverifiable++
	}
}

func candidateMatch(c *pb.Candidate) string {
	var tiers [prefix.NumTiers]int
	for _, t := range c.Tiers {
		if tier, ok := prefix.TierFromProto(t.Tier); ok {
			tiers[tier] += int(t.Blocks)
		}
	}
	return matchText(int(c.GpuBlocks), int(c.TotalBlocks), tiers, c.Suspect)
}

func indexMatch(m prefix.Match) string { return matchText(m.GPU, m.Total, m.Tiers, m.Suspect) }

func matchText(gpu, total int, tiers [prefix.NumTiers]int, suspect bool) string {
	return fmt.Sprintf("gpu %d, total %d, by tier %v, suspect %t", gpu, total, tiers, suspect)
}

func difference(r recorded, field, was, is string) Difference {
	return differenceOf(r.seq, r.decision, field, was, is)
}

func (a *auditor) differ(d Difference) {
	a.faulty[d.Seq] = true
	if len(a.result.Differences) < maxDifferences {
		a.result.Differences = append(a.result.Differences, d)
	}
}
