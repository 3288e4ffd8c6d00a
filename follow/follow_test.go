package follow

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/router"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// startRouter runs a router of the pool.
func (e *env) startRouter() *router.Router {
	e.Helper()
	r, err := router.New(router.Config{Pool: testPool, Name: "router"}, e.nc, e.js, prometheus.NewRegistry())
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	e.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			e.Errorf("router: %v", err)
		}
	})
	<-r.Ready()
	return r
}

// seenBy is what a decision saw of each replica's cache.
func seenBy(d *pb.Decided) (out []*pb.Candidate) {
	for _, c := range d.Candidates {
		out = append(out, &pb.Candidate{
			Replica: c.Replica, Epoch: c.Epoch, GpuBlocks: c.GpuBlocks, TotalBlocks: c.TotalBlocks, Tiers: c.Tiers, Suspect: c.Suspect,
		})
	}
	return out
}

func equal(a, b []*pb.Candidate) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !proto.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func TestFollowersAndARouterSeeTheSame(t *testing.T) {
	e := newEnv(t)
	for _, name := range []string{"a", "b", "c.dp1"} {
		e.engine(name)
	}
	e.holds("a", pb.Tier_TIER_GPU, keysOf(1, 20))
	r := e.startRouter()
	first := e.follow(Config{Gateway: "edge-1"})
	e.holds("b", pb.Tier_TIER_GPU, keysOf(1, 8))
	e.holds("b", pb.Tier_TIER_CPU, keysOf(1, 30))
	second := e.follow(Config{Gateway: "edge-2"})
	last := e.holds("c.dp1", pb.Tier_TIER_GPU, keysOf(2, 12))
	streamstest.Until(t, func() bool { return r.State().KV.Position >= last && len(r.State().Replicas) == 3 })
	for _, f := range []*running{first, second} {
		f.reaches(last)
		f.knows(3)
	}
	for subject, chosen := range map[int]string{1: "b", 2: "c.dp1"} {
		q := request(ids(subject, 30))
		q.DryRun = true
		one, two := first.decide(q), second.decide(q)
		three := r.Decide(e.context(), &pb.RouteRequest{Pool: testPool, Gateway: "any", RequestId: q.ID, TokenIds: q.TokenIDs, DryRun: true}).Decision
		if one.Record.KvSeq != last || two.Record.KvSeq != last || three.GetKvSeq() != last {
			t.Errorf("at %d, %d and %d, not %d", one.Record.KvSeq, two.Record.KvSeq, three.GetKvSeq(), last)
		}
		if want := seenBy(three); !equal(seenBy(one.Record), want) || !equal(seenBy(two.Record), want) {
			t.Errorf("subject %d: followers saw\n%v\n%v\nthe router\n%v", subject, seenBy(one.Record), seenBy(two.Record), want)
		}
		if one.Replica != chosen || two.Replica != chosen || three.GetChosen() != chosen || one.Address != "http://"+chosen+".example" {
			t.Errorf("subject %d goes to %s at %s, %s and %s, want %s", subject, one.Replica, one.Address, two.Replica, three.GetChosen(), chosen)
		}
		e.recomputes(one.Record)
	}
}

