package workload

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
)

// sessionLine is one line of FormSessions.
type sessionLine struct {
	ID        string          `json:"id"`
	BlockSize int             `json:"block_size"`
	Scope     string          `json:"hash_id_scope"`
	Requests  json.RawMessage `json:"requests"`
}

// sessionRequest is one entry of a session's requests. Of type "subagent" it
// holds a chain of its own.
type sessionRequest struct {
	Type     string           `json:"type"`
	T        *float64         `json:"t"`
	In       *int             `json:"in"`
	Out      *int             `json:"out"`
	Think    *float64         `json:"think_time"`
	API      *float64         `json:"api_time"`
	Blocks   [][]uint64       `json:"b"`
	AgentID  string           `json:"agent_id"`
	Requests []sessionRequest `json:"requests"`
}

// sessionLines reads FormSessions. A session's replay is a closed loop: a
// request starts when the one before it ended and its think time has passed.
//
// A sub-agent branches off its parent: it starts when the parent's request
// before it has ended, after the recorded gap, and then runs as a closed loop of
// its own beside the parent, whose recorded think times already contain the
// waiting for it.
type sessionLines struct {
	trace   *Trace
	options Options
	seen    map[[sha256.Size]byte]bool
	groups  [][]Session // a session and the sub-agents that branch off it
}

func (s *sessionLines) line(n int, line []byte) error {
	var l sessionLine
	if err := decodeLine(n, line, &l); err != nil {
		return err
	}
	if len(l.Requests) == 0 {
		return &FieldError{Place: lineOf(n), Field: "requests", Err: fmt.Errorf("is missing")}
	}
	sum := sha256.Sum256(l.Requests)
	if s.seen[sum] {
		s.trace.Duplicates++
		return nil
	}
	if s.seen == nil {
		s.seen = map[[sha256.Size]byte]bool{}
	}
	s.seen[sum] = true
	if err := s.blockSize(n, l.BlockSize); err != nil {
		return err
	}
	var requests []sessionRequest
	if err := decodeLine(n, l.Requests, &requests); err != nil {
		return err
	}
	id := l.ID
	if id == "" {
		id = fmt.Sprintf("line-%d", n)
	}
	scope := uint64(n)
	if l.Scope == "global" {
		scope = 0
	}
	reader := chainReader{line: n, blockTokens: s.trace.BlockTokens, scope: scope}
	if err := reader.read("requests", id, nil, requests); err != nil {
		return err
	}
	if len(reader.group) > 0 {
		s.groups = append(s.groups, reader.group)
	}
	return nil
}

// blockSize checks that all sessions have the same one.
func (s *sessionLines) blockSize(n, size int) error {
	if size == 0 {
		size = s.options.BlockTokens
	}
	switch {
	case size < 1 || size > maxLength:
		return &FieldError{Place: lineOf(n), Field: "block_size", Err: fmt.Errorf("is %d; give how many tokens a block id stands for, here or with --block-tokens", size)}
	case s.trace.BlockTokens == 0 || len(s.groups) == 0:
		s.trace.BlockTokens = size
	case s.trace.BlockTokens != size:
		return &FieldError{Place: lineOf(n), Field: "block_size", Err: fmt.Errorf("is %d, and %d in the lines before; one replay has one block size", size, s.trace.BlockTokens)}
	}
	return nil
}

// end chooses the sessions, and makes one list of them and their sub-agents.
func (s *sessionLines) end() error {
	t := s.trace
	t.Form = FormSessions
	if n := s.options.Sessions; n > 0 && n < len(s.groups) {
		s.groups = middling(s.groups, n)
	}
	t.Users = s.options.users(len(s.groups))
	for _, group := range s.groups {
		base := len(t.Sessions)
		for _, session := range group {
			if session.Parent != nil {
				session.Parent.Session += base
			}
			t.Sessions = append(t.Sessions, session)
		}
	}
	return nil
}

// middling returns the n groups whose prompts are closest in sum to the mean, in
// the order they had. Sessions differ a thousandfold: among a few taken blindly,
// the longest ones end up with the fleet to themselves, and decide every figure.
func middling(groups [][]Session, n int) [][]Session {
	tokens, mean := make([]float64, len(groups)), 0.0
	for i, group := range groups {
		for _, session := range group {
			for _, r := range session.Requests {
				tokens[i] += float64(r.PromptTokens)
			}
		}
		mean += tokens[i] / float64(len(groups))
	}
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(math.Abs(tokens[a]-mean), math.Abs(tokens[b]-mean))
	})
	order = order[:n]
	slices.Sort(order)
	taken := make([][]Session, n)
	for i, at := range order {
		taken[i] = groups[at]
	}
	return taken
}

