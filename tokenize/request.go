package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// PromptKind says in which form a completions request carries its prompt.
type PromptKind uint8

// The forms of a prompt.
const (
	// NoPrompt: the body has no prompt, as chat requests do not.
	NoPrompt PromptKind = iota
	// TextPrompt: one string.
	TextPrompt
	// IDPrompt: one array of token ids.
	IDPrompt
	// SeveralPrompts: an array of more than one prompt, which is not read further.
	SeveralPrompts
)

// Request is what routing and forwarding need of a /v1/completions or
// /v1/chat/completions body. Other members are checked to be JSON and passed on
// unread.
type Request struct {
	Model string
	// PromptKind says which of Text and IDs holds the prompt.
	PromptKind PromptKind
	Text       string
	// IDs are appended to the slice that ScanRequest was given.
	IDs []uint32
	// PromptBytes is the JSON length of several prompts; 0 for any other.
	PromptBytes int
	// Messages and Tools are the raw values, parts of the body; nil when absent or null.
	Messages json.RawMessage
	Tools    json.RawMessage
	Stream   bool
	// IncludeUsage is stream_options.include_usage.
	IncludeUsage bool
	// MaxTokens is max_completion_tokens, else max_tokens; -1 when absent or null.
	MaxTokens int64
	// User is the body's user, which names the session when no header does.
	User string
	// CacheSalt keeps one tenant's blocks apart from another's.
	CacheSalt string
	// Template is what else of the body decides how the prompt becomes tokens.
	Template TemplateArgs

	places places
}

// TemplateArgs are members that change the tokens of a prompt beside its text,
// messages and tools, as vLLM and SGLang read them. Raw values are parts of the
// body, nil when absent or null; switches are nil likewise, because the engines'
// defaults differ between chat and completion.
type TemplateArgs struct {
	Documents json.RawMessage
	// ChatTemplate is a template that the request brings along.
	ChatTemplate json.RawMessage
	// ChatTemplateKwargs are variables of the template.
	ChatTemplateKwargs json.RawMessage
	// ToolChoice may take the tools out of the prompt.
	ToolChoice json.RawMessage
	// ReasoningEffort stands in the prompt of some models.
	ReasoningEffort      json.RawMessage
	AddGenerationPrompt  *bool
	ContinueFinalMessage *bool
	AddSpecialTokens     *bool
}

// ScanRequest reads a request body in one pass. Token ids are appended to ids,
// which may be nil or a slice to reuse. The body must be one JSON object in
// UTF-8 with nothing after it. A member that is read here and given twice is
// refused: two readers could take different ones, and one of them is the
// cache's tenant salt. The returned Messages and Tools alias body; everything
// else is copied. Errors name the member, and for broken JSON the byte.
//
// A prompt may be a string, an array of ids, or an array of such. Of several only
// the length is read; whether they are of one kind is for the engine to say.
func ScanRequest(body []byte, ids []uint32) (Request, error) {
	r := Request{MaxTokens: -1, IDs: ids}
	if err := checkUTF8(body); err != nil {
		return r, err
	}
	s := scanner{json: body, request: &r}
	if err := s.object(); err != nil {
		return r, err
	}
	if r.PromptKind != IDPrompt {
		r.IDs = r.IDs[:len(ids)]
	}
	return r, nil
}

type scanner struct {
	json    []byte
	request *Request
	seen    uint32 // one bit a member that was read

	maxTokens, maxCompletion int64
}

func (s *scanner) object() error {
	body := s.json
	i := skipSpace(body, 0)
	if i >= len(body) || body[i] != '{' {
		return unexpected(body, i, "'{', the start of a request object")
	}
	s.maxTokens, s.maxCompletion = -1, -1
	s.request.places.brace = i + 1
	i = skipSpace(body, i+1)
	if i < len(body) && body[i] == '}' {
		s.request.places.emptyBody = true
		return s.end(i + 1)
	}
	for {
		name, value, err := key(body, i)
		if err != nil {
			return err
		}
		if i, err = s.member(name, value); err != nil {
			return err
		}
		i = skipSpace(body, i)
		if i < len(body) && body[i] == ',' {
			i = skipSpace(body, i+1)
			continue
		}
		if i < len(body) && body[i] == '}' {
			return s.end(i + 1)
		}
		return unexpected(body, i, "',' or '}' after a member")
	}
}

func (s *scanner) end(i int) error {
	if i = skipSpace(s.json, i); i < len(s.json) {
		return unexpected(s.json, i, "nothing after the request object")
	}
	s.request.MaxTokens = s.maxTokens
	if s.maxCompletion >= 0 {
		s.request.MaxTokens = s.maxCompletion
	}
	return nil
}

// Bits of scanner.seen.
const (
	seenModel = 1 << iota
	seenPrompt
	seenMessages
	seenTools
	seenStream
	seenOptions
	seenMax
	seenMaxCompletion
	seenUser
	seenSalt
	seenDocuments
	seenChatTemplate
	seenTemplateArgs
	seenToolChoice
	seenEffort
	seenGenerationPrompt
	seenContinue
	seenSpecialTokens
)

