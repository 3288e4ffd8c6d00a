package router

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	"warmpath/routing/policy"
	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

const (
	testPool    = "chat"
	testModel   = "llama-3-70b"
	testGateway = "gw"
	blockTokens = 16
	patience    = 20 * time.Second // how long a test waits for what must come
)

func TestMain(m *testing.M) {
	if os.Getenv("WARMPATH_TEST_LOG") == "" {
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
	streamstest.Main(m)
}

// env is a server with the topology of one pool, and a connection that plays
// engines and gateways.
type env struct {
	testing.TB
	nc *nats.Conn
	js jetstream.JetStream
}

func newEnv(t testing.TB) *env {
	t.Helper()
	e := bareEnv(t)
	e.apply()
	return e
}

// bareEnv is a server without streams.
func bareEnv(t testing.TB) *env {
	t.Helper()
	return envAt(t, streamstest.Start(t).URL(""))
}

func envAt(t testing.TB, url string) *env {
	t.Helper()
	nc, js := streamstest.Connect(t, url)
	return &env{t, nc, js}
}

func (e *env) apply() {
	e.Helper()
	if _, err := (streams.Topology{Pools: []string{testPool}}).Apply(e.context(), e.js); err != nil {
		e.Fatal(err)
	}
}

func (e *env) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	e.Cleanup(cancel)
	return ctx
}

// until waits for something that must come true.
func (e *env) until(what string, holds func() bool) {
	e.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			e.Fatalf("%s did not come true", what)
		}
	}
}

func (e *env) publish(subject string, m proto.Message) uint64 {
	e.Helper()
	message, err := streams.NewMessage(subject, "", m)
	if err != nil {
		e.Fatal(err)
	}
	return e.publishRaw(subject, message.Schema, message.Data)
}

func (e *env) publishRaw(subject, schema string, data []byte) uint64 {
	e.Helper()
	msg := nats.NewMsg(subject)
	msg.Header.Set(schemaHeader, schema)
	msg.Data = data
	ack, err := e.js.PublishMsg(e.context(), msg)
	if err != nil {
		e.Fatal(err)
	}
	return ack.Sequence
}

// engine is one simulated replica's KV events.
type engine struct {
	env   *env
	name  string
	epoch prefix.Epoch
	seq   uint64
	entry *pb.FleetEntry
}

var lives uint64 // epochs in the order of their start, as UUIDv7 are

func newEpoch() (e prefix.Epoch) {
	lives++
	binary.BigEndian.PutUint64(e[:], lives)
	return e
}

// engine puts a replica into the fleet.
func (e *env) engine(name string, change ...func(*pb.FleetEntry)) *engine {
	e.Helper()
	n := &engine{env: e, name: name, epoch: newEpoch()}
	n.entry = &pb.FleetEntry{
		Pool: testPool, Replica: name, Address: "http://" + name + ".example", EngineKind: "simengine", Model: testModel,
		BlockTokens: blockTokens, KvEvents: true, PrefillTokensPerSecond: 10_000,
	}
	n.beat(change...)
	return n
}

// beat publishes the replica's fleet entry.
func (n *engine) beat(change ...func(*pb.FleetEntry)) {
	n.env.Helper()
	n.entry.Epoch = n.epoch[:]
	n.entry.HeartbeatUs = time.Now().UnixMicro()
	for _, c := range change {
		c(n.entry)
	}
	if err := streams.PutFleet(n.env.context(), n.env.js, n.entry); err != nil {
		n.env.Fatal(err)
	}
}

// restart begins a new life; announce it by beat or by the next batch.
func (n *engine) restart() { n.epoch, n.seq = newEpoch(), 0 }

func (n *engine) batch(events ...*pb.KVEvent) *pb.KVBatch {
	n.seq++
	return &pb.KVBatch{
		Pool: testPool, Replica: n.name, Epoch: n.epoch[:], Seq: n.seq, EventTimeUs: time.Now().UnixMicro(),
		BlockTokens: blockTokens, Events: events,
	}
}

func (n *engine) publish(events ...*pb.KVEvent) uint64 {
	n.env.Helper()
	return n.env.publish(streams.KVSubject(testPool, n.name), n.batch(events...))
}

// holds publishes that the replica now holds keys on its GPU.
func (n *engine) holds(keys []uint64) uint64 {
	n.env.Helper()
	return n.publish(stored(pb.Tier_TIER_GPU, keys))
}

