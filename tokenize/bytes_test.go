package tokenize_test

import (
	"slices"
	"strings"
	"testing"

	"warmpath/tokenize"
)

func TestBytesText(t *testing.T) {
	if got := (tokenize.Bytes{}).Text("aé"); !slices.Equal(got, []uint32{97, 0xc3, 0xa9}) {
		t.Errorf("got %v", got)
	}
}

func TestRender(t *testing.T) {
	messages := `[
	 {"role":"system","content":"be \"kind\""},
	 {"role":"user","name":"ann","content":[{"type":"text","text":"look: "},{"type":"image_url","image_url":{"url": "u1"}}]},
	 {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},
	 {"role":"tool","tool_call_id":"c1","content":"42"}]`
	got, err := tokenize.Bytes{}.Render([]byte(messages), []byte(`[ {"type": "function"} ]`))
	want := `<|tools|>
[{"type":"function"}]<|end|>
<|system|>
be "kind"<|end|>
<|user name=ann|>
look: <|image_url|>{"type":"image_url","image_url":{"url":"u1"}}<|end|>
<|assistant|>
<|call c1 f|>{"a": 1}<|end|>
<|tool call=c1|>
42<|end|>
<|assistant|>
`
	if err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
}

// A conversation that goes on must render to a text that starts with the prompt
// and the answer before it: reuse depends on it.
func TestRenderExtends(t *testing.T) {
	first, err := tokenize.Bytes{}.Render([]byte(`[{"role":"user","content":"hi"}]`), nil)
	if err != nil {
		t.Fatal(err)
	}
	next, err := tokenize.Bytes{}.Render([]byte(`[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"},{"role":"user","content":"?"}]`), nil)
	if err != nil || !strings.HasPrefix(next, first+"yo<|end|>\n") {
		t.Errorf("%q does not extend %q: %v", next, first, err)
	}
}

func TestRenderRefuses(t *testing.T) {
	for in, words := range map[string]string{
		`[]`:                                "messages: empty",
		`{}`:                                "messages: ",
		`null`:                              "messages: empty",
		`[{"content":"x"}]`:                 "messages[0].role: missing",
		`[{"role":"user","content":5}]`:     "messages[0].content: found '5'",
		`[{"role":"user","content":["a"]}]`: "messages[0].content[0]: ",
	} {
		if _, err := (tokenize.Bytes{}).Render([]byte(in), nil); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: got %v, want %q", in, err, words)
		}
	}
}
