package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/wireengine"
	"warmpath/tokenize/chat"
	folder "warmpath/tokenize/model"
)

const (
	servedModel = "tiny"
	adapter     = "sql"
	adapterID   = 7
)

// served is an engine of one rank: vLLM's HTTP face before a model and a prefix
// cache of its own, which forgets nothing, and KV events in vLLM's words. Blocks
// are found by the engine's own tokens, adapter and salt.
type served struct {
	faults
	name   string
	model  *folder.Model
	wire   *wireengine.Engine
	server *httptest.Server

	mu    sync.Mutex
	cache map[blockkey.Key]bool
	// told are the pool's blocks that the events tell of, if a bridge reads them.
	told map[blockkey.Key]bool
	// extra takes what is stored, in place of a bridge.
	extra func(keys []blockkey.Key)
}

// faults are what an engine does otherwise than its pool believes.
type faults struct {
	// template and merges are the engine's, where they differ from the gateway's.
	template string
	merges   [][2]string
	// block is the engine's block size, pool the pool's.
	block, pool int
	generation  kvevents.Generation
	saltBlind   bool // cache_salt is ignored
	silent      bool // KV events are not sent
	unreported  bool // usage has no cached_tokens
}

const (
	plainTemplate  = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
	systemTemplate = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + plainTemplate
	datedTemplate  = "Today is 26 Jul 2026.\n" + plainTemplate
	otherDate      = "Today is 27 Jul 2026.\n" + plainTemplate
)