// What one follower publishes, the others count, and an auditor finds.
func TestPublishedDecisionsCountEverywhere(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	r := e.startRouter()
	f := e.follow(Config{Gateway: "edge-1", Publish: true})
	silent := e.follow(Config{Gateway: "edge-2"})
	f.knows(1)
	silent.knows(1)
	streamstest.Until(t, func() bool { return len(r.State().Replicas) == 1 })
	everywhere := func(n uint32) {
		t.Helper()
		streamstest.Until(t, func() bool {
			return f.inFlight("a") == n && silent.inFlight("a") == n && inFlight(r.State(), "a") == n
		})
	}
	d := f.decide(request(ids(1, 8)))
	if n := f.inFlight("a"); n != 1 {
		t.Errorf("%d in flight at once, not 1", n)
	}
	if err := f.Sent(e.context(), d); err != nil {
		t.Fatal(err)
	}
	everywhere(1)
	if p := silent.decide(Request{ID: "probe", TokenIDs: ids(1, 8), DryRun: true}); p.Record.Candidates[0].PredictedBlocks != 8 {
		t.Errorf("candidate %v", p.Record.Candidates[0])
	}
	if err := f.Moved(e.context(), d, "dial"); err != nil {
		t.Fatal(err)
	}
	if n := f.inFlight("a"); n != 0 {
		t.Errorf("%d in flight after the move", n)
	}
	everywhere(0)

	again := Request{ID: d.Record.RequestId, Attempt: 1, TokenIDs: ids(1, 8), TokenSource: "client"}
	d = f.decide(again)
	if err := f.Sent(e.context(), d); err != nil {
		t.Fatal(err)
	}
	everywhere(1)
	outcome := &pb.Finished{Status: pb.Status_STATUS_OK, HttpStatus: 200, CachedTokens: proto.Uint64(0), TtftUs: proto.Uint64(20_000), E2EUs: 90_000}
	if err := f.Finished(e.context(), d, outcome); err != nil {
		t.Fatal(err)
	}
	if outcome.RequestId != "" {
		t.Error("the outcome was changed")
	}
	everywhere(0)
	f.stop()

	all := e.recorded()
	if len(all) != 4 {
		t.Fatalf("%d events, not 4: %v", len(all), all)
	}
	for _, i := range []int{0, 2} {
		decided, ok := all[i].(*pb.Decided)
		if !ok || decided.Gateway != "edge-1" || decided.Decider != "edge-1" {
			t.Fatalf("event %d is %v", i, all[i])
		}
		e.recomputes(decided)
	}
	if got := all[2].(*pb.Decided); got.TokenSource != "client" || got.Attempt != 1 {
		t.Errorf("second decision %v", got)
	}
	end, ok := all[3].(*pb.Finished)
	if !ok || end.RequestId != d.Record.RequestId || end.Attempt != 1 || end.Replica != "a" || end.FinishedAtUs == 0 || end.Clock != pb.Clock_CLOCK_WALL {
		t.Errorf("outcome %v", all[3])
	}
}

// Without Publish a follower still counts what it decided itself.
func TestAFollowerThatDoesNotPublish(t *testing.T) {
	e := newEnv(t)
	e.engine("a", func(f *pb.FleetEntry) { f.KvEvents = false })
	f := e.follow(Config{Gateway: "edge-1"})
	f.knows(1)
	d := f.decide(request(ids(1, 8)))
	if err := f.Sent(e.context(), d); err != nil {
		t.Error(err)
	}
	if err := f.Finished(e.context(), d, &pb.Finished{Status: pb.Status_STATUS_OK}); err != nil {
		t.Error(err)
	}
	if n := f.inFlight("a"); n != 0 {
		t.Errorf("%d in flight after the end", n)
	}
	// What the replica, which tells nothing, should now hold, is learned.
	if d := f.decide(request(ids(1, 8))); d.PredictedCachedTokens != 8*blockTokens {
		t.Errorf("predicted %d", d.PredictedCachedTokens)
	}
	if got := e.recorded(); len(got) != 0 {
		t.Errorf("published %v", got)
	}
}

func TestADryRunLeavesNoTrace(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	f := e.follow(Config{Gateway: "edge-1", Publish: true})
	f.knows(1)
	q := request(ids(1, 8))
	q.DryRun = true
	d := f.decide(q)
	if n := f.inFlight("a"); n != 0 || f.State().Predictions != 0 || f.State().Decisions != 0 {
		t.Errorf("%d in flight, %d predictions, %d decisions", n, f.State().Predictions, f.State().Decisions)
	}
	if err := f.Sent(e.context(), d); err == nil || !strings.Contains(err.Error(), "DryRun") {
		t.Errorf("a dry run was published: %v", err)
	}
	if got := e.recorded(); len(got) != 0 {
		t.Errorf("published %v", got)
	}
}

// A follower that starts again, after a whole life of the pool, sees the same.
func TestARestartedFollowerSeesTheSame(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	e.engine("b")
	f := e.follow(Config{Gateway: "edge-1", Publish: true})
	f.knows(2)
	e.holds("a", pb.Tier_TIER_GPU, keysOf(1, 9))
	last := e.holds("b", pb.Tier_TIER_GPU, keysOf(1, 4))
	f.reaches(last)
	open := f.decide(request(ids(1, 9)))
	if err := f.Sent(e.context(), open); err != nil {
		t.Fatal(err)
	}
	q := request(ids(1, 9))
	q.DryRun = true
	before := f.decide(q)
	f.stop()
	if _, err := f.Decide(e.context(), q); !errors.Is(err, ErrNotReady) {
		t.Errorf("a follower that ended decides: %v", err)
	}

	f = e.follow(Config{Gateway: "edge-1", Publish: true})
	f.knows(2)
	after := f.decide(q)
	if after.Record.KvSeq != last || !equal(seenBy(before.Record), seenBy(after.Record)) || after.Record.Seed != before.Record.Seed {
		t.Errorf("before %v\nafter  %v", before.Record, after.Record)
	}
	if n := f.inFlight(open.Replica); n != 1 {
		t.Errorf("%d in flight after the restart, not the one that is open", n)
	}
}

