package policy

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

// decision is one Decided event while it is being decided.
type decision struct {
	*pb.Decided
	// eligible is the places of the candidates that can be chosen, in order.
	eligible []int
	// totalMS is, per candidate, the predicted time to first token; queueMS and
	// computeMS are the parts of it that wait for other prompts and compute this
	// one.
	totalMS, queueMS, computeMS []float64
}

// param returns a parameter of the decision's policy, which was checked.
func (d *decision) param(name string) float64 {
	for _, p := range d.Policy.Params {
		if p.Name == name {
			return p.Value
		}
	}
	panic("policy " + d.Policy.Name + " has no parameter " + name)
}

// ExpectedCached is how many prompt tokens an engine serves from blocks held:
// whole blocks, and never the last token, which is always computed.
func ExpectedCached(blocks, blockTokens uint32, promptTokens uint64) uint64 {
	if blockTokens == 0 || promptTokens == 0 {
		return 0
	}
	usable := (promptTokens - 1) / uint64(blockTokens)
	return min(uint64(blocks), usable) * uint64(blockTokens)
}

// Decide makes the choice that d.Policy makes of d's candidates, load, keys,
// prompt length, session, seed and turn. It fills in each candidate's Score and
// ExpectedCachedTokens, and Chosen, FirstChoice, Reason and
// PredictedCachedTokens. Candidates must be sorted by replica. It returns
// ErrNoReplica when none is eligible, having filled in the candidates only.
// d.Policy and d.Keys are not modified and may be shared.
func Decide(d *pb.Decided) error {
	p, err := of(d.Policy)
	if err != nil {
		return err
	}
	run, err := begin(d)
	if err != nil {
		return err
	}
	tolerance := p.score(run)
	if err := finite(d); err != nil {
		return err
	}
	if len(run.eligible) == 0 {
		return ErrNoReplica
	}
	first, reason := run.pick(tolerance, p.tieKey)
	chosen := first
	switch {
	case p.name == fallbackName:
		reason = pb.DecisionReason_DECISION_REASON_FALLBACK
	case len(run.eligible) == 1:
		reason = pb.DecisionReason_DECISION_REASON_ONLY
	default:
		first, chosen, reason = run.around(first, reason)
	}
	run.conclude(first, chosen, reason)
	return nil
}

// begin checks the candidates, clears what a decision fills in and computes what
// every policy needs.
func begin(d *pb.Decided) (*decision, error) {
	run := &decision{
		Decided:  d,
		eligible: make([]int, 0, len(d.Candidates)),
	}
	n := len(d.Candidates)
	ms := make([]float64, 3*n)
	run.totalMS, run.queueMS, run.computeMS = ms[:n], ms[n:2*n], ms[2*n:]
	d.Chosen, d.FirstChoice, d.Reason, d.PredictedCachedTokens = "", "", 0, 0
	for i, c := range d.Candidates {
		if c == nil || c.Replica == "" {
			return nil, fmt.Errorf("candidate %d has no replica; it must be named", i)
		}
		if i > 0 && d.Candidates[i-1].Replica >= c.Replica {
			return nil, fmt.Errorf("candidates %s and %s are out of order; sort them by replica, each once", d.Candidates[i-1].Replica, c.Replica)
		}
		c.Score = 0
		c.ExpectedCachedTokens = run.expected(c)
		if c.Ineligible == "" {
			run.eligible = append(run.eligible, i)
		}
	}
	run.estimate()
	return run, nil
}

// finite refuses scores that cannot be compared.
func finite(d *pb.Decided) error {
	for _, c := range d.Candidates {
		if math.IsNaN(c.Score) || math.IsInf(c.Score, 0) {
			return fmt.Errorf("candidate %s has score %v; its load and rate must be finite numbers", c.Replica, c.Score)
		}
	}
	return nil
}

// pick returns the eligible candidate with the lowest score, or, when others are
// within the tolerance of it, the one of them that HRW puts first.
func (d *decision) pick(tolerance float64, tieKey func(*decision) uint64) (int, pb.DecisionReason) {
	best := d.eligible[0]
	for _, i := range d.eligible[1:] {
		if d.Candidates[i].Score < d.Candidates[best].Score {
			best = i
		}
	}
	limit := d.Candidates[best].Score + tolerance
	tied := make([]int, 0, len(d.eligible))
	for _, i := range d.eligible {
		if i == best || d.Candidates[i].Score <= limit {
			tied = append(tied, i)
		}
	}
	if len(tied) == 1 {
		return best, pb.DecisionReason_DECISION_REASON_SCORE
	}
	return highest(d.Decided, tied, tieKey(d)), pb.DecisionReason_DECISION_REASON_TIE
}

// around applies what goes around any policy: a look elsewhere now and then, and
// taking a request off a replica that is over its budget.
func (d *decision) around(pick int, reason pb.DecisionReason) (first, chosen int, why pb.DecisionReason) {
	if rate := d.param("explore"); rate > 0 && unit(draw(d.Seed, drawExplore)) < rate {
		n := uint64(len(d.eligible))
		return pick, d.eligible[draw(d.Seed, drawExplored)%n], pb.DecisionReason_DECISION_REASON_EXPLORE
	}
	if budget := d.param("steal_wait_ms"); budget > 0 {
		if from, to, ok := d.steal(pick, budget); ok {
			return from, to, pb.DecisionReason_DECISION_REASON_STEAL
		}
	}
	return pick, pick, reason
}

// steal says whether the request leaves the replica it belongs to because that
// one's queue is over budget. It belongs to the policy's pick, or, when another
// has more of the prompt and the pick's lower total is owed to that one's queue
// alone, to that other one: the request was taken from it already.
func (d *decision) steal(pick int, budgetMS float64) (from, to int, ok bool) {
	if d.queueMS[pick] > budgetMS {
		best := pick
		for _, i := range d.eligible {
			if d.totalMS[i] < d.totalMS[best] {
				best = i
			}
		}
		if best != pick {
			return pick, best, true
		}
	}
	home := pick
	for _, i := range d.eligible {
		c, h := d.Candidates[i], d.Candidates[home]
		if c.ExpectedCachedTokens > h.ExpectedCachedTokens {
			home = i
		}
	}
	if home != pick && d.queueMS[home] > budgetMS && d.totalMS[pick] < d.totalMS[home] &&
		d.totalMS[home]-d.queueMS[home] < d.totalMS[pick]-d.queueMS[pick] {
		return home, pick, true
	}
	return 0, 0, false
}

// conclude writes the choice into the event.
func (d *decision) conclude(first, chosen int, reason pb.DecisionReason) {
	d.FirstChoice = d.Candidates[first].Replica
	d.Chosen = d.Candidates[chosen].Replica
	d.Reason = reason
	d.PredictedCachedTokens = d.Candidates[chosen].ExpectedCachedTokens
}

// Recompute makes a recorded decision again from a copy of it whose results were
// cleared, fallbacks included. The caller compares the copy with the record.
func Recompute(d *pb.Decided) (*pb.Decided, error) {
	if d == nil {
		return nil, fmt.Errorf("recompute: there is no decision")
	}
	again := proto.Clone(d).(*pb.Decided)
	again.Chosen, again.FirstChoice, again.Reason, again.PredictedCachedTokens = "", "", 0, 0
	for _, c := range again.Candidates {
		if c != nil {
			c.Score, c.ExpectedCachedTokens = 0, 0
		}
	}
	if err := Decide(again); err != nil {
		return nil, fmt.Errorf("recompute decision %s/%d: %w", d.RequestId, d.Attempt, err)
	}
	return again, nil
}
