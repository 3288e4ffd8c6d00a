package tokensource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNamed(t *testing.T) {
	engines := func() []Replica { return nil }
	for name, want := range map[string]Mode{"": Client, "client": Client, "bytes": Bytes, "engine": Engine} {
		s, err := Named(name, Config{Engines: engines})
		if err != nil || s.Using() != want {
			t.Errorf("%q: %v", name, err)
			continue
		}
		s.Close()
	}
	if _, err := Named(t.TempDir(), Config{}); err == nil || !strings.Contains(err.Error(), "--tokenizer") {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := Named(t.TempDir(), Config{ChatTemplate: filepath.Join(t.TempDir(), "absent")}); err == nil || !strings.Contains(err.Error(), "--chat-template") {
		t.Errorf("an absent template: %v", err)
	}
}

// A template given beside the model's folder is the one that renders.
func TestNamedTakesATemplate(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tokenizer.json": `{"added_tokens":[],"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}`,
		"given.jinja":    `{% for m in messages %}{{ m.content }}{{ last }}{% endfor %}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range []Rendering{{TemplateArgs: "{"}, {TemplateArgs: "[1]"}, {TemplateArgs: "null"}, {ContentFormat: "list"}} {
		if _, err := Named(dir, Config{Rendering: wrong}); err == nil || !strings.Contains(err.Error(), "-chat-template-") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	s, err := Named(dir, Config{Rendering: Rendering{ChatTemplate: filepath.Join(dir, "given.jinja"), TemplateArgs: `{"last":"b"}`}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	found, err := s.Tokens(t.Context(), &Prompt{Chat: true, Messages: []byte(`[{"role":"user","content":"a"}]`), BlockTokens: 1, Root: 1}, nil)
	if err != nil || found.Count != 2 {
		t.Errorf("got %+v, %v", found, err)
	}
}