// chainReader turns one line's entries into sessions.
type chainReader struct {
	line        int
	blockTokens int
	scope       uint64
	group       []Session
}

// read appends the chain of entries, and the chains that branch off it after it.
func (c *chainReader) read(path, id string, parent *Parent, entries []sessionRequest) error {
	at := len(c.group)
	c.group = append(c.group, Session{ID: id, Scope: c.scope, Parent: parent})
	type branch struct {
		path  string
		entry sessionRequest
		from  Parent
	}
	var branches []branch
	var requests []Request
	var ended seconds // when the request before ended, as recorded
	for i, e := range entries {
		where := fmt.Sprintf("%s[%d]", path, i)
		if e.T == nil || !(*e.T >= 0) {
			return &FieldError{Place: lineOf(c.line), Field: where + ".t", Err: fmt.Errorf("is missing or negative; give seconds since the session's start")}
		}
		gap := max(seconds(*e.T)-ended, 0)
		switch e.Type {
		case "subagent":
			branches = append(branches, branch{where + ".requests", e, Parent{Session: at, Request: len(requests) - 1, Delay: gap.pause()}})
			continue
		case "n", "s":
		default:
			return &FieldError{Place: lineOf(c.line), Field: where + ".type", Err: fmt.Errorf("is %q; known are n, s and subagent", e.Type)}
		}
		r, err := c.request(where, e)
		if err != nil {
			return err
		}
		if e.Think != nil {
			gap = max(seconds(*e.Think), 0)
		}
		r.Think = gap.pause()
		requests = append(requests, r)
		ended = seconds(*e.T)
		if e.API != nil {
			ended += max(seconds(*e.API), 0)
		}
	}
	c.group[at].Requests = requests
	if len(requests) == 0 {
		// Nothing to send; what would branch off it has nowhere to start.
		c.group = c.group[:at]
		return nil
	}
	for i, b := range branches {
		name := b.entry.AgentID
		if name == "" {
			name = fmt.Sprintf("subagent-%d", i)
		}
		from := b.from
		if err := c.read(b.path, id+"/"+name, &from, b.entry.Requests); err != nil {
			return err
		}
	}
	return nil
}

// request checks one entry of type n or s.
func (c *chainReader) request(where string, e sessionRequest) (Request, error) {
	field := func(name, format string, args ...any) (Request, error) {
		return Request{}, &FieldError{Place: lineOf(c.line), Field: where + "." + name, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case e.In == nil:
		return field("in", "is missing")
	case *e.In < 1 || *e.In > maxLength:
		return field("in", "is %d; it must be between 1 and %d", *e.In, maxLength)
	case e.Out == nil:
		return field("out", "is missing")
	case *e.Out < 0 || *e.Out > maxLength:
		return field("out", "is %d; it must be between 0 and %d", *e.Out, maxLength)
	}
	r := Request{PromptTokens: *e.In, OutputTokens: max(*e.Out, 1), Blocks: make([]Run, 0, len(e.Blocks))}
	blocks := uint64(0)
	for i, pair := range e.Blocks {
		if len(pair) != 2 || pair[1] == 0 || pair[1] > maxLength {
			return field(fmt.Sprintf("b[%d]", i), "is %v; give [first id, count]", pair)
		}
		r.Blocks = append(r.Blocks, Run{Start: pair[0], Count: pair[1]})
		blocks += pair[1]
	}
	full := uint64(*e.In / c.blockTokens)
	if blocks != full && blocks != uint64((*e.In+c.blockTokens-1)/c.blockTokens) {
		return field("b", "has %d blocks of %d tokens for in = %d", blocks, c.blockTokens, *e.In)
	}
	return r, nil
}

// seconds is a recorded time.
type seconds float64

// pause is a recorded gap, at most MaxThink.
func (s seconds) pause() time.Duration {
	return time.Duration(min(float64(s), MaxThink.Seconds()) * float64(time.Second))
}
