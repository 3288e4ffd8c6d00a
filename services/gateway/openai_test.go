package gateway

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/npmtest"
)

// openaiVersion is the newest of the openai npm package that runs on node 20.
const openaiVersion = "6.30.1"

// speaker is an engine that speaks as vLLM does: text, thoughts, tool calls, embeddings.
type speaker struct {
	left chan struct{} // a client went away before the end
}

func (s *speaker) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	var q struct {
		Stream      bool
		Temperature float64
		Messages    []struct{ Role, Content string }
		Tools       []json.RawMessage
		Input       []string
		Encoding    string `json:"encoding_format"`
		Options     struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal(body, &q); err != nil || q.Temperature > 2 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"temperature must be in [0, 2]","type":"BadRequestError","param":"temperature","code":400}}`)
		return
	}
	if r.URL.Path == embeddingsPath {
		s.embed(w, q.Input, q.Encoding)
		return
	}
	last := ""
	role := ""
	if n := len(q.Messages); n > 0 {
		last, role = q.Messages[n-1].Content, q.Messages[n-1].Role
	}
	reason := "stop"
	var deltas []string
	switch {
	case r.URL.Path == completionsPath:
		deltas = []string{`"text":"hello"`, `"text":" world"`}
	case last == "go on for ever":
		s.forever(w, r, q.Stream)
		return
	case role == "tool":
		deltas = []string{`"delta":{"content":"it is "}`, fmt.Sprintf(`"delta":{"content":%q}`, last)}
	case len(q.Tools) > 0:
		reason = "tool_calls"
		deltas = []string{`"delta":{"tool_calls":[{"index":0,"id":"call-1","type":"function","function":{"name":"weather","arguments":""}}]}`,
			`"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]}`, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"Ulm\"}"}}]}`}
	case last == "think first":
		deltas = []string{`"delta":{"reasoning_content":"let me"}`, `"delta":{"reasoning_content":" see"}`, `"delta":{"content":"hello"}`}
	default:
		deltas = []string{`"delta":{"content":"hello"}`, `"delta":{"content":" world"}`}
	}
	const usage = `{"prompt_tokens":40,"completion_tokens":2,"total_tokens":42,"prompt_tokens_details":{"cached_tokens":8}}`
	if !q.Stream {
		text := `"message":{"role":"assistant","content":"hello world"}`
		switch {
		case r.URL.Path == completionsPath:
			text = `"text":"hello world"`
		case role == "tool":
			text = fmt.Sprintf(`"message":{"role":"assistant","content":%q}`, "it is "+last)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,%s,"finish_reason":%q}],"usage":%s}`, text, reason, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	part := func(choice string) {
		fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]}`+"\n\n", choice)
		_ = http.NewResponseController(w).Flush()
	}
	if r.URL.Path == chatPath {
		part(`{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`)
	}
	for _, delta := range deltas {
		part(`{"index":0,` + delta + `,"finish_reason":null}`)
	}
	if last == "break" {
		_, _ = io.WriteString(w, `data: {"error":{"message":"out of memory","type":"InternalServerError","code":500}}`+"\n\ndata: [DONE]\n\n")
		return
	}
	end := `"delta":{}`
	if r.URL.Path == completionsPath {
		end = `"text":""`
	}
	part(fmt.Sprintf(`{"index":0,%s,"finish_reason":%q}`, end, reason))
	if q.Options.Usage {
		fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":%s}`+"\n\n", usage)
	}
	_, _ = io.WriteString(w, eventDone)
}

// forever answers until the client goes away.
func (s *speaker) forever(w http.ResponseWriter, r *http.Request, stream bool) {
	if stream {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, eventWorld)
		}
		_ = http.NewResponseController(w).Flush()
	}
	select {
	case <-r.Context().Done():
		s.left <- struct{}{}
	case <-time.After(patience): // the test fails by then
	}
}

// embed answers as asked: as numbers, or as the base64 of their bytes.
func (s *speaker) embed(w http.ResponseWriter, input []string, encoding string) {
	var data []string
	for i := range input {
		value := fmt.Sprintf("[%d,0.5]", i)
		if encoding == "base64" {
			raw := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(i)))
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(0.5))
			value = `"` + base64.StdEncoding.EncodeToString(raw) + `"`
		}
		data = append(data, fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":%s}`, i, value))
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"object":"list","data":[%s],"model":"m","usage":{"prompt_tokens":4,"total_tokens":4}}`, strings.Join(data, ","))
}

// The openai package, as it is, works through the gateway.
func TestOpenAIClient(t *testing.T) {
	node, modules := npmtest.Install(t, "openai", openaiVersion)
	e := newEnv(t)
	engine := &speaker{left: make(chan struct{}, 4)}
	n := e.engine("engine-0", engine.serve, func(entry *pb.FleetEntry) {
		entry.Model, entry.Loras = "org/tiny", []string{"sql"}
	})
	e.router(choose(n))
	keys := newKeyring(t, map[string]string{"ann": "", "off": "disabled: true", "slow": "requests_per_second: 0.5, burst: 1"})
	g := e.gateway(1, Config{Keys: keys.path})
	secrets, err := json.Marshal(keys.secrets)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	script := exec.CommandContext(ctx, node, filepath.Join("testdata", "openai.cjs"), filepath.Dir(modules))
	script.Env = append(os.Environ(), "GATEWAY="+g.Address(), "KEYS="+string(secrets))
	out, err := script.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	wait(e, "the cancellation at the engine", engine.left)
	e.until("the end of all requests", func() bool { return g.active.Load() == 0 })
	ends := map[pb.Status]int{}
	for _, s := range e.stories(g) {
		f := s.finished[0]
		ends[f.Status]++
		if f.Status == pb.Status_STATUS_OK && f.Streamed && f.TtftUs == nil {
			t.Errorf("a stream has no time to its first content: %v", f)
		}
	}
	// The engine's refusal and the error inside a stream are the two errors. Of the
	// two aborted ones, the second may have gone before anyone saw it.
	if c := ends[pb.Status_STATUS_CANCELLED]; c < 1 || c > 2 || ends[pb.Status_STATUS_UPSTREAM_ERROR] != 2 || ends[pb.Status_STATUS_NO_REPLICA] != 0 {
		t.Errorf("requests ended as %v", ends)
	}
}
