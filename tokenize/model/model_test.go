package model

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"warmpath/tokenize/chat"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func tiny(tb testing.TB) *Model {
	tb.Helper()
	m, err := Load("testdata/tiny", Options{})
	must(tb, err)
	return m
}

// userHello are the ids of one user message by the tiny model, from the Rust
// tokenizers.
var userHello = []uint32{267, 84, 82, 68, 81, 198, 259, 268, 198, 267, 64, 82, 82, 72, 82, 83, 64, 77, 83, 198}

const helloMessages = `[{"role":"user","content":"hello"}]`

func TestTinyModel(t *testing.T) {
	m := tiny(t)
	if m.Name() != "tiny" {
		t.Errorf("name %q", m.Name())
	}
	if got := m.Text("hello world"); !slices.Equal(got, []uint32{265, 259, 264}) {
		t.Errorf("Text: %v", got)
	}
	if got := m.Append(nil, "hello world"); !slices.Equal(got, []uint32{259, 264}) {
		t.Errorf("Append: %v", got)
	}
	text, err := m.Chat(chat.Request{Messages: json.RawMessage(helloMessages)})
	if want := "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"; err != nil || text != want {
		t.Errorf("Chat: %q, %v", text, err)
	}
	ids, err := m.ChatIDs(nil, chat.Request{Messages: json.RawMessage(helloMessages)}, false)
	if err != nil || !slices.Equal(ids, userHello) {
		t.Errorf("ChatIDs: %v, %v", ids, err)
	}
	ids, err = m.ChatIDs([]uint32{7}, chat.Request{Messages: json.RawMessage(helloMessages)}, true)
	if err != nil || !slices.Equal(ids, append([]uint32{7, 265}, userHello...)) {
		t.Errorf("ChatIDs with special tokens: %v, %v", ids, err)
	}
	if got, want := m.Cuts().Tokens, []string{"</s>", "<s>", "<|im_end|>", "<|im_start|>"}; !slices.Equal(got, want) {
		t.Errorf("Cuts: %q", got)
	}
	if got, want := m.Sources(), []string{"tokenizer_config.json", "tokenizer.json"}; !slices.Equal(got, want) {
		t.Errorf("Sources: %q", got)
	}
	if got, want := m.TemplateSources(), []string{"tokenizer_config.json"}; !slices.Equal(got, want) {
		t.Errorf("TemplateSources: %q", got)
	}
}

func TestToolTemplate(t *testing.T) {
	m := tiny(t)
	for tools, want := range map[string]bool{
		`[{"type":"function","function":{"name":"f"}}]`: true, `[ ]`: false, `null`: false, ``: false,
	} {
		text, err := m.Chat(chat.Request{Messages: json.RawMessage(helloMessages), Tools: json.RawMessage(tools)})
		must(t, err)
		if got := strings.HasPrefix(text, `[{"type": "function"`); got != want {
			t.Errorf("tools %s: %q", tools, text)
		}
	}
}

