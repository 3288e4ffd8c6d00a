package tokensource_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/services/tokensource"
	"warmpath/streams/streamstest"
	"warmpath/tokenize"
)

func askEngine(t *testing.T, s *tokensource.Source, p tokensource.Prompt) ([]uint32, error) {
	t.Helper()
	got, err := s.Tokens(context.Background(), &p, nil)
	if err == nil && (got.Source != "engine" || got.Count != len(got.IDs)) {
		t.Errorf("got %+v", got)
	}
	return got.IDs, err
}

// Each engine is asked in its own words.
func TestQuestions(t *testing.T) {
	full := tokensource.Prompt{
		Chat: true, Model: "m", Messages: raw(hello), Tools: raw(`[{"type":"function","function":{"name":"f"}}]`),
		Template: tokenize.TemplateArgs{
			Documents: raw(`[{"text":"d"}]`), ChatTemplateKwargs: raw(` {"enable_thinking": false} `), ToolChoice: raw(`"auto"`), ReasoningEffort: raw(`"low"`),
			AddGenerationPrompt: new(true), ContinueFinalMessage: new(false), AddSpecialTokens: new(false),
		},
	}
	without := full
	without.Template.Documents = nil
	cases := []struct {
		name, kind string
		prompt     tokensource.Prompt
		want       string
	}{
		{"vllm, text", "vllm", tokensource.Prompt{Model: "m", Text: "a\"b"}, `{"model":"m","prompt":"a\"b"}`},
		{"vllm, adapter", "vllm", tokensource.Prompt{Model: "m", LoRA: "l", Text: "", Template: tokenize.TemplateArgs{AddSpecialTokens: new(false)}}, `{"model":"l","add_special_tokens":false,"prompt":""}`},
		{"vllm, chat", "vllm", tokensource.Prompt{Chat: true, Model: "m", Messages: raw(hello)}, `{"model":"m","messages":` + hello + `}`},
		{"vllm, all", "vllm", full, `{"model":"m","add_special_tokens":false,"messages":` + hello + `,"tools":[{"type":"function","function":{"name":"f"}}],"continue_final_message":false,"add_generation_prompt":true,` +
			`"chat_template_kwargs":{"enable_thinking": false,"documents":[{"text":"d"}],"reasoning_effort":"low"}}`},
		{"vllm, documents alone", "vllm", tokensource.Prompt{Chat: true, Messages: raw(hello), Template: tokenize.TemplateArgs{Documents: raw(`[]`), ChatTemplateKwargs: raw(`{}`)}},
			`{"messages":` + hello + `,"chat_template_kwargs":{"documents":[]}}`},
		{"sglang, all", "sglang", without, `{"model":"m","add_special_tokens":false,"messages":` + hello + `,"tools":[{"type":"function","function":{"name":"f"}}],"continue_final_message":false,` +
			`"tool_choice":"auto","reasoning_effort":"low","chat_template_kwargs": {"enable_thinking": false} }`},
	}
	for _, c := range cases {
		e := newEngine(t, newModel(t, template))
		s := newSource(t, tokensource.Config{Mode: tokensource.Engine, EngineKey: "k", Engines: list(e.replica("a", c.kind))})
		if _, err := askEngine(t, s, c.prompt); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := e.asked(); len(got) != 1 || got[0] != c.want || e.keys[0] != "Bearer k" {
			t.Errorf("%s: asked %q with %q, want %q", c.name, got, e.keys, c.want)
		}
	}
	e := newEngine(t, newModel(t, template))
	s := newSource(t, tokensource.Config{Mode: tokensource.Engine, Engines: list(e.replica("a", "sglang"))})
	for name, args := range map[string]tokenize.TemplateArgs{
		"documents":            {Documents: raw(`[]`)},
		"a template":           {ChatTemplate: raw(`"x"`)},
		"no generation prompt": {AddGenerationPrompt: new(false)},
	} {
		var gone *tokensource.UnavailableError
		if _, err := askEngine(t, s, tokensource.Prompt{Chat: true, Messages: raw(hello), Template: args}); !errors.As(err, &gone) || gone.Reason != "unsupported" {
			t.Errorf("sglang, %s: got %v", name, err)
		}
	}
	var fault *tokensource.PromptError
	s = newSource(t, tokensource.Config{Mode: tokensource.Engine, Engines: list(e.replica("a", "vllm"))})
	if _, err := askEngine(t, s, tokensource.Prompt{Chat: true, Template: tokenize.TemplateArgs{Documents: raw(`[]`), ChatTemplateKwargs: raw(`[1]`)}}); !errors.As(err, &fault) || fault.Param != "chat_template_kwargs" {
		t.Errorf("got %v", err)
	}
}

