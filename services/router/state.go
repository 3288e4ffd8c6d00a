package router

import (
	"encoding/hex"
	"strings"

	"warmpath/routing/prefix"
)

// State is what a router knows, for people: GET /v1/state.
type State struct {
	Pool   string   `json:"pool"`
	Name   string   `json:"name"`
	Ready  bool     `json:"ready"`
	Reason string   `json:"not_ready_because,omitempty"`
	Policy string   `json:"policy"`
	Params []string `json:"params"`
	// Decisions taken since the start.
	Decisions uint64  `json:"decisions"`
	KV        KVState `json:"kv"`
	Index     Index   `json:"index"`
	// Start is what the router began with, Snapshot the pool's newest one.
	Start    Start         `json:"start"`
	Snapshot SnapshotState `json:"snapshot"`
	Replicas []Member      `json:"replicas"`
	// Predictions are decisions whose blocks are expected and not confirmed yet.
	Predictions int `json:"predictions"`
}

// KVState is where the router stands in the pool's KV stream.
type KVState struct {
	Stream string `json:"stream"`
	// Position is the sequence that the index, and so a decision, stands at.
	Position uint64 `json:"position"`
	// LastSeq is the stream's end as last looked at, Lag how far it is ahead of
	// what was read.
	LastSeq    uint64 `json:"last_seq"`
	Lag        uint64 `json:"lag"`
	IndexAgeUS int64  `json:"index_age_us"`
}

// SnapshotState is the newest snapshot of the pool as last looked at; zero when
// there is none.
type SnapshotState struct {
	Seq        uint64  `json:"seq"`
	Bytes      uint64  `json:"bytes"`
	Writer     string  `json:"writer,omitempty"`
	Whole      bool    `json:"whole"`
	AgeSeconds float64 `json:"age_seconds"`
	// Kept is how many there are, Uncovered how many messages after the newest one
	// the KV stream no longer holds.
	Kept      int    `json:"kept"`
	Uncovered uint64 `json:"uncovered"`
}

// Index counts what the prefix index holds and has seen.
type Index struct {
	Replicas        int    `json:"replicas"`
	Suspects        int    `json:"suspects"`
	Entries         int    `json:"entries"`
	Batches         uint64 `json:"batches"`
	Gaps            uint64 `json:"gaps"`
	Stale           uint64 `json:"stale"`
	Duplicates      uint64 `json:"duplicates"`
	UnknownRemovals uint64 `json:"unknown_removals"`
	// Late is how many missing batches came after all.
	Late    uint64         `json:"late"`
	Bytes   int64          `json:"bytes"`
	Evicted uint64         `json:"evicted"`
	Tiers   map[string]int `json:"tiers"`
}

// Member is one replica of the pool.
type Member struct {
	Replica string `json:"replica"`
	// State is live, draining or dead.
	State       string `json:"state"`
	Address     string `json:"address"`
	Engine      string `json:"engine"`
	Model       string `json:"model"`
	BlockTokens uint32 `json:"block_tokens"`
	KVEvents    bool   `json:"kv_events"`
	Epoch       string `json:"epoch"`
	// KVProblem is why the replica's events are refused or in doubt, as its bridge
	// says; Doubt is the same as the index at its position knows it.
	KVProblem string `json:"kv_problem,omitempty"`
	Doubt     string `json:"doubt,omitempty"`
	// MissingLoad are load figures that the engine does not report.
	MissingLoad []string `json:"missing_load,omitempty"`
	// IndexEpoch is the cache life that the index holds; empty when it holds none.
	IndexEpoch string `json:"index_epoch"`
	Suspect    bool   `json:"suspect"`
	// IndexSeq is the last batch of that life in the index, Missing how many before
	// it are missing and may still come, Entries how many blocks it holds.
	IndexSeq uint64 `json:"index_seq"`
	Missing  uint64 `json:"missing_batches"`
	Entries  int    `json:"index_entries"`
	// Learned is how many blocks a replica without events probably holds.
	Learned      int   `json:"learned_blocks"`
	HeartbeatAge int64 `json:"heartbeat_age_us"`

	InFlight               uint32  `json:"in_flight"`
	QueuedPrefillTokens    uint64  `json:"queued_prefill_tokens"`
	Running                uint32  `json:"running"`
	Waiting                uint32  `json:"waiting"`
	KVUsed                 float64 `json:"kv_used"`
	ReportAgeUS            *int64  `json:"report_age_us,omitempty"`
	PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"`
}

