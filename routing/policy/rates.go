package policy

import (
	"math"

	pb "warmpath/schemas/warmpathv1"
)

const (
	// leastLearned is the fewest uncached tokens of a request to learn from: below
	// that, the first token's time is mostly not prefill.
	leastLearned = 512
	// replicaDecay and poolDecay make a replica's speed the mean of its last 64
	// outcomes or so, and the pool's of its last 512.
	replicaDecay = 1.0 / 64
	poolDecay    = 1.0 / 512
	// poolPrior and replicaPrior are the seconds of prefill that the hint, and the
	// pool's speed, count for beside a replica's own: replicas of a pool are alike
	// until a good deal of prefill says otherwise, and a few slow outcomes must not
	// mark one of them.
	poolPrior    = 4.0
	replicaPrior = 16.0
	// speedLimit bounds how far a speed goes from its hint either way.
	speedLimit = 16.0
)

// speed is what outcomes say of prefill: the seconds that the hint expected and
// those that it took, older outcomes weighing less.
type speed struct {
	hint             float64
	expected, actual float64
}

func (s *speed) add(expected, actual, decay float64) {
	s.expected += expected - float64(s.expected*decay)
	s.actual += actual - float64(s.actual*decay)
}

// rates is the prefill speeds of a pool. A replica's speed is its hint times how
// much faster than hinted it was; the latter is drawn towards the pool's.
type rates struct {
	standard float64
	pool     speed
}

func (r *rates) hint(s *speed) float64 {
	if s.hint > 0 {
		return s.hint
	}
	return r.standard
}

// SetPrefillRateHint tells how fast a replica is said to prefill, tokens a
// second, before outcomes tell. What outcomes told relative to another hint is
// forgotten. Anything but a positive number is ignored.
func (l *Ledger) SetPrefillRateHint(replica string, tokensPerSecond float64) {
	if !(tokensPerSecond > 0) || math.IsInf(tokensPerSecond, 0) {
		return
	}
	if s := &l.account(replica).speed; s.hint != tokensPerSecond {
		*s = speed{hint: tokensPerSecond}
	}
}

// PrefillRate is the prefill speed to expect of a replica, tokens a second: what
// its outcomes say, drawn towards its hint and the pool's outcomes.
func (l *Ledger) PrefillRate(replica string) float64 {
	return l.rates.of(&l.look(replica).speed)
}

// of is the speed to expect of a replica of which s is known.
func (r *rates) of(s *speed) float64 {
	pooled := (poolPrior + r.pool.expected) / (poolPrior + r.pool.actual)
	factor := (float64(replicaPrior*pooled) + s.expected) / (replicaPrior + s.actual)
	return r.hint(s) * min(max(factor, 1/speedLimit), speedLimit)
}

// learn takes in how long a request's first token took. Only a first attempt
// tells: later ones' times include the earlier.
func (l *Ledger) learn(f *flight, end *pb.Finished) {
	if end.Status != pb.Status_STATUS_OK || end.TtftUs == nil || *end.TtftUs == 0 || f.id.number != 0 {
		return
	}
	uncached := f.uncached
	if end.CachedTokens != nil {
		prompt := f.prompt
		if end.PromptTokens != nil {
			prompt = *end.PromptTokens
		}
		uncached = prompt - min(prompt, *end.CachedTokens)
	}
	if uncached < leastLearned {
		return
	}
	s := &f.replica.speed
	expected := float64(f.queued+uncached) / l.rates.hint(s)
	actual := float64(*end.TtftUs) / 1e6
	s.add(expected, actual, replicaDecay)
	l.rates.pool.add(expected, actual, poolDecay)
}
