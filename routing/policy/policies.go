package policy

import (
	"slices"
	"strings"

	pb "warmpath/schemas/warmpathv1"
)

// all returns every policy. A change of what one computes is a new version of it.
func all() []*policy {
	return policies
}

// policies is a table, never modified.
var policies = []*policy{
	{
		name: "ttft", version: 1, score: scoreTTFT, tieKey: tieNew,
		params: with(0, 5000,
			param{name: "crowd_ms", standard: 30, least: 0, most: 1e6, why: "Milliseconds that a replica's requests under way add, times their square over the fleet's mean: little beside a long prefix, and enough that a short one which all requests share is copied to more replicas before the first fills up. 20 to 40 did that on simulated fleets without costing agents their hits."},
			param{name: "recompute_weight", standard: 2.5, least: 1, most: 100, why: "What computing a token counts for against waiting as long: it also delays the requests that come after and takes blocks from the cache. On a real chat trace 2.5 against 1 serves a fifteenth more tokens from cache at the same time to first token, and lowers that time at high load; beyond 4 waiting costs more than it saves."},
			param{name: "tie_fraction", standard: 0.1, least: 0, most: 10, why: "Scores within this share of the best are equal: learned rates of equal replicas differ by some percent, and without it the luckiest, or the one that happens to hold a short common prefix, would win every new prompt."},
			param{name: "tie_ms", standard: 10, least: 0, most: 1e6, why: "Scores within this many milliseconds of the best are equal: it is half a decode step, which nobody notices."},
		),
	},
	{
		name: "weighted", version: 1, score: scoreWeighted, tieKey: tieNew,
		params: with(0, 0,
			param{name: "alpha", standard: 1, least: 0, most: 1e9, why: "Weight of a matched token: the unit of the other two."},
			param{name: "beta", standard: 500, least: 0, most: 1e9, why: "Tokens of match that one more request under way outweighs: a mean uncached prompt of a few thousand tokens, of which most of the requests under way have finished the prefill."},
			param{name: "gamma", standard: 2000, least: 0, most: 1e9, why: "Tokens of match that a full KV cache outweighs against an empty one: a typical conversation's history."},
			param{name: "tie_tokens", standard: 0, least: 0, most: 1e9, why: "Scores within this many tokens of the best are equal. 0 is the formula to the letter."},
		),
	},
	{name: "random", version: 1, score: scoreRandom, tieKey: tieSeed, params: with(0, 0)},
	{name: "round_robin", version: 1, score: scoreRoundRobin, tieKey: tieSeed, params: with(0, 0)},
	{name: "least_load", version: 1, score: scoreLeastLoad, tieKey: tieSeed, params: with(0, 0)},
	{
		name: "session", version: 1, score: scoreSession, tieKey: tieSeed,
		params: with(0, 0, prefixTokens),
	},
	{
		name: fallbackName, version: 1, score: scoreFallback, tieKey: tieSeed,
		params: with(0, 0, prefixTokens,
			param{name: "load_bound", standard: 1.25, least: 1, most: 1e6, why: "A replica takes no more than this many times the mean of requests in flight, plus one: consistent hashing with bounded loads, whose customary bound keeps nearly all prefixes in place."},
		),
	},
}

// prefixTokens is how far into a prompt a placement without cache knowledge looks.
var prefixTokens = param{name: "prefix_tokens", standard: 1024, least: 1, most: 1e9, why: "A request without a session goes by its first tokens, this many: beyond the greeting that all share, before the turns that differ."}

// with returns a policy's parameters: its own and those that all have, sorted.
func with(explore, stealWaitMS float64, own ...param) []param {
	out := append(estimateParams(), own...)
	out = append(out,
		param{name: "explore", standard: explore, least: 0, most: 1, why: "Share of requests sent to a random replica. 0: ties and queues warm the others already, and every exploration costs a cold prompt."},
		param{name: "steal_wait_ms", standard: stealWaitMS, least: 0, most: 1e9, why: "A request leaves the replica it belongs to when prompts of more than this many milliseconds wait there and another would answer sooner. 0 is never, so that baselines stay what their names say; ttft, which weighs queues by itself, still holds on to a prefix for a while, and gives it up at 5 seconds, a wait that users do not forgive."},
	)
	slices.SortFunc(out, func(a, b param) int { return strings.Compare(a.name, b.name) })
	return out
}

func tieNew(d *decision) uint64  { return newKey(d.Decided, d.eligible) }
func tieSeed(d *decision) uint64 { return draw(d.Seed, drawLeast) }