// files returns the tiny directory with some files changed; empty ones removed.
func files(t testing.TB, changes map[string]string) fstest.MapFS {
	t.Helper()
	dir := fstest.MapFS{}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile("testdata/tiny/" + name)
		must(t, err)
		dir[name] = &fstest.MapFile{Data: data}
	}
	for name, text := range changes {
		delete(dir, name)
		if text != "" {
			dir[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return dir
}

func TestTemplateSources(t *testing.T) {
	tools := json.RawMessage(`[{"type":"function","function":{"name":"f"}}]`)
	for _, c := range []struct {
		name         string
		files        map[string]string
		options      Options
		plain, tools string
	}{
		{"string", map[string]string{"tokenizer_config.json": `{"chat_template":"one"}`}, Options{}, "one", "one"},
		{"object", map[string]string{"tokenizer_config.json": `{"chat_template":{"default":"one","tool_use":"two"}}`}, Options{}, "one", "two"},
		{"jinja file", map[string]string{"chat_template.jinja": "file"}, Options{}, "file", "file"},
		{"jinja files", map[string]string{"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools", "additional_chat_templates/README.md": "x"}, Options{}, "file", "tools"},
		{"processor", map[string]string{"chat_template.json": `{"chat_template":"processor"}`, "tokenizer_config.json": `{"chat_template":"one"}`}, Options{}, "processor", "one"},
		{"processor alone", map[string]string{"chat_template.json": `{"chat_template":"processor"}`, "tokenizer_config.json": `{}`}, Options{}, "processor", "processor"},
		{"processor and jinja file", map[string]string{"chat_template.json": `{"chat_template":"processor"}`, "chat_template.jinja": "file"}, Options{}, "file", "file"},
		{"given", map[string]string{"chat_template.jinja": "file"}, Options{ChatTemplate: "given"}, "given", "given"},
		{"old specials", map[string]string{"tokenizer_config.json": `{"chat_template":"{{ bos_token }}{{ eos_token }}"}`, "special_tokens_map.json": `{"bos_token":{"content":"<s>"},"eos_token":"</s>"}`}, Options{}, "<s></s>", "<s></s>"},
		{"specials", map[string]string{"tokenizer_config.json": `{"bos_token":"B","extra_special_tokens":{"image_token":"I"},"chat_template":"{{ bos_token }}{{ image_token }}{{ eos_token }}{{ eos_token is defined }}"}`}, Options{}, "BIFalse", "BIFalse"},
	} {
		m, err := Open(files(t, c.files), c.options)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		plain, err := m.Chat(chat.Request{Messages: json.RawMessage(helloMessages)})
		must(t, err)
		withTools, err := m.Chat(chat.Request{Messages: json.RawMessage(helloMessages), Tools: tools})
		must(t, err)
		if plain != c.plain || withTools != c.tools {
			t.Errorf("%s: %q and %q, want %q and %q", c.name, plain, withTools, c.plain, c.tools)
		}
	}
	m, err := Open(files(t, map[string]string{"tokenizer_config.json": ""}), Options{})
	must(t, err)
	if _, err := m.Chat(chat.Request{Messages: json.RawMessage(helloMessages)}); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("without a template: %v", err)
	}
}

// TestTokensAround: the flags of the configuration win over tokenizer.json.
func TestTokensAround(t *testing.T) {
	for config, want := range map[string][]uint32{
		`{}`: {265, 259},
		`{"add_bos_token":false,"bos_token":"<s>"}`:                                        {259},
		`{"add_bos_token":true,"add_eos_token":true,"bos_token":"<s>","eos_token":"</s>"}`: {265, 259, 266},
		`{"add_eos_token":true,"bos_token":"<s>","eos_token":{"content":"</s>"}}`:          {259, 266},
		`{"add_bos_token":true,"bos_token":null}`:                                          {259},
	} {
		m, err := Open(files(t, map[string]string{"tokenizer_config.json": config}), Options{})
		must(t, err)
		if got := m.Text("hello"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", config, got, want)
		}
	}
}

// TestAddedTokens: tokens that only the configuration has are tokens.
func TestAddedTokens(t *testing.T) {
	config := `{"added_tokens_decoder":{"269":{"content":"<tool>","special":true},"265":{"content":"<s>","special":true},"266":{"content":"</s>","lstrip":true,"special":true}}}`
	m, err := Open(files(t, map[string]string{"tokenizer_config.json": config}), Options{})
	must(t, err)
	if got, want := m.Append(nil, "hello<tool>hello </s>"), []uint32{259, 269, 259, 266}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := m.Cuts().Tokens, []string{"<s>", "<tool>", "<|im_end|>", "<|im_start|>"}; !slices.Equal(got, want) {
		t.Errorf("cuts %q, want %q: a token that takes the space before it is no cut", got, want)
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"no tokenizer", map[string]string{"tokenizer.json": ""}, "tokenizer.json: no such file"},
		{"tokenizer", map[string]string{"tokenizer.json": "[]"}, "tokenizer.json: it is not a JSON object"},
		{"tokenizer model", map[string]string{"tokenizer.json": `{"model":{"type":"WordPiece","vocab":{}}}`}, "tokenizer.json: "},
		{"config", map[string]string{"tokenizer_config.json": `{"bos_token":1}`}, "tokenizer_config.json: expected a token"},
		{"specials", map[string]string{"special_tokens_map.json": `[`}, "special_tokens_map.json: "},
		{"template", map[string]string{"chat_template.jinja": "{% if %}"}, "chat_template.jinja: chat template: line 1"},
		{"template form", map[string]string{"tokenizer_config.json": `{"chat_template":3}`}, "tokenizer_config.json: chat_template: expected a string"},
		{"no default", map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"a","template":"b"}]}`}, "none named default"},
		{"processor", map[string]string{"chat_template.json": `[]`}, "chat_template.json: "},
		{"bos", map[string]string{"tokenizer_config.json": `{"add_bos_token":true,"bos_token":"<x>"}`}, `bos_token "<x>" is not in tokenizer.json`},
		{"added id", map[string]string{"tokenizer_config.json": `{"added_tokens_decoder":{"7":{"content":"<s>"}}}`}, "different models"},
		{"added key", map[string]string{"tokenizer_config.json": `{"added_tokens_decoder":{"x":{"content":"<s>"}}}`}, "no token id"},
	} {
		if _, err := Open(files(t, c.files), Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := Load("testdata/none", Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := Load("testdata/tiny/tokenizer.json", Options{}); err == nil || !strings.Contains(err.Error(), "give the directory") {
		t.Errorf("a file: %v", err)
	}
}

// TestRealModels loads the tokenizers and configurations of real models.
func TestRealModels(t *testing.T) {
	const dir = "../../../shared/data/tokenizers/"
	for name, want := range map[string]string{
		"qwen3":       "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
		"deepseek_v3": "<｜begin▁of▁sentence｜><｜User｜>hello<｜Assistant｜>",
	} {
		t.Run(name, func(t *testing.T) {
			packed, err := os.Open(dir + name + ".tokenizer.min.json.gz")
			if errors.Is(err, fs.ErrNotExist) {
				t.Skip("no tokenizers beside the repository")
			}
			must(t, err)
			defer packed.Close()
			z, err := gzip.NewReader(packed)
			must(t, err)
			tokenizer, err := io.ReadAll(z)
			must(t, err)
			config, err := os.ReadFile(dir + name + ".tokenizer_config.json")
			must(t, err)
			m, err := Open(fstest.MapFS{"tokenizer.json": {Data: tokenizer}, "tokenizer_config.json": {Data: config}}, Options{Name: name})
			must(t, err)
			request := chat.Request{Messages: json.RawMessage(helloMessages)}
			text, err := m.Chat(request)
			if err != nil || text != want {
				t.Errorf("prompt %q, %v, want %q", text, err, want)
			}
			ids, err := m.ChatIDs(nil, request, false)
			must(t, err)
			if got := m.Tokenizer().Decode(ids, false); got != text {
				t.Errorf("the ids are of %q", got)
			}
		})
	}
}
