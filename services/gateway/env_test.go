package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"warmpath/routing/policy"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

const (
	testPool    = "chat"
	testModel   = "llama-3-70b"
	blockTokens = 4
	patience    = 20 * time.Second // how long a test waits for what must come
)

func TestMain(m *testing.M) {
	if os.Getenv("WARMPATH_TEST_LOG") == "" {
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
	goleak.VerifyTestMain(m)
}

// env is a NATS server with the topology of one pool, and what tests put around it.
type env struct {
	testing.TB
	server *natsserver.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	client *http.Client
}

func newEnv(t testing.TB) *env {
	t.Helper()
	return newEnvWith(t, streamstest.Start(t))
}

func newEnvWith(t testing.TB, server *natsserver.Server) *env {
	t.Helper()
	nc, err := server.ClientConn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	e := &env{TB: t, server: server, nc: nc, js: js, client: &http.Client{Transport: transport}}
	if _, err := (streams.Topology{Pools: []string{testPool}}).Apply(e.context(), js); err != nil {
		t.Fatal(err)
	}
	return e
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

// wait takes from a channel what must come.
func wait[T any](e *env, what string, from <-chan T) T {
	e.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		e.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// engine is a replica that answers as a test says.
type engine struct {
	name    string
	server  *httptest.Server
	asked   atomic.Int32
	handler func(w http.ResponseWriter, r *http.Request, body []byte)
}

// engine starts a replica and puts it into the fleet. A nil handler answers ok.
func (e *env) engine(name string, handler func(w http.ResponseWriter, r *http.Request, body []byte), change ...func(*pb.FleetEntry)) *engine {
	e.Helper()
	n := &engine{name: name, handler: handler}
	n.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.asked.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the gateway gave up
		}
		if n.handler == nil {
			respond(w, body, answerJSON(40, "32"))
			return
		}
		n.handler(w, r, body)
	}))
	e.Cleanup(n.server.Close)
	entry := &pb.FleetEntry{
		Pool: testPool, Replica: name, Address: n.server.URL, EngineKind: "test", Model: testModel, BlockTokens: blockTokens,
		HeartbeatUs: time.Now().UnixMicro(), StartedUs: 1_790_000_000_000_000,
	}
	for _, c := range change {
		c(entry)
	}
	if err := streams.PutFleet(e.context(), e.js, entry); err != nil {
		e.Fatal(err)
	}
	return n
}

// answerJSON is a whole answer; cached is the JSON of prompt_tokens_details, or "" for none.
func answerJSON(prompt int, cached string) string {
	details := ""
	if cached != "" {
		details = `,"prompt_tokens_details":{"cached_tokens":` + cached + `}`
	}
	return fmt.Sprintf(`{"choices":[{"text":"hi","finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":2%s}}`, prompt, details)
}

// respond answers in the form that the body asks for.
func respond(w http.ResponseWriter, body []byte, whole string) {
	var asked struct {
		Stream bool `json:"stream"`
	}
	_ = json.Unmarshal(body, &asked)
	if !asked.Stream {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, whole)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_, _ = io.WriteString(w, eventRole+eventHello+eventStop+eventUsage+eventDone)
}

// fakeRouter answers svc.route.<pool> as a test says.
type fakeRouter struct {
	mu     sync.Mutex
	asked  []*pb.RouteRequest
	answer func(*pb.RouteRequest) *pb.RouteResponse // nil answer: silence
}

// router subscribes an in-test router whose decisions choose as told.
func (e *env) router(answer func(*pb.RouteRequest) *pb.RouteResponse) (*fakeRouter, *nats.Subscription) {
	e.Helper()
	r := &fakeRouter{answer: answer}
	subscription, err := e.nc.Subscribe(streams.ServiceSubject(testPool), func(m *nats.Msg) {
		q := &pb.RouteRequest{}
		if err := proto.Unmarshal(m.Data, q); err != nil {
			e.Errorf("route request: %v", err)
			return
		}
		r.mu.Lock()
		r.asked = append(r.asked, q)
		answer := r.answer
		r.mu.Unlock()
		if response := answer(q); response != nil {
			data, err := proto.Marshal(response)
			if err != nil {
				e.Errorf("route response: %v", err)
				return
			}
			_ = m.Respond(data) // the gateway may have stopped
		}
	})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = subscription.Unsubscribe() })
	if err := e.nc.Flush(); err != nil {
		e.Fatal(err)
	}
	return r, subscription
}

func (r *fakeRouter) set(answer func(*pb.RouteRequest) *pb.RouteResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *fakeRouter) requests() []*pb.RouteRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

// choose answers with the first of the engines that is not excluded.
func choose(engines ...*engine) func(*pb.RouteRequest) *pb.RouteResponse {
	return func(q *pb.RouteRequest) *pb.RouteResponse {
		for _, n := range engines {
			if !slices.Contains(q.Exclude, n.name) {
				return &pb.RouteResponse{Address: n.server.URL, Decision: &pb.Decided{
					Pool: q.Pool, Gateway: q.Gateway, RequestId: q.RequestId, Attempt: q.Attempt, Decider: "router-test",
					DecidedAtUs: time.Now().UnixMicro(), Model: q.Model, BlockTokens: blockTokens, PromptTokens: q.PromptTokens, Keys: q.Keys,
					Chosen: n.name, FirstChoice: n.name, Reason: pb.DecisionReason_DECISION_REASON_SCORE, PredictedCachedTokens: 8,
				}}
			}
		}
		return &pb.RouteResponse{ErrorCode: pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA, Error: "none left"}
	}
}

