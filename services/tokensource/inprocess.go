package tokensource

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"warmpath/tokenize/chat"
	"warmpath/tokenize/keycache"
	"warmpath/tokenize/model"
)

// Model renders chats and tokenizes text as the engine's model does. Safe for
// concurrent use.
type Model interface {
	// Chat renders a request with the model's chat template. A *chat.Refused is
	// the client's fault.
	Chat(chat.Request) (string, error)
	// Append appends the ids of a text, with no tokens added around it.
	Append(dst []uint32, text string) []uint32
	// AppendSpecial is Append with the tokens around it that the tokenizer adds.
	AppendSpecial(dst []uint32, text string) []uint32
}

// Load reads a model directory for New: its model, and the cuts of its tokenizer.
func Load(dir string, options model.Options) (*model.Model, keycache.Cuts, error) {
	m, err := model.Load(dir, options)
	if err != nil {
		return nil, keycache.Cuts{}, err
	}
	return m, m.Cuts(), nil
}

// inProcess makes tokens with a model.
type inProcess struct {
	model  Model
	cache  *keycache.Cache
	sglang bool
	// before and after are the tokens that the tokenizer adds around a text.
	before, after []uint32
	results       sync.Pool
}

func newInProcess(cfg Config) (*inProcess, error) {
	cache, err := keycache.New(cfg.Model, keycache.Config{Cuts: cfg.Cuts, MaxBytes: cfg.CacheBytes})
	if err != nil {
		return nil, err
	}
	s := &inProcess{
		model: cfg.Model, cache: cache, sglang: cfg.EngineKind == kindSGLang,
		results: sync.Pool{New: func() any { return new(keycache.Result) }},
	}
	if s.before, s.after, err = around(cfg.Model); err != nil {
		return nil, err
	}
	return s, nil
}

// around finds the tokens that a tokenizer adds around texts, which are the same
// for every text.
func around(m Model) (before, after []uint32, err error) {
	known := false
	for _, text := range []string{"warm path 1", "a", "x", "0"} {
		plain, special := m.Append(nil, text), m.AppendSpecial(nil, text)
		if len(plain) == 0 {
			continue // a small vocabulary lacks it
		}
		at := -1
		for k := 0; k+len(plain) <= len(special) && at < 0; k++ {
			if slices.Equal(special[k:k+len(plain)], plain) {
				at = k
			}
		}
		if at < 0 {
			return nil, nil, errors.New("tokensource: the special tokens of the tokenizer change the text's own; ask the engines instead")
		}
		b, a := special[:at], special[at+len(plain):]
		if known && (!slices.Equal(b, before) || !slices.Equal(a, after)) {
			return nil, nil, errors.New("tokensource: the special tokens of the tokenizer depend on the text; ask the engines instead")
		}
		before, after, known = b, a, true
	}
	if !known {
		return nil, nil, errors.New("tokensource: the tokenizer has no tokens for plain text; is its vocabulary empty?")
	}
	return before, after, nil
}

// tokens returns keys and length; ids are not kept.
func (s *inProcess) tokens(p *Prompt) (Tokens, error) {
	q, err := s.prompt(p)
	if err != nil {
		return Tokens{}, err
	}
	r := s.results.Get().(*keycache.Result)
	defer s.results.Put(r)
	s.cache.Keys(r, q)
	return Tokens{Keys: slices.Clone(r.Keys), Count: r.Tokens, Source: string(InProcess), TextBytes: len(q.Text)}, nil
}

// prompt renders p and puts the tokens around it that belong there.
func (s *inProcess) prompt(p *Prompt) (keycache.Prompt, error) {
	q := keycache.Prompt{Text: p.Text, Root: p.Root, BlockTokens: p.BlockTokens}
	special := !p.Chat // the engines' defaults: templates write their own
	if p.Template.AddSpecialTokens != nil {
		special = *p.Template.AddSpecialTokens
	}
	if special {
		q.Before, q.After = s.before, s.after
	}
	if !p.Chat {
		return q, nil
	}
	var err error
	q.Text, err = s.render(p)
	return q, err
}

func (s *inProcess) render(p *Prompt) (string, error) {
	t := &p.Template
	if len(t.ChatTemplate) > 0 {
		return "", unavailable("template", "the request brings its own chat template, which engines may or may not take")
	}
	q := chat.Request{
		Messages: p.Messages, Tools: p.Tools, Documents: t.Documents, Kwargs: t.ChatTemplateKwargs,
		AddGenerationPrompt: t.AddGenerationPrompt, ContinueFinalMessage: t.ContinueFinalMessage != nil && *t.ContinueFinalMessage,
	}
	if s.sglang && string(t.ToolChoice) == `"none"` {
		q.Tools = nil // vLLM shows them to the model all the same
	}
	if len(t.ReasoningEffort) > 0 {
		if err := json.Unmarshal(t.ReasoningEffort, &q.ReasoningEffort); err != nil {
			return "", &PromptError{Param: "reasoning_effort", Err: errors.New("reasoning_effort: not a string; send low, medium or high")}
		}
	}
	text, err := s.model.Chat(q)
	var refused *chat.Refused
	switch {
	case err == nil:
		return text, nil
	case errors.As(err, &refused):
		return "", &PromptError{Param: "messages", Err: err}
	case errors.Is(err, chat.ErrMedia):
		return "", &UnavailableError{Reason: "media", Err: err}
	case errors.Is(err, chat.ErrTooLarge):
		return "", &UnavailableError{Reason: "too_large", Err: err}
	}
	return "", &UnavailableError{Reason: "template", Err: err}
}
