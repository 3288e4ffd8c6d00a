package router

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

func TestReadyMeansTheHeadSeenAtStart(t *testing.T) {
	e := newEnv(t)
	a := e.engine("a")
	var last uint64
	for i := range 500 {
		last = a.holds(keysOf(i, 3))
	}
	r := e.router(Config{})
	if p := r.index().Position(); p < last {
		t.Errorf("ready at %d, head was %d", p, last)
	}
	if d := r.mustDecide(request(keysOf(499, 3))); d.KvSeq != last || candidate(d, "a").GpuBlocks != 3 {
		t.Errorf("decision %v", d)
	}
}

// The last messages of a stream may be gone: nothing of them will ever arrive.
func TestReadyWhenTheHeadWasDeleted(t *testing.T) {
	for _, purge := range []bool{false, true} {
		e := newEnv(t)
		a := e.engine("a")
		a.holds(keysOf(1, 3))
		last := a.holds(keysOf(2, 3))
		stream, err := e.js.Stream(e.context(), streams.KVStream(testPool))
		if err != nil {
			t.Fatal(err)
		}
		if purge {
			err = stream.Purge(e.context())
		} else {
			err = stream.DeleteMsg(e.context(), last)
		}
		if err != nil {
			t.Fatal(err)
		}
		e.router(Config{})
	}
}

// A restarted router folds the stream again and must say the same.
func TestARestartedRouterGivesTheSameMatches(t *testing.T) {
	e := newEnv(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var engines []*engine
	for i := range 5 {
		engines = append(engines, e.engine(fmt.Sprintf("engine-%d", i)))
	}
	r := e.router(Config{Name: "r1"})
	r.knows(5, "live")
	var decisions []*pb.Decided
	var last uint64
	for range 400 {
		n := engines[rng.IntN(len(engines))]
		keys := keysOf(rng.IntN(6), 12)
		switch rng.IntN(12) {
		case 0, 1, 2, 3, 4:
			last = n.holds(keys[:1+rng.IntN(12)])
		case 5:
			last = n.publish(stored(pb.Tier_TIER_CPU, keys[rng.IntN(12):]))
		case 6, 7:
			last = n.publish(removed(pb.Tier_TIER_GPU, keys[rng.IntN(12):]))
		case 8:
			last = n.publish(&pb.KVEvent{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{Reason: "test"}}})
		case 9:
			n.restart()
			last = n.holds(keys[:4])
		case 10:
			n.seq += uint64(rng.IntN(2)) // a gap, sometimes
		default:
			q := request(keys)
			q.SessionId = "s"
			decisions = append(decisions, r.mustDecide(q))
		}
	}
	for _, n := range engines {
		n.beat()
	}
	r.reaches(last)
	var before []*pb.Decided
	for i := range 6 {
		before = append(before, r.mustDecide(request(keysOf(i, 12))))
	}
	r.stop()

	again := e.router(Config{Name: "r2"})
	again.knows(5, "live")
	for i, d := range before {
		o := again.mustDecide(request(keysOf(i, 12)))
		if o.KvSeq != d.KvSeq {
			t.Fatalf("position %d, before it was %d", o.KvSeq, d.KvSeq)
		}
		for j, c := range o.Candidates {
			p := d.Candidates[j]
			if c.Replica != p.Replica || c.GpuBlocks != p.GpuBlocks || c.TotalBlocks != p.TotalBlocks || c.Suspect != p.Suspect || string(c.Epoch) != string(p.Epoch) {
				t.Errorf("prompt %d: before %v, after %v", i, p, c)
			}
		}
		before = append(before, o)
	}
	e.audit(append(decisions, before...)...)
}

func TestANewEpochEmptiesAReplica(t *testing.T) {
	e := newEnv(t)
	a := e.engine("a")
	e.engine("b")
	keys := keysOf(1, 10)
	seq := a.holds(keys)
	r := e.router(Config{})
	r.knows(2, "live")
	if c := candidate(r.mustDecide(request(keys)), "a"); c.GpuBlocks != 10 {
		t.Fatalf("candidate %v", c)
	}

	a.restart()
	a.beat() // the fleet knows first
	e.until("the new life in the fleet", func() bool { return candidate(r.mustDecide(request(keys)), "a").GpuBlocks == 0 })
	d := r.mustDecide(request(keys))
	if c := candidate(d, "a"); string(c.Epoch) != string(a.epoch[:]) || c.TotalBlocks != 0 || d.KvSeq != seq {
		t.Errorf("candidate %v", c)
	}

	seq = a.holds(keys[:3])
	r.reaches(seq)
	after := r.mustDecide(request(keys))
	if c := candidate(after, "a"); c.GpuBlocks != 3 || c.Suspect || string(c.Epoch) != string(a.epoch[:]) {
		t.Errorf("candidate %v", c)
	}
	e.audit(d, after)
}

