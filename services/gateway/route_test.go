package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/tokenize"
)

func TestKeysAreTheEngines(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	router, _ := e.router(choose(n))
	g := e.gateway(1, Config{LoRAs: []string{"sql"}})
	ids := []uint32{0, 7, 14, 21, 28, 35, 42, 49, 56, 63}
	chat := `[{"role":"user","content":"hello there"}]`
	chatIDs, err := tokenize.Bytes{}.Chat([]byte(chat), nil)
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		path, body string
		ids        []uint32
		lora, salt string
	}{
		{completionsPath, prompt(10, ""), ids, "", ""},
		{completionsPath, prompt(10, `,"cache_salt":"tenant-1"`), ids, "", "tenant-1"},
		{completionsPath, strings.Replace(prompt(10, ""), testModel, "sql", 1), ids, "sql", ""},
		{completionsPath, `{"prompt":"hello there"}`, tokenize.Bytes{}.Text("hello there"), "", ""},
		{chatPath, `{"messages":` + chat + `}`, chatIDs, "", ""},
	}
	for i, c := range cases {
		response := g.post(c.path, c.body, "X-Session-Id", "s-1")
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d", c.body, response.StatusCode)
		}
		q := router.requests()[i]
		want := blockkey.Chain(nil, blockkey.Root(testModel, c.lora, c.salt), c.ids, blockTokens)
		if !slices.Equal(q.Keys, want) || q.PromptTokens != uint64(len(c.ids)) || q.Model != testModel || q.Lora != c.lora || q.SessionId != "s-1" {
			t.Errorf("%s: asked %v, want keys %v", c.body, q, want)
		}
	}
}

func TestSession(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	router, _ := e.router(choose(n))
	g := e.gateway(1, Config{})
	g.mustAsk(prompt(10, `,"user":"ann"`))
	g.mustAsk(prompt(10, `,"user":"ann"`), "X-Session-Id", "conversation-1")
	g.mustAsk(prompt(10, `,"user":"`+strings.Repeat("x", 600)+`"`))
	got := router.requests()
	if got[0].SessionId != "ann" || got[1].SessionId != "conversation-1" || len(got[2].SessionId) != 16 {
		t.Errorf("got sessions %q, %q, %q", got[0].SessionId, got[1].SessionId, got[2].SessionId)
	}
}

func TestFallbackWithoutRouter(t *testing.T) {
	e := newEnv(t)
	var engines []*engine
	for i := range 4 {
		engines = append(engines, e.engine(fmt.Sprintf("engine-%d", i), nil))
	}
	g := e.gateway(4, Config{})
	for i := range 8 {
		g.mustAsk(prompt(40, ""), "X-Request-Id", fmt.Sprintf("r-%d", i))
	}
	// The router comes back, and is heard at once.
	e.router(choose(engines[2]))
	if got := g.mustAsk(prompt(40, ""), "X-Request-Id", "back").Get(headerReplica); got != "engine-2" {
		t.Errorf("got %s after the router was back", got)
	}
	chosen := map[string]bool{}
	all := e.stories(g)
	for i := range 8 {
		d := all[fmt.Sprintf("r-%d", i)].decided[0]
		if d.Reason != pb.DecisionReason_DECISION_REASON_FALLBACK || d.FallbackCause != causeNoResponders || d.Decider != "gw-0" ||
			len(d.Candidates) != 4 || len(d.Keys) != 10 || d.PromptTokens != 40 || d.BlockTokens != blockTokens {
			t.Errorf("got %v", d)
		}
		chosen[d.Chosen] = true
	}
	if len(chosen) != 1 {
		t.Errorf("one prefix went to %v", chosen)
	}
	if d := all["back"].decided[0]; d.Reason != pb.DecisionReason_DECISION_REASON_SCORE || d.Decider != "router-test" {
		t.Errorf("got %v", d)
	}
	if got := g.metric("fallbacks_total", "cause", causeNoResponders); got != 8 {
		t.Errorf("fallbacks_total is %v", got)
	}
}

func TestFallbackWhileRouterIsSilent(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	router, _ := e.router(silent)
	g := e.gateway(1, Config{RouterBudget: 100 * time.Millisecond})
	causes := map[string]int{}
	for i := range 20 {
		id := fmt.Sprintf("r-%d", i)
		g.mustAsk(prompt(40, ""), "X-Request-Id", id)
		causes[g.story(id).decided[0].FallbackCause]++
	}
	if causes[causeTimeout] < circuitAfter || causes[causeCircuit] == 0 || causes[causeTimeout]+causes[causeCircuit] != 20 {
		t.Errorf("got causes %v", causes)
	}
	if g.metric("router_circuit_open") != 1 {
		t.Error("the circuit is not open")
	}
	router.set(choose(n))
	e.until("the router's recovery", func() bool {
		g.mustAsk(prompt(40, ""))
		return g.metric("router_circuit_open") == 0
	})
	e.until("a decision of the router", func() bool {
		id := fmt.Sprintf("after-%d", time.Now().UnixNano())
		g.mustAsk(prompt(40, ""), "X-Request-Id", id)
		return g.story(id).decided[0].Decider == "router-test"
	})
}

