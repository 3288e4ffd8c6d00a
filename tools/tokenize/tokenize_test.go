package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"warmpath/routing/blockkey"
)

const tiny = "../../tokenize/model/testdata/tiny"

// run parses a command line and returns what the command prints.
func run(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	var c Command
	parser, err := kong.New(&c, kong.Exit(func(int) { t.Fatal("kong exits") }))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(args, "--model") {
		args = append(args, "--model", tiny)
	}
	if _, err := parser.Parse(args); err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = c.run(strings.NewReader(stdin), &out)
	return out.String(), err
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The ids are from the Rust tokenizers.
func TestTokenize(t *testing.T) {
	chat := write(t, "chat.json", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
	const prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
	const promptIDs = "267 84 82 68 81 198 259 268 198 267 64 82 82 72 82 83 64 77 83 198\n"
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        string
	}{
		{"text", "", []string{"--text", "hello world"}, "265 259 264\n"},
		{"no special tokens", "", []string{"--text", "hello world", "--no-special"}, "259 264\n"},
		{"empty text", "x", []string{"--text", ""}, "265\n"},
		{"nothing", "x", []string{"--text", "", "--no-special"}, ""},
		{"standard input", "hello", nil, "265 259\n"},
		{"file", "", []string{"--file", write(t, "f", "hello\n")}, "265 259 198\n"},
		{"pieces", "", []string{"--text", "hello world", "--pieces"}, "265\t\"<s>\"\n259\t\"hello\"\n264\t\" world\"\n"},
		{"chat", "", []string{"--chat", chat}, promptIDs},
		{"messages", `[{"role":"user","content":"hello"}]`, []string{"--chat", "-"}, promptIDs},
		{"chat and special tokens", "", []string{"--chat", chat, "--special"}, "265 " + promptIDs},
		{"request asks for special tokens", `{"messages":[{"role":"user","content":"hello"}],"add_special_tokens":true}`, []string{"--chat", "-"}, "265 " + promptIDs},
		{"rendered", "", []string{"--chat", chat, "--render"}, prompt + promptIDs},
		{"no generation prompt", `{"messages":[{"role":"user","content":"hello"}],"add_generation_prompt":false}`, []string{"--chat", "-"}, "267 84 82 68 81 198 259 268 198\n"},
		{"template", "", []string{"--chat", chat, "--chat-template", write(t, "t.jinja", "{{ messages[0].content }}"), "--render"}, "hello\n259\n"},
		{"date", "", []string{"--chat", chat, "--chat-template", write(t, "t.jinja", "{{ strftime_now('%d %b %Y') }}"), "--render", "--date", "2025-02-03", "--json"},
			`{"model":"tiny","rendered":"03 Feb 2025","count":11,"ids":[15,18,220,37,68,65,220,17,15,17,20]}` + "\n"},
		{"engine", `[{"role":"assistant","content":"hello"}]`, []string{"--chat", "-", "--engine-kind", "sglang", "--chat-template", write(t, "t.jinja", "{{ messages[0].role }}"), "--render", "--json"},
			`{"model":"tiny","rendered":"user","count":4,"ids":[84,82,68,81]}` + "\n"},
		{"content format", "", []string{"--chat", chat, "--chat-template", write(t, "t.jinja", "{{ messages[0].content[0].text }}"), "--chat-template-content-format", "openai"}, "259\n"},
		{"template's variables", "", []string{"--chat", chat, "--chat-template", write(t, "t.jinja", "{{ words }}"), "--default-chat-template-kwargs", `{"words":"hello"}`}, "259\n"},
		{"verbatim", `[{"role":"user","content":"hello","x":"hello"}]`, []string{"--chat", "-", "--verbatim", "--chat-template", write(t, "t.jinja", "{{ messages[0].x }}")}, "259\n"},
	} {
		if got, err := run(t, c.stdin, c.args...); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestKeysAndJSON(t *testing.T) {
	out, err := run(t, "", "--text", "hello world", "--keys", "--block-tokens", "2", "--model-name", "m", "--lora", "l", "--salt", "s", "--json", "--render")
	if err != nil {
		t.Fatal(err)
	}
	var r Result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%016x", blockkey.Next(blockkey.Root("m", "l", "s"), []uint32{265, 259}, nil))
	if r.Model != "tiny" || r.Count != 3 || r.Rendered != "hello world" || len(r.Keys) != 1 || r.Keys[0] != want {
		t.Errorf("got %+v, want key %s", r, want)
	}
	named, err := run(t, "", "--text", "hello world", "--keys", "--block-tokens", "2")
	want = fmt.Sprintf("265 259 264\n%016x\n", blockkey.Next(blockkey.Root("tiny", "", ""), []uint32{265, 259}, nil))
	if err != nil || named != want {
		t.Errorf("got %q, %v, want %q", named, err, want)
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        string
	}{
		{"two inputs", "", []string{"--text", "a", "--file", "b"}, "can't be used together"},
		{"no file", "", []string{"--file", "/none"}, "--file: open /none"},
		{"no chat", "", []string{"--chat", "/none"}, "--chat: open /none"},
		{"no messages", "{}", []string{"--chat", "-"}, "no messages"},
		{"no JSON", "{", []string{"--chat", "-"}, "--chat: "},
		{"refused", `[{"content":"a"}]`, []string{"--chat", "-"}, "messages[0]: role"},
		{"no template", "", []string{"--text", "a", "--chat-template", "/none"}, "--chat-template: "},
		{"block size", "", []string{"--text", "a", "--keys", "--block-tokens", "0"}, "--block-tokens 0"},
		{"model", "", []string{"--model", t.TempDir(), "--text", "a"}, "tokenizer.json: no such file"},
	} {
		if out, err := run(t, c.stdin, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v, want %q", c.name, out, err, c.want)
		}
	}
}
