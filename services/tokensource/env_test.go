package tokensource_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"warmpath/services/tokensource"
	"warmpath/tokenize"
	"warmpath/tokenize/chat"
	"warmpath/tokenize/keycache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const template = `{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% if reasoning_effort %}<effort {{ reasoning_effort }}>{% endif %}{% if not messages or messages[0].role == 'nobody' %}{{ raise_exception('nobody may speak') }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// bytesModel is a model with a token a byte, 256 for the marks' start and 1, 2
// around texts.
type bytesModel struct{ template *chat.Template }

func newModel(t testing.TB, source string) *bytesModel {
	t.Helper()
	compiled, err := chat.Compile(source, chat.Specials{}, chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &bytesModel{compiled}
}

func (m *bytesModel) Chat(r chat.Request) (string, error) { return m.template.Render(r) }

func (m *bytesModel) Append(dst []uint32, text string) []uint32 {
	for i, part := range strings.Split(text, "<|im_start|>") {
		if i > 0 {
			dst = append(dst, 256)
		}
		dst = tokenize.AppendText(dst, part)
	}
	return dst
}

func (m *bytesModel) AppendSpecial(dst []uint32, text string) []uint32 {
	return append(m.Append(append(dst, 300), text), 301)
}

var cuts = keycache.Cuts{Tokens: []string{"<|im_start|>"}}

// engine is an HTTP server with the /tokenize of vLLM or SGLang before a model.
type engine struct {
	server *httptest.Server
	model  *bytesModel

	mu       sync.Mutex
	requests []string // bodies
	keys     []string // Authorization headers
	// answer replaces the model's when set.
	answer func(w http.ResponseWriter) bool
}

func newEngine(t testing.TB, model *bytesModel) *engine {
	e := &engine{model: model}
	e.server = httptest.NewServer(http.HandlerFunc(e.tokenize))
	t.Cleanup(e.server.Close)
	return e
}

func (e *engine) replica(name, kind string) tokensource.Replica {
	return tokensource.Replica{Name: name, Address: e.server.URL, Kind: kind}
}

func (e *engine) asked() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.requests...)
}

func (e *engine) set(answer func(http.ResponseWriter) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func (e *engine) tokenize(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.mu.Lock()
	e.requests = append(e.requests, string(body))
	e.keys = append(e.keys, r.Header.Get("Authorization"))
	answer := e.answer
	e.mu.Unlock()
	if r.Method != http.MethodPost || r.URL.Path != "/tokenize" {
		http.NotFound(w, r)
		return
	}
	if answer != nil && answer(w) {
		return
	}
	var q struct {
		Prompt              *string
		Messages, Tools     json.RawMessage
		AddSpecialTokens    *bool           `json:"add_special_tokens"`
		AddGenerationPrompt *bool           `json:"add_generation_prompt"`
		Kwargs              json.RawMessage `json:"chat_template_kwargs"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ids := []uint32{}
	if q.Prompt != nil {
		if q.AddSpecialTokens == nil || *q.AddSpecialTokens {
			ids = e.model.AppendSpecial(ids, *q.Prompt)
		} else {
			ids = e.model.Append(ids, *q.Prompt)
		}
	} else {
		text, err := e.model.Chat(chat.Request{Messages: q.Messages, Tools: q.Tools, Kwargs: q.Kwargs, AddGenerationPrompt: q.AddGenerationPrompt})
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": "engine: " + err.Error(), "type": "BadRequestError", "code": 400}})
			return
		}
		ids = e.model.Append(nil, text)
	}
	json.NewEncoder(w).Encode(map[string]any{"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": nil})
}

func fail(status int, body string) func(http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool {
		w.WriteHeader(status)
		io.WriteString(w, body)
		return true
	}
}

func list(replicas ...tokensource.Replica) func() []tokensource.Replica {
	return func() []tokensource.Replica { return replicas }
}

func newSource(t testing.TB, cfg tokensource.Config) *tokensource.Source {
	t.Helper()
	s, err := tokensource.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func raw(s string) json.RawMessage { return json.RawMessage(s) }
