package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func compileTest(t testing.TB, source string, options Options) *Template {
	t.Helper()
	tmpl, err := Compile(source, Specials{BOS: "<s>", EOS: "</s>"}, options)
	must(t, err)
	return tmpl
}

func listFormat() *Format { f := List; return &f }

// TestNormalization has what vLLM's own code makes of these messages.
func TestNormalization(t *testing.T) {
	for _, c := range []struct {
		name, messages, string, list string
	}{
		{"text", `[{"content":"a","role":"user","x":1,"name":"n"}]`,
			`[{"role": "user", "content": "a", "name": "n"}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"}]`},
		{"parts", `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"refusal","refusal":"b"},{"type":"text","text":null}]}]`,
			`[{"role": "user", "content": "a\nb"}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]}]`},
		{"members of parts", `[{"role":"user","content":[{"text":"a","type":"text","name":"n","cache_control":{"type":"ephemeral"}}]}]`,
			`[{"role": "user", "content": "a"}]`,
			`[{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]`},
		{"no content", `[{"role":"assistant"},{"role":"assistant","content":null}]`,
			`[{"role": "assistant", "content": ""}, {"role": "assistant", "content": ""}]`,
			`[{"role": "assistant", "content": []}, {"role": "assistant", "content": []}]`},
		{"tool calls", `[{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"b\": 1.0, \"a\": 12345678901234567890}"},"id":"c","index":0}]}]`,
			`[{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"arguments": {"b": 1.0, "a": 12345678901234567890}, "name": "f"}, "type": "function", "index": 0}]}]`,
			`[{"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": [{"id": "c", "function": {"arguments": {"b": 1.0, "a": 12345678901234567890}, "name": "f"}, "type": "function", "index": 0}]}]`},
		{"odd arguments", `[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"[]"}},{"id":"d","type":"function","function":{"name":"f","arguments":"no"}}]}]`,
			`[{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"arguments": {}, "name": "f"}, "type": "function"}, {"id": "d", "function": {"arguments": {}, "name": "f"}, "type": "function"}]}]`, ""},
		{"no tool calls", `[{"role":"assistant","content":"a","tool_calls":[]},{"role":"user","content":"b","tool_calls":[{"id":"c"}]}]`,
			`[{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]`, ""},
		{"reasoning", `[{"role":"assistant","content":"a","reasoning_content":"r"},{"role":"assistant","content":"a","reasoning":"q","reasoning_content":"r"},{"role":"user","content":"u","reasoning":"x"}]`,
			`[{"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}, {"role": "assistant", "content": "a", "reasoning": "q", "reasoning_content": "q"}, {"role": "user", "content": "u"}]`, ""},
		{"tool", `[{"tool_call_id":"c","role":"tool","content":[{"type":"text","text":""},{"type":"text","text":"a"}]}]`,
			`[{"role": "tool", "content": "a", "tool_call_id": "c"}]`,
			`[{"role": "tool", "content": "\na", "tool_call_id": "c"}]`},
		{"tool reference", `[{"role":"tool","content":[{"type":"tool_reference","name":"f"},{"type":"text","text":"a"}]}]`,
			`[{"role": "tool", "content": "f\na"}]`,
			`[{"role": "tool", "content": [{"type": "tool_reference", "name": "f"}, {"type": "text", "text": "a"}]}]`},
		{"billing header", `[{"role":"system","content":"x-anthropic-billing-header: cch=1\nBe kind."},{"role":"user","content":"x-anthropic-billing-header"}]`,
			`[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "x-anthropic-billing-header"}]`, ""},
		{"developer", `[{"role":"user","content":"u"},{"role":"developer","content":"d","tools":[]},{"role":"system","content":"s"}]`,
			`[{"role": "system", "content": "d\n\ns"}, {"role": "user", "content": "u"}]`,
			`[{"role": "system", "content": "d\n\ns"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]`},
		{"developer first", `[{"role":"developer","content":"d"},{"role":"user","content":"u"}]`,
			`[{"role": "system", "content": "d"}, {"role": "user", "content": "u"}]`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := compileTest(t, "{{ messages|tojson }}", Options{}).Render(Request{Messages: json.RawMessage(c.messages)})
			if err != nil || got != c.string {
				t.Errorf("string: got %s, %v\nwant %s", got, err, c.string)
			}
			if c.list == "" {
				return
			}
			got, err = compileTest(t, "{{ messages|tojson }}", Options{ContentFormat: listFormat()}).Render(Request{Messages: json.RawMessage(c.messages)})
			if err != nil || got != c.list {
				t.Errorf("list: got %s, %v\nwant %s", got, err, c.list)
			}
		})
	}
}

