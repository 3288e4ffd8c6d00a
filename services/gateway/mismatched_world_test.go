package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/router"
	"warmpath/streams"
	"warmpath/streams/eventjson"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

const (
	// within is after how many requests a fault must be named.
	within = 50
	// apart is the time between requests: a block counts as settled in the index a
	// quarter of a second after its request, and a test's requests must reach there.
	apart = 15 * time.Millisecond
)

// deployment is a pool as it is set up: rightly, but for what is named.
type deployment struct {
	faults
	// ours is the gateway's chat template.
	ours string
	// kv is --kv of the bridges; the engines' endpoint when empty.
	kv string
	// announced makes the engines' blocks the pool's, under the fleet's block size.
	announced bool
	// salted and adapted of ten conversations have a cache salt, or an adapter; one
	// of ten is a completion of text.
	salted, adapted int
}

// world is a deployment that runs: two engines, bridges, a router, a gateway and
// its clients.
type world struct {
	*env
	deployment
	pool    string
	engines []*served
	router  *router.Router
	gateway *running
	routes  *prometheus.Registry
	bridged func() []bridge.Status
	random  *rand.Rand
	talks   []*talk
	pace    *time.Ticker
	sent    int
}

// talk is a conversation.
type talk struct {
	name, salt, model string
	text              bool
	messages          []message
}

func newWorld(t *testing.T, server *natsserver.Server, pool string, d deployment) *world {
	t.Helper()
	nc, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, pool)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	setDefault(&d.ours, plainTemplate)
	setDefault(&d.template, d.ours)
	setDefault(&d.pool, 16)
	setDefault(&d.block, d.pool)
	if d.generation == 0 {
		d.generation = kvevents.VLLMMap
	}
	w := &world{
		env:        &env{TB: t, server: server, nc: nc, js: js, client: &http.Client{Transport: transport}},
		deployment: d, pool: pool, routes: prometheus.NewRegistry(), random: rand.New(rand.NewPCG(7, 7)), pace: time.NewTicker(apart),
	}
	t.Cleanup(w.pace.Stop)
	dir := modelFolder(t, d.template, d.merges)
	for i := range 2 {
		w.engines = append(w.engines, serveModel(t, fmt.Sprintf("engine-%d", i), dir, d.faults))
	}
	if d.announced {
		w.announce()
	} else {
		w.bridge()
	}
	var err error
	w.router, err = router.New(router.Config{Pool: pool, NoSnapshots: true}, nc, js, w.routes)
	w.must(err)
	streamstest.Run(w, w.router.Run)
	wait(w.env, "the router", w.router.Ready())
	w.serve()
	for range 10 {
		w.talks = append(w.talks, nil)
	}
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// bridge puts a bridge beside the engines.
func (w *world) bridge() {
	w.Helper()
	cfg := bridge.Config{Pool: w.pool, BlockTokens: w.faults.pool, LoadEvery: 100 * time.Millisecond, Listen: "127.0.0.1:0", SpoolDir: w.TempDir()}
	for _, n := range w.engines {
		e := bridge.Engine{Replica: n.name, URL: n.server.URL, KV: n.wire.Endpoint(), KVReplay: n.wire.ReplayEndpoint()}
		if w.kv != "" {
			e.KV, e.KVReplay = w.kv, ""
		}
		cfg.Engines = append(cfg.Engines, e)
	}
	b, err := bridge.New(cfg, w.js, prometheus.NewRegistry())
	w.must(err)
	w.bridged = b.State
	streamstest.Run(w, b.Run)
	if w.kv == "" {
		for _, n := range w.engines {
			w.must(n.wire.AwaitSubscribers(w.context(), 1))
		}
	}
}

