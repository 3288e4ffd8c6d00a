package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

func TestRefusals(t *testing.T) {
	e := newEnv(t)
	e.engine("engine-0", nil)
	g := e.gateway(1, Config{MaxBody: 2000})
	cases := []struct {
		method, path, body string
		status             int
		param              string
		words              []string
	}{
		{"POST", completionsPath, `{"prompt":[1,2`, 400, "prompt", []string{"byte 14", "the end"}},
		{"POST", completionsPath, `{"prompt":[1,-2]}`, 400, "prompt", []string{"byte 13", "token id"}},
		{"POST", completionsPath, `{"prompt":[]}`, 400, "prompt", []string{"empty"}},
		{"POST", completionsPath, `{"model":"` + testModel + `"}`, 400, "prompt", []string{"missing"}},
		{"POST", completionsPath, `not json`, 400, "", []string{"byte 0"}},
		{"POST", completionsPath, `{"model":"gpt-9","prompt":"x"}`, 404, "model", []string{"gpt-9", testModel}},
		{"POST", completionsPath, `{"prompt":"x","cache_salt":"` + strings.Repeat("s", 600) + `"}`, 400, "cache_salt", []string{"hash"}},
		{"POST", completionsPath, `{"prompt":"` + strings.Repeat("x", 3000) + `"}`, 413, "", []string{"2000 bytes", "--max-body"}},
		{"POST", chatPath, `{"prompt":"x"}`, 400, "messages", []string{"missing"}},
		{"POST", chatPath, `{"messages":[{"content":"x"}]}`, 400, "messages[0].role", []string{"role"}},
		{"GET", completionsPath, ``, 404, "", []string{"POST"}},
		{"POST", "/v1/audio/speech", `{}`, 404, "", []string{completionsPath, embeddingsPath}},
		{"GET", "/v1/models/gpt-9", ``, 404, "model", []string{"gpt-9", "GET /v1/models"}},
		{"POST", embeddingsPath, `{"model":"gpt-9"}`, 404, "model", []string{"gpt-9"}},
		{"POST", chatPath, `{"messages":[],"add_generation_prompt":"yes"}`, 400, "add_generation_prompt", []string{"true or false"}},
	}
	for _, c := range cases {
		request, err := http.NewRequest(c.method, g.Address()+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := e.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Error struct {
				Message, Type, Code string
				Param               *string
			}
		}
		err = json.NewDecoder(response.Body).Decode(&got)
		_ = response.Body.Close()
		param := ""
		if got.Error.Param != nil {
			param = *got.Error.Param
		}
		if err != nil || response.StatusCode != c.status || got.Error.Type == "" || got.Error.Code == "" || param != c.param {
			t.Errorf("%.60s: got %d %+v param %q, %v", c.body, response.StatusCode, got, param, err)
		}
		for _, words := range c.words {
			if !strings.Contains(got.Error.Message, words) {
				t.Errorf("%.60s: message %q does not say %q", c.body, got.Error.Message, words)
			}
		}
	}
	if all := e.stories(g); len(all) != 0 {
		t.Errorf("refused requests left events: %v", all)
	}
}

// A body of unknown length is held to the same limit.
func TestChunkedBodyLimit(t *testing.T) {
	e := newEnv(t)
	e.engine("engine-0", nil)
	g := e.gateway(1, Config{MaxBody: 2000})
	response, err := e.client.Post(g.Address()+completionsPath, "application/json", io.MultiReader(strings.NewReader(`{"prompt":"`), strings.NewReader(strings.Repeat("x", 3000))))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %d", response.StatusCode)
	}
	if left := g.bodies.Load(); left != 0 {
		t.Errorf("%d bytes of bodies are still reserved", left)
	}
}

func TestNoReplica(t *testing.T) {
	e := newEnv(t)
	g := e.gateway(0, Config{})
	if status, _, _ := get(e, g.Address()+"/health"); status != 503 {
		t.Errorf("health is %d without a replica", status)
	}
	status, text, h := g.ask(prompt(40, ""), "X-Request-Id", "r-1")
	if status != 503 || h.Get("Retry-After") == "" || !strings.Contains(text, `"code":"no_replica"`) {
		t.Errorf("got %d %s", status, text)
	}
	s := g.story("r-1")
	if f := s.finished[0]; s.order != "f" || f.Status != pb.Status_STATUS_NO_REPLICA || f.Replica != "" {
		t.Errorf("got %s %v", s.order, f)
	}
}