// TestDeveloperRole: a template that names the role gets it, with its tools in
// the order of the engine's schema.
func TestDeveloperRole(t *testing.T) {
	tmpl := compileTest(t, `{% if messages[0].role == "developer" %}{{ messages|tojson }}{% endif %}`, Options{})
	got, err := tmpl.Render(Request{Messages: json.RawMessage(`[{"role":"developer","content":"d","tools":[{"type":"function","function":{"parameters":{},"name":"f"}}]}]`)})
	want := `[{"role": "developer", "content": "d", "tools": [{"function": {"name": "f", "parameters": {}}, "type": "function"}]}]`
	if err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestToolDefinitions(t *testing.T) {
	tmpl := compileTest(t, "{{ tools|tojson }}", Options{})
	for tools, want := range map[string]string{
		``:   `null`,
		`[]`: `null`,
		`[{"function":{"parameters":{"b":1,"a":1.0},"name":"f","x":1},"type":"function","y":2}]`: `[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 1.0}}}]`,
		`[{"type":"function","function":{"name":"f","strict":false,"description":"d"}}]`:         `[{"type": "function", "function": {"name": "f", "description": "d", "parameters": null, "strict": false}}]`,
	} {
		got, err := tmpl.Render(Request{Messages: json.RawMessage(`[{"role":"user","content":"u"}]`), Tools: json.RawMessage(tools)})
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", tools, got, err, want)
		}
	}
}

