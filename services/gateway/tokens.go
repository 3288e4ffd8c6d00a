package gateway

import (
	"context"
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/blockkey"
	"warmpath/services/tokensource"
	"warmpath/tokenize"
)

// Where the tokens of a prompt came from, as Decided.token_source names it, beside
// what a tokensource says.
const (
	SourceClient = tokensource.SourceClient
	SourceNone   = tokensource.SourceNone
)

// TokenSource turns prompts into tokens as the pool's engines do: a
// *tokensource.Source, or what a test puts in its place. Tokens is called
// concurrently. A *tokensource.PromptError is the client's fault; after any
// other error the request is served without keys, by load alone.
type TokenSource interface {
	Tokens(ctx context.Context, p *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error)
}

// newSource makes the source that the configuration names.
func (g *Gateway) newSource(reg prometheus.Registerer) (TokenSource, error) {
	if g.cfg.Tokens != nil {
		return g.cfg.Tokens, nil
	}
	return tokensource.Named(g.cfg.Tokenizer, tokensource.Config{
		Rendering: g.cfg.Rendering, EngineKey: g.cfg.EngineKey, Engines: g.engines, Registerer: reg,
	})
}

// engines are the replicas that can be asked for tokens.
func (g *Gateway) engines() []tokensource.Replica {
	live := g.view.Live()
	out := make([]tokensource.Replica, 0, len(live))
	for _, e := range live {
		out = append(out, tokensource.Replica{Name: e.Replica, Address: e.Address, Kind: e.EngineKind})
	}
	return out
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
		switch scanned.PromptKind {
		case tokenize.NoPrompt:
			return refuse("prompt", errors.New("prompt: missing; send a string or an array of token ids"))
		case tokenize.SeveralPrompts: // each has blocks of its own
			rq.unkeyed(scanned.PromptBytes)
			g.metrics.unkeyed.Inc()
			return nil
		}
	}
	root := blockkey.Root(rq.model, rq.lora, rq.salt)
	found := tokensource.Tokens{IDs: scanned.IDs, Source: SourceClient}
	if rq.kind == endpointChat || scanned.PromptKind != tokenize.IDPrompt {
		var err error
		rq.prompt = &tokensource.Prompt{
			Chat: rq.kind == endpointChat, Messages: scanned.Messages, Tools: scanned.Tools, Text: scanned.Text, Template: scanned.Template,
			Model: rq.model, LoRA: rq.lora, Root: root, BlockTokens: int(pool.blockTokens),
		}
		found, err = g.source.Tokens(ctx, rq.prompt, scanned.IDs)
		var fault *tokensource.PromptError
		var unavailable *tokensource.UnavailableError
		switch {
		case errors.As(err, &fault):
			return refuse(fault.Param, fault.Err)
		case err != nil:
			// That clients must send ids is how the gateway was told to be.
			told := errors.As(err, &unavailable) && unavailable.Reason == string(tokensource.Client)
			if ctx.Err() == nil && !told {
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
	r.promptTokens = tokensource.EstimateTokens(length)
}

// fieldOf returns the member that an error of the scanner starts with.
func fieldOf(err error) string {
	name, _, ok := strings.Cut(err.Error(), ":")
	if !ok || strings.ContainsAny(name, " \"") {
		return ""
	}
	return name
}
