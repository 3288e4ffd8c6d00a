package router

import (
	"testing"

	pb "warmpath/schemas/warmpathv1"
)

// silent is an engine that publishes no events and has room for so many blocks.
func silent(blocks uint64) func(*pb.FleetEntry) {
	return func(f *pb.FleetEntry) {
		f.KvEvents = false
		f.Capacities = []*pb.TierCapacity{{Tier: pb.Tier_TIER_GPU, Blocks: blocks}}
	}
}

func TestTheCacheOfASilentEngineIsLearned(t *testing.T) {
	e := newEnv(t)
	a := e.engine("a", silent(20))
	r := e.router(Config{})
	r.knows(1, "live")
	predicted := func(r *running, subject int) uint32 {
		d := r.mustDecide(request(keysOf(subject, 8)))
		c := candidate(d, "a")
		if c.TotalBlocks != 0 || c.Suspect {
			t.Errorf("a prediction counts as exact: %v", c)
		}
		e.route(d)
		failed := finished(d)
		failed.Status = pb.Status_STATUS_UPSTREAM_ERROR
		e.route(failed) // a probe that leaves nothing behind
		e.until("its end", func() bool { return r.inFlight("a") == 0 })
		return c.PredictedBlocks
	}
	serve := func(subject int) {
		d := r.mustDecide(request(keysOf(subject, 8)))
		e.route(d)
		e.route(finished(d))
		e.until("its end", func() bool { return r.inFlight("a") == 0 })
	}
	if n := predicted(r, 1); n != 0 {
		t.Errorf("at first %d blocks are predicted", n)
	}
	if n := predicted(r, 1); n != 0 {
		t.Errorf("a failed request leaves %d blocks", n)
	}
	serve(1)
	serve(2)
	r.sweep(r.now() + 10*r.cfg.PredictionTTL.Microseconds())
	a.beat()
	r.knows(1, "live")
	if n, m := predicted(r, 1), predicted(r, 2); n != 8 || m != 8 {
		t.Errorf("predicted %d and %d blocks", n, m)
	}
	// Room for 20: the prompt used longest ago loses its end.
	serve(3)
	if n, m, o := predicted(r, 1), predicted(r, 2), predicted(r, 3); n != 4 || m != 8 || o != 8 {
		t.Errorf("predicted %d, %d and %d blocks of 20", n, m, o)
	}
	if n := r.State().Replicas[0].Learned; n != 20 {
		t.Errorf("%d blocks are learned", n)
	}

	// A router that starts learns it from what was decided.
	again := e.router(Config{Name: "r2"})
	again.knows(1, "live")
	if n := predicted(again, 3); n != 8 {
		t.Errorf("after a start %d blocks are predicted", n)
	}

	// A new life is empty.
	a.restart()
	a.beat()
	e.until("the new life", func() bool { return r.State().Replicas[0].Learned == 0 })
	if n := predicted(r, 3); n != 0 {
		t.Errorf("in a new life %d blocks are predicted", n)
	}
}

// What an engine that tells its changes holds is never guessed.
func TestATellingEngineIsNotLearned(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	r := e.router(Config{})
	r.knows(1, "live")
	d := r.mustDecide(request(keysOf(1, 8)))
	e.route(d)
	e.route(finished(d))
	e.until("its end", func() bool { return r.inFlight("a") == 0 })
	if c := candidate(r.mustDecide(request(keysOf(1, 8))), "a"); c.PredictedBlocks != 0 {
		t.Errorf("candidate %v", c)
	}
}
