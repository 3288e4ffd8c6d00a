// Package mismatch watches whether what decisions predict and what engines report
// belong together, and names the likely cause when they do not: keys that name
// other tokens than the engine's, or an engine that does not tell.
//
// It is a function of the records it is given: it reads no clock and starts
// nothing. It asks for a fault to show in most of the recent requests that could
// show it, so that misses of a cold or small cache are no alarm. DESIGN.md has
// the table of evidence and causes.
package mismatch

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	pb "warmpath/schemas/warmpathv1"
)

// Config names the pool and sets what the fleet's clocks need. Zero values take
// the defaults that the fields name.
type Config struct {
	Pool, Gateway string
	// Settle is how long after the end of a request its blocks may take to be in
	// the index. Default 250ms: engines publish at every step, and a bridge and a
	// router add a few milliseconds.
	Settle time.Duration
	// WithoutEvents says that replicas without KV events are meant to be so: hits
	// of theirs that no index knows of are then no EventsOff.
	WithoutEvents bool
}

// Detector is the alarm of one gateway. Safe for concurrent use.
type Detector struct {
	cfg Config

	mu       sync.Mutex
	pool     *watch
	replicas map[string]*watch
	memories map[string]*memory
	probes   map[string]*Probe // by the replica that was asked
}

// watch is the evidence of one scope and the alarms that are on.
type watch struct {
	window *window
	// active are the alarms that are on, by what they are about: keys or usage.
	keys, usage *alarm
	// other is a cause that now looks likelier than the active one, and for how
	// many records in a row.
	other string
	times int
	// failing is set when hits disagreed as last looked at.
	failing bool
}

// alarm is an alarm that is on.
type alarm struct {
	event *pb.Mismatch
}

// New returns a detector that has seen nothing.
func New(cfg Config) *Detector {
	cfg.Settle = cmp.Or(cfg.Settle, 250*time.Millisecond)
	return &Detector{cfg: cfg, pool: newWatch(), replicas: map[string]*watch{}, memories: map[string]*memory{}, probes: map[string]*Probe{}}
}

func newWatch() *watch { return &watch{window: newWindow()} }

// Observe takes a finished request and returns the alarms that it raises or ends,
// to be published. Records should come in the order in which requests end.
func (d *Detector) Observe(r Record) []*pb.Mismatch {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.memories[r.Replica]
	if m == nil {
		m = &memory{}
		d.memories[r.Replica] = m
		d.replicas[r.Replica] = newWatch()
	}
	blocks := m.repeat(r.Keys, r.DecidedUS-d.cfg.Settle.Microseconds())
	repeat := min(uint64(blocks)*uint64(r.BlockTokens), r.PromptTokens)
	m.add(r.Keys, r.FinishedUS)
	s := sampleOf(&r, repeat, d.cfg.WithoutEvents)
	d.pool.window.add(s)
	own := d.replicas[r.Replica]
	own.window.add(s)

	var events []*pb.Mismatch
	if d.pool.due(&s) {
		events = d.judge(d.pool, "", r.FinishedUS)
	}
	if own.due(&s) {
		events = append(events, d.judge(own, r.Replica, r.FinishedUS)...)
	}
	return events
}

// Probed takes a comparison with an engine's tokenizer, which decides whether
// template or tokenizer are wrong until the alarm ends, and returns what it changes.
func (d *Detector) Probed(p Probe, atUS int64) []*pb.Mismatch {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.probes[p.Replica] = &p
	proven := p.cause()
	if proven == "" {
		return nil
	}
	var events []*pb.Mismatch
	for _, w := range d.watches() {
		a := w.keys
		if w != d.pool && w != d.replicas[p.Replica] {
			continue
		}
		if a == nil || a.event.Cause == proven || (a.event.Cause != Template && a.event.Cause != Tokenizer) {
			continue
		}
		events = append(events, resolved(a, atUS))
		event := copyOf(a.event, atUS)
		event.Cause, event.Detail = proven, probeDetail(proven)
		w.keys = &alarm{event: event}
		events = append(events, copyOf(event, atUS))
	}
	return events
}

// WantsProbe reports whether to compare tokens with the engine of a record that
// was observed just now: an alarm is on that this can settle, or hits disagree and
// the reason is open, and the engine was not asked yet.
func (d *Detector) WantsProbe(r Record) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.probes[r.Replica]; r.Source != SourceInProcess || p != nil && (p.Chat || !r.Chat) {
		return false
	}
	for _, w := range []*watch{d.pool, d.replicas[r.Replica]} {
		switch {
		case w == nil:
		case w.keys == nil && w.failing, w.keys != nil && (w.keys.event.Cause == Template || w.keys.event.Cause == Tokenizer):
			return true
		}
	}
	return false
}

// probe is what was learned of a scope's engines by asking them.
func (d *Detector) probe(w *watch, replica string) *Probe {
	if w != d.pool {
		return d.probes[replica]
	}
	var best *Probe
	for _, name := range slices.Sorted(maps.Keys(d.probes)) {
		best = best.better(d.probes[name])
	}
	return best
}

// Active returns the alarms that are on, the pool's first, then by replica.
func (d *Detector) Active() []*pb.Mismatch {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*pb.Mismatch
	for _, w := range d.watches() {
		for _, a := range []*alarm{w.keys, w.usage} {
			if a != nil {
				out = append(out, copyOf(a.event, a.event.TimeUs))
			}
		}
	}
	return out
}

// Forget drops a replica that left the pool, and returns the ends of its alarms.
func (d *Detector) Forget(replica string, atUS int64) []*pb.Mismatch {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.replicas[replica]
	if w == nil {
		return nil
	}
	delete(d.replicas, replica)
	delete(d.memories, replica)
	delete(d.probes, replica)
	var events []*pb.Mismatch
	for _, a := range []*alarm{w.keys, w.usage} {
		if a != nil {
			events = append(events, resolved(a, atUS))
		}
	}
	return events
}

// watches are all scopes, the pool first, then by replica.
func (d *Detector) watches() []*watch {
	names := make([]string, 0, len(d.replicas))
	for name := range d.replicas {
		names = append(names, name)
	}
	slices.Sort(names)
	out := []*watch{d.pool}
	for _, name := range names {
		out = append(out, d.replicas[name])
	}
	return out
}