func stored(tier pb.Tier, keys []uint64) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: tier, Keys: keys}}}
}

func removed(tier pb.Tier, keys []uint64) *pb.KVEvent {
	return &pb.KVEvent{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: tier, Keys: keys}}}
}

// running is a router under test.
type running struct {
	*Router
	env  *env
	stop func()
}

// router starts a router and waits until it is ready.
func (e *env) router(cfg Config) *running {
	e.Helper()
	r := e.launch(cfg)
	select {
	case <-r.Ready():
	case <-time.After(patience):
		e.Fatalf("router is not ready: %v", r.health())
	}
	return r
}

// launch starts a router; it stops with the test, and stopping checks that Run
// ends well.
func (e *env) launch(cfg Config) *running {
	e.Helper()
	cfg.Pool = testPool
	if cfg.Seed == 0 {
		cfg.Seed = 7
	}
	r, err := New(cfg, e.nc, e.js, prometheus.NewRegistry())
	if err != nil {
		e.Fatal(err)
	}
	return &running{r, e, streamstest.Run(e, r.Run)}
}

// reaches waits until the router has folded up to a KV sequence.
func (r *running) reaches(seq uint64) {
	r.env.Helper()
	r.env.until(fmt.Sprintf("kv position %d", seq), func() bool { return r.index().Position() >= seq })
}

// knows waits until the router has n replicas in the state given.
func (r *running) knows(n int, state string) {
	r.env.Helper()
	r.env.until(fmt.Sprintf("%d replicas %s", n, state), func() bool {
		count := 0
		for _, m := range r.State().Replicas {
			if m.State == state {
				count++
			}
		}
		return count == n
	})
}

func (r *running) inFlight(replica string) uint32 {
	for _, m := range r.State().Replicas {
		if m.Replica == replica {
			return m.InFlight
		}
	}
	return 0
}

// mustDecide answers a request, which must get a decision.
func (r *running) mustDecide(q *pb.RouteRequest) *pb.Decided {
	r.env.Helper()
	response := r.Decide(context.Background(), q)
	if response.Decision == nil {
		r.env.Fatalf("no decision: %v %s", response.ErrorCode, response.Error)
	}
	return response.Decision
}

var requests int

// request is a well-formed request for a prompt given by its keys.
func request(keys []uint64) *pb.RouteRequest {
	requests++
	return &pb.RouteRequest{
		Pool: testPool, Gateway: testGateway, RequestId: fmt.Sprintf("req-%d", requests), Model: testModel,
		Keys: keys, PromptTokens: uint64(len(keys))*blockTokens + 3,
	}
}

// prompt returns token ids and keys of n blocks, different for each subject.
func prompt(subject, n int) (ids []uint32, keys []uint64) {
	ids = make([]uint32, n*blockTokens+3)
	for i := range ids {
		ids[i] = uint32(subject*1_000_003+i) % 50_000
	}
	return ids, blockkey.Chain(nil, blockkey.Root(testModel, "", ""), ids, blockTokens)
}

func keysOf(subject, n int) []uint64 {
	_, keys := prompt(subject, n)
	return keys
}

// ask sends a request over NATS.
func (e *env) ask(q *pb.RouteRequest) *pb.RouteResponse {
	e.Helper()
	data, err := proto.Marshal(q)
	if err != nil {
		e.Fatal(err)
	}
	msg, err := e.nc.RequestWithContext(e.context(), streams.ServiceSubject(testPool), data)
	if err != nil {
		e.Fatal(err)
	}
	return e.response(msg.Data)
}

func (e *env) response(data []byte) *pb.RouteResponse {
	e.Helper()
	response := &pb.RouteResponse{}
	if err := proto.Unmarshal(data, response); err != nil {
		e.Fatal(err)
	}
	return response
}

// post sends a body to POST /v1/route.
func (r *running) post(body []byte) (int, *pb.RouteResponse) {
	r.env.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Post(r.Address()+"/v1/route", "application/json", bytes.NewReader(body))
	if err != nil {
		r.env.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		r.env.Fatal(err)
	}
	response := &pb.RouteResponse{}
	if err := protojson.Unmarshal(data, response); err != nil {
		r.env.Fatalf("answer %s: %v", data, err)
	}
	return answer.StatusCode, response
}

