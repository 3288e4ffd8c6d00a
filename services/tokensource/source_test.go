package tokensource_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/blockkey"
	"warmpath/services/tokensource"
	"warmpath/tokenize"
	"warmpath/tokenize/model"
)

const hello = `[{"role":"user","content":"hello"}]`

func TestInProcess(t *testing.T) {
	s := newSource(t, tokensource.Config{Mode: tokensource.InProcess, Model: newModel(t, template), Cuts: cuts})
	m := newModel(t, template)
	chatText := "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
	cases := []struct {
		name   string
		prompt tokensource.Prompt
		want   []uint32
	}{
		{"chat", tokensource.Prompt{Chat: true, Messages: raw(hello)}, m.Append(nil, chatText)},
		{"chat, special tokens", tokensource.Prompt{Chat: true, Messages: raw(hello), Template: tokenize.TemplateArgs{AddSpecialTokens: new(true)}}, m.AppendSpecial(nil, chatText)},
		{"no generation prompt", tokensource.Prompt{Chat: true, Messages: raw(hello), Template: tokenize.TemplateArgs{AddGenerationPrompt: new(false)}}, m.Append(nil, "<|im_start|>user\nhello<|im_end|>\n")},
		{"reasoning effort", tokensource.Prompt{Chat: true, Messages: raw(hello), Template: tokenize.TemplateArgs{ReasoningEffort: raw(`"high"`)}},
			m.Append(nil, "<|im_start|>user\nhello<|im_end|>\n<effort high><|im_start|>assistant\n")},
		{"text", tokensource.Prompt{Text: "once upon a time there was a token"}, m.AppendSpecial(nil, "once upon a time there was a token")},
		{"text, no special tokens", tokensource.Prompt{Text: "once", Template: tokenize.TemplateArgs{AddSpecialTokens: new(false)}}, m.Append(nil, "once")},
	}
	for _, c := range cases {
		for _, block := range []int{0, 16} {
			c.prompt.Root, c.prompt.BlockTokens = 5, block
			got, err := s.Tokens(context.Background(), &c.prompt, nil)
			if err != nil || got.IDs != nil || got.Count != len(c.want) || got.Source != "in_process" || got.TextBytes == 0 ||
				!slices.Equal(got.Keys, blockkey.Chain(nil, 5, c.want, block)) {
				t.Errorf("%s: got %+v, %v", c.name, got, err)
			}
		}
	}
}

