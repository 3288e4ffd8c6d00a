package gateway

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"warmpath/streams"
)

func TestRequestIDs(t *testing.T) {
	e := newEnv(t)
	var forwarded []string
	n := e.engine("engine.dp3", func(w http.ResponseWriter, r *http.Request, body []byte) {
		forwarded = append(forwarded, r.Header.Get("X-Request-Id")+" "+r.Header.Get("X-Data-Parallel-Rank")+" "+r.Header.Get("Authorization"))
		respond(w, body, answerJSON(10, "0"))
	})
	e.router(choose(n))
	g := e.gateway(1, Config{ForwardAuthorization: true})
	var ids, echoed []string
	for _, id := range []string{"kept-1", "kept-1", "not/kept", strings.Repeat("x", 200), ""} {
		h := g.mustAsk(prompt(10, ""), "X-Request-Id", id, "Authorization", "Bearer k", "X-Data-Parallel-Rank", "9")
		ids, echoed = append(ids, h.Get(headerRequestID)), append(echoed, h.Get("X-Request-Id"))
	}
	if ids[0] != "kept-1" || !strings.HasPrefix(ids[1], "kept-1~") || len(e.stories(g)) != 5 {
		t.Errorf("got ids %q and %d stories", ids, len(e.stories(g)))
	}
	for i, id := range ids {
		if forwarded[i] != id+" 3 Bearer k" {
			t.Errorf("forwarded %q for %q", forwarded[i], id)
		}
		switch {
		case i < 2:
			if echoed[i] != "kept-1" {
				t.Errorf("the client's id came back as %q", echoed[i])
			}
		case len(id) != 36 || id[14] != '7' || echoed[i] != id:
			t.Errorf("id %q is not a UUIDv7, or came back as %q", id, echoed[i])
		}
	}
}

// A client's id may come to several gateways, and to one that starts again.
// Nothing of that is lost as a duplicate, and nothing of two requests is mixed up
// for longer than an event takes to arrive.
func TestRequestIDsAcrossGateways(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	e.router(choose(n))
	first := e.gateway(1, Config{Name: "gw-0"})
	second := e.gateway(1, Config{Name: "gw-1"})
	first.mustAsk(prompt(40, ""), "X-Request-Id", "r-1")
	if err := first.publisher.Flush(e.context()); err != nil {
		t.Fatal(err)
	}
	e.until("the other gateway's knowledge", func() bool {
		second.recent.mu.Lock()
		defer second.recent.mu.Unlock()
		_, known := second.recent.now["r-1"]
		return known
	})
	ids := []string{"r-1", second.mustAsk(prompt(40, ""), "X-Request-Id", "r-1").Get(headerRequestID)}
	// Two that cannot know of each other yet.
	forgetful := func(g *running) {
		g.recent.mu.Lock()
		defer g.recent.mu.Unlock()
		g.recent.now, g.recent.before = nil, nil
	}
	forgetful(first)
	first.mustAsk(prompt(40, ""), "X-Request-Id", "r-1")
	first.stop()
	again := e.gateway(1, Config{Name: "gw-0"})
	e.until("knowledge of the life before", func() bool {
		again.recent.mu.Lock()
		defer again.recent.mu.Unlock()
		_, known := again.recent.now["r-1"]
		return known
	})
	ids = append(ids, again.mustAsk(prompt(40, ""), "X-Request-Id", "r-1").Get(headerRequestID))
	if err := errors.Join(second.publisher.Flush(e.context()), again.publisher.Flush(e.context())); err != nil {
		t.Fatal(err)
	}
	if ids[1] == "r-1" || ids[2] == "r-1" || ids[1] == ids[2] {
		t.Errorf("got ids %q", ids)
	}
	// Four requests, a decision and an outcome each.
	if last, err := streams.LastSeq(e.context(), e.js, streams.RouteStream); err != nil || last != 8 {
		t.Errorf("the stream has %d events, %v; want 8", last, err)
	}
}

func TestRecentIDs(t *testing.T) {
	var s recentIDs
	now := time.Unix(1000, 0)
	if !s.add("a", now) || s.add("a", now.Add(recentFor-time.Second)) {
		t.Error("an id must be new once")
	}
	if s.add("a", now.Add(recentFor+time.Second)) {
		t.Error("an id was forgotten while JetStream may still know it")
	}
	if !s.add("a", now.Add(3*recentFor)) {
		t.Error("an id is remembered for too long")
	}
}
