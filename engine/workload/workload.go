// Package workload is the traffic that a fleet is tried on: recorded traces in
// the forms that are found in public, and a seeded generator for a machine that
// has none. A trace says how long each prompt is and which blocks it is made of;
// a block's id becomes deterministic token ids, so that the real keys flow
// through the real path.
//
// A trace in memory is run-length coded and small; prompts are written one at a
// time into a buffer that the caller reuses, because a trace of agent sessions
// holds billions of tokens.
package workload

import (
	"encoding/json"
	"fmt"
	"time"
)

// Trace is the requests of some time, in sessions. It is read-only once made and
// then safe for concurrent use.
type Trace struct {
	// Name is the file's name, or "generated".
	Name string
	// Form says how the trace was recorded.
	Form Form
	// BlockTokens is how many tokens one block id stands for. For chat messages,
	// which have no block ids, it is a block size that suits them.
	BlockTokens int
	// Users is how many sessions run at a time, each starting when another one
	// ends; 0 when sessions start at the At of their first request.
	Users int
	// Seed of the token ids.
	Seed uint64
	// Sessions in the order in which they start.
	Sessions []Session
	// Duplicates counts sessions that were left out because another one has the
	// same requests.
	Duplicates int
}

// Form is how a trace was recorded.
type Form string

// The forms that are read.
const (
	// FormBlocks: one JSON object a line with timestamp, input_length,
	// output_length and hash_ids, as Mooncake publishes; session_id and block_size
	// may be there.
	FormBlocks Form = "blocks"
	// FormSessions: one session a line, its block ids run-length coded as
	// [[start, count], …] and local to it.
	FormSessions Form = "sessions"
	// FormMessages: one JSON array of trajectories with chat messages.
	FormMessages Form = "messages"
	// FormGenerated: made by Generate.
	FormGenerated Form = "generated"
)

// Session is a conversation: its requests follow one another. A request without
// a session is a session of one.
type Session struct {
	// ID is sent as the session's id; empty for a request without a session.
	ID string
	// Scope keeps block ids that are local to a session apart; 0 for global ids.
	Scope uint64
	// Parent is where a sub-agent's chain of requests branches off; nil for a
	// session that starts by itself.
	Parent *Parent
	// Requests in order.
	Requests []Request
}

// Parent names the moment at which a sub-agent starts.
type Parent struct {
	// Session is the parent's index in Trace.Sessions.
	Session int
	// Request is the index of the parent's last request before the branch; -1 when
	// it branches off at the parent's start.
	Request int
	// Delay after that request ended, or after the parent started.
	Delay time.Duration
}

// Request is one request. It is sent when the one before it in its session has
// ended and Think has passed, but not before At.
type Request struct {
	// At is the earliest arrival since the trace's start; 0 when only Think counts.
	At time.Duration
	// Think is the pause after the request before it: a person's or a tool's.
	Think time.Duration
	// PromptTokens is the prompt's length; 0 for chat messages, which the engine
	// counts.
	PromptTokens int
	// OutputTokens to generate, at least 1.
	OutputTokens int
	// Blocks are the ids of the prompt's blocks, in order. Where they fall short of
	// PromptTokens by less than a block, the tail's tokens are the request's own.
	Blocks []Run
	// Messages is a JSON array of chat messages; nil when Blocks are given.
	Messages json.RawMessage
}

// Run is a run of consecutive block ids.
type Run struct {
	Start, Count uint64
}

// Options choose a part of a trace. The zero value is all of it.
type Options struct {
	// Sessions is how many sessions to take, 0 for all: of recorded agent sessions
	// those closest to the mean size, else the first ones. Requests without a
	// session are sessions of one.
	Sessions int
	// Limit is how many requests to take; 0 for all. Every session keeps its first
	// ones, so that as many sessions run at a time.
	Limit int
	// Seed of the token ids.
	Seed uint64
	// BlockTokens of a file that does not say; 0 to infer it.
	BlockTokens int
	// Users is how many sessions without arrival times run at a time; 0 for all
	// when their number is chosen by Sessions, else DefaultUsers.
	Users int
}

// users is how many of the sessions taken run at a time.
func (o Options) users(taken int) int {
	switch {
	case o.Users > 0:
		return o.Users
	case o.Sessions > 0:
		return taken
	}
	return DefaultUsers
}

// DefaultUsers is how many sessions run at a time where a trace does not say
// when they started: four a replica for eight replicas.
const DefaultUsers = 32

// MaxThink bounds a recorded pause, as in the published replays of these traces:
// a person who comes back after hours finds the fleet as busy as after a minute.
const MaxThink = time.Minute

// Count is how many requests the trace has.
func (t *Trace) Count() int {
	n := 0
	for i := range t.Sessions {
		n += len(t.Sessions[i].Requests)
	}
	return n
}

// PromptTokens is the sum over all requests; chat messages count as 0.
func (t *Trace) PromptTokens() int64 {
	var n int64
	for i := range t.Sessions {
		for j := range t.Sessions[i].Requests {
			n += int64(t.Sessions[i].Requests[j].PromptTokens)
		}
	}
	return n
}

// String is a one-line summary.
func (t *Trace) String() string {
	line := fmt.Sprintf("%s: %d requests in %d sessions", t.Name, t.Count(), len(t.Sessions))
	if n := t.PromptTokens(); n > 0 {
		line += fmt.Sprintf(", %d-token blocks, %.1f million prompt tokens", t.BlockTokens, float64(n)/1e6)
	}
	return line
}
