package policy_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	"warmpath/routing/policy"
	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
)

// A small model of a fleet, to see what policies do over time: each replica
// prefills one prompt after the other, keeps the blocks of the last ones in a
// cache with LRU eviction, the end of a prompt going first, and takes a fixed
// time per output token. Index, predictions and ledger are the real ones, fed
// with the events that engines and gateways would publish.

const (
	simRate   = 14_285.0 // prompt tokens a second: 140 GFLOP a token at 2 PFLOP/s
	simDecode = 20_000   // microseconds per output token
	// simReportUS is how often load is reported when it changed, and simLagUS how
	// long KV events take to the index.
	simReportUS = 100_000
	simLagUS    = 10_000
)

// simRequest is one request of a trace.
type simRequest struct {
	id             string
	session        uint64
	keys           []blockkey.Key
	prompt, output uint64
	// atUS is when it arrives; thinkUS when next is sent after this one's end.
	atUS, thinkUS int64
	next          *simRequest
}

// simConfig is a fleet.
type simConfig struct {
	replicas, blocks int
	blockTokens      uint32
	policy           string
	params           map[string]float64
	// noise is by how much a prefill's time varies, as a share.
	noise float64
	// recompute re-derives every decision from its event.
	recompute bool
}

// simResult is what came of it.
type simResult struct {
	requests, steals, ties    int
	prompt, cached, predicted uint64
	computed                  []uint64
	decisions                 []uint64
	ttftMS                    []float64
}

func (r *simResult) hitRate() float64 { return float64(r.cached) / float64(r.prompt) }

// imbalance is the busiest replica's share of a figure over the mean.
func imbalance(perReplica []uint64) float64 {
	var sum, most uint64
	for _, n := range perReplica {
		sum += n
		most = max(most, n)
	}
	return float64(most) * float64(len(perReplica)) / float64(max(sum, 1))
}

func (r *simResult) ttft(quantile float64) float64 {
	sorted := slices.Sorted(slices.Values(r.ttftMS))
	return sorted[int(quantile*float64(len(sorted)-1))]
}

func (r *simResult) String() string {
	mean := 0.0
	for _, ms := range r.ttftMS {
		mean += ms / float64(len(r.ttftMS))
	}
	return fmt.Sprintf("hit %.1f%% (predicted %.1f%%), imbalance %.2f (requests %.2f), ttft ms mean %.0f p50 %.0f p95 %.0f p99 %.0f, steals %d, ties %d",
		100*r.hitRate(), 100*float64(r.predicted)/float64(r.prompt), imbalance(r.computed), imbalance(r.decisions),
		mean, r.ttft(0.5), r.ttft(0.95), r.ttft(0.99), r.steals, r.ties)
}

// sim runs a fleet. Events happen in order of time, then of creation.
type sim struct {
	t           *testing.T
	cfg         simConfig
	ref         *pb.PolicyRef
	rng         *rand.Rand
	now         int64
	made        int
	events      eventQueue
	index       *prefix.Index
	predictions *prefix.Predictions
	ledger      *policy.Ledger
	replicas    []*simReplica
	byName      map[string]*simReplica
	matches     []prefix.Match
	position    uint64
	turn        uint64
	result      simResult
}

type simReplica struct {
	place   int
	name    string
	cache   *lru
	seq     uint64
	waiting []*simFlight
	busy    *simFlight
	startUS int64
	running int
	changed bool
}

type simFlight struct {
	*simRequest
	on       *simReplica
	sentUS   int64
	uncached uint64
	cached   uint64
}