func TestDrainingReplicaGetsNothing(t *testing.T) {
	e := newEnv(t)
	e.engine("engine-0", nil, func(entry *pb.FleetEntry) { entry.Draining = true })
	g := e.gateway(1, Config{})
	if status, _, _ := g.ask(prompt(40, "")); status != 503 {
		t.Errorf("got %d", status)
	}
	e.stories(g)
}

func get(e *env, url string) (int, string, http.Header) {
	e.Helper()
	response, err := e.client.Get(url)
	if err != nil {
		e.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		e.Fatal(err)
	}
	return response.StatusCode, string(text), response.Header
}

func TestModelsHealthMetrics(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil, func(entry *pb.FleetEntry) { entry.Loras = []string{"poet"} })
	e.router(choose(n))
	g := e.gateway(1, Config{LoRAs: []string{"sql"}})
	want := `{"data":[{"id":"llama-3-70b","object":"model","created":1790000000,"owned_by":"warmpath"},` +
		`{"id":"poet","object":"model","created":1790000000,"owned_by":"warmpath","parent":"llama-3-70b"},` +
		`{"id":"sql","object":"model","created":1790000000,"owned_by":"warmpath","parent":"llama-3-70b"}],"object":"list"}`
	if status, text, _ := get(e, g.Address()+"/v1/models"); status != 200 || strings.TrimSpace(text) != want {
		t.Errorf("models: %d %s", status, text)
	}
	if status, text, _ := get(e, g.Address()+"/v1/models/sql"); status != 200 || !strings.Contains(text, `{"id":"sql","object":"model"`) {
		t.Errorf("model: %d %s", status, text)
	}
	if status, text, _ := get(e, g.Address()+"/health"); status != 200 {
		t.Errorf("health: %d %s", status, text)
	}
	g.mustAsk(prompt(40, `,"stream":true`))
	e.stories(g)
	_, text, _ := get(e, g.Address()+"/metrics")
	for _, line := range []string{
		`warmpath_gateway_requests_total{status="ok"} 1`, `warmpath_gateway_ttft_seconds_count{cache="hit"} 1`,
		`warmpath_gateway_route_wait_seconds_count 1`, `warmpath_gateway_in_flight 0`, `warmpath_gateway_cached_tokens_total 32`,
		`warmpath_gateway_predicted_cached_tokens_total 8`, `warmpath_gateway_prompt_tokens_total 40`,
		`warmpath_gateway_publish_pending 0`, `warmpath_gateway_publish_lost_total 0`, `warmpath_gateway_publish_gaps_total 0`,
		`warmpath_gateway_live_replicas 1`, `warmpath_gateway_queue_length 0`, `warmpath_gateway_replicas_skipped 0`, `warmpath_gateway_queue_wait_seconds_count 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("metrics have no %s", line)
		}
	}
}

func TestConcurrencyIsBounded(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	e.router(choose(n))
	g := e.gateway(1, Config{MaxConcurrent: 1, Queue: -1})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if response, err := g.send(context.Background(), completionsPath, prompt(40, `,"stream":true`)); err == nil {
			_ = response.Body.Close()
		}
	}()
	wait(e, "the request at the engine", source.body)
	status, text, h := g.ask(prompt(40, ""))
	if status != 503 || h.Get("Retry-After") == "" || !strings.Contains(text, "--max-concurrent") || g.metric("rejected_total", "reason", rejectedQueueFull) != 1 {
		t.Errorf("got %d %s", status, text)
	}
	source.parts <- eventHello
	close(source.parts)
	<-done
	e.until("room", func() bool { return g.metric("in_flight") == 0 })
	source.parts = make(chan string)
	e.stories(g)
	if got := g.metric("requests_total", "status", "overloaded"); got != 1 {
		t.Errorf("overloaded is %v", got)
	}
}

// A stop lets requests finish, and their outcomes reach the stream.
func TestStopDrains(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	e.router(choose(n))
	g := e.gateway(1, Config{})
	go func() { source.parts <- eventHello }()
	response := g.post(completionsPath, prompt(40, `,"stream":true`), "X-Request-Id", "r-1")
	defer response.Body.Close()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		g.stop()
	}()
	e.until("the drain", g.draining.Load)
	e.until("a closed listener", func() bool {
		again, err := e.client.Get(g.Address() + "/health")
		if err == nil {
			_ = again.Body.Close()
		}
		return err != nil
	})
	select {
	case <-stopped:
		t.Fatal("the gateway stopped with a request in flight")
	default:
	}
	source.parts <- eventStop
	source.parts <- eventUsage
	source.parts <- eventDone
	close(source.parts)
	text, err := io.ReadAll(response.Body)
	if err != nil || string(text) != eventHello+eventStop+eventDone {
		t.Errorf("got %q, %v", text, err)
	}
	wait(e, "the stop", stopped)
	s := e.stories()["r-1"]
	if s == nil || s.order != "df" || s.finished[0].Status != pb.Status_STATUS_OK {
		t.Errorf("got %+v", s)
	}
}

func TestStopCutsOff(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	e.router(choose(n))
	g := e.gateway(1, Config{DrainTimeout: time.Millisecond})
	go func() { source.parts <- eventHello }()
	response := g.post(completionsPath, prompt(40, `,"stream":true`), "X-Request-Id", "r-1")
	defer response.Body.Close()
	g.stop()
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("a cut answer looks whole")
	}
	if f := e.stories()["r-1"].finished[0]; f.Status != pb.Status_STATUS_UPSTREAM_ERROR || f.ErrorKind != "gateway_stopped" {
		t.Errorf("got %v", f)
	}
}

// Many requests of all kinds at once: each has exactly one outcome.
func TestExactlyOneOutcome(t *testing.T) {
	e := newEnv(t)
	good := e.engine("engine-0", nil)
	bad := e.engine("engine-1", func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) })
	router, _ := e.router(choose(bad, good))
	g := e.gateway(2, Config{})
	const requests = 200
	var clients sync.WaitGroup
	for worker := range 8 {
		clients.Go(func() {
			for i := worker; i < requests; i += 8 {
				ctx, cancel := context.WithCancel(context.Background())
				if i%5 == 0 {
					time.AfterFunc(time.Duration(i)*10*time.Microsecond, cancel)
				}
				rest := ""
				if i%2 == 0 {
					rest = `,"stream":true`
				}
				response, err := g.send(ctx, completionsPath, prompt(40, rest), "X-Request-Id", fmt.Sprintf("r-%d", i))
				if err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
				cancel()
				if i == requests/2 {
					router.set(choose(good))
				}
			}
		})
	}
	clients.Wait()
	e.until("the end of all requests", func() bool { return g.active.Load() == 0 })
	all := e.stories(g)
	if len(all) > requests || len(all) < requests*4/5 {
		t.Errorf("%d requests have events", len(all))
	}
	if g.InFlight("engine-0") != 0 || g.InFlight("engine-1") != 0 || g.bodies.Load() != 0 || g.admission.inUse() != 0 {
		t.Errorf("left: %d and %d in flight, %d body bytes, %d slots", g.InFlight("engine-0"), g.InFlight("engine-1"), g.bodies.Load(), g.admission.inUse())
	}
}

func TestConfigIsChecked(t *testing.T) {
	for words, cfg := range map[string]Config{
		"--pool":          {},
		"--name":          {Pool: "p", Name: "a.b"},
		"--clock":         {Pool: "p", Clock: "sun"},
		"--router-budget": {Pool: "p", RouterBudget: -1},
		"--queue-timeout": {Pool: "p", QueueTimeout: -1},
		"two keys":        {Pool: "p", EngineKey: "k", ForwardAuthorization: true},
	} {
		if _, err := cfg.withDefaults(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %s", err, words)
		}
	}
	if cfg, err := (Config{Pool: "p"}).withDefaults(); err != nil || streams.ValidName(cfg.Name) != nil {
		t.Errorf("got %+v, %v", cfg, err)
	}
}