// announce publishes what the engines store as somebody who is not careful: keys
// of the engines' blocks, under the fleet's block size.
func (w *world) announce() {
	w.Helper()
	for _, n := range w.engines {
		epoch, seq := uuid.Must(uuid.NewV7()), uint64(0)
		w.must(streams.PutFleet(w.context(), w.js, &pb.FleetEntry{
			Pool: w.pool, Replica: n.name, Address: n.server.URL, EngineKind: "vllm", Model: servedModel, Epoch: epoch[:],
			BlockTokens: uint32(w.faults.pool), KvEvents: true, HeartbeatUs: time.Now().UnixMicro(),
		}))
		n.extra = func(keys []blockkey.Key) {
			seq++
			m, err := streams.NewMessage(streams.KVSubject(w.pool, n.name), streams.KVID(n.name, epoch[:], seq), &pb.KVBatch{
				Pool: w.pool, Replica: n.name, Epoch: epoch[:], Seq: seq, BlockTokens: uint32(w.faults.pool), EventTimeUs: time.Now().UnixMicro(),
				Events: []*pb.KVEvent{{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: pb.Tier_TIER_GPU, Keys: keys}}}},
			})
			if err == nil {
				msg := nats.NewMsg(m.Subject)
				msg.Header.Set(jetstream.MsgIDHeader, m.ID)
				msg.Header.Set("Warmpath-Schema", m.Schema)
				msg.Data = m.Data
				_, err = w.js.PublishMsg(w.context(), msg)
			}
			if err != nil {
				w.Error(err)
			}
		}
	}
}

// serve starts the gateway.
func (w *world) serve() {
	w.Helper()
	reg := prometheus.NewRegistry()
	g, err := New(Config{
		Pool: w.pool, Name: "gw-0", Listen: "127.0.0.1:0", RouterBudget: patience, LoRAs: []string{adapter},
		Tokenizer: modelFolder(w, w.ours, nil),
	}, w.nc, w.js, reg)
	w.must(err)
	w.gateway = &running{Gateway: g, env: w.env, reg: reg}
	w.gateway.stop = streamstest.Run(w, g.Run)
	w.until("live replicas", func() bool { return len(g.view.Live()) == len(w.engines) })
}

var systems = []string{
	prose(rand.New(rand.NewPCG(1, 1)).IntN, 30), prose(rand.New(rand.NewPCG(2, 2)).IntN, 50),
}

// next is the next turn of some conversation, of which there are ten.
func (w *world) next() *talk {
	i := w.random.IntN(len(w.talks))
	c := w.talks[i]
	if c == nil || len(c.messages) > 9 {
		c = &talk{name: fmt.Sprintf("%s-%d-%d", w.pool, i, w.sent), model: servedModel, text: i == 9}
		if i < w.salted {
			c.salt = fmt.Sprintf("tenant-%d", i%2)
		}
		if i < w.adapted {
			c.model = adapter
		}
		c.messages = []message{{"system", systems[i%len(systems)]}}
		w.talks[i] = c
	} else {
		c.messages = append(c.messages, message{"assistant", prose(w.random.IntN, 10+w.random.IntN(20))})
	}
	c.messages = append(c.messages, message{"user", prose(w.random.IntN, 10+w.random.IntN(30))})
	return c
}

// request sends the next request, once the index has what the engines told.
func (w *world) request() {
	w.Helper()
	<-w.pace.C
	w.sent++
	c := w.next()
	body := map[string]any{"model": c.model, "stream": w.sent%2 == 0}
	path, id := chatPath, fmt.Sprintf("chat-%s-%d", w.pool, w.sent)
	if c.text {
		path, id = completionsPath, "text"+id
		var texts []string
		for _, m := range c.messages {
			texts = append(texts, m.Content)
		}
		body["prompt"] = strings.Join(texts, "\n")
	} else {
		body["messages"] = c.messages
	}
	if c.salt != "" {
		body["cache_salt"] = c.salt
	}
	text, err := json.Marshal(body)
	w.must(err)
	response := w.gateway.post(path, string(text), "X-Session-Id", c.name, "X-Request-Id", id)
	answer, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || response.StatusCode != http.StatusOK {
		w.Fatalf("status %d: %s %v", response.StatusCode, answer, err)
	}
	w.fold()
}

// fold waits until the router's index has every block that was told.
func (w *world) fold() {
	w.Helper()
	if w.announced || w.kv != "" {
		return // what is told is not what the index has
	}
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		missing := 0
		state := w.router.State()
		for _, n := range w.engines {
			told := n.known()
			for _, m := range state.Replicas {
				if m.Replica == n.name {
					told -= m.Entries
				}
			}
			missing += max(told, -told)
		}
		if missing == 0 {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("after %d requests the index differs by %d blocks from what was told: %+v, bridge %+v", w.sent, missing, state, w.bridged())
		}
	}
}

