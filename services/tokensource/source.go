// Package tokensource finds the tokens of a prompt as the pool's engines would:
// in process from the model's own template and tokenizer, by asking an engine's
// /tokenize, or not at all where the client must send ids.
//
// In process, what conversations have in common is tokenized once
// (tokenize/keycache). When that is shown to be wrong, UseEngine makes the source
// ask the engines until UseInProcess.
package tokensource

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/blockkey"
	"warmpath/tokenize"
	"warmpath/tokenize/keycache"
)

// Mode is where tokens come from.
type Mode string

// The modes.
const (
	// InProcess renders and tokenizes here.
	InProcess Mode = "in_process"
	// Engine asks the engines' /tokenize.
	Engine Mode = "engine"
	// Client takes ids from clients only: no text has tokens.
	Client Mode = "client"
	// Bytes is one token a byte, as simulated engines do; it counts as in process.
	Bytes Mode = "bytes"
)

// Config says where tokens come from. Zero values take the defaults that the
// fields name.
type Config struct {
	// Mode is the source; required.
	Mode Mode
	// Model renders and tokenizes in process; required for InProcess.
	Model Model
	// Cuts are the exact cuts of the model's tokenizer, see keycache.ReadCuts.
	Cuts keycache.Cuts
	// CacheBytes bounds the memory of prefixes; default as keycache.Config.
	CacheBytes int64
	// Rendering is how the pool's engines make prompts of chats. All but EngineKind
	// is for Named.
	Rendering

	// Engines returns the live replicas; required for Engine, and for falling back
	// to it. It must be safe for concurrent use.
	Engines func() []Replica
	// EngineKey is sent to engines as a bearer token.
	EngineKey string
	// Timeout bounds one question to an engine. Default 500ms: above what a busy
	// API server takes for a long prompt, below what a lost prefix costs.
	Timeout time.Duration
	// AnswerBytes bounds the memory of engines' answers. Default 64 MiB.
	AnswerBytes int64
	// AnswerAge is how long an answer may be used again. Default 10m: an engine
	// that is replaced may have another template.
	AnswerAge time.Duration

	// Registerer takes the metrics; nil leaves them out.
	Registerer prometheus.Registerer
}

// Replica is an engine that can be asked.
type Replica struct {
	Name string
	// Address is the base URL of its API, without a trailing slash.
	Address string
	// Kind is the engine's kind as the fleet says it: vllm, sglang, trtllm, …
	Kind string
}

// Prompt is what of a request decides its tokens and keys. Raw values are only
// read during the call.
type Prompt struct {
	// Chat says which of Messages and Text holds the prompt.
	Chat     bool
	Messages json.RawMessage
	Tools    json.RawMessage
	Text     string
	// Template are the other members that change a prompt's tokens.
	Template tokenize.TemplateArgs
	// Model and LoRA are what engines are asked for; the adapter goes first.
	Model, LoRA string
	// Root is the key before the first block, which has the salt and the adapter in
	// it, and BlockTokens the pool's block size; 0 gives no keys.
	Root        blockkey.Key
	BlockTokens int
}

// Tokens is what is known of a prompt.
type Tokens struct {
	// IDs are the token ids, appended to the dst of the call; nil when Keys are
	// known without them.
	IDs []uint32
	// Keys are the keys of all full blocks, the caller's to keep; nil beside IDs.
	Keys []blockkey.Key
	// Count is the prompt's length.
	Count int
	// Source is in_process or engine, as decisions record it.
	Source string
	// TextBytes is the length of the rendered text, where it was rendered here.
	TextBytes int
}

// Source turns prompts into tokens. Safe for concurrent use.
type Source struct {
	cfg       Config
	inProcess *inProcess
	engines   *engines
	metrics   *metrics
	fallback  atomic.Pointer[string] // why engines are asked instead
}

// New checks a configuration and returns its source.
func New(cfg Config) (*Source, error) {
	s := &Source{cfg: cfg}
	switch cfg.Mode {
	case Client, Bytes:
	case InProcess:
		if cfg.Model == nil {
			return nil, fmt.Errorf("tokensource: in_process needs a model; give its directory")
		}
		var err error
		if s.inProcess, err = newInProcess(cfg); err != nil {
			return nil, err
		}
	case Engine:
		if cfg.Engines == nil {
			return nil, fmt.Errorf("tokensource: engine needs the list of replicas")
		}
	default:
		return nil, fmt.Errorf("tokensource: mode %q is not known; give in_process, engine, client or bytes", cfg.Mode)
	}
	if cfg.Engines != nil {
		s.engines = newEngines(cfg)
	}
	s.metrics = newMetrics(s)
	if cfg.Registerer != nil {
		if err := s.metrics.register(cfg.Registerer); err != nil {
			return nil, fmt.Errorf("tokensource: metrics: %w", err)
		}
	}
	return s, nil
}

// Tokens finds the tokens of a prompt. ids may be appended to dst, which may be
// nil. Errors are a *PromptError for what the engine would refuse, too, or an
// *UnavailableError: then the prompt can be routed by load alone.
func (s *Source) Tokens(ctx context.Context, p *Prompt, dst []uint32) (Tokens, error) {
	mode := s.Using()
	t, err := s.tokens(ctx, mode, p, dst)
	s.metrics.count(mode, err)
	return t, err
}

func (s *Source) tokens(ctx context.Context, mode Mode, p *Prompt, dst []uint32) (Tokens, error) {
	switch mode {
	case InProcess:
		return s.inProcess.tokens(p)
	case Engine:
		ids, err := s.engines.ask(ctx, p, dst)
		return Tokens{IDs: ids, Count: len(ids) - len(dst), Source: string(Engine)}, err
	case Bytes:
		text := p.Text
		if p.Chat {
			var err error
			if text, err = (tokenize.Bytes{}).Render(p.Messages, p.Tools); err != nil {
				// Its errors begin with the field.
				field, _, _ := strings.Cut(err.Error(), ":")
				return Tokens{}, &PromptError{Param: field, Err: err}
			}
		}
		return Tokens{IDs: tokenize.AppendText(dst, text), Count: len(text), Source: string(InProcess), TextBytes: len(text)}, nil
	default:
		return Tokens{}, unavailable("client", "the client sent no token ids, and no other source is set up")
	}
}

// Using returns where tokens come from now.
func (s *Source) Using() Mode {
	if s.fallback.Load() != nil {
		return Engine
	}
	return s.cfg.Mode
}

// Fallback returns why engines are asked although tokens could be made in
// process, and false when that is not so.
func (s *Source) Fallback() (reason string, on bool) {
	if r := s.fallback.Load(); r != nil {
		return *r, true
	}
	return "", false
}

// UseEngine makes the source ask the engines from now on, because the tokens made
// in process are wrong. It reports whether it can: there must be engines, and
// something to fall back from.
func (s *Source) UseEngine(reason string) bool {
	if s.cfg.Mode != InProcess || s.engines == nil {
		return false
	}
	if s.fallback.Swap(&reason) == nil {
		slog.Warn("tokens come from the engines now, because those made in process are wrong", "reason", reason)
	}
	return true
}

// UseInProcess ends UseEngine.
func (s *Source) UseInProcess() {
	if s.fallback.Swap(nil) != nil {
		slog.Info("tokens are made in process again")
	}
}

// Close gives up idle connections.
func (s *Source) Close() {
	if s.engines != nil {
		s.engines.client.CloseIdleConnections()
	}
}
