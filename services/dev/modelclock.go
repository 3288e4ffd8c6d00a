package dev

import (
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// ModelClock is the time of simulated engines: it stands still while anything
// of the run is on its way in the real world, and else jumps to the next event.
// So durations by it are true to the modelled engines, however slow the machine
// is that runs them. It implements simengine.Clock.
//
// What is on its way takes a Hold. A hold that is not released in time, because
// whoever had it was killed, is given up by a watchdog, logged and counted: it
// costs accuracy, and does not freeze the run.
//
// All methods are safe for concurrent use. Events run one at a time, in order of
// time and, within one instant, in the order in which At was called.
type ModelClock struct {
	patience time.Duration

	mu      sync.Mutex
	now     time.Duration
	events  eventHeap
	next    uint64 // order of At calls
	holds   map[*Hold]struct{}
	expired int
	changed chan struct{} // one signal for Run
}

// NewModelClock returns a clock that stands at 0 until Run. patience is how long
// a hold may last on the wall clock.
func NewModelClock(patience time.Duration) *ModelClock {
	return &ModelClock{patience: patience, holds: map[*Hold]struct{}{}, changed: make(chan struct{}, 1)}
}

// event is one call that At asked for.
type event struct {
	at    time.Duration
	order uint64
	call  func()
	index int // in the heap; -1 when not there
}

// Now is the current instant.
func (c *ModelClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// At has Run call f at t, or at once when t is past, once nothing holds the
// clock. cancel takes the event back; it does nothing when f has started.
func (c *ModelClock) At(t time.Duration, f func()) (cancel func()) {
	c.mu.Lock()
	e := &event{at: max(t, c.now), order: c.next, call: f}
	c.next++
	heap.Push(&c.events, e)
	c.mu.Unlock()
	c.signal()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if e.index >= 0 {
			heap.Remove(&c.events, e.index)
		}
	}
}

// Hold keeps a ModelClock where it stands.
type Hold struct {
	clock *ModelClock
	timer *time.Timer
}

// Hold stops the clock until Release. what says for the log what is on its way.
func (c *ModelClock) Hold(what string) *Hold {
	h := &Hold{clock: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds[h] = struct{}{}
	h.timer = time.AfterFunc(c.patience, func() {
		if c.release(h, true) {
			slog.Warn("the model clock was held for too long and goes on; times of this run are less true", "waiting_for", what, "patience", c.patience)
		}
	})
	return h
}

// Release lets the clock go on. It may be called again, and on nil.
func (h *Hold) Release() {
	if h != nil {
		h.clock.release(h, false)
	}
}

func (c *ModelClock) release(h *Hold, expired bool) bool {
	c.mu.Lock()
	_, held := c.holds[h]
	delete(c.holds, h)
	if held && expired {
		c.expired++
	}
	c.mu.Unlock()
	h.timer.Stop()
	if held {
		c.signal()
	}
	return held
}

// Expired counts holds that were given up.
func (c *ModelClock) Expired() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expired
}

func (c *ModelClock) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Run runs the events until ctx ends. It is called once.
func (c *ModelClock) Run(ctx context.Context) {
	for {
		if call := c.advance(); call != nil {
			call()
			if ctx.Err() != nil {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		}
	}
}

// advance moves to the next event and returns what it calls; nil while the clock
// is held or nothing is to come.
func (c *ModelClock) advance() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.holds) > 0 || len(c.events) == 0 {
		return nil
	}
	e := heap.Pop(&c.events).(*event)
	c.now = e.at
	return e.call
}

// String says where the clock stands and what holds it, for messages.
func (c *ModelClock) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%v, %d events, %d holds", c.now, len(c.events), len(c.holds))
}

// eventHeap orders events by time, then by order.
type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].order < h[j].order
}
func (h eventHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push appends an event, as heap.Interface asks.
func (h *eventHeap) Push(x any) {
	e := x.(*event)
	e.index = len(*h)
	*h = append(*h, e)
}

// Pop takes the last event, as heap.Interface asks.
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}
