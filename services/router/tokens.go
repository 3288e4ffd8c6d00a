package router

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/tokensource"
)

// Tokenizers that Config.Tokenizer names beside the folder of a model.
const (
	// TokenizerClient is none: prompts come as keys or token ids.
	TokenizerClient = string(tokensource.Client)
	// TokenizerBytes is one token a byte, as simulated engines do.
	TokenizerBytes = string(tokensource.Bytes)
	// TokenizerEngine asks the pool's engines.
	TokenizerEngine = string(tokensource.Engine)
)

const (
	// engineQuestions bounds the texts at engines at once, whose answers are waited
	// for; tokenizing here is bounded by the processors.
	engineQuestions = 64
	// textPatience is how long a text may take until its decision: whoever asks has
	// no use for it later.
	textPatience = 1500 * time.Millisecond
)

// TokenSource turns the text of prompts into tokens, as the pool's engines do:
// a *tokensource.Source, or what a test puts in its place.
type TokenSource interface {
	Tokens(ctx context.Context, p *tokensource.Prompt, dst []uint32) (tokensource.Tokens, error)
}

// texts tokenizes, so many at a time. Without a source it refuses.
type texts struct {
	source TokenSource
	slots  chan struct{}
	close  func()
}

func (r *Router) newTexts(reg prometheus.Registerer) (texts, error) {
	slots := max(2, runtime.GOMAXPROCS(0))
	switch {
	case r.cfg.Tokens != nil:
		return texts{r.cfg.Tokens, make(chan struct{}, engineQuestions), func() {}}, nil
	case r.cfg.Tokenizer == "", r.cfg.Tokenizer == TokenizerClient:
		return texts{slots: make(chan struct{}, slots), close: func() {}}, nil
	case r.cfg.Tokenizer == TokenizerEngine:
		slots = engineQuestions
	}
	source, err := tokensource.Named(r.cfg.Tokenizer, tokensource.Config{
		Rendering: r.cfg.Rendering, EngineKey: r.cfg.EngineKey, Engines: r.engines, Registerer: reg,
	})
	if err != nil {
		return texts{}, err
	}
	return texts{source, make(chan struct{}, slots), source.Close}, nil
}

// engines are the replicas that can be asked for tokens.
func (r *Router) engines() []tokensource.Replica {
	fleet := r.replicas(r.now())
	out := make([]tokensource.Replica, 0, len(fleet))
	for _, s := range fleet {
		if !s.dead {
			out = append(out, tokensource.Replica{Name: s.entry.Replica, Address: s.entry.Address, Kind: s.entry.EngineKind})
		}
	}
	return out
}

// enter waits for a place among those that tokenize.
func (t *texts) enter(ctx context.Context) error {
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case t.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	return notReady("the router tokenizes as many prompts as it can; ask another one, send token_ids, or fall back")
}

func (t *texts) leave() { <-t.slots }

// tokenize finds length and keys of a prompt given as text. A text whose tokens
// cannot be known now is decided by load alone.
func (r *Router) tokenize(ctx context.Context, a *asked, s shape) error {
	if r.texts.source == nil {
		return invalid("%s is text, and this router has no tokenizer; start it with --tokenizer, or send token_ids or keys", a.form)
	}
	if err := r.texts.enter(ctx); err != nil {
		r.metrics.shed.WithLabelValues("tokenizer").Inc()
		return err
	}
	defer r.texts.leave()
	ctx, cancel := context.WithTimeout(ctx, textPatience)
	defer cancel()
	buffer := tokensource.BorrowIDs()
	defer tokensource.ReturnIDs(buffer)
	p := &tokensource.Prompt{
		Chat: a.form == formChat, Text: a.Prompt, Messages: a.body.Messages, Tools: a.body.Tools, Template: a.body.Template,
		Model: s.model, LoRA: a.lora, Root: blockkey.Root(s.model, a.lora, a.salt), BlockTokens: int(s.blockTokens),
	}
	began := time.Now()
	found, err := r.texts.source.Tokens(ctx, p, (*buffer)[:0])
	r.metrics.tokenizing.Observe(time.Since(began).Seconds())
	var fault *tokensource.PromptError
	switch {
	case errors.As(err, &fault):
		return invalid("%s: %v", a.form, fault)
	case ctx.Err() != nil:
		r.metrics.shed.WithLabelValues("late").Inc()
		return notReady("the prompt took too long to tokenize; fall back")
	case err != nil:
		a.source, a.unkeyed = tokensource.SourceNone, err.Error()
		a.tokens = tokensource.EstimateTokens(len(a.Prompt) + len(a.Chat))
		r.metrics.unkeyed.Inc()
		return nil
	}
	a.source, a.textBytes = found.Source, found.TextBytes
	if found.IDs != nil {
		*buffer = found.IDs[:0]
		found.Count = len(found.IDs)
		if found.Keys, err = chain(p.Root, found.IDs, s.blockTokens, a.form); err != nil {
			return err
		}
	}
	switch {
	case found.Count == 0:
		return invalid("%s has no tokens; send at least one", a.form)
	case found.Count > maxPromptTokens:
		return tooLong(uint64(found.Count))
	case len(found.Keys) > maxKeys:
		return tooManyBlocks(a.form, len(found.Keys), s.blockTokens)
	}
	a.keys, a.tokens = found.Keys, uint64(found.Count)
	return nil
}

// chain is the keys of token ids.
func chain(root blockkey.Key, ids []uint32, blockTokens uint32, f form) ([]blockkey.Key, error) {
	n := len(ids) / int(blockTokens)
	if n > maxKeys {
		return nil, tooManyBlocks(f, n, blockTokens)
	}
	return blockkey.Chain(make([]blockkey.Key, 0, n), root, ids, int(blockTokens)), nil
}

func tooManyBlocks(f form, n int, blockTokens uint32) error {
	return invalid("%s has %d full blocks of %d tokens; the limit is %d: shorten the prompt", f, n, blockTokens, maxKeys)
}

// keyed finds the keys of a prompt, however it is given.
func (r *Router) keyed(ctx context.Context, a *asked, s shape) (err error) {
	switch a.form {
	case formTokens:
		a.keys, err = chain(blockkey.Root(s.model, a.lora, a.salt), a.TokenIds, s.blockTokens, a.form)
	case formText, formChat:
		err = r.tokenize(ctx, a, s)
	}
	return err
}

// isText says whether a request takes longer than a decision, because its prompt
// must be tokenized.
func isText(q *pb.RouteRequest) bool { return q.Prompt != "" || len(q.Chat) > 0 }