// member reads the value of one top-level member and returns the offset after it.
func (s *scanner) member(name []byte, at int) (next int, err error) {
	r := s.request
	var bit uint32
	switch string(name) {
	case "prompt":
		bit = seenPrompt
		next, err = s.prompt(at)
	case "model":
		bit = seenModel
		r.Model, next, err = s.text(at)
	case "messages":
		bit = seenMessages
		r.Messages, next, err = s.raw(at)
	case "tools":
		bit = seenTools
		r.Tools, next, err = s.raw(at)
	case "stream":
		bit = seenStream
		r.Stream, next, err = s.bool(at)
	case "stream_options":
		bit = seenOptions
		next, err = s.options(at)
	case "max_tokens":
		bit = seenMax
		s.maxTokens, next, err = s.count(at)
	case "max_completion_tokens":
		bit = seenMaxCompletion
		s.maxCompletion, next, err = s.count(at)
	case "user":
		bit = seenUser
		r.User, next, err = s.text(at)
	case "cache_salt":
		bit = seenSalt
		r.CacheSalt, next, err = s.text(at)
		r.places.salt = span{at, next}
	default:
		if bit, next, err = s.templateArg(name, at); bit == 0 {
			return next, err
		}
	}
	if err != nil {
		return next, fmt.Errorf("%s: %w", name, err)
	}
	if s.seen&bit != 0 {
		return next, fmt.Errorf("%s: given twice; send it once", name)
	}
	s.seen |= bit
	return next, nil
}

// templateArg is member for the members of TemplateArgs. The bit is 0 for any
// other, which is skipped.
func (s *scanner) templateArg(name []byte, at int) (bit uint32, next int, err error) {
	t := &s.request.Template
	switch string(name) {
	case "documents":
		bit = seenDocuments
		t.Documents, next, err = s.raw(at)
	case "chat_template":
		bit = seenChatTemplate
		t.ChatTemplate, next, err = s.raw(at)
	case "chat_template_kwargs":
		bit = seenTemplateArgs
		t.ChatTemplateKwargs, next, err = s.raw(at)
	case "tool_choice":
		bit = seenToolChoice
		t.ToolChoice, next, err = s.raw(at)
	case "reasoning_effort":
		bit = seenEffort
		t.ReasoningEffort, next, err = s.raw(at)
	case "add_generation_prompt":
		bit = seenGenerationPrompt
		t.AddGenerationPrompt, next, err = s.option(at)
	case "continue_final_message":
		bit = seenContinue
		t.ContinueFinalMessage, next, err = s.option(at)
	case "add_special_tokens":
		bit = seenSpecialTokens
		t.AddSpecialTokens, next, err = s.option(at)
	default:
		next, err = skipValue(s.json, at, 1)
	}
	return bit, next, err
}

// option is bool for a member whose absence means something of its own.
func (s *scanner) option(i int) (*bool, int, error) {
	if s.null(i) {
		return nil, i + 4, nil
	}
	value, next, err := s.bool(i)
	return &value, next, err
}

// null reports a null at i, which counts as an absent member.
func (s *scanner) null(i int) bool {
	return len(s.json)-i >= 4 && string(s.json[i:i+4]) == "null"
}

func (s *scanner) text(i int) (string, int, error) {
	if s.null(i) {
		return "", i + 4, nil
	}
	if i >= len(s.json) || s.json[i] != '"' {
		return "", i, unexpected(s.json, i, "a string")
	}
	end, _, err := skipString(s.json, i)
	if err != nil {
		return "", end, err
	}
	text, err := unquote(s.json[i:end])
	return text, end, err
}

func (s *scanner) bool(i int) (bool, int, error) {
	if s.null(i) {
		return false, i + 4, nil
	}
	if i < len(s.json) {
		switch s.json[i] {
		case 't':
			next, err := skipWord(s.json, i, "true")
			return true, next, err
		case 'f':
			next, err := skipWord(s.json, i, "false")
			return false, next, err
		}
	}
	return false, i, unexpected(s.json, i, "true or false")
}

// count reads a non-negative integer.
func (s *scanner) count(i int) (int64, int, error) {
	if s.null(i) {
		return -1, i + 4, nil
	}
	const expected = "an integer, 0 or more"
	if i >= len(s.json) || s.json[i]-'0' > 9 {
		return -1, i, unexpected(s.json, i, expected)
	}
	next, err := skipNumber(s.json, i)
	if err != nil {
		return -1, next, err
	}
	// Engines take 16.0 for 16, so it is not refused here.
	n, err := strconv.ParseFloat(string(s.json[i:next]), 64)
	if err != nil || n > math.MaxInt32 || n != math.Trunc(n) {
		return -1, i, unexpected(s.json, i, expected+" and below 2147483648")
	}
	return int64(n), next, nil
}

func (s *scanner) raw(i int) (json.RawMessage, int, error) {
	next, err := skipValue(s.json, i, 1)
	if err != nil || s.null(i) {
		return nil, next, err
	}
	return json.RawMessage(s.json[i:next:next]), next, nil
}

// options reads stream_options.
func (s *scanner) options(i int) (int, error) {
	u := &s.request.places
	next, err := skipValue(s.json, i, 1)
	if err != nil {
		return next, err
	}
	u.options = span{i, next}
	if s.null(i) {
		return next, nil
	}
	if s.json[i] != '{' {
		return i, unexpected(s.json, i, "an object or null")
	}
	i = skipSpace(s.json, i+1)
	u.emptyInner = s.json[i] == '}'
	for s.json[i] != '}' {
		name, value, err := key(s.json, i)
		if err != nil {
			return i, err
		}
		end, err := skipValue(s.json, value, 2)
		if err != nil {
			return end, err
		}
		if string(name) == "include_usage" {
			if u.value.present() {
				return value, errors.New("include_usage: given twice; send it once")
			}
			u.value = span{value, end}
			if s.request.IncludeUsage, _, err = s.bool(value); err != nil {
				return value, fmt.Errorf("include_usage: %w", err)
			}
		}
		if i = skipSpace(s.json, end); s.json[i] == ',' {
			i = skipSpace(s.json, i+1)
		}
	}
	return next, nil
}
