package dev

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"warmpath/engine/workload"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeBinary()
		os.Exit(code)
	}))
}

// fakeFleet answers requests like a gateway in front of engines that live by a
// model clock: every answer takes service of model time.
type fakeFleet struct {
	clock   *ModelClock
	driver  *driver
	service time.Duration
	status  func(id string) int

	mu       sync.Mutex
	arrivals []string
}

func (f *fakeFleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("X-Request-Id")
	_, _ = io.Copy(io.Discard, r.Body)
	f.mu.Lock()
	f.arrivals = append(f.arrivals, fmt.Sprintf("%s@%v", strings.TrimPrefix(id, "t-"), f.clock.Now()))
	f.mu.Unlock()
	if status := f.status(id); status != http.StatusOK {
		http.Error(w, "refused", status)
		return
	}
	done := make(chan struct{})
	f.clock.At(f.clock.Now()+f.service, func() {
		f.driver.finished(id)
		close(done)
	})
	f.driver.accepted(id)
	<-done
	fmt.Fprint(w, "data: {\"choices\":[]}\n\ndata: {\"usage\":{\"prompt_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n")
}

// drive replays a trace against a fakeFleet and returns the arrivals.
func drive(t *testing.T, trace *workload.Trace, status func(id string) int) ([]string, totals) {
	t.Helper()
	clock := NewModelClock(time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	stopped := make(chan struct{})
	go func() { clock.Run(ctx); close(stopped) }()
	d := newDriver(trace, clock)
	fleet := &fakeFleet{clock: clock, driver: d, service: 10 * time.Second, status: status}
	server := httptest.NewServer(fleet)
	d.client, d.prefix = newClient(server.URL, "m"), "t"
	settled := 0
	d.settle = func(context.Context) error { settled++; return nil }
	err := d.run(ctx)
	d.client.http.CloseIdleConnections()
	server.Close()
	cancel()
	<-stopped
	if err != nil {
		t.Fatal(err)
	}
	if settled != trace.Count() || clock.Expired() != 0 {
		t.Errorf("settled %d times for %d requests, %d holds expired", settled, trace.Count(), clock.Expired())
	}
	return fleet.arrivals, d.result()
}

func ok(string) int { return http.StatusOK }

func request(at, think time.Duration) workload.Request {
	return workload.Request{At: at, Think: think, PromptTokens: 10, OutputTokens: 1}
}

func TestClosedLoopArrivesAtModelTimes(t *testing.T) {
	const s = time.Second
	trace := &workload.Trace{BlockTokens: 16, Sessions: []workload.Session{
		{ID: "a", Requests: []workload.Request{request(0, 0), request(0, 5*s), request(100*s, 5*s)}},
		{ID: "b", Requests: []workload.Request{request(3*s, 0), request(0, time.Hour)}},
		{ID: "a/agent", Parent: &workload.Parent{Session: 0, Request: 0, Delay: 2 * s}, Requests: []workload.Request{request(0, 0), request(0, s)}},
		{ID: "a/first", Parent: &workload.Parent{Session: 0, Request: -1, Delay: 4 * s}, Requests: []workload.Request{request(0, 0)}},
	}}
	got, totals := drive(t, trace, ok)
	want := []string{
		"0-0@0s", "1-0@3s", "3-0@4s", "2-0@12s", "0-1@15s", "2-1@23s", "0-2@1m40s",
		"1-1@1h0m13s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("arrivals %v\nwant %v", got, want)
	}
	if totals.Done != 8 || totals.Failed != 0 || totals.PromptTokens != 80 || totals.CachedTokens != 32 {
		t.Errorf("totals %+v", totals)
	}
}

func TestUsersTakeTheNextSession(t *testing.T) {
	trace := &workload.Trace{BlockTokens: 16, Users: 2}
	for range 4 {
		trace.Sessions = append(trace.Sessions, workload.Session{Requests: []workload.Request{request(0, 0)}})
	}
	got, _ := drive(t, trace, ok)
	if want := []string{"0-0@0s", "1-0@2s", "2-0@10s", "3-0@12s"}; !slices.Equal(got, want) {
		t.Errorf("arrivals %v, want %v", got, want)
	}
}

// A request that fails is counted, and its conversation goes on.
func TestFailuresAreCounted(t *testing.T) {
	trace := &workload.Trace{BlockTokens: 16, Sessions: []workload.Session{
		{ID: "a", Requests: []workload.Request{request(0, 0), request(0, time.Second)}},
	}}
	got, totals := drive(t, trace, func(id string) int {
		if id == "t-0-0" {
			return http.StatusBadGateway
		}
		return http.StatusOK
	})
	if want := []string{"0-0@0s", "0-1@1s"}; !slices.Equal(got, want) {
		t.Errorf("arrivals %v, want %v", got, want)
	}
	if totals.Failed != 1 || totals.Done != 2 {
		t.Errorf("totals %+v", totals)
	}
}

func TestReadAnswer(t *testing.T) {
	const usage = `data: {"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	for name, c := range map[string]struct {
		status int
		body   string
		cached uint64
		want   string // of the error
	}{
		"complete":     {200, usage + "data: [DONE]\n\n", 4, ""},
		"no details":   {200, `data: {"usage":{"prompt_tokens":10}}` + "\n\ndata: [DONE]\n\n", 0, ""},
		"cut off":      {200, usage, 4, "before it was complete"},
		"error event":  {200, `data: {"error":{"message":"gone"}}` + "\n\n", 0, "gone"},
		"broken event": {200, `data: {"usage":` + "\n\n", 0, "not JSON"},
		"refused":      {503, "no replica", 0, "no replica"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readAnswer(&http.Response{
				StatusCode: c.status, Status: fmt.Sprint(c.status), Body: io.NopCloser(strings.NewReader(c.body)),
			})
			if got.cached() != c.cached {
				t.Errorf("%d cached tokens", got.cached())
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// A gateway that is being started again refuses connections for a while.
func TestClientWaitsForARestartedGateway(t *testing.T) {
	at, err := address("")
	if err != nil {
		t.Fatal(err)
	}
	c := newClient("http://"+at, "m")
	defer c.http.CloseIdleConnections()
	answer := make(chan error, 1)
	go func() {
		trace := &workload.Trace{BlockTokens: 16}
		_, err := c.complete(t.Context(), trace, &workload.Session{}, new(request(0, 0)), "x")
		answer <- err
	}()
	time.Sleep(3 * refusedPause) // it is refused at least once, or comes late, which is as good
	server := &http.Server{Addr: at, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data: [DONE]\n\n")
	})}
	go func() { _ = server.ListenAndServe() }()
	defer server.Close()
	if err := <-answer; err != nil {
		t.Error(err)
	}
}
