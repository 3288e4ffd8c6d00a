package workload

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const shared = "../../../shared/data/traces/"

func read(t *testing.T, text string, options Options) *Trace {
	t.Helper()
	trace, err := Read(strings.NewReader(text), options)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestReadsBlocks(t *testing.T) {
	const text = `{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 7]}
{"timestamp": 1500, "input_length": 1024, "output_length": 0, "hash_ids": [0, 1]}

{"timestamp": 900, "input_length": 600, "output_length": 2, "hash_ids": [0, 9]}
`
	trace := read(t, text, Options{})
	if trace.Form != FormBlocks || trace.BlockTokens != 512 || len(trace.Sessions) != 3 || trace.Users != 0 {
		t.Fatalf("got %+v", trace)
	}
	var at []time.Duration
	for _, s := range trace.Sessions {
		at = append(at, s.Requests[0].At)
	}
	if !slices.Equal(at, []time.Duration{0, 900 * time.Millisecond, 1500 * time.Millisecond}) {
		t.Errorf("arrivals %v", at)
	}
	first, last := trace.Sessions[0].Requests[0], trace.Sessions[2].Requests[0]
	if !slices.Equal(first.Blocks, []Run{{0, 2}, {7, 1}}) || first.OutputTokens != 5 || last.OutputTokens != 1 {
		t.Errorf("first %+v last %+v", first, last)
	}
	a := trace.AppendTokens(nil, &trace.Sessions[0], &first)
	b := trace.AppendTokens(nil, &trace.Sessions[2], &last)
	if len(a) != 1030 || len(b) != 1024 || !slices.Equal(a[:1024], b) {
		t.Error("equal block ids must be equal tokens")
	}
}

func TestReadsBlocksOfSessions(t *testing.T) {
	// Ids for full blocks only: the block size follows from all lines together.
	const text = `{"hash_ids":[1,2],"input_length":33,"output_length":4,"session_id":"a","timestamp":10}
{"hash_ids":[1,3,4],"input_length":63,"output_length":4,"session_id":"b","timestamp":20}
{"hash_ids":[1,2,5],"input_length":50,"output_length":4,"session_id":"a","timestamp":30}`
	trace := read(t, text, Options{})
	if trace.BlockTokens != 16 || len(trace.Sessions) != 2 || len(trace.Sessions[0].Requests) != 2 || trace.Sessions[0].ID != "a" {
		t.Fatalf("got %+v", trace)
	}
	s := &trace.Sessions[0]
	first, second := trace.AppendTokens(nil, s, &s.Requests[0]), trace.AppendTokens(nil, s, &s.Requests[1])
	if !slices.Equal(first[:32], second[:32]) || len(first) != 33 || len(second) != 50 {
		t.Error("the second request must repeat the first one's blocks")
	}
	if got := read(t, text, Options{Sessions: 1}); got.Count() != 2 {
		t.Errorf("%d requests of one session", got.Count())
	}
}

const sessionText = `{"id":"s1","block_size":64,"hash_id_scope":"local","requests":[
{"t":0,"type":"n","in":130,"out":3,"api_time":2,"think_time":0,"b":[[1,2]]},
{"t":7.5,"type":"subagent","agent_id":"agent_1","requests":[{"t":0,"type":"n","in":64,"out":2,"think_time":0,"api_time":1,"b":[[9,1]]},{"t":3,"type":"n","in":70,"out":0,"api_time":1,"b":[[9,1]]}]},
{"t":10,"type":"s","in":200,"out":4,"b":[[1,2],[5,1]]},
{"t":500,"type":"n","in":210,"out":4,"think_time":400,"api_time":1,"b":[[1,3]]}]}`

func TestReadsSessions(t *testing.T) {
	line := strings.ReplaceAll(sessionText, "\n", "")
	other := strings.ReplaceAll(strings.ReplaceAll(line, `"s1"`, `"s2"`), `"in":130`, `"in":131`)
	duplicate := strings.ReplaceAll(line, `"s1"`, `"s3"`)
	trace := read(t, strings.Join([]string{line, other, duplicate}, "\n"), Options{})
	if trace.Form != FormSessions || trace.BlockTokens != 64 || trace.Duplicates != 1 || len(trace.Sessions) != 4 || trace.Users != DefaultUsers {
		t.Fatalf("got %+v", trace)
	}
	s, agent, second := trace.Sessions[0], trace.Sessions[1], trace.Sessions[2]
	if s.ID != "s1" || len(s.Requests) != 3 || s.Parent != nil {
		t.Errorf("session %+v", s)
	}
	if think := s.Requests[1].Think; think != 8*time.Second {
		t.Errorf("think %v; without think_time it is t - (t + api_time) of the one before", think)
	}
	if think := s.Requests[2].Think; think != MaxThink {
		t.Errorf("think %v is not bounded", think)
	}
	if agent.ID != "s1/agent_1" || agent.Parent == nil || *agent.Parent != (Parent{Session: 0, Request: 0, Delay: 5500 * time.Millisecond}) || agent.Scope != s.Scope {
		t.Errorf("sub-agent %+v %+v", agent, agent.Parent)
	}
	if agent.Requests[1].OutputTokens != 1 || agent.Requests[1].Think != 2*time.Second {
		t.Errorf("sub-agent's request %+v", agent.Requests[1])
	}
	if parent := trace.Sessions[3].Parent; parent == nil || parent.Session != 2 {
		t.Errorf("second sub-agent's parent %+v", parent)
	}
	// Ids are local to a session, also between equal ones.
	a := trace.AppendTokens(nil, &s, &s.Requests[0])
	b := trace.AppendTokens(nil, &second, &second.Requests[0])
	if slices.Equal(a[:64], b[:64]) {
		t.Error("two sessions share a block")
	}
	if got := read(t, line+"\n"+other, Options{Limit: 3}); got.Count() != 3 || len(got.Sessions) != 3 {
		t.Errorf("limited to %d requests in %d sessions: %+v", got.Count(), len(got.Sessions), got.Sessions)
	}
}

func TestReadsMessages(t *testing.T) {
	const text = `[{"task_id":1,"traj":[{"role":"system","content":"policy"},{"role":"user","content":"hi"},
 {"role":"assistant","content":"hello"},{"role":"user","content":"book"},
 {"role":"assistant","content":null,"tool_calls":[{"id":"c"}]},{"role":"tool","content":"ok","tool_call_id":"c","name":"f"},
 {"role":"assistant","content":"done"}]}]`
	trace := read(t, text, Options{})
	if trace.Form != FormMessages || trace.BlockTokens != 16 || len(trace.Sessions) != 1 {
		t.Fatalf("got %+v", trace)
	}
	requests := trace.Sessions[0].Requests
	if len(requests) != 3 || requests[0].OutputTokens != 5 || requests[1].OutputTokens != len(`[{"id":"c"}]`) {
		t.Fatalf("requests %+v", requests)
	}
	for i, want := range []int{2, 4, 6} {
		var list []json.RawMessage
		if err := json.Unmarshal(requests[i].Messages, &list); err != nil || len(list) != want {
			t.Errorf("request %d has %d messages (%v), want %d", i, len(list), err, want)
		}
	}
}

func TestFormAndGzipAreToldByContent(t *testing.T) {
	const text = `{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [0]}`
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	w.Write([]byte(text))
	w.Close()
	name := filepath.Join(t.TempDir(), "no-extension")
	if err := os.WriteFile(name, zipped.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	trace, err := Open(name, Options{})
	if err != nil || trace.Count() != 1 || trace.Name != "no-extension" {
		t.Errorf("%v %v", trace, err)
	}
}

func TestErrorsNameLineAndField(t *testing.T) {
	session := func(requests string) string { return `{"id":"x","block_size":64,"requests":[` + requests + `]}` }
	for name, c := range map[string]struct{ text, want string }{
		"empty":         {"", "empty"},
		"other":         {"timestamp,input\n", "known form"},
		"other object":  {`{"a":1}`, "known form"},
		"broken":        {`{"timestamp": 0, `, "line 1: not JSON at byte"},
		"no length":     {`{"timestamp": 0, "output_length": 1, "hash_ids": []}`, "line 1: input_length: is missing"},
		"negative":      {`{"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": []}`, "line 1: input_length: is -1"},
		"text":          {`{"timestamp": 0, "input_length": "a", "output_length": 1, "hash_ids": []}`, "line 1: input_length: cannot be string"},
		"negative id":   {`{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [-1]}`, "line 1: hash_ids"},
		"negative time": {`{"timestamp": -5, "input_length": 3, "output_length": 1, "hash_ids": [1]}`, "line 1: timestamp"},
		"no size fits": {`{"timestamp":0,"input_length":1030,"output_length":5,"hash_ids":[0,1,7]}
{"timestamp":0,"input_length":33,"output_length":5,"hash_ids":[0,1,7]}`, "line 2: hash_ids: has 3 ids for input_length 33"},
		"session type":   {session(`{"t":0,"type":"q"}`), `line 1: requests[0].type: is "q"`},
		"session t":      {session(`{"type":"n"}`), "line 1: requests[0].t"},
		"session in":     {session(`{"t":0,"type":"n","out":1}`), "line 1: requests[0].in: is missing"},
		"session run":    {session(`{"t":0,"type":"n","in":64,"out":1,"b":[[1]]}`), "line 1: requests[0].b[0]"},
		"session blocks": {session(`{"t":0,"type":"n","in":64,"out":1,"b":[[1,3]]}`), "line 1: requests[0].b: has 3 blocks"},
		"sub-agent":      {session(`{"t":0,"type":"n","in":64,"out":1,"b":[[1,1]]},{"t":0,"type":"subagent","requests":[{"t":0,"type":"n","in":64}]}`), "line 1: requests[1].requests[0].out"},
		"session size":   {`{"id":"x","requests":[{"t":0}]}`, "line 1: block_size"},
		"two sizes":      {session(`{"t":0,"type":"n","in":64,"out":1,"b":[[1,1]]}`) + "\n" + `{"id":"x","block_size":32,"requests":[{"t":0}]}`, "line 2: block_size"},
		"no traj":        {`[{"a":1}]`, "element 0: traj: is missing"},
		"role":           {`[{"traj":[{"role":"x"}]}]`, "element 0: traj[0].role"},
		"cut off":        {`[{"traj":[]}`, "element 1: the JSON array is cut off"},
		"no requests":    {`[{"traj":[]}]`, "no requests"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.text), Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := Read(strings.NewReader("x"), Options{}); !errors.Is(err, ErrForm) {
		t.Error("an unknown form must be ErrForm")
	}
}

// FuzzRead: no content may panic, and what is read can be written as prompts.
func FuzzRead(f *testing.F) {
	f.Add(`{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 7]}`)
	f.Add(strings.ReplaceAll(sessionText, "\n", ""))
	f.Add(`[{"traj":[{"role":"user","content":"a"},{"role":"assistant"}]}]`)
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := Read(strings.NewReader(text), Options{Limit: 50})
		if err != nil {
			return
		}
		for i := range trace.Sessions {
			s := &trace.Sessions[i]
			if s.Parent != nil && s.Parent.Session >= i {
				t.Fatalf("session %d branches off a later one", i)
			}
			if len(s.Requests) == 0 {
				t.Fatalf("session %d is empty", i)
			}
			for j := range s.Requests {
				r := &s.Requests[j]
				if r.PromptTokens < 1<<16 && len(trace.AppendTokens(nil, s, r)) != r.PromptTokens {
					t.Fatalf("request %d of session %d: wrong length", j, i)
				}
			}
		}
	})
}

func TestSharedTraces(t *testing.T) {
	for _, c := range []struct {
		file                                 string
		form                                 Form
		block, requests, sessions, duplicate int
	}{
		{"mooncake_conversation.jsonl.gz", FormBlocks, 512, 12031, 12031, 0},
		{"mooncake_toolagent_slice.jsonl", FormBlocks, 512, 277, 277, 0},
		{"tau_airline_blocks16.jsonl.gz", FormBlocks, 16, 2454, 200, 0},
		{"tau_airline_messages.json.gz", FormMessages, 16, 2454, 200, 0},
		{"claude_code_sessions.rle.jsonl.gz", FormSessions, 64, 0, 0, 18},
	} {
		t.Run(c.file, func(t *testing.T) {
			if _, err := os.Stat(shared + c.file); err != nil {
				t.Skipf("the trace is not there: %v", err)
			}
			trace, err := Open(shared+c.file, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if trace.Form != c.form || trace.BlockTokens != c.block || trace.Duplicates != c.duplicate {
				t.Errorf("form %s, block %d, %d duplicates", trace.Form, trace.BlockTokens, trace.Duplicates)
			}
			if c.requests > 0 && (trace.Count() != c.requests || len(trace.Sessions) != c.sessions) {
				t.Errorf("%d requests in %d sessions", trace.Count(), len(trace.Sessions))
			}
			if c.form == FormSessions {
				parents := 0
				for _, s := range trace.Sessions {
					if s.Parent == nil {
						parents++
					}
				}
				if parents != 692 {
					t.Errorf("%d sessions after deduplication, 692 are known", parents)
				}
				some, err := Open(shared+c.file, Options{Sessions: 60, Seed: 1})
				if err != nil {
					t.Fatal(err)
				}
				t.Log(some)
			}
			t.Log(trace)
		})
	}
}
