package dev

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"warmpath/engine/workload"
	"warmpath/services/simengine"
)

const (
	// userGap is the time between the first sessions of users that are there from
	// the start: eight replicas take in a long first prompt in about as long.
	userGap = 2 * time.Second
	// settleTimeout bounds the wait for the engines' events before an arrival.
	settleTimeout = 30 * time.Second
)

// driver replays a trace against a gateway: sessions side by side, the requests
// of each one after the other. Arrivals are events of the engines' clock.
type driver struct {
	trace  *workload.Trace
	client *client
	clock  simengine.Clock
	// model is clock when it is a model clock; nil when arrivals are by the wall.
	model *ModelClock
	// settle waits until the router can know what the engines did so far; called
	// before each arrival by the model clock.
	settle func(context.Context) error
	// prefix makes request ids unique among runs.
	prefix string

	branches map[int][]int // sub-agents by their parent
	left     sync.WaitGroup

	mu      sync.Mutex
	flights map[string]*flight
	queue   []int // sessions that start when another one ends
	totals  totals
	reasons map[string]int
}

// totals are what the driver counts.
type totals struct {
	Requests, Done, Failed       int
	PromptTokens, CachedTokens   uint64
	UnsettledArrivals, Unstarted int
}

// flight is one request on its way.
type flight struct {
	arrival, answer *Hold
	over            bool
}

func newDriver(trace *workload.Trace, clock simengine.Clock) *driver {
	d := &driver{
		trace: trace, clock: clock, flights: map[string]*flight{}, branches: map[int][]int{}, reasons: map[string]int{},
	}
	d.model, _ = clock.(*ModelClock)
	d.totals.Requests = trace.Count()
	for i := range trace.Sessions {
		if parent := trace.Sessions[i].Parent; parent != nil {
			d.branches[parent.Session] = append(d.branches[parent.Session], i)
		} else if trace.Users > 0 {
			d.queue = append(d.queue, i)
		}
	}
	return d
}

// hooks tell the driver about the engines' side of its requests.
func (d *driver) hooks() simengine.Hooks {
	if d.model == nil {
		return simengine.Hooks{}
	}
	return simengine.Hooks{Accepted: d.accepted, Finished: d.finished}
}

// accepted lets the clock go on: the request is in an engine.
func (d *driver) accepted(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.flights[id]; f != nil {
		f.arrival.Release()
	}
}

// finished holds the clock until the answer has been read, so that what follows
// the answer happens at the right time.
func (d *driver) finished(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.flights[id]; f != nil && !f.over && f.answer == nil {
		f.answer = d.model.Hold("the answer of " + id)
	}
}

// run replays the trace and returns when every request has ended, or ctx has.
func (d *driver) run(ctx context.Context) error {
	var setup *Hold
	if d.model != nil {
		setup = d.model.Hold("the start of the trace")
	}
	base := d.clock.Now()
	d.left.Add(d.totals.Requests)
	for i := range d.trace.Sessions {
		s := &d.trace.Sessions[i]
		if s.Parent == nil && d.trace.Users == 0 {
			d.startSession(ctx, base, i, base+s.Requests[0].At)
		}
	}
	for i := range min(d.trace.Users, len(d.queue)) {
		d.startNext(ctx, base, base+time.Duration(i)*userGap)
	}
	setup.Release()
	done := make(chan struct{})
	go func() { d.left.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startNext starts the next session in the queue, if there is one.
func (d *driver) startNext(ctx context.Context, base, at time.Duration) {
	d.mu.Lock()
	if len(d.queue) == 0 {
		d.mu.Unlock()
		return
	}
	next := d.queue[0]
	d.queue = d.queue[1:]
	d.mu.Unlock()
	d.startSession(ctx, base, next, at)
}

// startSession schedules a session's first request, and the sub-agents that
// branch off before it.
func (d *driver) startSession(ctx context.Context, base time.Duration, session int, at time.Duration) {
	d.schedule(ctx, base, session, 0, at)
	d.branch(ctx, base, session, -1, at)
}

// branch starts the sub-agents that branch off after a request.
func (d *driver) branch(ctx context.Context, base time.Duration, session, request int, now time.Duration) {
	for _, child := range d.branches[session] {
		if p := d.trace.Sessions[child].Parent; p.Request == request {
			d.startSession(ctx, base, child, now+p.Delay)
		}
	}
}

// schedule sends a request at a time of the clock.
func (d *driver) schedule(ctx context.Context, base time.Duration, session, request int, at time.Duration) {
	d.clock.At(at, func() {
		if ctx.Err() != nil {
			return
		}
		id := fmt.Sprintf("%s-%d-%d", d.prefix, session, request)
		f := &flight{}
		if d.model != nil {
			d.settled(ctx)
			f.arrival = d.model.Hold("the arrival of " + id)
		}
		d.mu.Lock()
		d.flights[id] = f
		d.mu.Unlock()
		go d.send(ctx, base, session, request, id, f)
	})
}

// settled waits until the engines' events so far are published.
func (d *driver) settled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := d.settle(ctx); err != nil {
		d.mu.Lock()
		d.totals.UnsettledArrivals++
		first := d.totals.UnsettledArrivals == 1
		d.mu.Unlock()
		if first && ctx.Err() == nil {
			slog.Warn("the router may know less than it should at an arrival", "reason", err)
		}
	}
}

// send makes one request and schedules what follows it.
func (d *driver) send(ctx context.Context, base time.Duration, session, request int, id string, f *flight) {
	s := &d.trace.Sessions[session]
	usage, err := d.client.complete(ctx, d.trace, s, &s.Requests[request], id)

	d.mu.Lock()
	if ctx.Err() == nil {
		d.count(id, usage, err)
	}
	f.over = true
	delete(d.flights, id)
	answer := f.answer
	d.mu.Unlock()

	now := d.clock.Now()
	if next := request + 1; next < len(s.Requests) {
		r := &s.Requests[next]
		d.schedule(ctx, base, session, next, max(now+r.Think, base+r.At))
	} else if s.Parent == nil && d.trace.Users > 0 {
		d.startNext(ctx, base, now)
	}
	d.branch(ctx, base, session, request, now)
	f.arrival.Release()
	answer.Release()
	d.left.Done()
}

// count notes how a request ended. The caller holds mu.
func (d *driver) count(id string, usage usage, err error) {
	d.totals.Done++
	d.totals.PromptTokens += usage.PromptTokens
	d.totals.CachedTokens += usage.cached()
	if err == nil {
		return
	}
	d.totals.Failed++
	reason := err.Error()
	if d.reasons[reason]++; d.reasons[reason] == 1 && len(d.reasons) <= 10 {
		slog.Error("a request failed", "request", id, "reason", reason)
	}
}

// progress is a line for people.
func (d *driver) progress() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.totals
	line := fmt.Sprintf("%d/%d requests", t.Done, t.Requests)
	if t.PromptTokens > 0 {
		line += fmt.Sprintf(", hit rate %.1f%%", 100*float64(t.CachedTokens)/float64(t.PromptTokens))
	}
	kind := "trace"
	if d.model != nil {
		kind = "model"
	}
	line += fmt.Sprintf(", %s time %v", kind, d.clock.Now().Round(time.Duration(math.Pow10(8))))
	if t.Failed > 0 {
		line += fmt.Sprintf(", %d FAILED", t.Failed)
	}
	return line
}

// result is what was counted so far.
func (d *driver) result() totals {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.totals
}