func TestNotReadyUntilCaughtUp(t *testing.T) {
	nc, js := streamstest.Connect(t, streamstest.Start(t).URL(""))
	e := &env{t, nc, js, map[string]uint64{}}
	f := e.launch(Config{Gateway: "edge-1"}) // there are no streams yet
	_, err := f.Decide(e.context(), request(ids(1, 2)))
	if !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "KV stream") {
		t.Errorf("got %v", err)
	}
	streamstest.Apply(t, js, 1, testPool)
	<-f.Ready()
	_, err = f.Decide(e.context(), request(ids(1, 2)))
	if !errors.Is(err, ErrNoReplica) {
		t.Errorf("got %v", err)
	}
}

func TestRequestsThatCannotBeDecided(t *testing.T) {
	e := newEnv(t)
	e.engine("a", func(f *pb.FleetEntry) { f.DataParallelRank = proto.Uint32(3) })
	f := e.follow(Config{Gateway: "edge-1", Tokenizer: "bytes"})
	f.knows(1)
	for says, q := range map[string]Request{
		"request_id":       {TokenIDs: ids(1, 1)},
		"token_ids":        {ID: "x"},
		"prompt and chat":  {ID: "x", Text: "a", Chat: []byte(`{}`)},
		"chat: messages":   {ID: "x", Chat: []byte(`{"model":"m"}`)},
		"prompt_tokens is": {ID: "x", Keys: keysOf(1, 2)},
	} {
		var fault *RequestError
		if _, err := f.Decide(e.context(), q); !errors.As(err, &fault) || !strings.Contains(fault.Text, says) {
			t.Errorf("%s: got %v", says, err)
		}
	}
	d := f.decide(Request{ID: "x", Text: strings.Repeat("word ", 20), Exclude: []string{"b"}})
	if d.PromptTokens != 100 || len(d.Record.Keys) != 6 || d.Record.TokenSource != "in_process" || d.Rank == nil || *d.Rank != 3 {
		t.Errorf("decision %+v", d)
	}
	if d := f.decide(Request{ID: "y", PromptTokens: 500}); len(d.Record.Keys) != 0 || d.Record.TokenSource != "none" || d.PromptTokens != 500 {
		t.Errorf("decision %+v", d)
	}
	e.recomputes(d.Record)
	if _, err := f.Decide(e.context(), Request{ID: "z", TokenIDs: ids(1, 1), Exclude: []string{"a"}}); !errors.Is(err, ErrNoReplica) {
		t.Errorf("got %v", err)
	}
	for says, cfg := range map[string]Config{
		"gateway":   {Pool: testPool, Gateway: "a.b"},
		"pool":      {Pool: "a b", Gateway: "g"},
		"policy":    {Pool: testPool, Gateway: "g", Policy: "clairvoyant"},
		"tokenizer": {Pool: testPool, Gateway: "g", Tokenizer: t.TempDir()},
	} {
		if _, err := New(cfg, e.nc, e.js); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", says, err)
		}
	}
}

// The KV stream may be made anew, which a follower cannot follow.
func TestRunEndsWhenTheStreamIsMadeAnew(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	e.holds("a", pb.Tier_TIER_GPU, keysOf(1, 3))
	f, err := New(Config{Pool: testPool, Gateway: "edge-1"}, e.nc, e.js)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	<-f.Ready()
	if err := e.js.DeleteStream(e.context(), streams.KVStream(testPool)); err != nil {
		t.Fatal(err)
	}
	streamstest.Apply(t, e.js, 1, testPool)
	e.seq["a"] = 0
	e.holds("a", pb.Tier_TIER_GPU, keysOf(1, 3))
	var reset *streams.ResetError
	if err := <-done; !errors.As(err, &reset) {
		t.Errorf("run ended with %v", err)
	}
	if _, err := f.Decide(e.context(), request(ids(1, 1))); !errors.Is(err, ErrNotReady) {
		t.Errorf("a follower that ended decides: %v", err)
	}
}
