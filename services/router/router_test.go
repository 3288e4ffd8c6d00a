package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

func TestDecisionsFollowTheCachedPrefix(t *testing.T) {
	e := newEnv(t)
	a, b := e.engine("engine-a"), e.engine("engine-b.dp1")
	e.engine("engine-c")
	a.holds(keysOf(1, 40))
	last := b.holds(keysOf(2, 40))
	r := e.router(Config{Name: "router-1"})
	r.knows(3, "live")

	ids, keys := prompt(1, 40)
	response := e.ask(request(keys))
	d := response.Decision
	if d == nil || d.Chosen != "engine-a" || response.Address != "http://engine-a.example" {
		t.Fatalf("answer %v", response)
	}
	if d.KvSeq != last || d.Decider != "router-1" || d.BlockTokens != blockTokens || len(d.Candidates) != 3 || d.Policy.Name != "ttft" {
		t.Errorf("decision %v", d)
	}
	if c := candidate(d, "engine-a"); c.GpuBlocks != 40 || c.TotalBlocks != 40 || string(c.Epoch) != string(a.epoch[:]) || d.PredictedCachedTokens != 640 {
		t.Errorf("candidate %v, predicted %d", c, d.PredictedCachedTokens)
	}
	if c := candidate(d, "engine-b.dp1"); c.TotalBlocks != 0 {
		t.Errorf("candidate %v", c)
	}

	byTokens := request(nil)
	byTokens.PromptTokens, byTokens.TokenIds = 0, ids
	code, response := r.postRequest(byTokens)
	if code != 200 || response.Decision == nil || response.Decision.Chosen != "engine-a" || candidate(response.Decision, "engine-a").GpuBlocks != 40 {
		t.Fatalf("by token ids: %d %v", code, response)
	}
	e.audit(d, response.Decision, e.ask(request(keysOf(2, 40))).Decision, e.ask(request(keysOf(3, 5))).Decision)
	if got := e.ask(request(keysOf(2, 40))).Decision.Chosen; got != "engine-b.dp1" {
		t.Errorf("second prompt went to %s", got)
	}
}

func TestNotReadyUntilCaughtUp(t *testing.T) {
	e := bareEnv(t)
	r := e.launch(Config{})
	if code, body := r.get("/health"); code != 503 || !strings.Contains(body, partKV) {
		t.Errorf("health %d %s", code, body)
	}
	code, response := r.postRequest(request(keysOf(1, 2)))
	if code != 503 || response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY {
		t.Errorf("answer %d %v", code, response)
	}
	if _, err := e.nc.Request(streams.ServiceSubject(testPool), nil, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a router that is not ready is in the queue group: %v", err)
	}

	e.apply()
	select {
	case <-r.Ready():
	case <-time.After(patience):
		t.Fatal(r.health())
	}
	if code, body := r.get("/health"); code != 200 {
		t.Errorf("health %d %s", code, body)
	}
}

func TestReplicasThatCannotBeChosen(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	e.engine("b", func(f *pb.FleetEntry) { f.Draining = true })
	e.engine("c", func(f *pb.FleetEntry) { f.BlockTokens = 32 })
	e.engine("d", func(f *pb.FleetEntry) { f.Model = "other" })
	e.engine("e", func(f *pb.FleetEntry) { f.Address = "" })
	e.engine("f")
	r := e.router(Config{})
	r.knows(5, "live")
	r.knows(1, "draining")
	q := request(keysOf(1, 4))
	q.Exclude = []string{"f", "unknown"}
	d := r.mustDecide(q)
	for replica, want := range map[string]string{
		"a": "", "b": ineligibleDraining, "c": ineligibleBlockTokens, "d": ineligibleModel, "e": ineligibleAddress, "f": ineligibleExcluded,
	} {
		if got := candidate(d, replica).Ineligible; got != want {
			t.Errorf("%s: %q, want %q", replica, got, want)
		}
	}
	if d.Chosen != "a" {
		t.Errorf("chosen %s", d.Chosen)
	}

	q = request(keysOf(1, 4))
	q.Exclude = []string{"a", "f"}
	code, response := r.postRequest(q)
	if code != 409 || response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA {
		t.Errorf("%d %v", code, response)
	}
	mustContain(t, response.Error, "1 draining", "2 excluded", "1 block_tokens", "1 model")

	// The keys of the other block size find the replica that has it.
	q = request(nil)
	q.Keys, q.PromptTokens = keysOf(1, 4)[:2], 70
	if d := r.mustDecide(q); d.Chosen != "c" || d.BlockTokens != 32 {
		t.Errorf("decision %v", d)
	}

	// Heartbeats that end make a replica dead.
	later := r.now() + time.Minute.Microseconds()
	for _, s := range r.replicas(later) {
		if !s.dead {
			t.Errorf("%s lives without a heartbeat", s.entry.Replica)
		}
	}
}

