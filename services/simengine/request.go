package simengine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"

	"warmpath/engine"
	"warmpath/routing/blockkey"
	"warmpath/tokenize"
)

const (
	// completionTokens is the API's default of max_tokens for completions.
	completionTokens = 16
	// answerTokens bounds an answer for which the request gives no bound.
	answerTokens = 4096
	// shortestAnswer and answerSpread say where the model ends an answer by itself:
	// 16 to 511 tokens, the same for the same request.
	shortestAnswer, answerSpread = 16, 496
)

// idBuffers are reused: a prompt of 900,000 ids takes 3.6 MB.
var idBuffers = sync.Pool{New: func() any { return new([]uint32) }}

// options are the members of a request that only an engine reads.
type options struct {
	N               *int            `json:"n"`
	BestOf          *int            `json:"best_of"`
	Echo            bool            `json:"echo"`
	Suffix          *string         `json:"suffix"`
	Logprobs        json.RawMessage `json:"logprobs"`
	Stop            stops           `json:"stop"`
	MinTokens       int             `json:"min_tokens"`
	IgnoreEOS       bool            `json:"ignore_eos"`
	Seed            *int64          `json:"seed"`
	Temperature     *float64        `json:"temperature"`
	ContinueMessage bool            `json:"continue_final_message"`
}

// stops is a string or a list of strings.
type stops []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *stops) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		if one != "" {
			*s = stops{one}
		}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(s))
}

// call is a request that was understood: what to compute and what to say.
type call struct {
	chat         bool
	stream       bool
	includeUsage bool
	requestID    string
	request      engine.Request
	text         []byte // the output, one byte a token
	visible      int    // bytes of text that the client sees
	finishReason string
}

// promptParam is the member that holds the prompt.
func (c *call) promptParam() string {
	if c.chat {
		return "messages"
	}
	return "prompt"
}

// read reads and understands a request.
func (s *Server) read(w http.ResponseWriter, r *http.Request, chat bool) (*call, *apiError) {
	body, err := s.readBody(w, r)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &apiError{
			status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", code: "request_too_large",
			text: fmt.Sprintf("the body is larger than %d bytes; shorten the prompt", tooLarge.Limit),
		}
	case err != nil:
		return nil, invalid("", "the body could not be read: %s", err)
	}
	buffer := idBuffers.Get().(*[]uint32)
	defer idBuffers.Put(buffer)
	scanned, err := tokenize.ScanRequest(body, (*buffer)[:0])
	if err != nil {
		return nil, scanFault(err)
	}
	if cap(scanned.IDs) > cap(*buffer) {
		*buffer = scanned.IDs
	}
	o, fault := readOptions(body, &scanned)
	if fault != nil {
		return nil, fault
	}
	if scanned.Model != "" && scanned.Model != s.cfg.Model {
		return nil, &apiError{
			status: http.StatusNotFound, kind: "invalid_request_error", param: "model", code: "model_not_found",
			text: fmt.Sprintf("the model %q does not exist here; use %q", scanned.Model, s.cfg.Model),
		}
	}
	tokens, fault := promptTokens(&scanned, chat)
	if fault != nil {
		return nil, fault
	}
	c := &call{chat: chat, stream: scanned.Stream, includeUsage: scanned.IncludeUsage, requestID: r.Header.Get("X-Request-Id")}
	if c.requestID == "" {
		c.requestID = s.newRequestID()
	}
	if len(tokens) == 0 {
		return nil, invalid(c.promptParam(), "%s: empty; send at least one token", c.promptParam())
	}
	room := s.context - len(tokens)
	if room < 1 {
		e := invalid(c.promptParam(), "%s: %d tokens leave no room in the model's context of %d tokens; shorten it", c.promptParam(), len(tokens), s.context)
		e.code = "context_length_exceeded"
		return nil, e
	}
	c.request.Prompt = engine.NewPrompt(s.root(scanned.CacheSalt), tokens, s.config.BlockTokens)
	c.request.Seed = s.textSeed(c, o)
	return c, c.plan(o, scanned.MaxTokens, room)
}

// readBody reads the whole body, into one piece when its length is announced.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limited := http.MaxBytesReader(w, r.Body, s.cfg.MaxBodyBytes)
	if r.ContentLength <= 0 || r.ContentLength > s.cfg.MaxBodyBytes {
		return io.ReadAll(limited)
	}
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(limited, body)
	return body, err
}

// readOptions reads the members that tokenize.ScanRequest leaves unread, which it
// has found to be JSON.
func readOptions(body []byte, scanned *tokenize.Request) (*options, *apiError) {
	if scanned.PromptKind == tokenize.IDPrompt {
		body = withoutIDs(body)
	}
	var o options
	if err := json.Unmarshal(body, &o); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return nil, invalid(kind.Field, "%s: found a %s, expected %s", kind.Field, kind.Value, kind.Type)
		}
		return nil, invalid("", "%s", err)
	}
	switch {
	case o.N != nil && *o.N != 1:
		return nil, invalid("n", "n: %d is not supported; ask for 1 and repeat the request", *o.N)
	case o.BestOf != nil && *o.BestOf != 1:
		return nil, invalid("best_of", "best_of: %d is not supported; leave it out", *o.BestOf)
	case o.Echo:
		return nil, invalid("echo", "echo: not supported; leave it out")
	case o.Suffix != nil && *o.Suffix != "":
		return nil, invalid("suffix", "suffix: not supported; leave it out")
	case len(o.Logprobs) > 0 && string(o.Logprobs) != "null" && string(o.Logprobs) != "false":
		return nil, invalid("logprobs", "logprobs: not supported; leave it out")
	case o.ContinueMessage:
		return nil, invalid("continue_final_message", "continue_final_message: not supported; leave it out")
	case o.MinTokens < 0:
		return nil, invalid("min_tokens", "min_tokens: %d; give 0 or more", o.MinTokens)
	case o.Temperature != nil && (*o.Temperature < 0 || *o.Temperature > 2 || math.IsNaN(*o.Temperature)):
		return nil, invalid("temperature", "temperature: %v; give 0 to 2", *o.Temperature)
	}
	return &o, nil
}