func TestInProcessRefuses(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := newSource(t, tokensource.Config{Mode: tokensource.InProcess, Model: newModel(t, template), Registerer: reg})
	cases := []struct {
		name, param, reason string
		prompt              tokensource.Prompt
	}{
		{"the template raises", "messages", "", tokensource.Prompt{Chat: true, Messages: raw(`[{"role":"nobody","content":"x"}]`)}},
		{"an effort that is no string", "reasoning_effort", "", tokensource.Prompt{Chat: true, Messages: raw(hello), Template: tokenize.TemplateArgs{ReasoningEffort: raw(`5`)}}},
		{"a template of its own", "", "template", tokensource.Prompt{Chat: true, Messages: raw(hello), Template: tokenize.TemplateArgs{ChatTemplate: raw(`"x"`)}}},
		{"an image", "", "media", tokensource.Prompt{Chat: true, Messages: raw(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]`)}},
	}
	for _, c := range cases {
		_, err := s.Tokens(context.Background(), &c.prompt, nil)
		var fault *tokensource.PromptError
		var gone *tokensource.UnavailableError
		switch {
		case c.reason == "" && (!errors.As(err, &fault) || fault.Param != c.param):
			t.Errorf("%s: got %v", c.name, err)
		case c.reason != "" && (!errors.As(err, &gone) || gone.Reason != c.reason):
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	if got := metric(t, reg, "warmpath_tokensource_prompts_total", "refused"); got != 2 {
		t.Errorf("%v refused", got)
	}
	if got := metric(t, reg, "warmpath_tokensource_unavailable_total", "media"); got != 1 {
		t.Errorf("%v for media", got)
	}
}

// metric sums a metric over the series that have a label value; all for "".
func metric(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					sum += m.GetCounter().GetValue()
				}
			}
			if label == "" {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// SGLang hides the tools from the model when none may be called; vLLM does not.
func TestToolChoiceNone(t *testing.T) {
	prompt := tokensource.Prompt{Chat: true, Messages: raw(hello), Tools: raw(`[{"type":"function","function":{"name":"f"}}]`), Template: tokenize.TemplateArgs{ToolChoice: raw(`"none"`)}}
	counts := map[string]int{}
	for _, kind := range []string{"vllm", "sglang"} {
		s := newSource(t, tokensource.Config{Mode: tokensource.InProcess, Model: newModel(t, template), EngineKind: kind})
		got, err := s.Tokens(context.Background(), &prompt, nil)
		if err != nil {
			t.Fatal(err)
		}
		counts[kind] = got.Count
	}
	if counts["vllm"] <= counts["sglang"]+len("<tools></tools>") {
		t.Errorf("got %v", counts)
	}
}

func TestBytesAndClient(t *testing.T) {
	s := newSource(t, tokensource.Config{Mode: tokensource.Bytes})
	got, err := s.Tokens(context.Background(), &tokensource.Prompt{Text: "abc"}, []uint32{9})
	if err != nil || !slices.Equal(got.IDs, []uint32{9, 97, 98, 99}) || got.Count != 3 || got.Source != "in_process" {
		t.Errorf("got %+v, %v", got, err)
	}
	want, _ := (tokenize.Bytes{}).Chat(raw(hello), nil)
	if got, err := s.Tokens(context.Background(), &tokensource.Prompt{Chat: true, Messages: raw(hello)}, nil); err != nil || !slices.Equal(got.IDs, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	var fault *tokensource.PromptError
	if _, err := s.Tokens(context.Background(), &tokensource.Prompt{Chat: true, Messages: raw(`[]`)}, nil); !errors.As(err, &fault) {
		t.Errorf("got %v", err)
	}
	s = newSource(t, tokensource.Config{Mode: tokensource.Client})
	var gone *tokensource.UnavailableError
	if _, err := s.Tokens(context.Background(), &tokensource.Prompt{Text: "abc"}, nil); !errors.As(err, &gone) || gone.Reason != "client" {
		t.Errorf("got %v", err)
	}
	if s.UseEngine("x") {
		t.Error("a client's ids were replaced")
	}
}

func TestNewRefuses(t *testing.T) {
	for words, cfg := range map[string]tokensource.Config{
		"mode \"\" is not known": {},
		"needs a model":          {Mode: tokensource.InProcess},
		"needs the list":         {Mode: tokensource.Engine},
		"max bytes -1":           {Mode: tokensource.InProcess, Model: newModel(t, template), CacheBytes: -1},
		"change the text's own":  {Mode: tokensource.InProcess, Model: oddModel{newModel(t, template)}},
	} {
		if _, err := tokensource.New(cfg); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}

// oddModel's special tokens are not around the text.
type oddModel struct{ *bytesModel }

func (m oddModel) AppendSpecial(dst []uint32, text string) []uint32 {
	return m.Append(dst, strings.ToUpper(text))
}

// The mismatch alarm moves the source to the engines and back.
func TestFallback(t *testing.T) {
	e := newEngine(t, newModel(t, "{{ messages[0].content }}"))
	reg := prometheus.NewRegistry()
	s := newSource(t, tokensource.Config{
		Mode: tokensource.InProcess, Model: newModel(t, template), Engines: list(e.replica("a", "vllm")), Registerer: reg,
	})
	prompt := &tokensource.Prompt{Chat: true, Messages: raw(hello), Root: 1, BlockTokens: 4}
	count := func() int {
		got, err := s.Tokens(context.Background(), prompt, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := string(s.Using()); got.Source != want {
			t.Errorf("source %s while using %s", got.Source, want)
		}
		return got.Count
	}
	before := count()
	if !s.UseEngine("template differs") || s.Using() != tokensource.Engine || count() != len("hello") {
		t.Errorf("using %s", s.Using())
	}
	if reason, on := s.Fallback(); !on || reason != "template differs" || metric(t, reg, "warmpath_tokensource_engine_fallback", "") != 1 {
		t.Errorf("fallback %q, %v", reason, on)
	}
	s.UseInProcess()
	if _, on := s.Fallback(); on || count() != before || metric(t, reg, "warmpath_tokensource_engine_fallback", "") != 0 {
		t.Error("still falling back")
	}
	if alone := newSource(t, tokensource.Config{Mode: tokensource.InProcess, Model: newModel(t, template)}); alone.UseEngine("x") {
		t.Error("fell back to no engine")
	}
}

// tinyTokenizer is a tokenizer.json with a token for each of a few letters.
const tinyTokenizer = `{"added_tokens":[
 {"id":5,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
 "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
 "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
  "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[5],"tokens":["<s>"]}}},
 "decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
 "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,
  "vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"p":4},"merges":["a b"]}}`

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tokenizer.json":        tinyTokenizer,
		"tokenizer_config.json": `{"chat_template":"{% for m in messages %}<s>{{ m.content }}{% endfor %}"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, cuts, err := tokensource.Load(dir, model.Options{})
	if err != nil || !slices.Equal(cuts.Tokens, []string{"<s>"}) || cuts.Lines {
		t.Fatalf("cuts %+v, %v", cuts, err)
	}
	s := newSource(t, tokensource.Config{Mode: tokensource.InProcess, Model: m, Cuts: cuts})
	for text, want := range map[string][]uint32{"ab a": {5, 2, 3, 0}, "b": {5, 1}} {
		got, err := s.Tokens(context.Background(), &tokensource.Prompt{Text: text, BlockTokens: 1}, nil)
		if err != nil || got.Count != len(want) || !slices.Equal(got.Keys, blockkey.Chain(nil, 0, want, 1)) {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
	got, err := s.Tokens(context.Background(), &tokensource.Prompt{Chat: true, Messages: raw(`[{"role":"user","content":"ab"}]`), BlockTokens: 1}, nil)
	if err != nil || !slices.Equal(got.Keys, blockkey.Chain(nil, 0, []uint32{5, 2}, 1)) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, _, err := tokensource.Load(t.TempDir(), model.Options{}); err == nil {
		t.Error("an empty directory was loaded")
	}
}