func TestVerbatim(t *testing.T) {
	tmpl := compileTest(t, "{{ bos_token }}{{ messages|tojson }}{{ tools|tojson }}", Options{})
	got, err := tmpl.Render(Request{
		Messages: json.RawMessage(`[{"content":"a","role":"user","x":1}]`), Tools: json.RawMessage(`[{"name":"f"}]`), Verbatim: true})
	if want := `<s>[{"content": "a", "role": "user", "x": 1}][{"name": "f"}]`; err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestVariables(t *testing.T) {
	tmpl := compileTest(t, "{{ add_generation_prompt }} {{ enable_thinking }} {{ reasoning_effort }} {{ documents|tojson }} {{ eos_token }} {{ x }}",
		Options{Defaults: []byte(`{"enable_thinking": false, "x": "default"}`)})
	no := false
	for _, c := range []struct {
		name    string
		request Request
		want    string
	}{
		{"defaults", Request{}, "True False  null </s> default"},
		{"no generation prompt", Request{AddGenerationPrompt: &no}, "False False  null </s> default"},
		{"kwargs", Request{Kwargs: json.RawMessage(`{"enable_thinking": true, "x": null, "eos_token": "E"}`)}, "True True  null E default"},
		{"effort", Request{ReasoningEffort: "high"}, "True True high null </s> default"},
		{"no effort", Request{ReasoningEffort: "none"}, "True False none null </s> default"},
		{"effort and kwargs", Request{ReasoningEffort: "high", Kwargs: json.RawMessage(`{"enable_thinking": false}`)}, "True False high null </s> default"},
		{"documents", Request{Documents: json.RawMessage(`[{"title":"t"}]`)}, `True False  [{"title": "t"}] </s> default`},
		{"helpers are ours", Request{Kwargs: json.RawMessage(`{"__wp_out": 1}`)}, "True False  null </s> default"},
	} {
		c.request.Messages = json.RawMessage(`[{"role":"user","content":"u"}]`)
		if got, err := tmpl.Render(c.request); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

const plainTemplate = `{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`

func TestContinueFinalMessage(t *testing.T) {
	no := false
	messages := `[{"role":"user","content":"u"},{"role":"assistant","content":"So far "}]`
	request := Request{Messages: json.RawMessage(messages), ContinueFinalMessage: true, AddGenerationPrompt: &no}
	loop := strings.Replace(plainTemplate, "{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}", 1)
	for _, c := range []struct{ name, template, want string }{
		{"kept", plainTemplate, "<user>u</user><assistant>So far "},
		{"trimmed", strings.Replace(plainTemplate, "m.content", "m.content|trim", 1), "<user>u</user><assistant>So far"},
		{"parts", loop, "<user>u</user><assistant>So far "},
	} {
		if got, err := compileTest(t, c.template, Options{}).Render(request); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
	request.AddGenerationPrompt = nil
	refuses(t, "both", plainTemplate, request, "not compatible")
	request.AddGenerationPrompt = &no
	refuses(t, "dropped", "{{ messages[0].content }}", request, "does not appear")
	request.Messages = json.RawMessage(`[{"role":"assistant","content":[{"type":"tool_reference","name":"f"}]}]`)
	refuses(t, "no text", loop, request, "could not find any text")
}

func refuses(t *testing.T, name, template string, request Request, reason string) {
	t.Helper()
	got, err := compileTest(t, template, Options{}).Render(request)
	var refused *Refused
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), reason) {
		t.Errorf("%s: got %q, %v; want it refused for %q", name, got, err, reason)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, template, messages, reason string }{
		{"raised", `{{ raise_exception("roles must alternate") }}`, `[{"role":"user","content":""}]`, "roles must alternate"},
		{"type error", `{{ "a" + messages }}`, `[{"role":"user","content":""}]`, "concatenate"},
		{"no JSON", plainTemplate, `[{"role":}]`, "messages: JSON, byte 9"},
		{"no list", plainTemplate, `{}`, "messages: expected an array"},
		{"none", plainTemplate, `[]`, "at least one"},
		{"no object", plainTemplate, `["a"]`, "messages[0]: expected an object"},
		{"no role", plainTemplate, `[{"content":"a"}]`, "messages[0]: role"},
		{"content", plainTemplate, `[{"role":"user","content":3}]`, "messages[0]: content: expected a string"},
		{"part", plainTemplate, `[{"role":"user","content":[{"type":"wat"}]}]`, "messages[0]: content[0]: type: unsupported"},
		{"part text", plainTemplate, `[{"role":"user","content":[{"type":"text","text":1}]}]`, "messages[0]: content[0]: text"},
		{"tool call", plainTemplate, `[{"role":"assistant","tool_calls":[{"type":"custom"}]}]`, "messages[0]: tool_calls[0]"},
		{"reasoning", plainTemplate, `[{"role":"assistant","reasoning":1}]`, "messages[0]: reasoning"},
		{"half a character", plainTemplate, `[{"role":"user","content":"\ud800"}]`, "surrogate"},
		{"deep", plainTemplate, `[{"role":"user","content":"","x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}]`, "nested"},
	} {
		refuses(t, c.name, c.template, Request{Messages: json.RawMessage(c.messages)}, c.reason)
	}
	one := json.RawMessage(`[{"role":"user","content":"u"}]`)
	refuses(t, "kwargs", plainTemplate, Request{Messages: one, Kwargs: json.RawMessage(`{"messages": []}`)}, "cannot be set")
	refuses(t, "kwargs form", plainTemplate, Request{Messages: one, Kwargs: json.RawMessage(`[]`)}, "expected an object")
	refuses(t, "tool", plainTemplate, Request{Messages: one, Tools: json.RawMessage(`[{"type":"function"}]`)}, "tools[0].function")
}

func TestMedia(t *testing.T) {
	for _, content := range []string{
		`[{"type":"image_url","image_url":{"url":"x"}}]`, `[{"type":"input_audio","input_audio":{}}]`, `[{"image_url":"x"}]`, `[{"type":"file","file":{}}]`,
	} {
		_, err := compileTest(t, plainTemplate, Options{}).Render(Request{Messages: json.RawMessage(`[{"role":"user","content":` + content + `}]`)})
		var refused *Refused
		if !errors.Is(err, ErrMedia) || errors.As(err, &refused) {
			t.Errorf("%s: %v, want ErrMedia", content, err)
		}
	}
}

// TestLimits: what a client sends cannot make a rendering endless.
func TestLimits(t *testing.T) {
	many := json.RawMessage("[" + strings.Repeat(`{"role":"user","content":"aaaaaaaaaaaaaaaaaaaa"},`, 2000) + `{"role":"user","content":"b"}]`)
	for name, template := range map[string]string{
		"loops":  `{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}`,
		"output": `{% for a in messages %}{% for b in messages %}{{ b.content }}{% endfor %}{% endfor %}`,
		"text":   `{% set ns = namespace(t="") %}{% for a in messages %}{% for b in messages %}{% set ns.t = ns.t ~ b.content %}{% endfor %}{% endfor %}`,
		"sum":    `{% set ns = namespace(t="a") %}{% for a in messages %}{% set ns.t = ns.t + ns.t %}{% endfor %}`,
		"repeat": `{{ "a" * 1000000000 }}`,
		"range":  `{{ range(1000000000)|length }}`,
		"macro":  `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
	} {
		_, err := compileTest(t, template, Options{MaxWork: 100_000, MaxOutput: 1 << 20}).Render(Request{Messages: many})
		var refused *Refused
		if !errors.Is(err, ErrTooLarge) || errors.As(err, &refused) {
			t.Errorf("%s: %v, want ErrTooLarge", name, err)
		}
	}
	if _, err := compileTest(t, plainTemplate, Options{}).Render(Request{Messages: many}); err != nil {
		t.Errorf("a long chat within the default limits: %v", err)
	}
}

func TestDate(t *testing.T) {
	now := func() time.Time { return time.Date(2026, 7, 4, 0, 0, 0, 0, time.UTC) }
	tmpl := compileTest(t, `{% if strftime_now is defined %}{{ strftime_now("%d %b %Y") }}{% endif %}`, Options{Now: now})
	got, err := tmpl.Render(Request{Messages: json.RawMessage(`[{"role":"user","content":"u"}]`)})
	if err != nil || got != "04 Jul 2026" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestContentFormat(t *testing.T) {
	for template, want := range map[string]Format{
		plainTemplate: String,
		`{% for m in messages %}{% for p in m["content"] %}{% endfor %}{% endfor %}`:                                                   List,
		`{% set rest = messages[1:] %}{% for m in rest|list %}{% for p in m.content|selectattr("type") %}{% endfor %}{% endfor %}`:     List,
		`{% set ns = namespace(r=messages) %}{% for m in ns.r %}{% for p in m.content %}{% endfor %}{% endfor %}`:                      List,
		`{% macro r(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.content) }}{% endfor %}`:              List,
		`{% macro r(c, d) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.role, d=m.content) }}{% endfor %}`: String,
		`{% macro r(content) %}{% for p in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.role) }}{% endfor %}`:     String,
		`{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}`:                           List,
		`{% for m in messages %}{% for p in m.tool_calls %}{% endfor %}{% endfor %}`:                                                   String,
		`{% for i, m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}`:                                                   String,
		`{% for m in other %}{% for p in m.content %}{% endfor %}{% endfor %}`:                                                         String,
	} {
		if got := compileTest(t, template, Options{}).ContentFormat(); got != want {
			t.Errorf("%s: %v, want %v", template, got, want)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	for template, want := range map[string]string{
		"a\n{% if %}":                "line 2: expected an expression",
		"{% for x in y %}":           "endfor",
		"{{ a":                       "not closed",
		"{# a":                       "comment is not closed",
		"{{ 'a }}":                   "string is not closed",
		"{{ a ! b }}":                "unexpected character",
		"{{ (a] }}":                  "unexpected",
		"{% include 'x' %}":          `unknown statement "include"`,
		"{% break %}":                "outside of a loop",
		"{% endif %}":                "endif",
		"{{ a b }}":                  `expected "}}"`,
		"{{ f(a=1, 2) }}":            "wrong order",
		"{% set 1 = 2 %}":            "expected a name",
		"{% raw %}":                  "endraw",
		"{{ 99999999999999999999 }}": "64-bit",
		"{{ " + strings.Repeat("(", 600) + "1" + strings.Repeat(")", 600) + " }}": "nested",
		"\xff": "UTF-8",
	} {
		if _, err := Compile(template, Specials{}, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", template, err, want)
		}
	}
	if _, err := Compile("", Specials{}, Options{Defaults: []byte("[]")}); err == nil || !strings.Contains(err.Error(), "default") {
		t.Errorf("defaults: %v", err)
	}
}

func TestConcurrentRender(t *testing.T) {
	tmpl := compileTest(t, plainTemplate, Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				want := fmt.Sprintf("<user>%d-%d</user><assistant>", i, j)
				got, err := tmpl.Render(Request{Messages: json.RawMessage(fmt.Sprintf(`[{"role":"user","content":"%d-%d"}]`, i, j))})
				if err != nil || got != want {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
			}
		})
	}
	wg.Wait()
}

// FuzzRender: no message makes rendering panic or hang.
func FuzzRender(f *testing.F) {
	f.Add(`[{"role":"user","content":"a"}]`, `[{"type":"function","function":{"name":"f","parameters":{"a":[1.5e3]}}}]`)
	f.Add(`[{"role":"assistant","content":[{"type":"text","text":"\u00e9\ud83d\ude80"}],"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}]`, `null`)
	tmpl := compileTest(f, plainTemplate+`{{ tools|tojson(indent=2) }}{{ messages }}{% for m in messages %}{{ m.content|trim ~ m.content[1:] ~ (m.tool_calls|string) }}{% endfor %}`, Options{MaxWork: 100_000, MaxOutput: 1 << 20})
	f.Fuzz(func(t *testing.T, messages, tools string) {
		for _, verbatim := range []bool{false, true} {
			_, err := tmpl.Render(Request{Messages: json.RawMessage(messages), Tools: json.RawMessage(tools), Verbatim: verbatim})
			if err != nil && strings.Contains(err.Error(), "engine failed") {
				t.Fatal(err)
			}
		}
	})
}

// FuzzCompile: no template makes compiling or rendering panic.
func FuzzCompile(f *testing.F) {
	for _, template := range []string{plainTemplate, "{% macro m(a, b=1) %}{{ a[1:] }}{% endmacro %}{{ m(*[1]) }}", "{% raw %}{{{% endraw %}", "{%- set x | trim -%} a {%- endset %}{{ x|e + '<' }}"} {
		f.Add(template)
	}
	f.Fuzz(func(t *testing.T, template string) {
		tmpl, err := Compile(template, Specials{}, Options{MaxWork: 100_000, MaxOutput: 1 << 20})
		if err == nil {
			_, err = tmpl.Render(Request{Messages: json.RawMessage(`[{"role":"user","content":"a"}]`)})
		}
		if err != nil && (strings.Contains(err.Error(), "engine failed") || strings.Contains(err.Error(), "cannot be compiled")) {
			t.Fatal(err)
		}
	})
}
