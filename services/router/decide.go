package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"warmpath/routing/blockkey"
	"warmpath/routing/policy"
	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
)

// Why a candidate could not be chosen, as decisions record it.
const (
	ineligibleExcluded    = "excluded"
	ineligibleDead        = "dead"
	ineligibleDraining    = "draining"
	ineligibleModel       = "model"
	ineligibleBlockTokens = "block_tokens"
	ineligibleAddress     = "no_address"
	ineligibleSuspectFull = "suspect_and_full"
)

// fullKV is the share of KV blocks held by running requests above which a
// replica counts as full: engines begin to preempt in the last few percent.
const fullKV = 0.95

// Decide answers a request: a decision and the address it goes to, or why there
// is none. The decision counts at once, for the next ones. It does no I/O, and
// is safe for concurrent use.
func (r *Router) Decide(q *pb.RouteRequest) *pb.RouteResponse {
	start := time.Now()
	d, address, err := r.decision(q, start)
	r.metrics.duration.Observe(time.Since(start).Seconds())
	if err != nil {
		return r.refuse(err)
	}
	r.totals.decisions.Add(1)
	r.totals.micros.Add(d.DecideUs)
	r.metrics.decided(d)
	return &pb.RouteResponse{Decision: d, Address: address}
}

// refuse counts a request that gets no decision, and says why.
func (r *Router) refuse(err error) *pb.RouteResponse {
	response := refused(err)
	r.totals.refused.Add(1)
	r.metrics.errors.WithLabelValues(word(response.ErrorCode.String(), "ROUTE_ERROR_CODE_")).Inc()
	return response
}

// refused is the answer for a request without a decision.
func refused(err error) *pb.RouteResponse {
	var why *refusal
	if errors.As(err, &why) {
		return &pb.RouteResponse{ErrorCode: why.code, Error: why.text}
	}
	return &pb.RouteResponse{ErrorCode: pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID, Error: err.Error()}
}

func notReady(text string) error {
	return &refusal{pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY, text}
}

func (r *Router) decision(q *pb.RouteRequest, start time.Time) (*pb.Decided, string, error) {
	if err := r.health(); err != nil {
		return nil, "", notReady(err.Error() + "; ask another router, or fall back")
	}
	if err := validate(r.cfg.Pool, q); err != nil {
		return nil, "", err
	}
	fleet := r.replicas(r.now())
	s, err := shapeOf(q, fleet)
	if err != nil {
		return nil, "", err
	}
	keys := q.Keys
	if len(q.TokenIds) > 0 {
		n := len(q.TokenIds) / int(s.blockTokens)
		if n > maxKeys {
			return nil, "", invalid("token_ids has %d full blocks of %d tokens; the limit is %d: shorten the prompt", n, s.blockTokens, maxKeys)
		}
		keys = blockkey.Chain(make([]uint64, 0, n), blockkey.Root(s.model, q.Lora, q.Salt), q.TokenIds, int(s.blockTokens))
	}
	d := &pb.Decided{
		Pool:         q.Pool,
		Gateway:      q.Gateway,
		RequestId:    q.RequestId,
		Attempt:      q.Attempt,
		Decider:      r.cfg.Name,
		Model:        s.model,
		Lora:         q.Lora,
		BlockTokens:  s.blockTokens,
		PromptTokens: max(q.PromptTokens, uint64(len(q.TokenIds))),
		Keys:         keys,
		Policy:       r.policy,
		Seed:         decisionSeed(r.cfg.Seed, q.RequestId, q.Attempt),
		Candidates:   candidates(q, s, fleet),
	}
	if q.SessionId != "" {
		d.SessionKey = xxh3.HashString(q.SessionId)
	}
	if err := r.choose(d); err != nil {
		return nil, "", err
	}
	d.DecideUs = uint64(time.Since(start).Microseconds())
	for _, f := range fleet {
		if f.entry.Replica == d.Chosen {
			return d, f.entry.Address, nil
		}
	}
	return nil, "", fmt.Errorf("policy %s chose %q, which is no candidate", d.Policy.Name, d.Chosen)
}

// choose sees the index, the ledger and the predictions at one moment, decides,
// and lets the next decision see this one.
func (r *Router) choose(d *pb.Decided) error {
	r.decide.Lock()
	defer r.decide.Unlock()
	now := r.now()
	d.DecidedAtUs = now
	d.Turn = r.decide.turn
	r.decide.matches, d.KvSeq = r.index().Match(r.decide.matches[:0], d.Keys, r.predictions)
	d.IndexAgeUs = r.applied.Load()
	r.fill(d, r.decide.matches, now)
	if err := policy.Decide(d); err != nil {
		if errors.Is(err, policy.ErrNoReplica) {
			return noReplica(d)
		}
		return fmt.Errorf("policy %s: %w", d.Policy.Name, err)
	}
	r.decide.turn++
	r.count(d, now)
	return nil
}

// count lets an own decision weigh on the next ones. An attempt that is asked
// for again is moved: only its last answer is followed.
func (r *Router) count(d *pb.Decided, now int64) {
	id := attemptID(d.RequestId, d.Attempt)
	if earlier, ok := r.decide.own.take(id); ok && earlier != d.Chosen {
		r.decide.ledger.ApplyMoved(&pb.Moved{Pool: d.Pool, RequestId: d.RequestId, Attempt: d.Attempt, From: earlier})
		r.predictions.Drop(id)
	}
	r.decide.ledger.ApplyDecided(d, now)
	r.predictions.Add(id, d.Chosen, d.Keys, now)
	r.noteSent(id, d, now)
	r.decide.own.add(id, d.Chosen, now)
}

