package route

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/tokensource"
	"warmpath/tokenize"
)

// Kinds of request.
const (
	kindChat       = "chat"
	kindCompletion = "completion"
	kindTokens     = "token ids"
)

// request is a client's request.
type request struct {
	tokenize.Request
	kind string
	body []byte
}

func scan(body []byte) (*request, error) {
	scanned, err := tokenize.ScanRequest(body, nil)
	if err != nil {
		return nil, err
	}
	in := &request{Request: scanned, body: body}
	switch {
	case scanned.PromptKind == tokenize.NoPrompt && scanned.Messages == nil:
		return nil, errors.New("there are no messages and no prompt; give the body of a chat completion or a completion request")
	case scanned.PromptKind == tokenize.NoPrompt:
		in.kind = kindChat
	case scanned.Messages != nil:
		return nil, errors.New("there are messages and a prompt; give one of them")
	case scanned.PromptKind == tokenize.IDPrompt:
		in.kind = kindTokens
	case scanned.PromptKind == tokenize.SeveralPrompts:
		return nil, errors.New("there are several prompts, which gateways route by load alone; give one")
	default:
		in.kind = kindCompletion
	}
	return in, nil
}

// known is what is known of a prompt before the router is asked.
type known struct {
	by        string // who made the tokens
	source    string
	textBytes int // 0 when it was not rendered here
}

// prompt puts the request's prompt into q: as it is, or as what --tokenizer makes
// of it.
func (c *Command) prompt(ctx context.Context, r *routers, in *request, q *pb.RouteRequest) (*known, error) {
	q.SessionId = in.User
	if q.Salt == "" {
		q.Salt = in.CacheSalt
	}
	if c.Tokenizer == "" && in.kind == kindChat {
		q.Chat = in.body // with its model in it
		return &known{by: "the router"}, nil
	}
	s, err := r.shape(ctx, in.Model, q)
	if err != nil {
		return nil, err
	}
	switch {
	case in.kind == kindTokens:
		q.TokenIds = in.IDs
		return &known{by: "the request", source: "client"}, nil
	case c.Tokenizer == "":
		q.Prompt = in.Text
		return &known{by: "the router", textBytes: len(in.Text)}, nil
	}
	source, err := c.source()
	if err != nil {
		return nil, err
	}
	defer source.Close()
	root := blockkey.Root(s.Model, q.Lora, q.Salt)
	found, err := source.Tokens(ctx, &tokensource.Prompt{
		Chat: in.kind == kindChat, Messages: in.Messages, Tools: in.Tools, Text: in.Text, Template: in.Template,
		Model: s.Model, LoRA: q.Lora, Root: root, BlockTokens: int(s.BlockTokens),
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("--tokenizer %s: %w", c.Tokenizer, err)
	}
	if found.IDs != nil {
		found.Keys = blockkey.Chain(nil, root, found.IDs, int(s.BlockTokens))
	}
	q.Keys, q.PromptTokens = found.Keys, uint64(found.Count)
	if found.Count == 0 {
		return nil, fmt.Errorf("--tokenizer %s: the prompt has no tokens; send at least one", c.Tokenizer)
	}
	return &known{by: c.Tokenizer, source: found.Source, textBytes: found.TextBytes}, nil
}

// shape finds the pool's model and block size, and whether the name that the
// request gives is an adapter's: by asking about a request of which nothing is
// known but its length. It puts model and adapter into q.
func (r *routers) shape(ctx context.Context, name string, q *pb.RouteRequest) (*pb.Decided, error) {
	if name != q.Lora {
		q.Model = name
	}
	a, err := r.ask(ctx, &pb.RouteRequest{RequestId: q.RequestId, Model: q.Model, Lora: q.Lora, Exclude: q.Exclude, PromptTokens: 1})
	if err != nil {
		return nil, err
	}
	q.Model, q.Lora = a.Decision.Model, a.Decision.Lora
	return a.Decision, nil
}

// source is what --tokenizer names.
func (c *Command) source() (*tokensource.Source, error) {
	cfg := tokensource.Config{Timeout: c.Timeout, EngineKey: c.EngineKey, Rendering: c.Rendering}
	name := c.Tokenizer
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		one := tokensource.Replica{Name: name, Address: strings.TrimRight(name, "/"), Kind: c.EngineKind}
		cfg.Engines = func() []tokensource.Replica { return []tokensource.Replica{one} }
		name = string(tokensource.Engine)
	}
	return tokensource.Named(name, cfg)
}
