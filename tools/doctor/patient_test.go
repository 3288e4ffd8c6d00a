package doctor

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience is how long a check may take that is to find something.
	patience = 30 * time.Second
	// glance is how long it listens where nothing is to come.
	glance = 300 * time.Millisecond
)

// patient is an engine whose ailments a test chooses.
type patient struct {
	*httptest.Server
	pages map[string]string
	// publish is how a new prompt is told, nil for not at all.
	publish func(p *patient)
	pub     *zmq.Publisher
	// cached tells usage's cached_tokens of the nth prompt, from 1.
	cached func(n int) any
	// refuse is the status of completions, 0 to answer them.
	refuse int

	mu      sync.Mutex
	seq     uint64
	prompts []string
	ring    [][]byte // payloads by sequence, for replay
	ranks   []string // rank header of each prompt
}

const vllmModels = `{"object":"list","data":[{"id":"llama","owned_by":"vllm","parent":null,"max_model_len":8192}]}`

func vllmMetrics(ranks int) string {
	var b strings.Builder
	for rank := range ranks {
		fmt.Fprintf(&b, "vllm:num_requests_running{engine=\"%d\"} 0\nvllm:num_requests_waiting{engine=\"%d\"} 0\nvllm:kv_cache_usage_perc{engine=\"%d\"} 0\n", rank, rank, rank)
		fmt.Fprintf(&b, "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"%d\",num_gpu_blocks=\"1000\"} 1\n", rank)
	}
	return b.String()
}

// healthy is a vLLM server with everything on.
func healthy(t *testing.T) *patient {
	p := &patient{
		pages: map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.26.0"}`, "/metrics": vllmMetrics(1)},
		cached: func(n int) any {
			if n == 2 {
				return 80
			}
			return 0
		},
		publish: func(p *patient) { p.send("", stored(16, "full_attention")) },
	}
	p.pub = publisher(t, zmq.Publishing{Endpoint: "tcp://127.0.0.1:0"})
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func publisher(t *testing.T, cfg zmq.Publishing) *zmq.Publisher {
	t.Helper()
	pub, err := zmq.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pub.Close)
	return pub
}

func (p *patient) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/completions") {
		p.complete(w, r)
		return
	}
	page, ok := p.pages[r.URL.Path]
	switch {
	case !ok:
		http.NotFound(w, r)
	case page == "405":
		w.WriteHeader(http.StatusMethodNotAllowed)
	default:
		fmt.Fprint(w, page)
	}
}

func (p *patient) complete(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Model     string `json:"model"`
		Prompt    string `json:"prompt"`
		MaxTokens int    `json:"max_tokens"`
		Messages  []struct{ Content string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.MaxTokens != 1 {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	chat := len(body.Messages) > 0
	if p.refuse != 0 && (p.refuse != http.StatusNotFound || !chat) {
		w.WriteHeader(p.refuse)
		return
	}
	if chat {
		body.Prompt = body.Messages[0].Content
	}
	p.mu.Lock()
	again := len(p.prompts) > 0 && p.prompts[len(p.prompts)-1] == body.Prompt
	p.prompts = append(p.prompts, body.Prompt)
	p.ranks = append(p.ranks, r.Header.Get("X-data-parallel-rank"))
	n := len(p.prompts)
	p.mu.Unlock()
	if p.publish != nil && !again {
		// A real engine is slow enough for a subscription to be in force.
		if err := p.pub.AwaitSubscribers(r.Context(), 1); err != nil {
			return
		}
		p.publish(p)
	}
	usage, _ := json.Marshal(map[string]any{"prompt_tokens": 96, "prompt_tokens_details": p.cached(n)})
	if c := p.cached(n); c != nil {
		usage, _ = json.Marshal(map[string]any{"prompt_tokens": 96, "prompt_tokens_details": map[string]any{"cached_tokens": c}})
	}
	fmt.Fprintf(w, `{"object":"text_completion","usage":%s}`, usage)
}

// send publishes a payload as the next batch.
func (p *patient) send(topic string, payload []byte) {
	p.mu.Lock()
	seq := p.seq
	p.seq++
	p.ring = append(p.ring, payload)
	p.mu.Unlock()
	p.pub.Send([]byte(topic), binary.BigEndian.AppendUint64(nil, seq), payload)
}

// stored is a batch with one stored block of so many tokens, as vLLM 0.24 says it.
func stored(tokens int, spec string) []byte {
	return encode(kvevents.VLLMMap, kvevents.Event{Kind: kvevents.Stored, Hashes: []uint64{1 << 63}, Tokens: make([]uint32, tokens), BlockSize: tokens, Tier: pb.Tier_TIER_GPU, Spec: spec, HasGroup: true})
}

func encode(g kvevents.Generation, events ...kvevents.Event) []byte {
	return kvevents.Encoder{Generation: g}.AppendBatch(nil, kvevents.Batch{TimeUS: 1, Rank: 0, Events: events})
}

// command examines the patient's own event port.
func (p *patient) command(wait time.Duration) BridgeCommand {
	return BridgeCommand{URL: p.URL, KV: p.pub.Endpoint(), Wait: wait, Probe: true, BlockTokens: 16, JSON: true}
}

// examine runs the command and returns its findings. The error must fit them.
func examine(t *testing.T, c BridgeCommand) []Finding {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	err := c.run(ctx, &out)
	var said struct {
		OK       bool      `json:"ok"`
		Engine   string    `json:"engine"`
		Findings []Finding `json:"findings"`
	}
	if e := json.Unmarshal(out.Bytes(), &said); e != nil {
		t.Fatalf("%v: %v\n%s", err, e, out.Bytes())
	}
	if said.OK != (err == nil) {
		t.Errorf("ok is %t, the error %v", said.OK, err)
	}
	for _, f := range said.Findings {
		if f.State == Problem && (f.Means == "" || f.Do == "") {
			t.Errorf("a problem without meaning or remedy: %+v", f)
		}
	}
	return said.Findings
}

// problems are the checks that failed, in order.
func problems(findings []Finding) string {
	var out []string
	for _, f := range findings {
		if f.State == Problem {
			out = append(out, f.Check)
		}
	}
	return strings.Join(out, ", ")
}

// want checks that a check came out as it should, and what it says.
func want(t *testing.T, findings []Finding, check string, state State, words ...string) {
	t.Helper()
	for _, f := range findings {
		if f.Check != check {
			continue
		}
		if f.State != state {
			t.Errorf("%s is %s: %+v", check, f.State, f)
		}
		text := f.Seen + " " + f.Means + " " + f.Do
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q: %s", check, w, text)
			}
		}
		return
	}
	t.Errorf("no finding %q in %+v", check, findings)
}
