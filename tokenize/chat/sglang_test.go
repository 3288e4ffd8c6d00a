package chat

import (
	"encoding/json"
	"errors"
	"testing"
)

// TestSGLang has what SGLang's own code makes of these requests.
func TestSGLang(t *testing.T) {
	no := false
	for _, c := range []struct {
		name    string
		request Request
		list    bool
		want    string
	}{
		{"order and members", Request{Messages: json.RawMessage(`[{"x":1,"name":"n","content":"a","role":"System"},{"role":"user","name":"n","content":"b"}]`)}, false,
			`[{"role": "system", "content": "a", "name": "n"}, {"role": "user", "content": "b"}]null True`},
		{"generation prompt always", Request{Messages: json.RawMessage(`[{"role":"user","content":"b"}]`), AddGenerationPrompt: &no}, false,
			`[{"role": "user", "content": "b"}]null True`},
		{"strings stay strings", Request{Messages: json.RawMessage(`[{"role":"user","content":"b"}]`)}, true,
			`[{"role": "user", "content": "b"}]null True`},
		{"parts", Request{Messages: json.RawMessage(`[{"role":"tool","name":"n","content":[{"type":"text","text":"a"},{"type":"text","text":""}]},{"role":"system","name":"n","content":[{"type":"text","text":"b","x":1}]}]`)}, true,
			`[{"role": "tool", "name": "n", "content": "a "}, {"role": "system", "name": "n", "content": [{"type": "text", "text": "b"}]}]null True`},
		{"joined parts", Request{Messages: json.RawMessage(`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`)}, false,
			`[{"role": "user", "content": "a b"}]null True`},
		{"tool calls", Request{Messages: json.RawMessage(`[{"role":"assistant","tool_calls":[{"id":"c","function":{"arguments":"{\"b\": 1}","name":"f"}}]},{"role":"user","content":""}]`)}, false,
			`[{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "index": null, "type": "function", "function": {"name": "f", "arguments": {"b": 1}}}]}, {"role": "user", "content": ""}]null True`},
		{"last assistant", Request{Messages: json.RawMessage(`[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`)}, false,
			`[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]null True`},
		{"go on", Request{Messages: json.RawMessage(`[{"role":"user","content":"a"},{"role":"assistant","content":"b "}]`), ContinueFinalMessage: true}, false,
			`[{"role": "user", "content": "a"}]null Trueb `},
		{"tools", Request{Messages: json.RawMessage(`[{"role":"user","content":"a"}]`), Tools: json.RawMessage(`[{"type":"function","function":{"parameters":{"b":1},"name":"f","strict":null,"x":1}},{"function":{"name":"g","description":"d"},"defer_loading":true}]`)}, false,
			`[{"role": "user", "content": "a"}][{"type": "function", "function": {"parameters": {"b": 1}, "name": "f", "description": null}, "defer_loading": null}, {"type": "function", "function": {"name": "g", "description": "d", "parameters": null, "defer_loading": true}, "defer_loading": true}] True`},
		{"effort", Request{Messages: json.RawMessage(`[{"role":"user","content":"a"}]`), ReasoningEffort: "none"}, false,
			`[{"role": "user", "content": "a"}]null TruenoneFalseFalse`},
		{"effort in kwargs", Request{Messages: json.RawMessage(`[{"role":"user","content":"a"}]`), ReasoningEffort: "none", Kwargs: json.RawMessage(`{"reasoning_effort":"low","thinking":true}`)}, false,
			`[{"role": "user", "content": "a"}]null TruelowFalseTrue`},
	} {
		format := String
		if c.list {
			format = List
		}
		tmpl := compileTest(t, "{{ messages|tojson }}{{ tools|tojson }} {{ add_generation_prompt }}{{ reasoning_effort }}{{ enable_thinking }}{{ thinking }}",
			Options{Engine: SGLang, ContentFormat: &format})
		if got, err := tmpl.Render(c.request); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v\nwant %s", c.name, got, err, c.want)
		}
	}
}

func TestSGLangRefuses(t *testing.T) {
	tmpl := compileTest(t, plainTemplate, Options{Engine: SGLang})
	for name, messages := range map[string]string{
		"role":      `[{"role":"weird","content":"a"}]`,
		"user case": `[{"role":"USER","content":"a"}]`,
		"content":   `[{"role":"user"}]`,
		"part":      `[{"role":"user","content":["a"]}]`,
		"thinking":  `[{"role":"user","content":[{"type":"thinking","thinking":"a"}]}]`,
		"arguments": `[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[]"}}]}]`,
		"calls":     `[{"role":"assistant","tool_calls":{}}]`,
	} {
		var refused *Refused
		if got, err := tmpl.Render(Request{Messages: json.RawMessage(messages)}); !errors.As(err, &refused) {
			t.Errorf("%s: %q, %v, want it refused", name, got, err)
		}
	}
	if _, err := tmpl.Render(Request{Messages: json.RawMessage(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]`)}); !errors.Is(err, ErrMedia) {
		t.Errorf("media: %v", err)
	}
}

// TestSGLangBareFunctions: a template that fails on OpenAI's tools gets the bare
// functions, as SGLang tries it.
func TestSGLangBareFunctions(t *testing.T) {
	tmpl := compileTest(t, `{% for tool in tools %}{{ "" + tool.name }}{% endfor %}`, Options{Engine: SGLang})
	got, err := tmpl.Render(Request{Messages: json.RawMessage(`[{"role":"user","content":"a"}]`), Tools: json.RawMessage(`[{"function":{"name":"f"}}]`)})
	if err != nil || got != "f" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestSGLangContentFormat(t *testing.T) {
	for template, want := range map[string]Format{
		`{% for m in messages %}{{ m.content }}{% endfor %}`:                                     String,
		`{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}`:                List,
		`{% for x in messages %}{% for p in x.content %}{% endfor %}{% endfor %}`:                String,
		`{% for x in messages %}{{ "<image>" if x.has_image }}{{ x.content }}{% endfor %}`:       List,
		`{% for message in all %}{% for p in message["content"]|list %}{% endfor %}{% endfor %}`: List,
	} {
		if got := compileTest(t, template, Options{Engine: SGLang}).ContentFormat(); got != want {
			t.Errorf("%s: %v, want %v", template, got, want)
		}
	}
}
