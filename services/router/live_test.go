package router

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
)

func TestRoutersOfAPoolSeeEachOthersRequests(t *testing.T) {
	e := newEnv(t)
	a := e.engine("a")
	first, second := e.router(Config{Name: "r1"}), e.router(Config{Name: "r2"})
	first.knows(1, "live")
	second.knows(1, "live")

	keys := keysOf(1, 8)
	d := first.mustDecide(request(keys))
	if n := first.inFlight("a"); n != 1 {
		t.Errorf("an own decision counts %d at once, not 1", n)
	}
	e.route(d)
	e.until("in flight at the other router", func() bool { return second.inFlight("a") == 1 })
	e.until("own copy", func() bool { return len(first.confirmed()) == 0 })
	if n := first.inFlight("a"); n != 1 {
		t.Errorf("the copy of an own decision makes it %d", n)
	}
	probe := second.mustDecide(request(keys))
	if c := candidate(probe, "a"); c.PredictedBlocks != 8 || c.TotalBlocks != 0 || c.Load.InFlight != 1 || c.Load.QueuedPrefillTokens == 0 {
		t.Errorf("candidate %v", c)
	}

	last := a.holds(keys)
	e.route(finished(d))
	e.until("the end at both", func() bool { return first.inFlight("a") == 0 && second.inFlight("a") == 1 }) // the probe is left
	first.reaches(last)
	if c := candidate(first.mustDecide(request(keys)), "a"); c.TotalBlocks != 8 || c.PredictedBlocks != 8 {
		t.Errorf("candidate %v", c)
	}
	e.audit(d, probe)
}

// confirmed lists own decisions that have not come back.
func (r *Router) confirmed() map[string]choice {
	r.decide.Lock()
	defer r.decide.Unlock()
	out := map[string]choice{}
	for id, c := range r.decide.own.chosen {
		out[id] = c
	}
	return out
}

func TestAStartingRouterLearnsWhatIsInFlight(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	first := e.router(Config{Name: "r1"})
	first.knows(1, "live")
	open, ended, moved := first.mustDecide(request(keysOf(1, 4))), first.mustDecide(request(keysOf(2, 4))), first.mustDecide(request(keysOf(3, 4)))
	e.route(open)
	e.route(ended)
	e.route(moved)
	e.route(finished(ended))
	e.route(&pb.Moved{Pool: testPool, Gateway: testGateway, RequestId: moved.RequestId, From: "a", Cause: "dial"})
	first.stop()

	second := e.router(Config{Name: "r2"})
	second.knows(1, "live")
	if n := second.inFlight("a"); n != 1 {
		t.Errorf("%d in flight after the start, not 1", n)
	}
	if c := candidate(second.mustDecide(request(keysOf(1, 4))), "a"); c.PredictedBlocks != 4 {
		t.Errorf("candidate %v", c)
	}
}

// A gateway that did not wait for the answer chose itself: that is what counts.
func TestAGatewaysOwnChoiceReplacesTheRouters(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	e.engine("b")
	r := e.router(Config{})
	r.knows(2, "live")
	d := r.mustDecide(request(keysOf(1, 4)))
	other := map[string]string{"a": "b", "b": "a"}[d.Chosen]
	fallback := proto.Clone(d).(*pb.Decided)
	fallback.Chosen, fallback.FirstChoice, fallback.Reason, fallback.Decider = other, other, pb.DecisionReason_DECISION_REASON_FALLBACK, testGateway
	e.route(fallback)
	e.until("the gateway's choice", func() bool { return r.inFlight(other) == 1 && r.inFlight(d.Chosen) == 0 })
	c := r.mustDecide(request(keysOf(1, 4)))
	if candidate(c, other).PredictedBlocks != 4 || candidate(c, d.Chosen).PredictedBlocks != 0 {
		t.Errorf("predictions %v", c.Candidates)
	}
	e.route(finished(fallback))
	e.until("the end", func() bool { return r.inFlight(other)+r.inFlight(d.Chosen) == 1 })
}

// An engine that publishes no events has the cache that decisions gave it.
func TestAReplicaWithoutEventsKeepsItsPredictions(t *testing.T) {
	e := newEnv(t)
	e.engine("a", func(f *pb.FleetEntry) { f.KvEvents = false })
	r := e.router(Config{})
	r.knows(1, "live")
	d := r.mustDecide(request(keysOf(1, 6)))
	e.route(d)
	e.route(finished(d))
	e.until("the end", func() bool { return r.inFlight("a") == 0 })
	again := r.mustDecide(request(keysOf(1, 6)))
	if c := candidate(again, "a"); c.PredictedBlocks != 6 || c.TotalBlocks != 0 {
		t.Errorf("candidate %v", c)
	}
	r.sweep(r.now() + (3 * time.Minute).Microseconds())
	if s := r.State(); s.Predictions != 0 {
		t.Errorf("%d predictions after their time", s.Predictions)
	}
	e.audit(d, again)
}

// The same attempt asked for again counts once, where its last answer sent it.
func TestAnAttemptAskedForAgainCountsOnce(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	e.engine("b")
	r := e.router(Config{})
	r.knows(2, "live")
	q := request(keysOf(1, 4))
	first := r.mustDecide(q)
	q.Exclude = []string{first.Chosen}
	second := r.mustDecide(q)
	if first.Seed != second.Seed || first.Chosen == second.Chosen {
		t.Errorf("first %v, second %v", first, second)
	}
	if r.inFlight(first.Chosen) != 0 || r.inFlight(second.Chosen) != 1 {
		t.Errorf("in flight %d and %d", r.inFlight(first.Chosen), r.inFlight(second.Chosen))
	}
	q.Attempt = 1
	if third := r.mustDecide(q); third.Seed == first.Seed {
		t.Error("another attempt has the same seed")
	}
}

func TestUnconfirmedIsBounded(t *testing.T) {
	u := newUnconfirmed(time.Second)
	for i := range maxUnconfirmed + 10 {
		u.add(fmt.Sprint(i), "a", int64(i))
	}
	if len(u.chosen) != maxUnconfirmed {
		t.Errorf("%d kept", len(u.chosen))
	}
	if _, ok := u.take("5"); ok {
		t.Error("an old one is still there")
	}
	if _, ok := u.take("20"); !ok {
		t.Error("a newer one is gone")
	}
	u.add("again", "a", 1<<20)
	u.take("again")
	u.add("again", "b", 1<<21)
	u.expire(1<<20 + 1_000_001)
	if replica, ok := u.take("again"); len(u.chosen) != 0 || !ok || replica != "b" {
		t.Errorf("left %v, again %q %v", u.chosen, replica, ok)
	}
}
