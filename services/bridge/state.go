package bridge

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"warmpath/services/bridge/discovery"
	"warmpath/services/bridge/feed"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/mirror"
	"warmpath/services/bridge/outbox"
)

// Status is what a bridge knows of one replica.
type Status struct {
	Replica string    `json:"replica"`
	Epoch   uuid.UUID `json:"epoch"`
	// Read is true when a source of KV events is configured or was found.
	Read bool `json:"reads_events"`
	// Events is true when the replica's KV events are read and fit the pool.
	Events bool `json:"kv_events"`
	// Problem is why events are not read, or why the replica is in doubt; empty when
	// what is published is exact.
	Problem string `json:"problem,omitempty"`
	// Topic is what the engine publishes under.
	Topic string `json:"topic,omitempty"`
	// LastEventUS is the engine's time of its last batch.
	LastEventUS int64           `json:"last_event_us,omitempty"`
	Feed        feed.Stats      `json:"feed"`
	Memory      mirror.Stats    `json:"memory"`
	Outbox      outbox.Stats    `json:"outbox"`
	Decoded     kvevents.Counts `json:"decoded"`
	// Unknown are names in the engine's events that this version does not know.
	Unknown []string `json:"unknown,omitempty"`
}

// status looks at the replica. While it is busy with a replay, that is as it was
// before: a heartbeat must not wait for an engine.
func (r *replica) status() Status {
	if last := r.known.Load(); last != nil && !r.mu.TryLock() {
		return *last
	} else if last == nil {
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	s := r.look()
	r.known.Store(&s)
	return s
}

// look is status under mu.
func (r *replica) look() Status {
	s := Status{
		Replica: r.name, Epoch: r.epoch, Topic: r.topic, LastEventUS: r.lastEvent,
		Feed: r.feed.Stats(), Memory: r.mirror.Stats(), Decoded: r.decoder.Counts(),
	}
	if s.Read = r.source.any(); !s.Read {
		return s
	}
	s.Outbox = r.out.Stats()
	s.Epoch = s.Outbox.Epoch
	for _, name := range r.decoder.Names() {
		s.Unknown = append(s.Unknown, string(name.Class)+" "+strconv.Quote(name.Text))
	}
	refused := r.mirror.Refused()
	s.Events = refused == "" && r.source.err == nil
	for _, problem := range []string{refused, r.problem, s.Outbox.Broken, r.mirror.Doubt()} {
		if problem != "" {
			s.Problem = problem
			break
		}
	}
	return s
}

// busy says whether the replica had requests when it was last asked. One that
// does not say is taken for busy.
func (r *replica) busy() bool {
	l := r.load.Load()
	if l == nil || l.Running == nil && l.Waiting == nil {
		return true
	}
	return l.Running != nil && *l.Running > 0 || l.Waiting != nil && *l.Waiting > 0
}

// State looks at every replica once.
func (b *Bridge) State() []Status {
	var all []Status
	for _, e := range b.engines {
		for _, r := range e.all() {
			all = append(all, r.status())
		}
	}
	return all
}

func (b *Bridge) serveState(w http.ResponseWriter, _ *http.Request) {
	type engineState struct {
		Engine  string           `json:"engine"`
		Error   string           `json:"error,omitempty"`
		Facts   discovery.Engine `json:"facts"`
		Members []Status         `json:"replicas"`
	}
	out := struct {
		Pool     string        `json:"pool"`
		Draining bool          `json:"draining"`
		Engines  []engineState `json:"engines"`
	}{Pool: b.cfg.Pool, Draining: b.Draining()}
	for _, e := range b.engines {
		state := engineState{Engine: e.cfg.URL}
		if err := e.err(); err != nil {
			state.Error = err.Error()
		}
		e.mu.Lock()
		state.Facts = e.facts
		e.mu.Unlock()
		for _, r := range e.all() {
			state.Members = append(state.Members, r.status())
		}
		out.Engines = append(out.Engines, state)
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		slog.Debug("state was not sent", "error", err)
	}
}
