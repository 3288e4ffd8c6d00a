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

	usage usageEdit
}

// Edit replaces body[From:To] by Insert.
type Edit struct {
	From, To int
	Insert   string
}

// usageEdit is what Scan saw of stream_options, so that it can be added.
type usageEdit struct {
	options    span // value of stream_options
	value      span // value of include_usage inside it
	brace      int  // offset after the body's opening brace
	emptyBody  bool
	emptyInner bool
}

// span is a part of the body; empty when absent.
type span struct{ from, to int }

func (s span) present() bool { return s.to > s.from }

// AskUsage returns the edit of the scanned body that makes
// stream_options.include_usage true, and false when it is already.
func (r *Request) AskUsage() (Edit, bool) {
	const member = `"include_usage":true`
	switch u := &r.usage; {
	case r.IncludeUsage:
		return Edit{}, false
	case u.value.present():
		return Edit{From: u.value.from, To: u.value.to, Insert: "true"}, true
	case u.options.present():
		// Null has nothing to keep; an object gets a first member more.
		if u.options.to-u.options.from == len("null") {
			return Edit{From: u.options.from, To: u.options.to, Insert: "{" + member + "}"}, true
		}
		insert := member
		if !u.emptyInner {
			insert += ","
		}
		return Edit{From: u.options.from + 1, To: u.options.from + 1, Insert: insert}, true
	default:
		insert := `"stream_options":{` + member + `}`
		if !u.emptyBody {
			insert += ","
		}
		return Edit{From: u.brace, To: u.brace, Insert: insert}, true
	}
}

// ErrSeveralPrompts is returned for a body with more than one prompt.
var ErrSeveralPrompts = errors.New("prompt: several prompts in one request; send one request for each")

// ScanRequest reads a request body in one pass. Token ids are appended to ids,
// which may be nil or a slice to reuse. The body must be one JSON object in
// UTF-8 with nothing after it. A member that is read here and given twice is
// refused: two readers could take different ones, and one of them is the
// cache's tenant salt. The returned Messages and Tools alias body; everything
// else is copied. Errors name the member, and for broken JSON the byte.
//
// A prompt may be a string, an array of ids, or an array of exactly one such.
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
	s.request.usage.brace = i + 1
	i = skipSpace(body, i+1)
	if i < len(body) && body[i] == '}' {
		s.request.usage.emptyBody = true
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
	default:
		return skipValue(s.json, at, 1)
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
	u := &s.request.usage
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

// prompt reads the prompt: ids go straight into the request's slice.
func (s *scanner) prompt(i int) (int, error) {
	r := s.request
	if s.null(i) {
		return i + 4, nil
	}
	if i >= len(s.json) {
		return i, unexpected(s.json, i, "a string or an array of token ids")
	}
	switch s.json[i] {
	case '"':
		text, next, err := s.text(i)
		r.Text, r.PromptKind = text, TextPrompt
		return next, err
	case '[':
	default:
		return i, unexpected(s.json, i, "a string or an array of token ids")
	}
	inner := skipSpace(s.json, i+1)
	if inner >= len(s.json) || (s.json[inner] != '"' && s.json[inner] != '[') {
		return s.ids(i)
	}
	// A list of prompts, which may have one element.
	var next int
	var err error
	if s.json[inner] == '"' {
		r.PromptKind = TextPrompt
		r.Text, next, err = s.text(inner)
	} else {
		next, err = s.ids(inner)
	}
	if err != nil {
		return next, err
	}
	if next = skipSpace(s.json, next); next < len(s.json) && s.json[next] == ',' {
		return next, ErrSeveralPrompts
	}
	if next >= len(s.json) || s.json[next] != ']' {
		return next, unexpected(s.json, next, "']' after the prompt")
	}
	return next + 1, nil
}

func (s *scanner) ids(i int) (int, error) {
	r := s.request
	r.PromptKind = IDPrompt
	ids, n, err := AppendIDs(r.IDs, s.json[i:])
	r.IDs = ids
	var syntax *SyntaxError
	if errors.As(err, &syntax) {
		syntax.Offset += i
	}
	return i + n, err
}