// withoutIDs returns a body without the ids of its top-level prompt, so that
// they are not looked at again; the whole body when it does not find them. The
// body is valid JSON with a prompt of ids, whose array has no strings.
func withoutIDs(body []byte) []byte {
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end := i + 1
			for body[end] != '"' {
				if body[end] == '\\' {
					end++
				}
				end++
			}
			rest := bytes.TrimLeft(body[end+1:], " \t\r\n")
			if depth == 1 && string(body[i:end+1]) == `"prompt"` && len(rest) > 0 && rest[0] == ':' {
				from := len(body) - len(rest) + 1
				last := bytes.IndexByte(body[from:], ']')
				if last < 0 {
					return body
				}
				tail := body[from+last+1:]
				// A list of one prompt ends with a second bracket.
				if inner := bytes.TrimLeft(tail, " \t\r\n"); len(inner) > 0 && inner[0] == ']' {
					tail = inner[1:]
				}
				return append(append(append(make([]byte, 0, from+4+len(tail)), body[:from]...), "null"...), tail...)
			}
			i = end
		}
	}
	return body
}

// promptTokens are the token ids of the prompt.
func promptTokens(scanned *tokenize.Request, chat bool) ([]uint32, *apiError) {
	if chat {
		if scanned.Messages == nil {
			return nil, invalid("messages", "messages: missing; send an array of messages")
		}
		tokens, err := tokenize.Bytes{}.Chat(scanned.Messages, scanned.Tools)
		if err != nil {
			return nil, scanFault(err)
		}
		return tokens, nil
	}
	switch scanned.PromptKind {
	case tokenize.IDPrompt:
		return scanned.IDs, nil
	case tokenize.TextPrompt:
		return tokenize.Bytes{}.Text(scanned.Text), nil
	}
	if scanned.PromptKind == tokenize.SeveralPrompts {
		return nil, invalid("prompt", "prompt: several prompts in one request; this engine takes one")
	}
	return nil, invalid("prompt", "prompt: missing; send a string or an array of token ids")
}

// textSeed is what the output depends on: the request's id, or, when the client
// asks for the same answer every time, its prompt.
func (s *Server) textSeed(c *call, o *options) uint64 {
	if o.Seed == nil && (o.Temperature == nil || *o.Temperature != 0) {
		return engine.TextSeed(s.cfg.Seed, c.requestID)
	}
	p := c.request.Prompt
	parent := p.Root
	if n := len(p.Keys); n > 0 {
		parent = p.Keys[n-1]
	}
	seed := s.cfg.Seed ^ blockkey.Next(parent, p.Tail, nil)
	if o.Seed != nil {
		seed ^= uint64(*o.Seed) * 0x9e3779b97f4a7c15
	}
	return seed
}

// plan decides how long the output is, and why it ends there.
func (c *call) plan(o *options, maxTokens int64, room int) *apiError {
	limit := min(room, answerTokens)
	switch {
	case maxTokens == 0:
		return invalid("max_tokens", "max_tokens: 0; ask for at least 1 token")
	case maxTokens > int64(room):
		e := invalid("max_tokens", "max_tokens: %d tokens beside a prompt of %d are more than the model's context; ask for at most %d", maxTokens, c.request.Prompt.Tokens, room)
		e.code = "context_length_exceeded"
		return e
	case maxTokens > 0:
		limit = int(maxTokens)
	case !c.chat:
		limit = min(room, max(completionTokens, o.MinTokens))
	}
	if o.MinTokens > limit {
		return invalid("min_tokens", "min_tokens: %d is more than max_tokens, %d", o.MinTokens, limit)
	}
	length, reason := limit, "length"
	if natural := max(shortestAnswer+int(c.request.Seed%answerSpread), o.MinTokens); !o.IgnoreEOS && natural < limit {
		length, reason = natural, "stop"
	}
	text := engine.NewText(c.request.Seed)
	c.text = make([]byte, length)
	for i := range c.text {
		c.text[i] = text.Next()
	}
	c.visible, c.finishReason = length, reason
	c.stopAt(o)
	c.request.OutputTokens = len(c.text)
	return nil
}

// stopAt ends the output where the first stop string is complete, and hides that
// string, as vLLM does.
func (c *call) stopAt(o *options) {
	for end := max(1, o.MinTokens); end <= len(c.text); end++ {
		for _, stop := range o.Stop {
			if stop != "" && bytes.HasSuffix(c.text[:end], []byte(stop)) {
				c.text, c.visible, c.finishReason = c.text[:end], end-len(stop), "stop"
				return
			}
		}
	}
}