// scoreTTFT scores by predicted milliseconds to the first token, and what the
// request costs others: its compute counts recompute_weight times, and replicas
// busier than the rest cost more.
func scoreTTFT(d *decision) float64 {
	weight, crowdMS := d.param("recompute_weight"), d.param("crowd_ms")
	mean := d.meanUnderWay()
	best := -1
	for i, c := range d.Candidates {
		n := float64(underWay(c.GetLoad()))
		c.Score = d.totalMS[i] + float64((weight-1)*d.computeMS[i]) + float64(float64(crowdMS*n)*n)/mean
		if c.Ineligible == "" && (best < 0 || c.Score < d.Candidates[best].Score) {
			best = i
		}
	}
	if best < 0 {
		return 0
	}
	return max(d.param("tie_ms"), float64(d.param("tie_fraction")*d.Candidates[best].Score))
}

// scoreWeighted is the brief's alpha·match_tokens − beta·queue_depth −
// gamma·kv_util, negated: lower is better. Queue depth is the requests under way.
func scoreWeighted(d *decision) float64 {
	alpha, beta, gamma := d.param("alpha"), d.param("beta"), d.param("gamma")
	for _, c := range d.Candidates {
		match := float64(alpha * float64(c.ExpectedCachedTokens))
		queue := float64(beta * float64(underWay(c.GetLoad())))
		kv := float64(gamma * c.GetLoad().GetKvUsed())
		c.Score = queue + kv - match
	}
	return d.param("tie_tokens")
}

// scoreRandom scores by a random number in [0, 1) for each candidate.
func scoreRandom(d *decision) float64 {
	for i, c := range d.Candidates {
		c.Score = unit(draw(draw(d.Seed, drawRandom), uint64(i)))
	}
	return 0
}

// scoreRoundRobin scores by how many turns away each eligible candidate is.
func scoreRoundRobin(d *decision) float64 {
	n := len(d.eligible)
	for _, c := range d.Candidates {
		c.Score = float64(n)
	}
	for place, i := range d.eligible {
		turn := int(d.Turn % uint64(n))
		d.Candidates[i].Score = float64((place - turn + n) % n)
	}
	return 0
}

// scoreLeastLoad scores by the requests under way; equal ones are drawn by seed.
func scoreLeastLoad(d *decision) float64 {
	for _, c := range d.Candidates {
		c.Score = float64(underWay(c.GetLoad()))
	}
	return 0
}

// scoreSession scores by place in HRW order of the request's session, or of its
// first tokens when it has none. Ineligible candidates do not count as places.
func scoreSession(d *decision) float64 {
	d.rank(d.eligible, placeKey(d.Decided, d.param("prefix_tokens")))
	return 0
}

// rank scores the given candidates by place in HRW order, all others behind.
func (d *decision) rank(at []int, key uint64) {
	for _, c := range d.Candidates {
		c.Score = float64(len(d.Candidates))
	}
	for place, i := range byWeight(d.Decided, at, key) {
		d.Candidates[i].Score = float64(place)
	}
}

// scoreFallback is scoreSession with bounded loads: candidates over the bound
// come behind all others, least loaded first.
func scoreFallback(d *decision) float64 {
	if len(d.eligible) == 0 {
		return 0
	}
	sum := uint64(0)
	for _, i := range d.eligible {
		sum += uint64(d.Candidates[i].GetLoad().GetInFlight())
	}
	mean := float64(sum) / float64(len(d.eligible))
	bound := float64(d.param("load_bound")*mean) + 1
	var within []int
	for _, i := range d.eligible {
		if float64(d.Candidates[i].GetLoad().GetInFlight()) < bound {
			within = append(within, i)
		}
	}
	// Someone is at the mean or below, which is within the bound.
	d.rank(within, placeKey(d.Decided, d.param("prefix_tokens")))
	return 0
}

// Fallback is the decision a gateway takes by itself when the router was not
// heard: HRW order by session or prefix over the eligible candidates that are
// not much busier than the mean. cause is recorded. d.Policy is set unless it
// names the fallback policy already. Errors are Decide's.
func Fallback(d *pb.Decided, cause string) error {
	if d.GetPolicy().GetName() != fallbackName {
		ref, err := Ref(fallbackName, nil)
		if err != nil {
			return err
		}
		d.Policy = ref
	}
	d.FallbackCause = cause
	return Decide(d)
}
