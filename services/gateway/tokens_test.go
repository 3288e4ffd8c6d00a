package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/tokensource"
)

// scriptedTokens answers as a test says, and keeps what it was asked.
type scriptedTokens struct {
	mu     sync.Mutex
	asked  []tokensource.Prompt
	answer func(p *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error)
}

func (s *scriptedTokens) Tokens(_ context.Context, p *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := *p
	kept.Messages, kept.Tools = slices.Clone(p.Messages), slices.Clone(p.Tools)
	kept.Template.Documents, kept.Template.ChatTemplateKwargs = slices.Clone(p.Template.Documents), slices.Clone(p.Template.ChatTemplateKwargs)
	s.asked = append(s.asked, kept)
	return s.answer(p, dst)
}

func TestTokenSource(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	router, _ := e.router(choose(n))
	source := &scriptedTokens{}
	g := e.gateway(1, Config{Tokens: source, LoRAs: []string{"sql"}})
	ask := func(id, body string) (int, string) {
		response := g.post(chatPath, body, "X-Request-Id", id)
		defer response.Body.Close()
		var out json.RawMessage
		_ = json.NewDecoder(response.Body).Decode(&out)
		return response.StatusCode, string(out)
	}
	body := `{"model":"sql","cache_salt":"s","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}],"documents":[{"title":"d"}],
		"chat_template_kwargs":{"enable_thinking":false},"tool_choice":"none","add_generation_prompt":false,"continue_final_message":true}`
	root := blockkey.Root(testModel, "sql", "s")

	source.answer = func(_ *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error) {
		return tokensource.Tokens{IDs: append(dst, 1, 2, 3, 4, 5), Source: "engine"}, nil
	}
	if status, text := ask("ids", body); status != 200 {
		t.Fatalf("got %d %s", status, text)
	}
	p := source.asked[0]
	if !p.Chat || string(p.Messages) != `[{"role":"user","content":"x"}]` || string(p.Tools) != `[{"type":"function"}]` || string(p.Template.Documents) != `[{"title":"d"}]` ||
		string(p.Template.ChatTemplateKwargs) != `{"enable_thinking":false}` || p.Template.AddGenerationPrompt == nil || *p.Template.AddGenerationPrompt ||
		p.Template.ContinueFinalMessage == nil || !*p.Template.ContinueFinalMessage || p.Template.AddSpecialTokens != nil ||
		p.Model != testModel || p.LoRA != "sql" || p.Root != root || p.BlockTokens != blockTokens {
		t.Errorf("the source was asked %+v", p)
	}
	source.answer = func(*tokensource.Prompt, []uint32) (tokensource.Tokens, error) {
		return tokensource.Tokens{Keys: []blockkey.Key{7, 8}, Count: 11, Source: "in_process"}, nil
	}
	if status, text := ask("keys", body); status != 200 {
		t.Fatalf("got %d %s", status, text)
	}
	// The template's refusal is the client's, as it would be the engine's.
	source.answer = func(*tokensource.Prompt, []uint32) (tokensource.Tokens, error) {
		return tokensource.Tokens{}, fmt.Errorf("render: %w", &tokensource.PromptError{Param: "messages", Err: errors.New("roles must alternate")})
	}
	if status, text := ask("refused", body); status != http.StatusBadRequest || !strings.Contains(text, "roles must alternate") || !strings.Contains(text, `"param":"messages"`) {
		t.Errorf("got %d %s", status, text)
	}
	// A source that is away is no reason not to serve.
	source.answer = func(*tokensource.Prompt, []uint32) (tokensource.Tokens, error) {
		return tokensource.Tokens{}, errors.New("connection refused")
	}
	if status, text := ask("away", body); status != 200 {
		t.Errorf("got %d %s", status, text)
	}
	// Ids in the request are taken as they are.
	g.mustAsk(prompt(8, ""), "X-Request-Id", "client")

	all := e.stories(g)
	for id, want := range map[string]struct {
		source string
		keys   []blockkey.Key
		tokens uint64
	}{
		"ids":    {"engine", blockkey.Chain(nil, root, []uint32{1, 2, 3, 4}, blockTokens), 5},
		"keys":   {"in_process", []blockkey.Key{7, 8}, 11},
		"away":   {SourceNone, nil, 0},
		"client": {SourceClient, blockkey.Chain(nil, blockkey.Root(testModel, "", ""), []uint32{0, 7, 14, 21, 28, 35, 42, 49}, blockTokens), 8},
	} {
		s := all[id]
		if s == nil {
			t.Errorf("%s left no events", id)
			continue
		}
		d := s.decided[0]
		if d.TokenSource != want.source || !slices.Equal(d.Keys, want.keys) || want.tokens > 0 && d.PromptTokens != want.tokens || s.finished[0].Status != pb.Status_STATUS_OK {
			t.Errorf("%s: got %v, want %+v", id, d, want)
		}
	}
	if all["refused"] != nil || len(router.requests()) != 4 || len(source.asked) != 4 {
		t.Errorf("the router was asked %d times, the source %d times", len(router.requests()), len(source.asked))
	}
	if g.metric("unkeyed_requests_total") != 1 || g.metric("rejected_total", "reason", rejectedInvalid) != 1 {
		t.Error("what happened was not counted")
	}
}

// A compressed body cannot be read here; the client is told.
func TestCompressedBody(t *testing.T) {
	e := newEnv(t)
	e.engine("engine-0", nil)
	g := e.gateway(1, Config{})
	if status, text, _ := g.ask(prompt(8, ""), "Content-Encoding", "gzip"); status != http.StatusUnsupportedMediaType || !strings.Contains(text, "without compression") {
		t.Errorf("got %d %s", status, text)
	}
}