func TestFallbackCauses(t *testing.T) {
	refuse := func(code pb.RouteErrorCode) func(*pb.RouteRequest) *pb.RouteResponse {
		return func(*pb.RouteRequest) *pb.RouteResponse { return &pb.RouteResponse{ErrorCode: code, Error: "because"} }
	}
	for cause, answer := range map[string]func(*pb.RouteRequest) *pb.RouteResponse{
		causeNotReady:  refuse(pb.RouteErrorCode_ROUTE_ERROR_CODE_NOT_READY),
		causeInvalid:   refuse(pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID),
		causeNoReplica: refuse(pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA),
		causeBadAnswer: func(q *pb.RouteRequest) *pb.RouteResponse {
			return &pb.RouteResponse{Address: "http://x", Decision: &pb.Decided{RequestId: "another", Chosen: "engine-0"}}
		},
	} {
		t.Run(cause, func(t *testing.T) {
			e := newEnv(t)
			e.engine("engine-0", nil)
			e.router(answer)
			g := e.gateway(1, Config{})
			g.mustAsk(prompt(40, ""), "X-Request-Id", "r-1")
			if d := g.story("r-1").decided[0]; d.FallbackCause != cause {
				t.Errorf("got %v", d)
			}
		})
	}
}

func TestPromptWithoutTokenIDs(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	e.router(choose(n))
	g := e.gateway(1, Config{Tokenizer: TokenizerClient})
	g.mustAsk(prompt(40, ""), "X-Request-Id", "ids")
	g.mustAsk(`{"prompt":"`+strings.Repeat("word ", 40)+`"}`, "X-Request-Id", "text")
	g.mustAsk(`{"prompt":["`+strings.Repeat("word ", 20)+`","`+strings.Repeat("word ", 19)+`"]}`, "X-Request-Id", "several")
	all := e.stories(g)
	if d := all["several"].decided[0]; d.Decider != "router-test" || len(d.Keys) != 0 || d.PromptTokens != 50 || d.TokenSource != SourceNone {
		t.Errorf("got %v; several prompts have no keys in common", d)
	}
	if d := all["ids"].decided[0]; d.Reason != pb.DecisionReason_DECISION_REASON_SCORE || len(d.Keys) != 10 || d.TokenSource != SourceClient {
		t.Errorf("got %v", d)
	}
	if d := all["text"].decided[0]; d.Decider != "router-test" || len(d.Keys) != 0 || d.PromptTokens != 50 || d.TokenSource != SourceNone {
		t.Errorf("got %v; without ids the router still knows the load", d)
	}
	if g.metric("unkeyed_requests_total") != 2 {
		t.Error("a request without ids was not counted")
	}
}

func TestRetryOnAnotherReplica(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request, []byte) {
		return func(w http.ResponseWriter, _ *http.Request, _ []byte) { http.Error(w, "busy", code) }
	}
	for name, c := range map[string]struct {
		handler func(http.ResponseWriter, *http.Request, []byte)
		cause   string
	}{
		"dead":   {nil, kindDial},
		"503":    {status(503), "http_5xx"},
		"502":    {status(502), "http_5xx"},
		"504":    {status(504), "http_5xx"},
		"429":    {status(429), "http_429"},
		"reset":  {func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) }, kindReset},
		"empty":  {func(http.ResponseWriter, *http.Request, []byte) {}, kindEmpty},
		"silent": {func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() }, kindTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			bad := e.engine("engine-0", c.handler)
			good := e.engine("engine-1", nil)
			if name == "dead" {
				bad.server.Close()
			}
			router, _ := e.router(choose(bad, good))
			cfg := Config{}
			if name == "silent" {
				cfg.ModelTimeout = 2 * time.Second // the other replica must answer within it
			}
			g := e.gateway(2, cfg)
			h := g.mustAsk(prompt(40, `,"stream":true`), "X-Request-Id", "r-1")
			if h.Get(headerReplica) != "engine-1" || h.Get(headerAttempt) != "1" {
				t.Errorf("got headers %v", h)
			}
			s := g.story("r-1")
			if s.order != "dmdf" || s.moved[0].Cause != c.cause || s.moved[0].From != "engine-0" || s.moved[0].Attempt != 0 ||
				s.decided[1].Attempt != 1 || s.finished[0].Attempt != 1 || s.finished[0].Replica != "engine-1" || s.finished[0].Status != pb.Status_STATUS_OK {
				t.Errorf("got %s %v %v", s.order, s.moved, s.finished)
			}
			if q := router.requests()[1]; !slices.Equal(q.Exclude, []string{"engine-0"}) {
				t.Errorf("the second question excludes %v", q.Exclude)
			}
			if g.metric("moved_total", "cause", c.cause) != 1 || g.InFlight("engine-0")+g.InFlight("engine-1") != 0 {
				t.Errorf("moved %v, in flight %d and %d", g.metric("moved_total"), g.InFlight("engine-0"), g.InFlight("engine-1"))
			}
		})
	}
}