func TestALostReplicaIsForgottenAndMayReturn(t *testing.T) {
	e := newEnv(t)
	a, b := e.engine("a"), e.engine("b")
	keys := keysOf(1, 10)
	a.holds(keys)
	r := e.router(Config{ForgetAfter: time.Hour})
	r.knows(2, "live")
	if err := streams.DeleteFleet(e.context(), e.js, testPool, "a"); err != nil {
		t.Fatal(err)
	}
	r.knows(1, "live")
	d := r.mustDecide(request(keys))
	if len(d.Candidates) != 1 || d.Chosen != "b" || d.Reason != pb.DecisionReason_DECISION_REASON_ONLY {
		t.Errorf("decision %v", d)
	}

	// Back before it was forgotten: nothing is lost.
	a.beat()
	r.knows(2, "live")
	if c := candidate(r.mustDecide(request(keys)), "a"); c.GpuBlocks != 10 || c.Suspect {
		t.Errorf("candidate %v", c)
	}

	// Gone for long: forgotten, and in the same life it claims nothing any more.
	if err := streams.DeleteFleet(e.context(), e.js, testPool, "a"); err != nil {
		t.Fatal(err)
	}
	r.knows(1, "live")
	r.sweep(r.now() + 2*time.Hour.Microseconds())
	if r.index().Stats().Entries != 0 {
		t.Errorf("index still has %+v", r.index().Stats())
	}
	a.beat()
	b.beat() // two hours without a heartbeat ended it as well
	r.knows(2, "live")
	r.reaches(a.holds(keysOf(2, 4)))
	returned := r.mustDecide(request(keysOf(2, 4)))
	if c := candidate(returned, "a"); c.GpuBlocks != 0 || !c.Suspect || len(c.Epoch) != 0 {
		t.Errorf("candidate %v", c)
	}

	// A new life is whole again.
	a.restart()
	a.beat()
	r.reaches(a.holds(keys))
	whole := r.mustDecide(request(keys))
	if c := candidate(whole, "a"); c.GpuBlocks != 10 || c.Suspect {
		t.Errorf("candidate %v", c)
	}
	e.audit(d, returned, whole)
}

func TestAGapMakesAReplicaSuspect(t *testing.T) {
	e := newEnv(t)
	a, b := e.engine("a"), e.engine("b")
	keys := keysOf(1, 10)
	a.holds(keys)
	a.seq += 2
	a.holds(keys[:2])
	last := b.holds(keys[:1])
	r := e.router(Config{})
	r.knows(2, "live")
	_, text := r.get("/metrics")
	mustContain(t, text, `warmpath_router_replica_suspect{pool="chat",replica="a"} 1`, `warmpath_router_replica_suspect{pool="chat",replica="b"} 0`,
		`warmpath_router_index_suspects{pool="chat"} 1`, `warmpath_router_kv_missing_batches_total{pool="chat"} 2`)
	d := r.mustDecide(request(keys))
	if !candidate(d, "a").Suspect || candidate(d, "b").Suspect || d.KvSeq != last {
		t.Errorf("decision %v", d)
	}

	full := func(used float64) {
		e.publish(streams.LoadSubject(testPool, "a"), &pb.LoadReport{
			Pool: testPool, Replica: "a", Epoch: a.epoch[:], TimeUs: time.Now().UnixMicro(), KvUsed: proto.Float64(used),
		})
	}
	full(0.99)
	e.until("full", func() bool {
		return candidate(r.mustDecide(request(keys)), "a").Ineligible == ineligibleSuspectFull
	})
	q := request(keys)
	q.Exclude = []string{"b"}
	only := r.mustDecide(q)
	if only.Chosen != "a" || candidate(only, "b").Ineligible != ineligibleExcluded {
		t.Errorf("decision %v", only)
	}
	e.audit(d, only)
}

func TestWhatCannotBeUsedIsLeftOut(t *testing.T) {
	e := newEnv(t)
	a, b := e.engine("a"), e.engine("b")
	r := e.router(Config{})
	r.knows(2, "live")
	subject := streams.KVSubject(testPool, "a")
	a.holds(keysOf(1, 2))
	e.publishRaw(subject, "warmpath.v1.KVBatch", []byte("\xff\xff\xff"))
	e.publishRaw(subject, "warmpath.v9.Surprise", []byte("x"))
	e.publish(subject, &pb.LoadReport{Replica: "a"})
	e.publish(subject, &pb.KVBatch{Replica: "a", Seq: 3})
	e.publish(subject, b.batch(stored(pb.Tier_TIER_GPU, keysOf(1, 9)))) // of another than its subject says
	b.seq--
	r.reaches(b.holds(keysOf(1, 3)))
	d := r.mustDecide(request(keysOf(1, 3)))
	if candidate(d, "a").GpuBlocks != 2 || candidate(d, "b").GpuBlocks != 3 {
		t.Errorf("decision %v", d)
	}
	_, text := r.get("/metrics")
	mustContain(t, text, `warmpath_router_kv_invalid_total{pool="chat",reason="content"} 1`,
		`warmpath_router_kv_invalid_total{pool="chat",reason="replica"} 1`, `warmpath_router_follower_restarts_total{pool="chat"} 0`,
		`warmpath_router_kv_invalid_total{pool="chat",reason="decode"} 2`, `warmpath_router_kv_invalid_total{pool="chat",reason="schema"} 1`)

	route := streams.RouteSubject(testPool, testGateway)
	e.publishRaw(route, "warmpath.v1.Decided", []byte("\xff\xff"))
	e.publish(route, &pb.LoadReport{Replica: "a"})
	e.route(d)
	e.until("the decision after them", func() bool { return len(r.confirmed()) == 0 })
}