func TestStopLeavesTheQueueGroup(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	r := e.router(Config{})
	r.knows(1, "live")
	e.ask(request(keysOf(1, 1)))
	r.stop()
	if _, err := e.nc.Request(streams.ServiceSubject(testPool), nil, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("asked after the stop: %v", err)
	}
	if response := r.Decide(context.Background(), request(keysOf(1, 1))); response.ErrorCode != pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY {
		t.Errorf("answer %v", response)
	}
}

func TestServiceIsDiscoverable(t *testing.T) {
	e := newEnv(t)
	e.engine("a")
	r := e.router(Config{Name: "r1"})
	r.knows(1, "live")
	e.ask(request(keysOf(1, 1)))
	msg, err := e.nc.Request("$SRV.STATS."+serviceName, nil, patience)
	if err != nil {
		t.Fatal(err)
	}
	var stats micro.Stats
	if err := json.Unmarshal(msg.Data, &stats); err != nil {
		t.Fatal(err)
	}
	var data ServiceStats
	if err := json.Unmarshal(stats.Endpoints[0].Data, &data); err != nil {
		t.Fatal(err)
	}
	if stats.Metadata["pool"] != testPool || stats.Endpoints[0].Subject != streams.ServiceSubject(testPool) || stats.Endpoints[0].NumRequests != 1 || data.Decisions != 1 {
		t.Errorf("stats %+v, data %+v", stats, data)
	}
}

func TestStateAndMetricsShowWhatIsKnown(t *testing.T) {
	e := newEnv(t)
	a := e.engine("a")
	last := a.holds(keysOf(1, 4))
	r := e.router(Config{Name: "r1"})
	r.knows(1, "live")
	r.mustDecide(request(keysOf(1, 6))) // two blocks more than are held: those are predicted
	code, text := r.get("/v1/state")
	var s State
	if err := json.Unmarshal([]byte(text), &s); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	if !s.Ready || s.KV.Position != last || s.KV.LastSeq != last || s.KV.Lag != 0 || s.Index.Entries != 4 || s.Decisions != 1 || s.Predictions != 1 ||
		len(s.Replicas) != 1 || s.Replicas[0].InFlight != 1 || s.Replicas[0].Epoch != s.Replicas[0].IndexEpoch || s.Replicas[0].PrefillTokensPerSecond != 10_000 {
		t.Errorf("state %s", text)
	}
	_, text = r.get("/metrics")
	mustContain(t, text,
		fmt.Sprintf(`warmpath_router_kv_applied_seq{pool="chat"} %d`, last),
		fmt.Sprintf(`warmpath_router_kv_stream_last_seq{pool="chat"} %d`, last),
		`warmpath_router_kv_lag{pool="chat"} 0`,
		`warmpath_router_index_entries{pool="chat"} 4`,
		`warmpath_router_index_replicas{pool="chat"} 1`,
		`warmpath_router_index_suspects{pool="chat"} 0`,
		`warmpath_router_gaps_total{pool="chat"} 0`,
		`warmpath_router_decisions_total{policy="ttft",pool="chat",reason="only"} 1`,
		`warmpath_router_decision_seconds_count{pool="chat"} 1`,
		`warmpath_router_prompt_tokens_total{pool="chat"} 99`,
		`warmpath_router_predicted_cached_tokens_total{pool="chat"} 64`,
		`warmpath_router_in_flight{pool="chat",replica="a"} 1`,
		`warmpath_router_index_age_seconds{pool="chat"}`,
		`warmpath_router_ready{pool="chat"} 1`,
	)
}