// modelFolder writes a model's folder: the small committed tokenizer with merges
// added, and a chat template.
func modelFolder(t testing.TB, template string, merges [][2]string) string {
	t.Helper()
	data, err := os.ReadFile("../../tokenize/model/testdata/tiny/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	bpe := file["model"].(map[string]any)
	vocabulary := bpe["vocab"].(map[string]any)
	for i, m := range merges {
		vocabulary[m[0]+m[1]] = 300 + i
		bpe["merges"] = append(bpe["merges"].([]any), []string{m[0], m[1]})
	}
	dir := t.TempDir()
	for name, content := range map[string]any{
		"tokenizer.json":        file,
		"tokenizer_config.json": map[string]any{"bos_token": "<s>", "eos_token": "</s>", "chat_template": template},
	} {
		data, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// serveModel starts an engine.
func serveModel(t testing.TB, name, dir string, f faults) *served {
	t.Helper()
	m, err := folder.Load(dir, folder.Options{})
	if err != nil {
		t.Fatal(err)
	}
	wire, err := wireengine.Start(wireengine.Config{
		Cache: wireengine.CacheConfig{Generation: f.generation, BlockSize: f.block}, ReplayEndpoint: "tcp://127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &served{faults: f, name: name, model: m, wire: wire, cache: map[blockkey.Key]bool{}, told: map[blockkey.Key]bool{}}
	mux := http.NewServeMux()
	mux.Handle("/", wireengine.NewAPI(wireengine.APIConfig{Kind: wireengine.VLLM, Model: servedModel, Version: "0.26.0"}, wire))
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"owned_by":"vllm"},{"id":%q,"owned_by":"vllm","parent":%q}]}`, servedModel, adapter, servedModel)
	})
	mux.HandleFunc("POST /tokenize", n.tokenize)
	for path := range endpoints {
		mux.HandleFunc("POST "+path, n.complete)
	}
	n.server = httptest.NewServer(mux)
	t.Cleanup(func() { n.server.Close(); wire.Close() })
	return n
}

// asked is what an engine reads of a request.
type asked struct {
	Model         string          `json:"model"`
	Messages      json.RawMessage `json:"messages"`
	Prompt        string          `json:"prompt"`
	Special       *bool           `json:"add_special_tokens"`
	Salt          string          `json:"cache_salt"`
	Stream        bool            `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// read understands a request: as vLLM, with the tokens around a text but not
// around a chat.
func (n *served) read(w http.ResponseWriter, r *http.Request) (q asked, ids []uint32, ok bool) {
	err := json.NewDecoder(r.Body).Decode(&q)
	switch {
	case err != nil:
	case q.Messages != nil:
		ids, err = n.model.ChatIDs(nil, chat.Request{Messages: q.Messages}, q.Special != nil && *q.Special)
	case q.Special != nil && !*q.Special:
		ids = n.model.Append(nil, q.Prompt)
	default:
		ids = n.model.Text(q.Prompt)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return q, ids, err == nil
}

func (n *served) tokenize(w http.ResponseWriter, r *http.Request) {
	if _, ids, ok := n.read(w, r); ok {
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(ids), "max_model_len": 40960, "tokens": ids}) // the client may be gone
	}
}

func (n *served) complete(w http.ResponseWriter, r *http.Request) {
	q, ids, ok := n.read(w, r)
	if !ok {
		return
	}
	lora := ""
	if q.Model == adapter {
		lora = adapter
	}
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":1`, len(ids))
	cached := n.compute(ids, lora, q.Salt)
	if !n.unreported {
		usage += fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
	}
	usage += "}"
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"text":"ok","message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":`+usage+`}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	text := eventRole + `data: {"choices":[{"text":"ok","delta":{"content":"ok"},"finish_reason":null}]}` + "\n\n" + eventStop
	if q.StreamOptions.IncludeUsage {
		text += `data: {"choices":[],"usage":` + usage + "}\n\n"
	}
	_, _ = io.WriteString(w, text+eventDone)
}

// compute looks a prompt up, stores what is missing, and tells it. It returns how
// many of the prompt's tokens were there.
func (n *served) compute(ids []uint32, lora, salt string) (cached int) {
	if n.saltBlind {
		salt = ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	keys := blockkey.Chain(nil, blockkey.Root("engine", lora, salt), ids, n.block)
	held := 0
	for held < len(keys) && n.cache[keys[held]] {
		held++
	}
	cached = min(held, (len(ids)-1)/n.block) * n.block // the last token is always computed
	if held == len(keys) {
		return cached
	}
	e := kvevents.Event{
		Kind: kvevents.Stored, Tier: pb.Tier_TIER_GPU, BlockSize: n.block, Hashes: keys[held:],
		Tokens: ids[held*n.block : len(keys)*n.block], HasGroup: true, Spec: "full_attention",
	}
	if held > 0 {
		e.Parent, e.HasParent = keys[held-1], true
	} else {
		e.Salt = salt // vLLM names it with a prompt's first block only
	}
	if lora != "" {
		e.LoRA, e.LoRAID, e.HasLoRAID = lora, adapterID, true
	}
	for _, k := range keys[held:] {
		n.cache[k] = true
	}
	if n.silent {
		return cached
	}
	n.wire.Publish([]kvevents.Event{e}, wireengine.Delivered)
	n.tell(ids[:len(keys)*n.block], lora, salt)
	if n.extra != nil {
		n.extra(keys[held:])
	}
	return cached
}

// tell remembers what a reader of the events knows of a prompt.
func (n *served) tell(ids []uint32, lora, salt string) {
	carries := wireengine.Carries(n.generation)
	switch {
	case lora != "" && n.generation < kvevents.VLLMLoRAName: // a number without a name
		return
	case n.block%n.pool != 0 && n.pool%n.block != 0: // cannot be told
		return
	case !carries.Salt:
		salt = ""
	}
	for _, k := range blockkey.Chain(nil, blockkey.Root(servedModel, lora, salt), ids, n.pool) {
		n.told[k] = true
	}
}

// known is how many blocks a router should have of the engine.
func (n *served) known() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.told)
}

// message is one of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// prose makes text that several tokenizers cut in several ways.
func prose(pick func(int) int, words int) string {
	list := strings.Fields("the other answer begins here with letters and numbers that hold water under every weather while servers render orders for their users")
	out := make([]string, words)
	for i := range out {
		out[i] = list[pick(len(list))]
	}
	return strings.Join(out, " ") + "."
}