type event struct {
	atUS int64
	made int
	do   func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].atUS < q[j].atUS || q[i].atUS == q[j].atUS && q[i].made < q[j].made
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// simulate sends the requests through a fleet and returns what came of it.
func simulate(t *testing.T, cfg simConfig, requests []*simRequest) *simResult {
	t.Helper()
	ref, err := policy.Ref(cfg.policy, cfg.params)
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{
		t: t, cfg: cfg, ref: ref, rng: rand.New(rand.NewPCG(1, 2)),
		index: prefix.New(), predictions: prefix.NewPredictions(time.Minute),
		ledger: policy.NewLedger(policy.LedgerConfig{DispatchGrace: 5 * time.Millisecond, DefaultPrefillRate: simRate}),
		byName: map[string]*simReplica{},
	}
	s.result.computed = make([]uint64, cfg.replicas)
	s.result.decisions = make([]uint64, cfg.replicas)
	for i := range cfg.replicas {
		r := &simReplica{place: i, name: fmt.Sprintf("replica-%d", i), cache: newLRU(cfg.blocks)}
		s.replicas = append(s.replicas, r)
		s.byName[r.name] = r
		s.publish(r, nil, nil)
	}
	for _, q := range requests {
		s.at(q.atUS, func() { s.arrive(q) })
	}
	s.at(simReportUS, s.report)
	for s.events.Len() > 0 {
		next := heap.Pop(&s.events).(event)
		s.now = next.atUS
		next.do()
	}
	return &s.result
}

func (s *sim) at(us int64, do func()) {
	s.made++
	heap.Push(&s.events, event{us, s.made, do})
}

// arrive decides where a request goes and sends it there.
func (s *sim) arrive(q *simRequest) {
	d := &pb.Decided{
		RequestId: q.id, DecidedAtUs: s.now, BlockTokens: s.cfg.blockTokens, PromptTokens: q.prompt, Keys: q.keys,
		SessionKey: q.session, Policy: s.ref, Seed: s.rng.Uint64(), Turn: s.turn,
	}
	s.turn++
	s.matches, d.KvSeq = s.index.Match(s.matches[:0], q.keys, s.predictions)
	for _, m := range s.matches {
		c := &pb.Candidate{
			Replica: m.Replica, Epoch: m.Epoch[:], GpuBlocks: uint32(m.GPU), TotalBlocks: uint32(m.Total), PredictedBlocks: uint32(m.Predicted),
			Suspect: m.Suspect, Load: s.ledger.Terms(m.Replica, s.now), PrefillTokensPerSecond: s.ledger.PrefillRate(m.Replica),
		}
		d.Candidates = append(d.Candidates, c)
	}
	if err := policy.Decide(d); err != nil {
		s.t.Fatal(err)
	}
	s.check(d)
	s.ledger.ApplyDecided(d, s.now)
	s.predictions.Add(q.id, d.Chosen, q.keys, s.now)
	s.predictions.Expire(s.now)
	s.result.requests++
	s.result.predicted += d.PredictedCachedTokens
	switch d.Reason {
	case pb.DecisionReason_DECISION_REASON_STEAL:
		s.result.steals++
	case pb.DecisionReason_DECISION_REASON_TIE:
		s.result.ties++
	}
	r := s.byName[d.Chosen]
	s.result.decisions[r.place]++
	f := &simFlight{simRequest: q, on: r, sentUS: s.now, uncached: q.prompt - d.PredictedCachedTokens}
	r.waiting = append(r.waiting, f)
	r.changed = true
	s.prefill(r)
}

// check re-derives the decision from its event.
func (s *sim) check(d *pb.Decided) {
	if !s.cfg.recompute {
		return
	}
	again, err := policy.Recompute(d)
	if err != nil {
		s.t.Fatal(err)
	}
	if !proto.Equal(again, d) {
		s.t.Fatalf("recomputed otherwise:\n got %v\nwant %v", again, d)
	}
}

// prefill starts the next prompt of an idle replica.
func (s *sim) prefill(r *simReplica) {
	if r.busy != nil || len(r.waiting) == 0 {
		return
	}
	f := r.waiting[0]
	r.waiting = r.waiting[1:]
	r.busy, r.startUS = f, s.now
	f.cached = policy.ExpectedCached(uint32(r.cache.match(f.keys)), s.cfg.blockTokens, f.prompt)
	f.uncached = f.prompt - f.cached
	took := float64(f.uncached) / simRate * (1 + s.cfg.noise*(2*s.rng.Float64()-1))
	s.at(s.now+1+int64(1e6*took), func() { s.firstToken(f) })
}

