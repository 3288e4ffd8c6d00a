package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"warmpath/routing/blockkey"
	"warmpath/tokenize"
)

// Where the tokens of a prompt came from, as Decided.token_source names it.
const (
	SourceInProcess = "in_process"
	SourceEngine    = "engine"
	SourceClient    = "client"
	SourceNone      = "none"
)

// Prompt is what of a request decides its tokens and keys. Raw values alias the
// body, which stays as it is until the call returns.
type Prompt struct {
	// Chat says which of Messages and Text holds the prompt.
	Chat     bool
	Messages json.RawMessage
	Tools    json.RawMessage
	Text     string
	// Template are the other members that change a prompt's tokens.
	Template tokenize.TemplateArgs
	// Model, LoRA and Salt are what Root was made of.
	Model, LoRA, Salt string
	// Root is the key before the first block, BlockTokens the pool's block size; 0
	// while no replica is known.
	Root        blockkey.Key
	BlockTokens int
}

// Tokens is what a token source makes of a prompt.
type Tokens struct {
	// IDs is the dst of the call with the prompt's token ids appended, or nil when
	// the source has Keys already.
	IDs []uint32
	// Keys are the keys of all full blocks, and Count the prompt's tokens; both are
	// ignored when IDs is not nil.
	Keys  []blockkey.Key
	Count int
	// Source is SourceInProcess, SourceEngine or SourceClient.
	Source string
}

// TokenSource turns prompts into tokens as the pool's engines do. Tokens is
// called concurrently. A *PromptError is the client's fault;
// after any other error the request is served without keys, by load alone.
type TokenSource interface {
	Tokens(ctx context.Context, p *Prompt, dst []uint32) (Tokens, error)
}

// PromptError is a prompt that the engine would refuse, too: what its chat
// template raised, or a message without a role.
type PromptError struct {
	// Param names the field at fault; empty when that is not known.
	Param string
	Err   error
}

// Error implements error.
func (e *PromptError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PromptError) Unwrap() error { return e.Err }

// ErrNoTokens is returned by a source that cannot tell the tokens of a prompt.
var ErrNoTokens = errors.New("the tokens of this prompt are not known")

// byteTokens is one token a byte, as the simulated engines do.
type byteTokens struct{}

func (byteTokens) Tokens(_ context.Context, p *Prompt, dst []uint32) (Tokens, error) {
	text := p.Text
	if p.Chat {
		var err error
		if text, err = (tokenize.Bytes{}).Render(p.Messages, p.Tools); err != nil {
			return Tokens{}, &PromptError{Param: fieldOf(err), Err: err}
		}
	}
	return Tokens{IDs: tokenize.AppendText(dst, text), Source: SourceInProcess}, nil
}

// clientTokens knows no text: only prompts that are ids have tokens, and those
// never come here.
type clientTokens struct{}

func (clientTokens) Tokens(context.Context, *Prompt, []uint32) (Tokens, error) {
	return Tokens{}, ErrNoTokens
}

// sourceFor returns the source that a configuration names.
func sourceFor(cfg Config) TokenSource {
	switch {
	case cfg.Tokens != nil:
		return cfg.Tokens
	case cfg.Tokenizer == TokenizerClient:
		return clientTokens{}
	default:
		return byteTokens{}
	}
}

// tokens finds the prompt's tokens, and from them its keys.
func (g *Gateway) tokens(ctx context.Context, rq *request, scanned *tokenize.Request, buffer *[]uint32, pool shape) *apiError {
	rq.blockTokens = pool.blockTokens
	switch rq.kind {
	case endpointPooling:
		rq.unkeyed(len(rq.body))
		return nil
	case endpointChat:
		if scanned.Messages == nil {
			return refuse("messages", errors.New("messages: missing; send an array of objects with role and content"))
		}
	default:
		if scanned.PromptKind == tokenize.NoPrompt {
			return refuse("prompt", errors.New("prompt: missing; send a string or an array of token ids"))
		}
	}
	root := blockkey.Root(rq.model, rq.lora, rq.salt)
	found := Tokens{IDs: scanned.IDs, Source: SourceClient}
	if rq.kind == endpointChat || scanned.PromptKind != tokenize.IDPrompt {
		var err error
		found, err = g.source.Tokens(ctx, &Prompt{
			Chat: rq.kind == endpointChat, Messages: scanned.Messages, Tools: scanned.Tools, Text: scanned.Text, Template: scanned.Template,
			Model: rq.model, LoRA: rq.lora, Salt: rq.salt, Root: root, BlockTokens: int(pool.blockTokens),
		}, scanned.IDs)
		var fault *PromptError
		switch {
		case errors.As(err, &fault):
			return refuse(fault.Param, fault.Err)
		case err != nil:
			if !errors.Is(err, ErrNoTokens) && ctx.Err() == nil {
				g.log.Warn("the tokens of a prompt could not be found; it is routed by load alone", "request", rq.id, "error", err)
			}
			rq.unkeyed(len(scanned.Text) + len(scanned.Messages) + len(scanned.Tools))
			g.metrics.unkeyed.Inc()
			return nil
		}
	}
	if found.IDs != nil {
		*buffer = found.IDs[:0]
		found.Count, found.Keys = len(found.IDs), nil
		if pool.blockTokens > 0 {
			keys := make([]blockkey.Key, 0, len(found.IDs)/int(pool.blockTokens))
			found.Keys = blockkey.Chain(keys, root, found.IDs, int(pool.blockTokens))
		}
	}
	if found.Count <= 0 {
		return refuse("prompt", errors.New("prompt: empty; send at least one token"))
	}
	rq.keys, rq.promptTokens, rq.source = found.Keys, uint64(found.Count), found.Source
	return nil
}

// unkeyed estimates the length of a prompt whose tokens are not known.
func (r *request) unkeyed(length int) {
	r.source = SourceNone
	r.promptTokens = max(1, uint64(length)/bytesPerToken)
}

// fieldOf returns the member that an error of the scanner starts with.
func fieldOf(err error) string {
	name, _, ok := strings.Cut(err.Error(), ":")
	if !ok || strings.ContainsAny(name, " \"") {
		return ""
	}
	return name
}

// unknownTokenizer is the error for a --tokenizer that names no source.
func unknownTokenizer(name string) error {
	return fmt.Errorf("tokenizer %q is not known; --tokenizer takes bytes or client", name)
}