// State looks at everything once. The figures are each right, and of about the
// same moment.
func (r *Router) State() State {
	s := State{
		Pool: r.cfg.Pool, Name: r.cfg.Name, Ready: r.started.Load(),
		Policy: r.policy.Name, Params: []string{}, Predictions: r.predictions.Len(),
		KV: KVState{
			Stream: kvStream(r), Position: r.index().Position(), IndexAgeUS: r.applied.Load(),
		},
	}
	if err := r.health(); err != nil {
		s.Reason = err.Error()
	}
	for _, p := range r.policy.Params {
		s.Params = append(s.Params, p.Name+"="+number(p.Value))
	}
	read, lag := r.followed()
	s.KV.LastSeq, s.KV.Lag = read+lag, lag

	x := r.index().Stats()
	s.Index = Index{
		Replicas: x.Replicas, Suspects: x.Suspects, Entries: x.Entries, Batches: x.Batches, Gaps: x.Gaps,
		Stale: x.Stale, Duplicates: x.Duplicates, UnknownRemovals: x.UnknownRemovals,
		Late: x.Late, Bytes: x.Bytes, Evicted: x.Evicted, Tiers: map[string]int{},
	}
	for tier, n := range x.Tiers {
		s.Index.Tiers[prefix.Tier(tier).String()] = n
	}
	s.Start = r.origin.begin()
	if kept := r.kept.Load(); kept != nil {
		s.Snapshot = SnapshotState{Kept: kept.count, Uncovered: kept.uncovered}
		if one := kept.newest; one.Seq > 0 {
			s.Snapshot.Seq, s.Snapshot.Bytes, s.Snapshot.Writer, s.Snapshot.Whole = one.Seq, one.Size, one.Writer, one.Whole
			s.Snapshot.AgeSeconds = float64(max(0, r.now()-one.Written.UnixMicro())) / 1e6
		}
	}
	s.Replicas, s.Decisions = r.members()
	return s
}

// members lists the fleet with its load, sorted by replica.
func (r *Router) members() (members []Member, decisions uint64) {
	now := r.now()
	fleet := r.replicas(now)
	known := r.index().Lives()
	lives := make(map[string]prefix.Life, len(known))
	for _, m := range known {
		lives[m.Replica] = m
	}
	members = make([]Member, 0, len(fleet))
	r.decide.Lock()
	defer r.decide.Unlock()
	for _, f := range fleet {
		e, load := f.entry, r.decide.ledger.Terms(f.entry.Replica, now)
		m := Member{
			Replica: e.Replica, State: "live", Address: e.Address, Engine: strings.TrimSpace(e.EngineKind + " " + e.EngineVersion),
			Model: e.Model, BlockTokens: e.BlockTokens, KVEvents: e.KvEvents, Epoch: hex.EncodeToString(e.Epoch),
			KVProblem: e.KvProblem, MissingLoad: e.MissingLoad,
			HeartbeatAge: now - e.HeartbeatUs,
			InFlight:     load.InFlight, QueuedPrefillTokens: load.QueuedPrefillTokens, Running: load.Running, Waiting: load.Waiting,
			KVUsed: load.KvUsed, ReportAgeUS: load.ReportAgeUs, PrefillTokensPerSecond: r.decide.ledger.PrefillRate(e.Replica),
		}
		switch {
		case f.dead:
			m.State = "dead"
		case e.Draining:
			m.State = "draining"
		}
		if life, ok := lives[e.Replica]; ok {
			m.IndexEpoch, m.Suspect = hex.EncodeToString(life.Epoch[:]), life.Suspect
			m.Doubt = life.Doubt
			m.IndexSeq, m.Missing, m.Entries = life.Seq, life.Missing, life.Entries
		}
		m.Learned = r.predictions.Learned(e.Replica)
		members = append(members, m)
	}
	return members, r.decide.turn
}
