package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Requests wait for a place in the order they came, and their wait is recorded.
func TestQueue(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	e.router(choose(n))
	g := e.gateway(1, Config{MaxConcurrent: 1, Queue: 2, QueueTimeout: patience})
	var clients sync.WaitGroup
	start := func(id string) {
		clients.Go(func() {
			response, err := g.send(t.Context(), completionsPath, prompt(40, `,"stream":true`), "X-Request-Id", id)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK || string(text) != eventStop {
				t.Errorf("%s: got %d %q, %v", id, response.StatusCode, text, err)
			}
		})
	}
	start("r-0")
	wait(e, "the first request at the engine", source.body)
	for i, id := range []string{"r-1", "r-2"} {
		start(id)
		e.until("the queue", func() bool { return g.metric("queue_length") == float64(i+1) })
	}
	status, text, h := g.ask(prompt(40, ""))
	if status != 503 || h.Get("Retry-After") == "" || !strings.Contains(text, "--queue") {
		t.Errorf("got %d %s %v above the queue", status, text, h)
	}
	for i := range 3 {
		source.parts <- eventStop
		source.parts <- "end"
		if i < 2 {
			wait(e, "the next request at the engine", source.body)
		}
	}
	clients.Wait()
	all := e.stories(g)
	var order []string
	for id, s := range all {
		order = append(order, id)
		if f := s.finished[0]; f.GatewayQueueUs == nil || id != "r-0" && f.GetGatewayQueueUs() == 0 || f.GetGatewayQueueUs() > f.GetDispatchUs() {
			t.Errorf("%s: waited %d us of %d until it was sent", id, f.GetGatewayQueueUs(), f.GetDispatchUs())
		}
	}
	slices.SortFunc(order, func(a, b string) int {
		return int(all[a].decided[0].DecidedAtUs - all[b].decided[0].DecidedAtUs)
	})
	if !slices.Equal(order, []string{"r-0", "r-1", "r-2"}) {
		t.Errorf("served in the order %v", order)
	}
	if g.metric("queue_length") != 0 || g.admission.inUse() != 0 {
		t.Error("places are left taken")
	}
}

func TestQueueTimeout(t *testing.T) {
	e := newEnv(t)
	source := newGated()
	n := e.engine("engine-0", source.serve)
	e.router(choose(n))
	g := e.gateway(1, Config{MaxConcurrent: 1, Queue: 1, QueueTimeout: time.Millisecond})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if response, err := g.send(t.Context(), completionsPath, prompt(40, `,"stream":true`)); err == nil {
			_ = response.Body.Close()
		}
	}()
	wait(e, "the request at the engine", source.body)
	status, text, h := g.ask(prompt(40, ""))
	if status != http.StatusServiceUnavailable || h.Get("Retry-After") == "" || !strings.Contains(text, "--queue-timeout") || g.metric("rejected_total", "reason", rejectedQueueTimeout) != 1 {
		t.Errorf("got %d %s", status, text)
	}
	source.parts <- eventHello
	close(source.parts)
	<-done
	e.until("the end", func() bool { return g.active.Load() == 0 })
	e.stories(g)
}
