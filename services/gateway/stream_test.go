package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	pb "warmpath/schemas/warmpathv1"
)

// gated is an engine that sends one part of a stream each time it is told to.
type gated struct {
	parts chan string
	body  chan []byte
	gone  chan struct{}
}

func newGated() *gated {
	return &gated{parts: make(chan string), body: make(chan []byte, 1), gone: make(chan struct{})}
}

func (g *gated) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	g.body <- body
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		select {
		case part, more := <-g.parts:
			if !more {
				return
			}
			if part == "" { // break off
				panic(http.ErrAbortHandler)
			}
			if part == "end" {
				return
			}
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			close(g.gone)
			return
		}
	}
}

// Each part must reach the client before the engine sends the next: with a
// buffer anywhere between, this test would wait for ever.
func TestStreamPassesThroughUnbuffered(t *testing.T) {
	for name, c := range map[string]struct{ rest, sent, seen string }{
		"usage injected": {`,"stream":true`, eventUsage, ""},
		"usage refused":  {`,"stream":true,"stream_options":{"include_usage":false}`, eventUsage, ""},
		"usage asked":    {`,"stream":true,"stream_options":{"include_usage":true}`, eventUsage, eventUsage},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			source := newGated()
			n := e.engine("engine-0", source.serve)
			e.router(choose(n))
			g := e.gateway(1, Config{})
			body := prompt(40, c.rest)
			// The first part is sent before the client has its response.
			go func() { source.parts <- eventRole }()
			response := g.post(completionsPath, body, "X-Request-Id", "r-1")
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("got %d %v", response.StatusCode, response.Header)
			}
			reader := bufio.NewReader(response.Body)
			expect := func(want string) {
				t.Helper()
				got := make([]byte, len(want))
				if _, err := io.ReadFull(reader, got); err != nil || string(got) != want {
					t.Fatalf("got %q, %v; want %q", got, err, want)
				}
			}
			expect(eventRole)
			for _, part := range []string{eventComment, eventHello, eventWorld, eventStop} {
				source.parts <- part
				expect(part)
			}
			source.parts <- c.sent
			expect(c.seen)
			if got := g.publisher.Stats().Published; got != 1 {
				t.Errorf("%d events were published before the end, want the decision alone", got)
			}
			source.parts <- eventDone
			expect(eventDone)
			if got := g.publisher.Stats().Published; got != 2 {
				t.Errorf("%d events were published when the client had the end, want the outcome too", got)
			}
			close(source.parts)
			if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
				t.Fatalf("after the end came %q, %v", rest, err)
			}
			if got := response.Trailer.Get(headerCached); got != "32" {
				t.Errorf("the trailer says %q cached tokens", got)
			}
			checkForwarded(t, wait(e, "the body", source.body), body)
			s := g.story("r-1")
			f := s.finished[0]
			if s.order != "df" || f.Status != pb.Status_STATUS_OK || !f.Streamed || f.HttpStatus != 200 || f.Clock != pb.Clock_CLOCK_WALL ||
				f.GetPromptTokens() != 40 || f.GetCompletionTokens() != 3 || f.CachedTokens == nil || *f.CachedTokens != 32 ||
				f.TtftUs == nil || f.TpotUs == nil || f.DispatchUs == nil || f.EngineUs == nil || f.GatewayQueueUs == nil ||
				f.GetDispatchUs()+f.GetEngineUs() != f.GetTtftUs() || f.GetGatewayQueueUs() > f.GetDispatchUs() || f.E2EUs == 0 || f.FinishReason != "stop" || f.Replica != "engine-0" {
				t.Errorf("got %v", f)
			}
		})
	}
}

