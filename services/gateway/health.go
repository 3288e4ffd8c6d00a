package gateway

import (
	"slices"
	"sync"
	"time"
)

// health skips replicas that failed several times in a row, for a while that
// doubles with each further failure. When it is over one request at a time may
// try, and its success ends it. Safe for concurrent use.
type health struct {
	after    int           // failures in a row
	first    time.Duration // the first while
	longest  time.Duration
	onChange func(replica string, skipped bool)

	mu     sync.Mutex
	failed map[string]*failing
}

// failing is a replica that failed and did not answer since.
type failing struct {
	inRow   int
	until   time.Time // not tried before
	probing bool
}

func newHealth(cfg Config, onChange func(string, bool)) *health {
	return &health{
		after: cfg.FailuresToSkip, first: cfg.SkipFor, longest: max(cfg.SkipFor, longestSkip),
		onChange: onChange, failed: map[string]*failing{},
	}
}

// longestSkip bounds the while: an engine takes minutes to load a model, and a
// probe a minute costs one request's retry.
const longestSkip = time.Minute

// skipped returns the replicas not to be tried now, sorted.
func (h *health) skipped(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for name, f := range h.failed {
		if f.inRow >= h.after && (f.probing || now.Before(f.until)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// tried says that a request is sent to a replica. Each call must be followed by
// answered, missed or left.
func (h *health) tried(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.failed[name]; f != nil && f.inRow >= h.after {
		f.probing = true
	}
}

// answered takes an answer, whatever it says, or the replica's start anew.
func (h *health) answered(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.failed[name]
	if f == nil {
		return
	}
	delete(h.failed, name)
	if f.inRow >= h.after {
		h.onChange(name, false)
	}
}

// missed counts a failure.
func (h *health) missed(name string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.failed[name]
	if f == nil {
		f = &failing{}
		h.failed[name] = f
	}
	if f.inRow >= h.after && !f.probing && now.Before(f.until) {
		return // sent before the others failed: the same trouble
	}
	f.inRow++
	f.probing = false
	if over := f.inRow - h.after; over >= 0 {
		f.until = now.Add(min(h.longest, h.first<<min(over, 16)))
		if over == 0 {
			h.onChange(name, true)
		}
	}
}

// left ends a try that says nothing of the replica: its client went away.
func (h *health) left(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.failed[name]; f != nil {
		f.probing = false
	}
}
