package wireengine

import (
	"math/rand/v2"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
)

// Odds are how many of 10,000 batches have a fault. The zero value has none.
type Odds struct {
	Dropped, Lost, Twice int
	// Clears and Restarts come before a batch.
	Clears, Restarts int
	// HangUps break the connections, Shorten leaves one batch for replay.
	HangUps, Shorten int
}

// Rough is what an engine may do on a bad day, many times a minute.
func Rough() Odds {
	return Odds{Dropped: 50, Lost: 4, Twice: 50, Clears: 3, Restarts: 3, HangUps: 3, Shorten: 5}
}

// Did counts what Chaos did.
type Did struct {
	Batches, Dropped, Lost, Twice, Clears, Restarts, HangUps, Shortened int
}

// Chaos changes an engine at random, by a seed: what it does to its cache, in what
// batches, and what becomes of them. It is for one goroutine.
type Chaos struct {
	engine *Engine
	odds   Odds
	rng    *rand.Rand
	did    Did
}

// NewChaos is a chaos of an engine.
func NewChaos(e *Engine, odds Odds, seed uint64) *Chaos {
	return &Chaos{engine: e, odds: odds, rng: rand.New(rand.NewPCG(seed, 9))}
}

// Did is what it did so far.
func (c *Chaos) Did() Did { return c.did }

func (c *Chaos) odd(n int) bool { return c.rng.IntN(10_000) < n }

// Step publishes one batch, after the faults that come before one.
func (c *Chaos) Step() {
	e := c.engine
	if c.odd(c.odds.Restarts) {
		e.Restart()
		c.did.Restarts++
	}
	if c.odd(c.odds.HangUps) {
		e.HangUp(false)
		c.did.HangUps++
	}
	if c.odd(c.odds.Shorten) {
		e.Shorten(1)
		c.did.Shortened++
	}
	change := (*Cache).Step
	if c.odd(c.odds.Clears) {
		change = (*Cache).Clear
		c.did.Clears++
	}
	fault := Delivered
	switch n := c.rng.IntN(10_000); {
	case n < c.odds.Dropped:
		fault = Dropped
	case n < c.odds.Dropped+c.odds.Lost:
		fault = Lost
	case n < c.odds.Dropped+c.odds.Lost+c.odds.Twice:
		fault = Twice
	}
	if _, ok := e.Change(change, fault); !ok {
		fault = Delivered
		e.Publish(nil, fault) // a batch without events, as a snapshot's barrier is
	}
	c.did.Batches++
	switch fault {
	case Dropped:
		c.did.Dropped++
	case Lost:
		c.did.Lost++
	case Twice:
		c.did.Twice++
	}
}

// Step is one scheduler step: a few things happen to the cache.
func (c *Cache) Step() (events []kvevents.Event) {
	for range 1 + c.pick(3) {
		events = append(events, c.one()...)
	}
	return events
}

// one is one thing that happens. Announcing is left out where nobody could tell it
// from a second copy.
func (c *Cache) one() []kvevents.Event {
	switch n := c.pick(100); {
	case n < 50:
		return c.Compute()
	case n < 58:
		if c.copies() && !Carries(c.cfg.Generation).Origin {
			return nil
		}
		return c.Announce()
	case n < 66:
		return c.Duplicate()
	case n < 76:
		return c.RemoveCopy(pb.Tier_TIER_GPU)
	case n < 80:
		return c.RemoveCopy(pb.Tier_TIER_CPU)
	case n < 85:
		return c.Evict(pb.Tier_TIER_GPU)
	case n < 95:
		return c.Offload()
	case n < 98:
		return c.OtherGroup()
	}
	return c.Evict(pb.Tier_TIER_CPU)
}