// The same question is asked once, until its answer is too old or out of room.
func TestAnswersAreRemembered(t *testing.T) {
	m := newModel(t, template)
	e := newEngine(t, m)
	ask := func(cfg tokensource.Config, texts ...string) int {
		t.Helper()
		cfg.Mode, cfg.Engines = tokensource.Engine, list(e.replica("a", "vllm"))
		s := newSource(t, cfg)
		before := len(e.asked())
		for _, text := range texts {
			ids, err := askEngine(t, s, tokensource.Prompt{Text: text})
			if err != nil || !slices.Equal(ids, m.AppendSpecial(nil, text)) {
				t.Errorf("%q: got %v, %v", text, ids, err)
			}
		}
		return len(e.asked()) - before
	}
	if n := ask(tokensource.Config{}, "one", "two", "one", "two", "one"); n != 2 {
		t.Errorf("%d questions", n)
	}
	if n := ask(tokensource.Config{AnswerAge: time.Nanosecond}, "one", "one"); n != 2 {
		t.Errorf("%d questions with answers that age at once", n)
	}
	// Room for two: the one used last longest ago goes.
	if n := ask(tokensource.Config{AnswerBytes: 2*256 + 50}, "one", "two", "one", "six", "one", "two"); n != 4 {
		t.Errorf("%d questions with room for two", n)
	}
	if n := ask(tokensource.Config{AnswerBytes: 100}, "one", "one"); n != 2 {
		t.Errorf("%d questions with room for none", n)
	}
}

