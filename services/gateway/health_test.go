package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

func TestHealth(t *testing.T) {
	var changes []string
	h := newHealth(Config{FailuresToSkip: 3, SkipFor: time.Second}, func(name string, skipped bool) {
		changes = append(changes, fmt.Sprint(name, skipped))
	})
	now := time.Unix(1000, 0)
	fail := func() { h.tried("a"); h.missed("a", now) }
	skips := func(want bool) {
		t.Helper()
		if got := h.skipped(now); (len(got) == 1) != want {
			t.Errorf("skipped %v, want %v", got, want)
		}
	}
	fail()
	fail()
	skips(false)
	h.answered("a") // not in a row
	fail()
	fail()
	skips(false)
	fail()
	skips(true)
	h.missed("a", now) // a request that was on its way does not lengthen it
	now = now.Add(time.Second)
	skips(false)
	h.tried("a")
	skips(true) // one probe at a time
	h.left("a")
	skips(false)
	for i, while := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		fail()
		now = now.Add(while*time.Second - 1)
		skips(true)
		now = now.Add(1)
		if got := h.skipped(now); len(got) != 0 {
			t.Errorf("failure %d: skipped for longer than %d s", i, while)
		}
	}
	h.tried("a")
	h.answered("a")
	skips(false)
	fail()
	skips(false)
	if !slices.Equal(changes, []string{"atrue", "afalse"}) {
		t.Errorf("changes %v", changes)
	}
}

// A replica that fails again and again is left alone, and comes back.
func TestFailingReplicaIsSkipped(t *testing.T) {
	e := newEnv(t)
	var broken atomic.Bool
	broken.Store(true)
	bad := e.engine("engine-0", func(w http.ResponseWriter, _ *http.Request, body []byte) {
		if broken.Load() {
			panic(http.ErrAbortHandler)
		}
		respond(w, body, answerJSON(40, "32"))
	})
	good := e.engine("engine-1", nil)
	router, _ := e.router(choose(bad, good))
	g := e.gateway(2, Config{FailuresToSkip: 2, SkipFor: time.Hour})
	for range 2 {
		g.mustAsk(prompt(40, ""))
	}
	if got := g.metric("replicas_skipped"); got != 1 {
		t.Errorf("%v replicas are skipped", got)
	}
	broken.Store(false)
	asked := len(router.requests())
	if h := g.mustAsk(prompt(40, "")); h.Get(headerReplica) != good.name || h.Get(headerAttempt) != "0" {
		t.Errorf("got %v", h)
	}
	if q := router.requests()[asked]; !slices.Equal(q.Exclude, []string{bad.name}) {
		t.Errorf("the router was told to exclude %v", q.Exclude)
	}
	g.health.mu.Lock()
	g.health.failed[bad.name].until = time.Now()
	g.health.mu.Unlock()
	if h := g.mustAsk(prompt(40, "")); h.Get(headerReplica) != bad.name || g.metric("replicas_skipped") != 0 {
		t.Errorf("got %v, %v skipped", h, g.metric("replicas_skipped"))
	}
	// One that comes back as another process is tried at once.
	broken.Store(true)
	for range 2 {
		g.mustAsk(prompt(40, ""))
	}
	broken.Store(false)
	entry := proto.Clone(g.view.entry(bad.name)).(*pb.FleetEntry)
	entry.StartedUs++
	if err := streams.PutFleet(e.context(), e.js, entry); err != nil {
		t.Fatal(err)
	}
	e.until("the new process", func() bool { return g.metric("replicas_skipped") == 0 })
	e.stories(g)
}

// Health never leaves a pool without replicas: a bad one is better than none.
func TestOnlyReplicaIsNotSkipped(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) })
	e.router(choose(n))
	g := e.gateway(1, Config{FailuresToSkip: 1, SkipFor: time.Hour})
	for i := range 3 {
		if status, _, _ := g.ask(prompt(40, "")); status != http.StatusBadGateway {
			t.Errorf("request %d: got %d", i, status)
		}
	}
	if got := n.asked.Load(); got != 3 {
		t.Errorf("the only replica was asked %d times of 3", got)
	}
	e.stories(g)
}