// mismatches is the page of alarms.
type mismatches struct {
	Fallback   string
	Mismatches []struct{ Cause, Replica, Detail string }
}

func (w *world) mismatches() (m mismatches) {
	w.Helper()
	response, err := w.client.Get(w.gateway.Address() + "/v1/mismatches")
	w.must(err)
	defer response.Body.Close()
	w.must(json.NewDecoder(response.Body).Decode(&m))
	return m
}

// recorded reads what ROUTE has of the pool: the alarms, and the decisions with
// their ends in the order of the decisions.
func (w *world) recorded() (alarms []*pb.Mismatch, requests []*story) {
	w.Helper()
	w.must(w.gateway.publisher.Flush(w.context()))
	head, err := streams.LastSeq(w.context(), w.js, streams.RouteStream)
	w.must(err)
	byID := map[string]*story{}
	read := errors.New("read")
	err = streams.Follow(w.context(), w.js, streams.FollowConfig{Stream: streams.RouteStream}, func(e streams.Event) error {
		message, err := streams.Decode(e.Schema, e.Data)
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case *pb.Mismatch:
			if m.Pool != w.pool {
				break
			}
			alarms = append(alarms, m)
			// What warmpath tail prints.
			line, err := eventjson.Encode(e)
			if err != nil || !strings.Contains(string(line), `"cause":"`+m.Cause+`"`) || e.Subject != streams.RouteSubject(w.pool, "gw-0") {
				w.Errorf("%s is printed as %s, %v", e.Subject, line, err)
			}
		case *pb.Decided:
			if m.Pool == w.pool {
				s := &story{decided: []*pb.Decided{m}}
				byID[m.RequestId], requests = s, append(requests, s)
			}
		case *pb.Finished:
			if s := byID[m.RequestId]; s != nil {
				s.finished = append(s.finished, m)
			}
		}
		if e.Seq >= head {
			return read
		}
		return nil
	})
	if !errors.Is(err, read) {
		w.Fatal(err)
	}
	return alarms, requests
}

// share is how much of what engines served chats from their caches the index had
// said. Requests whose tokens were not found in time are left out.
func share(requests []*story) float64 {
	var held, cached uint64
	for _, s := range requests {
		d, f := s.decided[0], s.finished[0]
		if d.TokenSource == SourceNone || !strings.HasPrefix(d.RequestId, "chat") {
			continue
		}
		cached += f.GetCachedTokens()
		for _, c := range d.Candidates {
			if c.Replica == d.Chosen {
				held += min(uint64(c.TotalBlocks)*uint64(d.BlockTokens), f.GetCachedTokens())
			}
		}
	}
	return float64(held) / float64(max(cached, 1))
}

// raised sends requests until an alarm is on, and checks that it is the right one,
// in time, and told everywhere.
func (w *world) raised(cause string) {
	w.Helper()
	var page mismatches
	for len(page.Mismatches) == 0 {
		if w.sent == within {
			w.Fatalf("no alarm after %d requests", w.sent)
		}
		w.request()
		page = w.mismatches()
	}
	w.Logf("%s after %d requests: %+v", page.Mismatches[0].Cause, w.sent, page.Mismatches)
	for _, m := range page.Mismatches {
		if m.Cause != cause {
			w.Errorf("the alarm is %+v, not %s", m, cause)
		}
		if w.gateway.metric("mismatch", "cause", cause, "replica", m.Replica) != 1 {
			w.Error("the metric does not show it")
		}
	}
	alarms, _ := w.recorded()
	if len(alarms) == 0 || alarms[0].Cause != cause || alarms[0].Gateway != "gw-0" || alarms[0].Requests == 0 || alarms[0].Resolved {
		w.Errorf("the stream has %v", alarms)
	}
	// The router reads the alarm as what is none of its business.
	w.until("the router has read the alarm", func() bool { return w.routed("unknown") >= 1 })
	w.request()
}

// routed is how many messages of ROUTE a router has read, of a kind.
func (w *world) routed(kind string) float64 {
	w.Helper()
	families, err := w.routes.Gather()
	w.must(err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if family.GetName() == "warmpath_router_route_events_total" && l.GetValue() == kind {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}