// checkForwarded compares what the engine got with what the client sent: the
// same but for include_usage, which is true.
func checkForwarded(t *testing.T, got []byte, sent string) {
	t.Helper()
	var a, b map[string]json.RawMessage
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatalf("forwarded %q: %v", got, err)
	}
	if err := json.Unmarshal([]byte(sent), &b); err != nil {
		t.Fatal(err)
	}
	if string(a["stream_options"]) != `{"include_usage":true}` {
		t.Errorf("stream_options is %s", a["stream_options"])
	}
	delete(a, "stream_options")
	delete(b, "stream_options")
	if len(a) != len(b) {
		t.Errorf("forwarded %s, sent %s", got, sent)
	}
	for name := range b {
		if string(a[name]) != string(b[name]) {
			t.Errorf("%s became %s", name, a[name])
		}
	}
}

func TestWholeAnswer(t *testing.T) {
	for cached, want := range map[string]string{"": "absent", "null": "absent", "0": "0", "32": "32"} {
		t.Run("cached "+want, func(t *testing.T) {
			e := newEnv(t)
			var forwarded []byte
			n := e.engine("engine-0", func(w http.ResponseWriter, _ *http.Request, body []byte) {
				forwarded = body
				respond(w, body, answerJSON(40, cached))
			})
			e.router(choose(n))
			g := e.gateway(1, Config{})
			body := prompt(40, `, "max_tokens" : 2`)
			status, text, h := g.ask(body, "X-Request-Id", "r-1")
			if status != 200 || text != answerJSON(40, cached) || string(forwarded) != body {
				t.Errorf("got %d %q, forwarded %q", status, text, forwarded)
			}
			for name, value := range map[string]string{headerReplica: "engine-0", headerRequestID: "r-1", headerPredicted: "8", headerAttempt: "0", headerCached: strings.TrimPrefix(want, "absent")} {
				if h.Get(name) != value {
					t.Errorf("%s is %q, want %q", name, h.Get(name), value)
				}
			}
			if h.Get(headerDecision) == "" {
				t.Errorf("%s is missing", headerDecision)
			}
			f := g.story("r-1").finished[0]
			if f.TtftUs != nil || f.TpotUs != nil || f.Streamed || f.GetCompletionTokens() != 2 {
				t.Errorf("got %v; the first token of a whole answer cannot be timed", f)
			}
			switch {
			case want == "absent" && f.CachedTokens != nil, want == "0" && (f.CachedTokens == nil || *f.CachedTokens != 0), want == "32" && f.GetCachedTokens() != 32:
				t.Errorf("cached tokens are %v, want %s", f.CachedTokens, want)
			}
			if got := g.metric("cached_tokens_unreported_total"); (got == 1) != (want == "absent") {
				t.Errorf("unreported is %v", got)
			}
		})
	}
}

func TestModelClock(t *testing.T) {
	for name, c := range map[string]struct {
		timing string
		check  func(*pb.Finished) bool
	}{
		"whole": {`,"warmpath_timing":{"clock":"model","queue_us":5,"ttft_us":70,"e2e_us":900,"tpot_us":12}`, func(f *pb.Finished) bool {
			return f.Clock == pb.Clock_CLOCK_MODEL && f.GetQueueUs() == 5 && f.GetTtftUs() == 70 && f.E2EUs == 900 && f.GetTpotUs() == 12
		}},
		"no tpot": {`,"warmpath_timing":{"clock":"model","ttft_us":70,"e2e_us":900}`, func(f *pb.Finished) bool {
			return f.Clock == pb.Clock_CLOCK_MODEL && f.GetTtftUs() == 70 && f.TpotUs == nil && f.QueueUs == nil
		}},
		"absent": {``, func(f *pb.Finished) bool { return f.Clock == pb.Clock_CLOCK_WALL && f.TtftUs == nil && f.TpotUs == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			n := e.engine("engine-0", func(w http.ResponseWriter, _ *http.Request, body []byte) {
				if strings.Contains(string(body), `"stream":true`) {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, eventHello+eventStop+`data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":2}`+c.timing+"}\n\n"+eventDone)
					return
				}
				respond(w, body, strings.TrimSuffix(answerJSON(40, "0"), "}")+c.timing+"}")
			})
			e.router(choose(n))
			g := e.gateway(1, Config{Clock: ClockModel})
			g.mustAsk(prompt(40, ""), "X-Request-Id", "whole")
			g.mustAsk(prompt(40, `,"stream":true`), "X-Request-Id", "stream")
			for id, s := range e.stories(g) {
				if f := s.finished[0]; !c.check(f) {
					t.Errorf("%s: got %v", id, f)
				}
			}
		})
	}
}