func TestEngineErrors(t *testing.T) {
	cases := []struct {
		name, kind string
		status     int
		body       string
		fault      bool
		reason     string
		words      string
	}{
		{"vllm refuses", "vllm", 400, `{"error":{"message":"roles must alternate","type":"BadRequestError"}}`, true, "", "roles must alternate"},
		{"an older vllm refuses", "vllm", 400, `{"object":"error","message":"bad content"}`, true, "", "bad content"},
		{"validation", "vllm", 422, `{"detail":[{"loc":["body"]}]}`, true, "", `[{"loc":["body"]}]`},
		{"plain text", "vllm", 400, "no\n", true, "", "no"},
		{"nothing", "vllm", 400, "", true, "", "no reason given"},
		{"long words", "vllm", 400, strings.Repeat("é", 3000), true, "", "é…"},
		{"no endpoint", "vllm", 404, `{"detail":"Not Found"}`, false, "unsupported", "Not Found"},
		{"sglang without chat", "sglang", 400, `{"object":"error","message":"1 validation error: prompt Field required"}`, false, "unsupported", "cannot tokenize messages"},
		{"a wrong key", "vllm", 401, `{"error":"Unauthorized"}`, false, "engine", "401: Unauthorized"},
		{"overloaded", "vllm", 503, "busy", false, "engine", "503: busy"},
		{"not JSON", "vllm", 200, "<html>", false, "engine", "its answer"},
		{"no tokens", "vllm", 200, `{"count":0}`, false, "engine", "tokens: "},
		{"another count", "vllm", 200, `{"count":3,"tokens":[1,2]}`, false, "engine", "count is 3 and there are 2 tokens"},
	}
	for _, c := range cases {
		e := newEngine(t, newModel(t, template))
		e.set(fail(c.status, c.body))
		s := newSource(t, tokensource.Config{Mode: tokensource.Engine, Engines: list(e.replica("a", c.kind))})
		_, err := askEngine(t, s, tokensource.Prompt{Chat: true, Messages: raw(hello)})
		var fault *tokensource.PromptError
		var gone *tokensource.UnavailableError
		if c.fault && !errors.As(err, &fault) || !c.fault && (!errors.As(err, &gone) || gone.Reason != c.reason) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

// One other engine is asked when the first cannot say; what the prompt's own fault
// is, is not asked twice.
func TestAnotherEngineIsAskedOnce(t *testing.T) {
	bad, good := newEngine(t, newModel(t, template)), newEngine(t, newModel(t, template))
	bad.set(fail(500, "no"))
	s := newSource(t, tokensource.Config{Mode: tokensource.Engine, Engines: list(bad.replica("a", "vllm"), good.replica("b", "vllm"), tokensource.Replica{Name: "c", Address: "http://192.0.2.1", Kind: "trtllm"}, tokensource.Replica{Name: "d", Kind: "vllm"})})
	for i := range 6 {
		if _, err := askEngine(t, s, tokensource.Prompt{Text: strings.Repeat("x", i+1)}); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	if len(good.asked()) != 6 || len(bad.asked()) != 3 {
		t.Errorf("asked %d good, %d bad", len(good.asked()), len(bad.asked()))
	}
	good.set(fail(400, "your fault"))
	bad.set(fail(400, "your fault"))
	before := len(good.asked()) + len(bad.asked())
	var fault *tokensource.PromptError
	if _, err := askEngine(t, s, tokensource.Prompt{Text: "y"}); !errors.As(err, &fault) {
		t.Errorf("got %v", err)
	}
	if n := len(good.asked()) + len(bad.asked()) - before; n != 1 {
		t.Errorf("%d questions about a prompt that was refused", n)
	}
}

// When no engine answers, requests stop paying for asking, and engines are found
// again by themselves.
func TestEnginesThatDoNotAnswer(t *testing.T) {
	e := newEngine(t, newModel(t, template))
	e.set(fail(500, "down"))
	reg := prometheus.NewRegistry()
	s := newSource(t, tokensource.Config{Mode: tokensource.Engine, Engines: list(e.replica("a", "vllm")), Registerer: reg})
	reason := func() string {
		_, err := askEngine(t, s, tokensource.Prompt{Text: "x"})
		var gone *tokensource.UnavailableError
		if err != nil && !errors.As(err, &gone) {
			t.Fatal(err)
		}
		if gone == nil {
			return ""
		}
		return gone.Reason
	}
	for range 4 {
		if got := reason(); got != "engine" {
			t.Errorf("reason %q", got)
		}
	}
	if got := reason(); got != "waiting" || len(e.asked()) != 4 {
		t.Errorf("reason %q after %d questions", got, len(e.asked()))
	}
	e.set(nil)
	streamstest.Until(t, func() bool { return reason() == "" })
	if got := metric(t, reg, "warmpath_tokensource_unavailable_total", "engine"); got != 4 {
		t.Errorf("%v counted", got)
	}
	if _, err := askEngine(t, newSource(t, tokensource.Config{Mode: tokensource.Engine, Engines: list()}), tokensource.Prompt{Text: "x"}); err == nil || !strings.Contains(err.Error(), "no live engine") {
		t.Errorf("got %v", err)
	}
}

func TestTimeoutAndCancel(t *testing.T) {
	e := newEngine(t, newModel(t, template))
	release := make(chan struct{})
	var arrived sync.WaitGroup
	arrived.Add(2)
	e.set(func(w http.ResponseWriter) bool {
		arrived.Done()
		<-release
		return true
	})
	defer close(release)
	var gone *tokensource.UnavailableError
	s := newSource(t, tokensource.Config{Mode: tokensource.Engine, Timeout: time.Millisecond * 20, Engines: list(e.replica("a", "vllm"))})
	if _, err := askEngine(t, s, tokensource.Prompt{Text: "x"}); !errors.As(err, &gone) || gone.Reason != "engine" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s = newSource(t, tokensource.Config{Mode: tokensource.Engine, Timeout: time.Minute, Engines: list(e.replica("a", "vllm"), e.replica("b", "vllm"))})
	done := make(chan error)
	go func() {
		_, err := s.Tokens(ctx, &tokensource.Prompt{Text: "x"}, nil)
		done <- err
	}()
	arrived.Wait()
	cancel()
	if err := <-done; !errors.As(err, &gone) || gone.Reason != "canceled" {
		t.Errorf("got %v", err)
	}
}

func TestProbe(t *testing.T) {
	model := func(source string) *bytesModel { return newModel(t, source) }
	same := model(template)
	otherTemplate := model("!{{ messages[0].content }}")
	probe := func(e *engine, kind string, p tokensource.Prompt) (tokensource.Probe, error) {
		s := newSource(t, tokensource.Config{Mode: tokensource.InProcess, Model: model(template), Cuts: cuts, Engines: list(e.replica("a", kind))})
		return s.Probe(context.Background(), &p, "a")
	}
	is := func(b *bool, want string) bool {
		return want == "?" && b == nil || b != nil && want == map[bool]string{true: "yes", false: "no"}[*b]
	}
	chatPrompt := tokensource.Prompt{Chat: true, Messages: raw(hello)}
	old := newEngine(t, same)
	old.set(func(w http.ResponseWriter) bool {
		if strings.Contains(old.asked()[len(old.asked())-1], "messages") {
			return fail(400, `{"message":"prompt: Field required"}`)(w)
		}
		return false
	})
	cases := []struct {
		name       string
		engine     *engine
		kind       string
		prompt     tokensource.Prompt
		text, chat string
		at         int
	}{
		{"equal", newEngine(t, same), "vllm", chatPrompt, "yes", "yes", -1},
		{"another template", newEngine(t, otherTemplate), "vllm", chatPrompt, "yes", "no", 0},
		{"another tokenizer", newEngine(t, &bytesModel{nil}), "vllm", tokensource.Prompt{Text: "a<|im_start|>"}, "yes", "?", -1},
		{"an engine that cannot render", old, "sglang", chatPrompt, "yes", "?", -1},
	}
	for _, c := range cases {
		got, err := probe(c.engine, c.kind, c.prompt)
		if err != nil || !is(got.SameText, c.text) || !is(got.SameChat, c.chat) || got.FirstDifference != c.at || got.Ours == 0 {
			t.Errorf("%s: got %+v, %v", c.name, got, err)
		}
	}
	// A tokenizer that gives other ids for the same text.
	shifted := newEngine(t, same)
	shifted.set(func(w http.ResponseWriter) bool { return fail(200, `{"count":2,"tokens":[300,98]}`)(w) })
	if got, err := probe(shifted, "vllm", tokensource.Prompt{Text: "ab"}); err != nil || *got.SameText || got.FirstDifference != 1 || got.Theirs != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	var gone *tokensource.UnavailableError
	shifted.set(fail(500, "x"))
	if _, err := probe(shifted, "vllm", chatPrompt); !errors.As(err, &gone) {
		t.Errorf("got %v", err)
	}
	if _, err := newSource(t, tokensource.Config{Mode: tokensource.Bytes}).Probe(context.Background(), &chatPrompt, ""); !errors.As(err, &gone) {
		t.Errorf("got %v", err)
	}
}

// Many requests at once, all modes in use, while the alarm turns.
func TestConcurrentUse(t *testing.T) {
	e := newEngine(t, newModel(t, template))
	s := newSource(t, tokensource.Config{Mode: tokensource.InProcess, Model: newModel(t, template), Cuts: cuts, Timeout: time.Minute, Engines: list(e.replica("a", "vllm"), e.replica("b", "vllm"))})
	want, err := s.Tokens(context.Background(), &tokensource.Prompt{Chat: true, Messages: raw(hello)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				switch g {
				case 0:
					s.UseEngine("x")
				case 1:
					s.UseInProcess()
				}
				got, err := s.Tokens(context.Background(), &tokensource.Prompt{Chat: true, Messages: raw(hello)}, nil)
				if err != nil || got.Count != want.Count {
					t.Errorf("%d: got %+v, %v", i, got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