func silent(*pb.RouteRequest) *pb.RouteResponse { return nil }

// running is a gateway under test.
type running struct {
	*Gateway
	env  *env
	reg  *prometheus.Registry
	stop func()
}

// gateway starts a gateway that knows n live replicas when this returns. It stops
// with the test, and stopping checks that Run ends well.
func (e *env) gateway(n int, cfg Config) *running {
	e.Helper()
	cfg.Pool = testPool
	if cfg.Name == "" {
		cfg.Name = "gw-0"
	}
	cfg.Listen = "127.0.0.1:0"
	if cfg.RouterBudget == 0 {
		cfg.RouterBudget = patience // tests that are not about the budget must not meet it
	}
	reg := prometheus.NewRegistry()
	g, err := New(cfg, e.nc, e.js, reg)
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	stopped := false
	r := &running{Gateway: g, env: e, reg: reg}
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			e.Errorf("run: %v", err)
		}
	}
	e.Cleanup(r.stop)
	e.until(fmt.Sprintf("%d live replicas", n), func() bool { return len(g.view.Live()) == n })
	return r
}

// post sends a request and returns the response, whose body the caller closes.
func (r *running) post(path, body string, header ...string) *http.Response {
	r.env.Helper()
	response, err := r.send(context.Background(), path, body, header...)
	if err != nil {
		r.env.Fatal(err)
	}
	return response
}

func (r *running) send(ctx context.Context, path, body string, header ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Address()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	return r.env.client.Do(request)
}

// ask sends a completions request and returns its whole answer.
func (r *running) ask(body string, header ...string) (int, string, http.Header) {
	r.env.Helper()
	response := r.post(completionsPath, body, header...)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		r.env.Fatal(err)
	}
	return response.StatusCode, string(text), response.Header
}

// mustAsk is ask for a request that must be answered well.
func (r *running) mustAsk(body string, header ...string) http.Header {
	r.env.Helper()
	status, text, h := r.ask(body, header...)
	if status != http.StatusOK {
		r.env.Fatalf("status %d: %s", status, text)
	}
	return h
}

// story is what the stream holds of one request.
type story struct {
	decided  []*pb.Decided
	moved    []*pb.Moved
	finished []*pb.Finished
	order    string // d, m and f as they came
}

// stories stops nothing: it waits until the gateways' events are acknowledged
// and reads the whole stream.
func (e *env) stories(gateways ...*running) map[string]*story {
	e.Helper()
	for _, g := range gateways {
		if err := g.publisher.Flush(e.context()); err != nil && !errors.Is(err, streams.ErrClosed) {
			e.Fatal(err)
		}
	}
	all := map[string]*story{}
	of := func(id string) *story {
		if all[id] == nil {
			all[id] = &story{}
		}
		return all[id]
	}
	head, err := streams.LastSeq(e.context(), e.js, streams.RouteStream)
	if err != nil {
		e.Fatal(err)
	}
	if head == 0 {
		return all
	}
	read := errors.New("read")
	err = streams.Follow(e.context(), e.js, streams.FollowConfig{Stream: streams.RouteStream}, func(event streams.Event) error {
		message, err := streams.Decode(event.Schema, event.Data)
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case *pb.Decided:
			s := of(m.RequestId)
			s.decided, s.order = append(s.decided, m), s.order+"d"
			e.recompute(m)
		case *pb.Moved:
			s := of(m.RequestId)
			s.moved, s.order = append(s.moved, m), s.order+"m"
		case *pb.Finished:
			s := of(m.RequestId)
			s.finished, s.order = append(s.finished, m), s.order+"f"
		}
		if event.Seq >= head {
			return read
		}
		return nil
	})
	if !errors.Is(err, read) {
		e.Fatal(err)
	}
	for id, s := range all {
		if len(s.finished) != 1 || !strings.HasSuffix(s.order, "f") {
			e.Errorf("request %s has %d outcomes, events %s", id, len(s.finished), s.order)
		}
	}
	return all
}

// recompute checks that a decision of the gateway's own explains itself.
func (e *env) recompute(d *pb.Decided) {
	e.Helper()
	if d.Reason != pb.DecisionReason_DECISION_REASON_FALLBACK {
		return
	}
	again, err := policy.Recompute(d)
	if err != nil || !proto.Equal(d, again) {
		e.Errorf("request %s: recomputed decision differs (%v)\nrecorded   %v\nrecomputed %v", d.RequestId, err, d, again)
	}
}

// story returns the events of one request.
func (r *running) story(id string) *story {
	r.env.Helper()
	s := r.env.stories(r)[id]
	if s == nil {
		r.env.Fatalf("the stream has nothing of request %s", id)
	}
	return s
}

// metric returns a counter's or gauge's value; labels are name, value, …
func (r *running) metric(name string, labels ...string) float64 {
	r.env.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.env.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != "warmpath_gateway_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			fits := true
			for i := 0; i < len(labels); i += 2 {
				fits = fits && have[labels[i]] == labels[i+1]
			}
			if !fits {
				continue
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// prompt is a completions body with n token ids.
func prompt(n int, rest string) string {
	var b bytes.Buffer
	b.WriteString(`{"model":"` + testModel + `","prompt":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, i*7%1000)
	}
	b.WriteString("]" + rest + "}")
	return b.String()
}