func TestClientLeaves(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	e.router(choose(n))
	g := e.gateway(1, Config{})
	ctx, leave := context.WithCancel(context.Background())
	go func() { source.parts <- eventHello }()
	response, err := g.send(ctx, completionsPath, prompt(40, `,"stream":true`), "X-Request-Id", "r-1")
	if err != nil {
		t.Fatal(err)
	}
	leave()
	_ = response.Body.Close()
	wait(e, "the cancellation at the engine", source.gone)
	e.until("the outcome", func() bool { return g.metric("requests_total", "status", "cancelled") == 1 })
	f := g.story("r-1").finished[0]
	if f.Status != pb.Status_STATUS_CANCELLED || f.TtftUs == nil || f.Replica != "engine-0" {
		t.Errorf("got %v", f)
	}
	if n := g.InFlight("engine-0"); n != 0 {
		t.Errorf("%d requests are in flight after the client left", n)
	}
}

func TestClientLeavesBeforeTheAnswer(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	e.router(choose(n))
	g := e.gateway(1, Config{})
	ctx, leave := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := g.send(ctx, completionsPath, prompt(40, `,"stream":true`), "X-Request-Id", "r-1")
		done <- err
	}()
	wait(e, "the request at the engine", source.body)
	leave()
	if err := wait(e, "the client's end", done); err == nil {
		t.Error("the client got an answer")
	}
	wait(e, "the cancellation at the engine", source.gone)
	e.until("the outcome", func() bool { return g.metric("requests_total", "status", "cancelled") == 1 })
	s := g.story("r-1")
	if f := s.finished[0]; s.order != "df" || f.Status != pb.Status_STATUS_CANCELLED || f.TtftUs != nil {
		t.Errorf("got %s %v", s.order, f)
	}
}

// An answer that breaks off must not look whole to the client.
func TestEngineBreaksOff(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	other := e.engine("engine-1", nil)
	e.router(choose(n, other))
	g := e.gateway(2, Config{})
	go func() {
		source.parts <- eventHello
		source.parts <- ""
	}()
	response := g.post(completionsPath, prompt(40, `,"stream":true`), "X-Request-Id", "r-1")
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err == nil || string(text) != eventHello {
		t.Errorf("got %q, %v; want the first event and an error", text, err)
	}
	s := g.story("r-1")
	if f := s.finished[0]; s.order != "df" || f.Status != pb.Status_STATUS_UPSTREAM_ERROR || f.ErrorKind != kindReset || f.HttpStatus != 200 {
		t.Errorf("got %s %v; a request that the client has a part of must not move", s.order, f)
	}
	if other.asked.Load() != 0 {
		t.Error("the other replica was asked")
	}
}

func TestStreamEndsTooEarly(t *testing.T) {
	for name, c := range map[string]struct{ text, kind string }{
		"no finish reason": {eventHello, kindTruncated},
		"error inside":     {eventHello + `data: {"error":{"message":"out of memory"}}` + "\n\n" + eventDone, kindStream},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			n := e.engine("engine-0", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, c.text)
			})
			e.router(choose(n))
			g := e.gateway(1, Config{})
			if _, text, _ := g.ask(prompt(40, `,"stream":true`), "X-Request-Id", "r-1"); text != c.text {
				t.Errorf("got %q", text)
			}
			if f := g.story("r-1").finished[0]; f.Status != pb.Status_STATUS_UPSTREAM_ERROR || f.ErrorKind != c.kind {
				t.Errorf("got %v", f)
			}
		})
	}
}