func TestEveryReplicaFails(t *testing.T) {
	e := newEnv(t)
	var engines []*engine
	for i := range 4 {
		n := e.engine(fmt.Sprintf("engine-%d", i), func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) })
		engines = append(engines, n)
	}
	e.router(choose(engines...))
	g := e.gateway(4, Config{})
	status, text, _ := g.ask(prompt(40, ""), "X-Request-Id", "r-1")
	if status != http.StatusBadGateway || !strings.Contains(text, `"code":"reset"`) || !strings.Contains(text, "after 3 attempts") {
		t.Errorf("got %d %s", status, text)
	}
	s := g.story("r-1")
	if s.order != "dmdmdf" || s.finished[0].Status != pb.Status_STATUS_UPSTREAM_ERROR || s.finished[0].ErrorKind != kindReset || s.finished[0].Attempt != 2 {
		t.Errorf("got %s %v", s.order, s.finished)
	}
}

func TestOnlyReplicaIsBusy(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Retry-After", "7")
		http.Error(w, "the queue is full", http.StatusServiceUnavailable)
	})
	e.router(choose(n))
	g := e.gateway(1, Config{})
	status, text, h := g.ask(prompt(40, ""), "X-Request-Id", "r-1")
	if status != 503 || text != "the queue is full\n" || h.Get("Retry-After") != "7" {
		t.Errorf("got %d %q %v", status, text, h)
	}
	s := g.story("r-1")
	if f := s.finished[0]; s.order != "df" || f.HttpStatus != 503 || f.ErrorKind != "http_5xx" || f.Attempt != 0 {
		t.Errorf("got %s %v; there was nowhere to move to", s.order, s.finished)
	}
}

// What an engine refuses, another would refuse too.
func TestEngineRefuses(t *testing.T) {
	e := newEnv(t)
	bad := e.engine("engine-0", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"temperature"}}`)
	})
	other := e.engine("engine-1", nil)
	e.router(choose(bad, other))
	g := e.gateway(2, Config{})
	status, text, _ := g.ask(prompt(40, ""), "X-Request-Id", "r-1")
	if status != 400 || text != `{"error":{"message":"temperature"}}` || other.asked.Load() != 0 {
		t.Errorf("got %d %s, the other replica was asked %d times", status, text, other.asked.Load())
	}
	if f := g.story("r-1").finished[0]; f.Status != pb.Status_STATUS_UPSTREAM_ERROR || f.HttpStatus != 400 || f.ErrorKind != kindClient {
		t.Errorf("got %v", f)
	}
	if g.metric("requests_total", "status", "client_error") != 1 || len(g.health.failed) != 0 {
		t.Error("what the engine refuses is not the replica's failure")
	}
}

func TestGatewaysSeeEachOther(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	e.router(choose(n))
	first := e.gateway(1, Config{Name: "gw-0"})
	var clients sync.WaitGroup
	start := func(g *running, id string) {
		clients.Go(func() {
			response, err := g.send(context.Background(), completionsPath, prompt(40, `,"stream":true`), "X-Request-Id", id)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		})
		wait(e, "the request at the engine", source.body)
	}
	start(first, "r-1")
	e.until("own load", func() bool { return first.InFlight("engine-0") == 1 })
	// One that starts later learns of it from the stream.
	second := e.gateway(1, Config{Name: "gw-1"})
	e.until("load from before the start", func() bool { return second.InFlight("engine-0") == 1 })
	start(second, "r-2")
	e.until("the other's load", func() bool { return first.InFlight("engine-0") == 2 && second.InFlight("engine-0") == 2 })
	close(source.parts)
	clients.Wait()
	e.until("the end of the load", func() bool { return first.InFlight("engine-0") == 0 && second.InFlight("engine-0") == 0 })
	e.stories(first, second)
}

// A fallback must count what other gateways have in flight.
func TestFallbackIsBoundedByForeignLoad(t *testing.T) {
	e := newEnv(t)
	e.engine("engine-0", nil)
	e.engine("engine-1", nil)
	g := e.gateway(2, Config{})
	favorite := g.mustAsk(prompt(40, "")).Get(headerReplica)
	for i := range 50 {
		g.foreign(&pb.Decided{Pool: testPool, Gateway: "gw-9", RequestId: fmt.Sprintf("foreign-%d", i), Chosen: favorite, PromptTokens: 40,
			DecidedAtUs: time.Now().UnixMicro()}, time.Now().UnixMicro())
	}
	if got := g.mustAsk(prompt(40, "")).Get(headerReplica); got == favorite {
		t.Errorf("%s got one more request on top of 50", got)
	}
}