func (r *running) postRequest(q *pb.RouteRequest) (int, *pb.RouteResponse) {
	r.env.Helper()
	body, err := protojson.Marshal(q)
	if err != nil {
		r.env.Fatal(err)
	}
	return r.post(body)
}

func (r *running) get(path string) (int, string) {
	r.env.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(r.Address() + path)
	if err != nil {
		r.env.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		r.env.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

func candidate(d *pb.Decided, replica string) *pb.Candidate {
	for _, c := range d.Candidates {
		if c.Replica == replica {
			return c
		}
	}
	return &pb.Candidate{Replica: "(none)"}
}

// audit derives decisions again: the choice from the decision alone, the matches
// from the stream up to its position.
func (e *env) audit(decisions ...*pb.Decided) {
	e.Helper()
	decisions = slices.Clone(decisions)
	for _, d := range decisions {
		again, err := policy.Recompute(d)
		if err != nil {
			e.Fatalf("request %s: %v", d.RequestId, err)
		}
		if !proto.Equal(d, again) {
			e.Errorf("request %s: recomputed decision differs\nrecorded   %v\nrecomputed %v", d.RequestId, d, again)
		}
	}
	slices.SortStableFunc(decisions, func(a, b *pb.Decided) int { return int(a.KvSeq) - int(b.KvSeq) })
	index, next := prefix.New(), 0
	check := func(end uint64) {
		for ; next < len(decisions) && decisions[next].KvSeq < end; next++ {
			e.compare(decisions[next], index)
		}
	}
	head, err := streams.LastSeq(e.context(), e.js, streams.KVStream(testPool))
	if err != nil {
		e.Fatal(err)
	}
	read := errors.New("read")
	if head > 0 {
		err = streams.Follow(e.context(), e.js, streams.FollowConfig{Stream: streams.KVStream(testPool)}, func(ev streams.Event) error {
			check(ev.Seq)
			if m, err := streams.Decode(ev.Schema, ev.Data); err == nil {
				if b, err := prefix.FromProto(m.(*pb.KVBatch), ev.Seq); err == nil {
					index.Apply(b)
				}
			}
			if ev.Seq >= head {
				return read
			}
			return nil
		})
		if !errors.Is(err, read) {
			e.Fatal(err)
		}
	}
	check(head + 1)
	if next < len(decisions) {
		e.Errorf("request %s stands at %d, after the stream's end %d", decisions[next].RequestId, decisions[next].KvSeq, head)
	}
}

func (e *env) compare(d *pb.Decided, index *prefix.Index) {
	e.Helper()
	matches, _ := index.Match(nil, d.Keys, nil)
	for _, c := range d.Candidates {
		var m prefix.Match
		if i := slices.IndexFunc(matches, func(m prefix.Match) bool { return m.Replica == c.Replica }); i >= 0 {
			m = matches[i]
		}
		if string(m.Epoch[:]) != string(c.Epoch) {
			m = prefix.Match{Suspect: c.Suspect} // the candidate claims nothing of this life
		}
		var tiers [prefix.NumTiers]int
		for _, t := range c.Tiers {
			tier, _ := prefix.TierFromProto(t.Tier)
			tiers[tier] += int(t.Blocks)
		}
		if int(c.GpuBlocks) != m.GPU || int(c.TotalBlocks) != m.Total || tiers != m.Tiers || c.Suspect != m.Suspect {
			e.Errorf("request %s at %d, replica %s: recorded gpu %d total %d tiers %v suspect %v, folded %+v",
				d.RequestId, d.KvSeq, c.Replica, c.GpuBlocks, c.TotalBlocks, tiers, c.Suspect, m)
		}
	}
}

// finished is the outcome of a decision.
func finished(d *pb.Decided) *pb.Finished {
	return &pb.Finished{
		Pool: d.Pool, Gateway: d.Gateway, RequestId: d.RequestId, Attempt: d.Attempt, Replica: d.Chosen,
		FinishedAtUs: time.Now().UnixMicro(), Status: pb.Status_STATUS_OK, HttpStatus: 200, Clock: pb.Clock_CLOCK_WALL,
		TtftUs: proto.Uint64(50_000), E2EUs: 100_000,
	}
}

// route publishes what a gateway would.
func (e *env) route(m proto.Message) uint64 {
	e.Helper()
	return e.publish(streams.RouteSubject(testPool, testGateway), m)
}

func mustContain(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q does not contain %q", text, p)
		}
	}
}
