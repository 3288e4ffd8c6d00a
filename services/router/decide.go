package router

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

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
// is none. The decision counts at once, for the next ones, unless the request is
// a dry run. It does no I/O but where an engine must tokenize a prompt, for which
// ctx is. It does not change q, keeps its keys, and is safe for concurrent use.
func (r *Router) Decide(ctx context.Context, q *pb.RouteRequest) *pb.RouteResponse {
	return r.answer(ctx, q).RouteResponse
}

// reply is an answer, and what people who ask may want to know beside it.
type reply struct {
	*pb.RouteResponse
	textBytes int
	unkeyed   string
	// sheet is where the decision's candidates are; released, they are gone.
	sheet *sheet
}

func (r *Router) answer(ctx context.Context, q *pb.RouteRequest) reply {
	start := time.Now()
	a, s, err := r.ask(ctx, q)
	if err == nil && a.form.needsTokens() {
		start = time.Now() // tokenizing has its own figure
	}
	var d *pb.Decided
	var to *pb.FleetEntry
	if err == nil {
		d, to, err = r.decision(a, s, start)
	}
	r.metrics.duration.Observe(time.Since(start).Seconds())
	if err != nil {
		return r.turnDown(err)
	}
	if q.DryRun {
		r.metrics.dryRuns.Inc()
	} else {
		r.totals.decisions.Add(1)
		r.totals.micros.Add(d.DecideUs)
		r.metrics.decided(d)
	}
	return reply{&pb.RouteResponse{Decision: d, Address: to.Address, DataParallelRank: to.DataParallelRank}, a.textBytes, a.unkeyed, a.sheet}
}

// about puts what is beside the answer into headers.
func (a reply) about(h interface{ Set(key, value string) }) {
	if a.textBytes > 0 {
		h.Set(headerTextBytes, strconv.Itoa(a.textBytes))
	}
	if a.unkeyed != "" {
		h.Set(headerUnkeyed, strings.Join(strings.Fields(a.unkeyed), " "))
	}
}

// turnDown is refuse for a reply.
func (r *Router) turnDown(err error) reply { return reply{RouteResponse: r.refuse(err)} }

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

// starting is the refusal of a router whose health is err.
func starting(err error) error {
	return notReady(err.Error() + "; ask another router, or fall back")
}

// ask checks a request, and finds its keys.
func (r *Router) ask(ctx context.Context, q *pb.RouteRequest) (*asked, shape, error) {
	if err := r.health(); err != nil {
		return nil, shape{}, starting(err)
	}
	a, err := read(r.cfg.Pool, q)
	if err != nil {
		return nil, shape{}, err
	}
	a.fleet = r.replicas(r.now())
	a.nameModel()
	s, err := shapeOf(a, a.fleet)
	if err != nil {
		return nil, shape{}, err
	}
	if err := r.keyed(ctx, a, s); err != nil {
		return nil, shape{}, err
	}
	return a, s, nil
}

func (r *Router) decision(a *asked, s shape, start time.Time) (*pb.Decided, *pb.FleetEntry, error) {
	if a.form.needsTokens() {
		a.fleet = r.replicas(r.now()) // tokenizing took its time
	}
	a.sheet = newSheet(len(a.fleet))
	d := &pb.Decided{
		Pool:         a.Pool,
		Gateway:      a.Gateway,
		RequestId:    a.RequestId,
		Attempt:      a.Attempt,
		Decider:      r.cfg.Name,
		Model:        s.model,
		Lora:         a.lora,
		BlockTokens:  s.blockTokens,
		PromptTokens: a.tokens,
		Keys:         a.keys,
		Policy:       r.policy,
		Seed:         decisionSeed(r.cfg.Seed, a.RequestId, a.Attempt),
		Candidates:   a.sheet.fill(a.Exclude, s, a.fleet),
		TokenSource:  a.source,
	}
	if a.session != "" {
		d.SessionKey = xxh3.HashString(a.session)
	}
	if err := r.choose(d, a.DryRun); err != nil {
		return nil, nil, err
	}
	d.DecideUs = uint64(time.Since(start).Microseconds())
	for _, f := range a.fleet {
		if f.entry.Replica == d.Chosen {
			return d, f.entry, nil
		}
	}
	return nil, nil, fmt.Errorf("policy %s chose %q, which is no candidate", d.Policy.Name, d.Chosen)
}

// choose sees the index, the ledger and the predictions at one moment, decides,
// and lets the next decision see this one if it is more than a trial.
func (r *Router) choose(d *pb.Decided, trial bool) error {
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
	if !trial {
		r.decide.turn++
		r.count(d, now)
	}
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
	r.predictions.Add(id, d.Chosen, created(d), now)
	r.noteSent(id, d, now)
	r.decide.own.add(id, d.Chosen, now)
}

// created are the keys of the blocks that a decision is about to create: those
// that the chosen replica does not hold, or all when it may not hold what it seems to.
func created(d *pb.Decided) []uint64 {
	for _, c := range d.Candidates {
		if c.Replica == d.Chosen && !c.Suspect {
			return d.Keys[min(int(c.TotalBlocks), len(d.Keys)):]
		}
	}
	return d.Keys
}

func ineligible(exclude []string, s shape, f seen) string {
	switch {
	case slices.Contains(exclude, f.entry.Replica):
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
		age := c.Load.ReportAgeUs
		c.Load.ReportAgeUs = nil
		c.PrefillTokensPerSecond = r.decide.ledger.FillTerms(c.Load, age, c.Replica, now)
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
	if len(c.Epoch) == len(m.Epoch) {
		copy(c.Epoch, m.Epoch[:])
	} else {
		c.Epoch = append([]byte(nil), m.Epoch[:]...)
	}
	c.GpuBlocks, c.TotalBlocks, c.PredictedBlocks = uint32(m.GPU), uint32(m.Total), uint32(m.Predicted)
	c.Suspect = m.Suspect
	*c.IndexedBlocks = uint64(m.Entries)
	for tier, n := range m.Tiers {
		if n > 0 {
			c.Tiers = appendTier(c.Tiers, prefix.Tier(tier).ToProto(), uint32(n))
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