// candidates are the pool's replicas as a request may use them, sorted by id.
func candidates(q *pb.RouteRequest, s shape, fleet []seen) []*pb.Candidate {
	block := make([]pb.Candidate, len(fleet))
	out := make([]*pb.Candidate, len(fleet))
	for i, f := range fleet {
		c := &block[i]
		c.Replica = f.entry.Replica
		c.Epoch = f.entry.Epoch
		c.Ineligible = ineligible(q, s, f)
		out[i] = c
	}
	return out
}

func ineligible(q *pb.RouteRequest, s shape, f seen) string {
	switch {
	case slices.Contains(q.Exclude, f.entry.Replica):
		return ineligibleExcluded
	case f.dead:
		return ineligibleDead
	case f.entry.Draining:
		return ineligibleDraining
	case f.entry.Model != s.model:
		return ineligibleModel
	case f.entry.BlockTokens != s.blockTokens:
		return ineligibleBlockTokens
	case f.entry.Address == "":
		return ineligibleAddress
	}
	return ""
}

// fill puts match, load and rate into each candidate. Candidates and matches are
// both sorted by replica.
func (r *Router) fill(d *pb.Decided, matches []prefix.Match, now int64) {
	r.fleet.RLock()
	defer r.fleet.RUnlock()
	i := 0
	for _, c := range d.Candidates {
		for i < len(matches) && matches[i].Replica < c.Replica {
			i++
		}
		if i < len(matches) && matches[i].Replica == c.Replica {
			r.fillMatch(c, &matches[i])
		}
		c.Load = r.decide.ledger.Terms(c.Replica, now)
		c.PrefillTokensPerSecond = r.decide.ledger.PrefillRate(c.Replica)
	}
	setSuspectFull(d.Candidates)
}

// fillMatch takes over what the index holds for a candidate. A candidate whose
// epoch differs from the index's claims nothing: the engine has begun a life
// that the stream does not show yet, or the router has forgotten that life.
func (r *Router) fillMatch(c *pb.Candidate, m *prefix.Match) {
	if m.Epoch == (prefix.Epoch{}) { // only predictions
		c.PredictedBlocks = uint32(m.Predicted)
		return
	}
	if r.fleet.lost[c.Replica] == m.Epoch {
		c.Epoch = nil
		c.Suspect = true
		return
	}
	if newer(c.Epoch, m.Epoch[:]) {
		return
	}
	c.Epoch = append([]byte(nil), m.Epoch[:]...)
	c.GpuBlocks, c.TotalBlocks, c.PredictedBlocks = uint32(m.GPU), uint32(m.Total), uint32(m.Predicted)
	c.Suspect = m.Suspect
	for tier, n := range m.Tiers {
		if n > 0 {
			c.Tiers = append(c.Tiers, &pb.TierBlocks{Tier: prefix.Tier(tier).ToProto(), Blocks: uint32(n)})
		}
	}
}

// setSuspectFull keeps requests away from replicas that are full and whose
// matches cannot be trusted, unless there is no other.
func setSuspectFull(candidates []*pb.Candidate) {
	full := func(c *pb.Candidate) bool { return c.Suspect && c.Load.GetKvUsed() >= fullKV }
	other := slices.ContainsFunc(candidates, func(c *pb.Candidate) bool { return c.Ineligible == "" && !full(c) })
	if !other {
		return
	}
	for _, c := range candidates {
		if c.Ineligible == "" && full(c) {
			c.Ineligible = ineligibleSuspectFull
		}
	}
}

// noReplica says why none of the candidates could be chosen.
func noReplica(d *pb.Decided) error {
	counts := map[string]int{}
	for _, c := range d.Candidates {
		counts[c.Ineligible]++
	}
	var why []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		why = append(why, fmt.Sprintf("%d %s", counts[reason], reason))
	}
	return &refusal{pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA,
		fmt.Sprintf("none of %d replicas can take the request: %s; exclude fewer, or start one", len(d.Candidates), strings.Join(why, ", "))}
}

// decisionSeed is a decision's own randomness: the same for the same attempt of
// the same request at the same router, so that a recorded decision explains itself.
func decisionSeed(seed uint64, requestID string, attempt uint32) uint64 {
	b := make([]byte, 0, 64)
	b = binary.LittleEndian.AppendUint64(b, seed)
	b = append(b, requestID...)
	b = binary.LittleEndian.AppendUint32(b, attempt)
	return xxh3.Hash(b)
}

// listed joins names for a message, at most a handful of them.
func listed(names map[string]bool) string {
	sorted := slices.Sorted(maps.Keys(names))
	quoted := make([]string, 0, len(sorted))
	for _, n := range sorted[:min(len(sorted), 8)] {
		if n == "" {
			n = `""`
		}
		quoted = append(quoted, n)
	}
	if len(sorted) > 8 {
		quoted = append(quoted, "…")
	}
	return strings.Join(quoted, ", ")
}