// firstToken ends a prefill: its blocks are in the cache, its answer begins.
func (s *sim) firstToken(f *simFlight) {
	r := f.on
	stored, evicted := r.cache.add(f.keys)
	s.at(s.now+simLagUS, func() { s.publish(r, stored, evicted) })
	s.result.prompt += f.prompt
	s.result.cached += f.cached
	s.result.computed[r.place] += f.uncached
	ttft := uint64(s.now - f.sentUS)
	s.result.ttftMS = append(s.result.ttftMS, float64(ttft)/1000)
	r.busy = nil
	r.running++
	r.changed = true
	s.at(s.now+int64(f.output)*simDecode, func() {
		r.running--
		r.changed = true
		s.ledger.ApplyFinished(&pb.Finished{
			RequestId: f.id, Replica: r.name, Status: pb.Status_STATUS_OK, PromptTokens: &f.prompt, CachedTokens: &f.cached, TtftUs: &ttft,
		})
		s.predictions.Drop(f.id)
		if f.next != nil {
			s.at(s.now+f.thinkUS, func() { s.arrive(f.next) })
		}
	})
	s.prefill(r)
}

// publish sends a replica's changes to the index.
func (s *sim) publish(r *simReplica, stored, evicted []blockkey.Key) {
	r.seq++
	s.position++
	b := &pb.KVBatch{Replica: r.name, Epoch: make([]byte, 16), Seq: r.seq}
	if len(evicted) > 0 {
		b.Events = append(b.Events, &pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: pb.Tier_TIER_GPU, Keys: evicted}}})
	}
	if len(stored) > 0 {
		b.Events = append(b.Events, &pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: pb.Tier_TIER_GPU, Keys: stored}}})
	}
	batch, err := prefix.FromProto(b, s.position)
	if err != nil {
		s.t.Fatal(err)
	}
	if a := s.index.Apply(batch); a.UnknownRemoved > 0 || a.Gap > 0 {
		s.t.Fatalf("the index does not follow the cache: %+v", a)
	}
}

// report sends the load of every replica on which it changed.
func (s *sim) report() {
	for _, r := range s.replicas {
		if !r.changed && r.busy == nil {
			continue
		}
		r.changed = false
		var queued uint64
		for _, f := range r.waiting {
			queued += f.uncached
		}
		waiting, running := uint32(len(r.waiting)), uint32(r.running)
		if f := r.busy; f != nil {
			running++
			queued += f.uncached - min(f.uncached, uint64(float64(s.now-r.startUS)/1e6*simRate))
		}
		s.ledger.ApplyReport(&pb.LoadReport{Replica: r.name, TimeUs: s.now, Running: &running, Waiting: &waiting, QueuedPrefillTokens: &queued}, s.now)
	}
	if s.events.Len() > 0 {
		s.at(s.now+simReportUS, s.report)
	}
}

// lru is a cache of blocks. A prompt's blocks are touched from its end, so that
// the end is evicted before what it builds on.
type lru struct {
	capacity int
	nodes    map[blockkey.Key]*lruNode
	ends     lruNode // next is the newest, prev the oldest
}

type lruNode struct {
	key        blockkey.Key
	fresh      bool // not told to the index yet
	prev, next *lruNode
}

func newLRU(capacity int) *lru {
	c := &lru{capacity: capacity, nodes: map[blockkey.Key]*lruNode{}}
	c.ends.prev, c.ends.next = &c.ends, &c.ends
	return c
}

func (c *lru) match(keys []blockkey.Key) int {
	for i, k := range keys {
		if c.nodes[k] == nil {
			return i
		}
	}
	return len(keys)
}

// add puts a prompt's blocks into the cache and returns those that are there now
// and were not, and those that had to go.
func (c *lru) add(keys []blockkey.Key) (stored, evicted []blockkey.Key) {
	for _, k := range slices.Backward(keys) {
		n := c.nodes[k]
		if n == nil {
			n = &lruNode{key: k, fresh: true}
			c.nodes[k] = n
		} else {
			n.prev.next, n.next.prev = n.next, n.prev
		}
		n.prev, n.next = &c.ends, c.ends.next
		n.prev.next, n.next.prev = n, n
	}
	for len(c.nodes) > c.capacity {
		n := c.ends.prev
		n.prev.next, n.next.prev = n.next, n.prev
		delete(c.nodes, n.key)
		if !n.fresh {
			evicted = append(evicted, n.key)
		}
	}
	for _, k := range keys {
		if n := c.nodes[k]; n != nil && n.fresh {
			n.fresh = false
			stored = append(stored, k)
		}
	}
	return stored, evicted
}
