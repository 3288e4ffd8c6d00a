package analytics

import (
	"strings"
	"time"

	pb "warmpath/schemas/warmpathv1"
)

// statusLost is the status of a request whose outcome never came. It is no
// Status of the schema, because no gateway says it.
const statusLost = "lost"

// outcome is one request that ended, with every decision about it: a row of
// requests and its rows of candidates.
type outcome struct {
	// seq and time of the message that ended it; floor is the lowest sequence of
	// a decision that is still open after it.
	seq, floor uint64
	time       time.Time
	// decisions in the order they came, without their keys; may be empty.
	decisions []decision
	moves     uint32
	moveCause string
	// finished is nil for a lost request.
	finished *pb.Finished
}

// decision is a Decided and where it stands in the stream.
type decision struct {
	seq   uint64
	event *pb.Decided
}

// candidateRows is how many rows of candidates the outcome makes.
func (o *outcome) candidateRows() int {
	n := 0
	for _, d := range o.decisions {
		n += len(d.event.GetCandidates())
	}
	return n
}

// final returns the decision that the outcome belongs to: the one of the attempt
// that ended it, else the last; a zero decision when there is none.
func (o *outcome) final() decision {
	if len(o.decisions) == 0 {
		return decision{}
	}
	for _, d := range o.decisions {
		if o.finished != nil && d.event.GetAttempt() == o.finished.GetAttempt() {
			return d
		}
	}
	return o.decisions[len(o.decisions)-1]
}

// finishedAt is when the request ended by the gateway's clock; a lost one has
// only the time of its last decision.
func (o *outcome) finishedAt() time.Time {
	if o.finished != nil {
		return time.UnixMicro(o.finished.GetFinishedAtUs()).UTC()
	}
	return time.UnixMicro(o.final().event.GetDecidedAtUs()).UTC()
}

// requestRow is an outcome as the columns of requests have it. Pointers are nil
// where a figure is absent, which is not zero.
type requestRow struct {
	*outcome
	last     decision
	event    *pb.Decided  // last.event, or an empty one
	finished *pb.Finished // outcome.finished, or an empty one

	stolen                      bool
	promptTokens                uint64
	computed                    *uint64
	promptDecided, predicted    *uint64
	best, regret                *uint64
	bestReplica                 string
	chosenScore, bestScore      *float64
	decideUS, waitUS            *uint64
	indexAgeUS                  *int64
	decidedAt                   *time.Time
	eligible                    uint32
	status, clock, reason, pool string
	gateway, requestID, replica string
	firstChoice                 string
}

// newRequestRow derives the columns that no event carries as they are.
func newRequestRow(o *outcome) requestRow {
	r := requestRow{outcome: o, last: o.final(), event: &pb.Decided{}, finished: o.finished, status: statusLost}
	if r.last.event != nil {
		r.event = r.last.event
		r.pool, r.gateway, r.requestID = r.event.GetPool(), r.event.GetGateway(), r.event.GetRequestId()
		r.replica, r.promptTokens = r.event.GetChosen(), r.event.GetPromptTokens()
		r.fromDecision()
	}
	if r.finished == nil {
		r.finished = &pb.Finished{}
		return r
	}
	r.pool, r.gateway, r.requestID = r.finished.GetPool(), r.finished.GetGateway(), r.finished.GetRequestId()
	if r.finished.GetReplica() != "" {
		r.replica = r.finished.GetReplica()
	}
	if r.finished.PromptTokens != nil {
		r.promptTokens = r.finished.GetPromptTokens()
	}
	if r.finished.CachedTokens != nil {
		r.computed = new(r.promptTokens - min(r.promptTokens, r.finished.GetCachedTokens()))
	}
	r.status = enumWord(r.finished.GetStatus().String(), "STATUS_")
	r.clock = enumWord(r.finished.GetClock().String(), "CLOCK_")
	return r
}

// fromDecision fills what the last decision says, and what the others add.
func (r *requestRow) fromDecision() {
	d := r.event
	r.promptDecided = new(d.GetPromptTokens())
	r.predicted = new(d.GetPredictedCachedTokens())
	r.decideUS, r.waitUS = new(d.GetDecideUs()), new(d.GetWaitUs())
	r.indexAgeUS = new(d.GetIndexAgeUs())
	r.decidedAt = new(time.UnixMicro(d.GetDecidedAtUs()).UTC())
	r.reason = enumWord(d.GetReason().String(), "DECISION_REASON_")
	r.firstChoice = r.decisions[0].event.GetFirstChoice()
	for _, other := range r.decisions {
		r.stolen = r.stolen || stolen(other.event)
	}
	for _, c := range d.GetCandidates() {
		if c.GetReplica() == d.GetChosen() {
			r.chosenScore = new(c.GetScore())
		}
		if c.GetIneligible() != "" {
			continue
		}
		r.eligible++
		if r.best == nil || c.GetExpectedCachedTokens() > *r.best {
			r.best, r.bestReplica = new(c.GetExpectedCachedTokens()), c.GetReplica()
		}
		if r.bestScore == nil || c.GetScore() < *r.bestScore {
			r.bestScore = new(c.GetScore())
		}
	}
	if r.best != nil {
		r.regret = new(*r.best - min(*r.best, *r.predicted))
	}
}

// stolen says whether a decision sent the request to another replica than the
// policy preferred. Exploring does so on purpose and is none.
func stolen(d *pb.Decided) bool {
	return d.GetFirstChoice() != "" && d.GetFirstChoice() != d.GetChosen() &&
		d.GetReason() != pb.DecisionReason_DECISION_REASON_EXPLORE
}

// enumWord makes the name of an enum value a word for a row: STATUS_OK is ok,
// and what was not said is empty.
func enumWord(name, prefix string) string {
	word := strings.ToLower(strings.TrimPrefix(name, prefix))
	if word == "unspecified" {
		return ""
	}
	return word
}

// candidateRow is a candidate of one decision as the columns of candidates have it.
type candidateRow struct {
	*outcome
	last  decision
	event *pb.Candidate
	tiers [5]uint32 // by pb.Tier
}

// newCandidateRows appends the candidate rows of o to dst.
func newCandidateRows(dst []candidateRow, o *outcome) []candidateRow {
	for _, d := range o.decisions {
		for _, c := range d.event.GetCandidates() {
			row := candidateRow{outcome: o, last: d, event: c}
			for _, t := range c.GetTiers() {
				if tier := t.GetTier(); tier >= 0 && int(tier) < len(row.tiers) {
					row.tiers[tier] += t.GetBlocks()
				}
			}
			dst = append(dst, row)
		}
	}
	return dst
}
