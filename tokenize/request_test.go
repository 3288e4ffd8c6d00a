package tokenize_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"warmpath/tokenize"
)

func TestScanRequest(t *testing.T) {
	body := []byte(`{ "m\u006fdel" : "llama\n3", "prompt":[1, 22 ,333], "x":{"prompt":"inner","y":[null,true,-1.5e+3]},
		"stream":true, "stream_options":{"include_usage":false,"z":1}, "max_tokens":7, "user":"u-1", "cache_salt":"t\"1", "tools":null }  `)
	r, err := tokenize.ScanRequest(body, []uint32{9})
	if err != nil {
		t.Fatal(err)
	}
	if r.Model != "llama\n3" || r.PromptKind != tokenize.IDPrompt || !slices.Equal(r.IDs, []uint32{9, 1, 22, 333}) ||
		!r.Stream || r.IncludeUsage || r.MaxTokens != 7 || r.User != "u-1" || r.CacheSalt != `t"1` || r.Tools != nil {
		t.Errorf("got %+v", r)
	}
}

func TestScanRequestTemplateArgs(t *testing.T) {
	r, err := tokenize.ScanRequest([]byte(`{"documents":[{"a":1}],"chat_template":"{{x}}","chat_template_kwargs":{"enable_thinking":false},
		"tool_choice":"none","reasoning_effort":"high","add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":null}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := r.Template
	if string(a.Documents) != `[{"a":1}]` || string(a.ChatTemplate) != `"{{x}}"` || string(a.ChatTemplateKwargs) != `{"enable_thinking":false}` ||
		string(a.ToolChoice) != `"none"` || string(a.ReasoningEffort) != `"high"` {
		t.Errorf("got %+v", a)
	}
	if a.AddGenerationPrompt == nil || *a.AddGenerationPrompt || a.ContinueFinalMessage == nil || !*a.ContinueFinalMessage || a.AddSpecialTokens != nil {
		t.Errorf("got %v %v %v", a.AddGenerationPrompt, a.ContinueFinalMessage, a.AddSpecialTokens)
	}
	none, err := tokenize.ScanRequest([]byte(`{"documents":null,"tool_choice":null}`), nil)
	if err != nil || none.Template.Documents != nil || none.Template.ToolChoice != nil || none.Template.AddGenerationPrompt != nil {
		t.Errorf("got %+v, %v", none.Template, err)
	}
}

func TestScanRequestForms(t *testing.T) {
	cases := []struct {
		in   string
		kind tokenize.PromptKind
		text string
		ids  []uint32
		max  int64
	}{
		{`{}`, tokenize.NoPrompt, "", nil, -1},
		{`{"prompt":null,"max_tokens":null}`, tokenize.NoPrompt, "", nil, -1},
		{`{"prompt":"a\u00e9"}`, tokenize.TextPrompt, "aé", nil, -1},
		{`{"prompt":["one"]}`, tokenize.TextPrompt, "one", nil, -1},
		{`{"prompt":[ [1,2] ],"max_tokens":5,"max_completion_tokens":16.0}`, tokenize.IDPrompt, "", []uint32{1, 2}, 16},
		{`{"prompt":[]}`, tokenize.IDPrompt, "", nil, -1},
	}
	for _, c := range cases {
		r, err := tokenize.ScanRequest([]byte(c.in), nil)
		if err != nil || r.PromptKind != c.kind || r.Text != c.text || !slices.Equal(r.IDs, c.ids) || r.MaxTokens != c.max {
			t.Errorf("%s: got %+v, %v", c.in, r, err)
		}
	}
}

func TestScanRequestRefuses(t *testing.T) {
	cases := []struct{ in, words string }{
		{``, "'{', the start of a request object"},
		{`[]`, "'{'"},
		{`{"a":1}x`, "nothing after"},
		{`{"a":1`, "',' or '}'"},
		{`{"a":1,}`, "member name"},
		{`{"model":"a","model":"b"}`, "model: given twice"},
		{`{"cache_salt":"a","cache\u005fsalt":"b"}`, "cache_salt: given twice"},
		{`{"prompt":[1],"prompt":[2]}`, "prompt: given twice"},
		{`{"stream_options":{"include_usage":true,"include_usage":false}}`, "stream_options: include_usage: given twice"},
		{`{"prompt":[1,2.5]}`, "prompt: byte 14: found '.', expected a token id"},
		{`{"prompt":5}`, "prompt: byte 10"},
		{`{"stream":"yes"}`, "stream: byte 10: found '\"', expected true or false"},
		{`{"model":5}`, "model: byte 9"},
		{`{"max_tokens":-1}`, "max_tokens: byte 14"},
		{`{"max_tokens":1.5}`, "max_tokens: byte 14"},
		{`{"stream_options":7}`, "stream_options: byte 18"},
		{`{"add_generation_prompt":1}`, "add_generation_prompt: byte 25"},
		{`{"documents":[],"documents":[]}`, "documents: given twice"},
		{`{"tool_choice":"auto","tool_choice":"none"}`, "tool_choice: given twice"},
		{"{\"a\":\"\xff\"}", "UTF-8"},
		{"{\"a\":\"\n\"}", "control character"},
		{`{"a":"\x"}`, "valid escape"},
		{`{"a":"\u12g4"}`, "hexadecimal"},
		{`{"a":01}`, "',' or '}'"},
		{`{"a":` + strings.Repeat("[", 20000), "nesting"},
	}
	for _, c := range cases {
		if _, err := tokenize.ScanRequest([]byte(c.in), nil); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%.60s: got %v, want %q", c.in, err, c.words)
		}
	}
}

func TestSeveralPrompts(t *testing.T) {
	for prompts, valid := range map[string]bool{
		`["a","b"]`: true, `[[1],[2, 3]]`: true, `[ [1] , "b" ]`: true, `["a",]`: false, `["a","b"`: false, `["a",nul]`: false, `[[1],[2]`: false,
	} {
		r, err := tokenize.ScanRequest([]byte(`{"prompt":`+prompts+`,"max_tokens":3}`), []uint32{7})
		if valid != (err == nil) {
			t.Errorf("%s: %v", prompts, err)
		}
		if valid && (r.PromptKind != tokenize.SeveralPrompts || r.PromptBytes != len(prompts) || r.Text != "" || len(r.IDs) != 1 || r.MaxTokens != 3) {
			t.Errorf("%s: %+v", prompts, r)
		}
	}
}

func FuzzScanRequest(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"model":"m","prompt":[1,2,3],"stream":true}`, `{"prompt":"a\u00e9\n","user":"u"}`, `{"messages":[{"role":"user"}],"tools":[]}`,
		`{"stream_options":{"include_usage":false,"a":[1]}}`, `{"a":[[],{},"\ud800",1e9,-0.5,true,false,null]}`, ` { "prompt" : [ [ 7 ] ] } `,
		`{"cache_salt":"s","max_tokens":16.0}`, `{"documents":[{}],"chat_template_kwargs":{"a":1},"tool_choice":"none","add_special_tokens":false}`, `{"pro\u006dpt":"x"}`, `{"a":1,"a":2}`, `{"stream":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := tokenize.ScanRequest(body, nil)
		if err != nil {
			return
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Fatalf("%q was accepted", body)
		}
		// Go's decoder also takes keys of another case; a map does not.
		var members map[string]json.RawMessage
		if err := json.Unmarshal(body, &members); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		same := func(member string, got any) {
			raw, ok := members[member]
			if !ok {
				raw = []byte("null")
			}
			want := fmt.Sprint(got)
			var have string
			switch got := got.(type) {
			case string:
				var s *string
				if err := json.Unmarshal(raw, &s); err != nil {
					t.Fatalf("%q: %s: %v", body, member, err)
				}
				if s != nil {
					have = *s
				}
				want = got
			case bool:
				var b bool
				if err := json.Unmarshal(raw, &b); err != nil {
					t.Fatalf("%q: %s: %v", body, member, err)
				}
				have = fmt.Sprint(b)
			case json.RawMessage:
				want = string(got)
				if have = string(raw); have == "null" {
					have = ""
				}
			}
			if have != want {
				t.Fatalf("%q: %s: got %q, want %q", body, member, want, have)
			}
		}
		same("model", r.Model)
		same("user", r.User)
		same("cache_salt", r.CacheSalt)
		same("stream", r.Stream)
		same("messages", r.Messages)
		same("tools", r.Tools)
		if r.PromptKind == tokenize.IDPrompt {
			raw := members["prompt"]
			var flat []uint32
			var nested [][]uint32
			if json.Unmarshal(raw, &flat) != nil {
				if err := json.Unmarshal(raw, &nested); err != nil || len(nested) != 1 {
					t.Fatalf("%q: %v", raw, err)
				}
				flat = nested[0]
			}
			if !slices.Equal(flat, r.IDs) {
				t.Fatalf("%q: ids %v, want %v", body, r.IDs, flat)
			}
		}
		same("documents", r.Template.Documents)
		same("chat_template_kwargs", r.Template.ChatTemplateKwargs)
		same("tool_choice", r.Template.ToolChoice)
		edits := []tokenize.Edit{r.SetSalt("a\"b")}
		if edit, needed := r.AskUsage(); needed {
			edits = append(edits, edit)
		}
		changed := slices.Concat(tokenize.Cut(body, edits...)...)
		again, err := tokenize.ScanRequest(changed, nil)
		if err != nil || !again.IncludeUsage || again.CacheSalt != "a\"b" || again.Model != r.Model || again.Text != r.Text {
			t.Fatalf("%q became %q: %v", body, changed, err)
		}
	})
}

// FuzzJSON compares the grammar of unread members with encoding/json's.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`1`, `-0.0e-1`, `"a\"b"`, `[1,[2],{"a":{}}]`, `{"a":null}`, `tru`, `1.`, `"\u00`, "\"\x1f\"", `[1 2]`, `{"a"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		body := slices.Concat([]byte(`{"other":`), value, []byte(`}`))
		_, err := tokenize.ScanRequest(body, nil)
		valid := json.Valid(body) && utf8.Valid(body)
		if valid == (err == nil) || strings.Contains(fmt.Sprint(err), "nesting") {
			return
		}
		// The value may close the object and go on with members that are read.
		if valid && !json.Valid(value) {
			return
		}
		t.Fatalf("%q: error %v, encoding/json valid %v", body, err, valid)
	})
}

func BenchmarkScanRequest(b *testing.B) {
	ids := idsJSON(900_000, 1000)
	text := strings.Repeat("The quick brown fox\\njumps over the lazy dog. ", 40_000)
	for name, body := range map[string][]byte{
		"ids":  slices.Concat([]byte(`{"model":"m","prompt":`), ids, []byte(`,"stream":true}`)),
		"text": []byte(`{"model":"m","prompt":"` + text + `"}`),
		"chat": []byte(`{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`),
	} {
		b.Run(name, func(b *testing.B) {
			dst := make([]uint32, 0, 900_000)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tokenize.ScanRequest(body, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