// Decisions, the fold, load, fleet and live events at once, for the race detector.
func TestEverythingAtOnce(t *testing.T) {
	e := newEnv(t)
	var engines []*engine
	for i := range 4 {
		engines = append(engines, e.engine(fmt.Sprintf("engine-%d", i)))
	}
	r := e.router(Config{})
	r.knows(4, "live")
	const each = 100
	decisions := make([][]*pb.Decided, 3)
	var done sync.WaitGroup
	for g := range decisions {
		queries := make([]*pb.RouteRequest, each)
		for i := range queries {
			queries[i] = request(keysOf(i%7, 20))
		}
		done.Go(func() {
			for i, q := range queries {
				if i%10 == 0 {
					decisions[g] = append(decisions[g], e.ask(q).Decision)
				} else {
					decisions[g] = append(decisions[g], r.Decide(context.Background(), q).Decision)
				}
			}
		})
	}
	done.Go(func() {
		for i := range each {
			r.sweep(r.now())
			r.State()
			_ = i
		}
	})
	var last uint64
	for i := range each {
		n := engines[i%len(engines)]
		last = n.holds(keysOf(i%7, 1+i%20))
		e.publish(streams.LoadSubject(testPool, n.name), &pb.LoadReport{Pool: testPool, Replica: n.name, TimeUs: time.Now().UnixMicro(), Running: proto.Uint32(1)})
		n.beat()
	}
	done.Wait()
	var all []*pb.Decided
	for _, some := range decisions {
		for _, d := range some {
			if d == nil {
				t.Fatal("a request got no decision")
			}
			e.route(d)
			e.route(finished(d))
			all = append(all, d)
		}
	}
	e.until("nothing in flight", func() bool {
		n := uint32(0)
		for _, one := range engines {
			n += r.inFlight(one.name)
		}
		return n == 0 && len(r.confirmed()) == 0
	})
	r.reaches(last)
	e.audit(all...)
	turns := map[uint64]bool{}
	for _, d := range all {
		turns[d.Turn] = true
	}
	if len(turns) != len(all) {
		t.Errorf("%d turns for %d decisions", len(turns), len(all))
	}
}

// Answers are made where earlier ones were: none shows anything of another, however
// many are asked for at a time and whatever the fleet is meanwhile.
func TestAnswersAreTheirOwn(t *testing.T) {
	e := newEnv(t)
	var engines []*engine
	for i := range 5 {
		engines = append(engines, e.engine(fmt.Sprintf("engine-%d", i)))
	}
	r := e.router(Config{})
	r.knows(5, "live")
	var last uint64
	for i, n := range engines {
		last = n.publish(stored(pb.Tier_TIER_GPU, keysOf(i, 10)), stored(pb.Tier_TIER_CPU, keysOf(i, 20)[10:]))
	}
	r.reaches(last)
	var asking sync.WaitGroup
	for g := range engines {
		nc, _ := streamstest.Connect(t, e.nc.ConnectedUrl())
		asker := &env{t, nc, e.js}
		questions := make([]*pb.RouteRequest, 100)
		for i := range questions {
			questions[i] = request(keysOf(g+50*(i%2), 20)) // nobody holds the others
			questions[i].DryRun = true
		}
		asking.Go(func() {
			for i, q := range questions {
				d := asker.ask(q).Decision
				if len(d.GetCandidates()) < len(engines) || !slices.Equal(d.Keys, q.Keys) {
					t.Errorf("%d candidates, keys %x", len(d.GetCandidates()), d.GetKeys())
					return
				}
				for at, c := range d.Candidates {
					tiers := fmt.Sprint(c.Tiers)
					want, blocks := "[]", uint32(0)
					if at == g && i%2 == 0 {
						want, blocks = "[tier:TIER_GPU blocks:10 tier:TIER_CPU blocks:10]", 20
					}
					if strings.ReplaceAll(tiers, "  ", " ") != want || c.TotalBlocks != blocks {
						t.Errorf("%s has %d blocks in %s of prompt %d, want %d in %s", c.Replica, c.TotalBlocks, tiers, g, blocks, want)
						return
					}
				}
			}
		})
	}
	for i := range 20 { // sheets of other sizes
		e.engine(fmt.Sprintf("later-%02d", i))
	}
	asking.Wait()
}

// Requests come by a connection of their own where there is one.
func TestRequestsHaveAConnection(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0")
	requests, _, err := streams.Connection{NATS: e.nc.ConnectedUrl()}.Connect(t.Name(), streams.Unbuffered())
	if err != nil {
		t.Fatal(err)
	}
	defer requests.Close()
	r := e.router(Config{Requests: requests})
	r.knows(1, "live")
	r.reaches(n.holds(keysOf(1, 4)))
	before := requests.Stats().OutMsgs
	if d := e.ask(request(keysOf(1, 4))).Decision; d.GetChosen() != "engine-0" {
		t.Errorf("the answer is %v", d)
	}
	if requests.Stats().OutMsgs != before+1 {
		t.Error("the answer went another way")
	}
}
