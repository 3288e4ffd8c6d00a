package syntax

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind of a token. Names, operators and brackets are told apart by their text.
type kind uint8

const (
	tokEOF kind = iota
	tokData
	tokOutputBegin
	tokOutputEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind kind
	text string // decoded for strings, without underscores for numbers
	line int
}

func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "template data"
	case tokOutputBegin, tokOutputEnd, tokBlockBegin, tokBlockEnd:
		return "'" + t.text + "'"
	default:
		return strconv.Quote(t.text)
	}
}

// Error is a template that is not Jinja, or uses what is not supported.
type Error struct {
	Line int
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

func failAt(line int, format string, args ...any) *Error {
	return &Error{Line: line, Text: fmt.Sprintf(format, args...)}
}

// lexer splits a template. Whitespace around tags is resolved here, by the rules
// of trim_blocks and lstrip_blocks, which is how chat templates are read.
type lexer struct {
	src    string
	at     int
	line   int
	tokens []token
	// lineStart: what was read last ended with a newline, or nothing was read.
	lineStart bool
}

// lex returns the tokens of a template, the last one tokEOF.
func lex(source string) ([]token, error) {
	if !utf8.ValidString(source) {
		return nil, failAt(1, "the template is not UTF-8")
	}
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	source = strings.TrimSuffix(source, "\n") // a single one: keep_trailing_newline is off
	l := &lexer{src: source, line: 1, lineStart: true}
	for l.at < len(l.src) {
		if err := l.step(); err != nil {
			return nil, err
		}
	}
	return append(l.tokens, token{kind: tokEOF, line: l.line}), nil
}

func (l *lexer) emit(k kind, text string) {
	l.tokens = append(l.tokens, token{k, text, l.line})
}

// skip moves on by n bytes.
func (l *lexer) skip(n int) {
	part := l.src[l.at : l.at+n]
	l.line += strings.Count(part, "\n")
	l.at += n
	if n > 0 {
		l.lineStart = part[n-1] == '\n'
	}
}

// step reads data up to the next tag, and the tag.
func (l *lexer) step() error {
	rest := l.src[l.at:]
	open := nextTag(rest)
	if open < 0 {
		l.data(rest)
		l.skip(len(rest))
		return nil
	}
	text := rest[:open]
	opener := rest[open : open+2]
	sign := byte(0)
	if open+2 < len(rest) && (rest[open+2] == '-' || rest[open+2] == '+') {
		sign = rest[open+2]
	}
	l.data(l.strip(text, sign, opener != "{{"))
	l.skip(open + 2)
	if sign != 0 {
		l.skip(1)
	}
	switch opener {
	case "{#":
		return l.comment()
	case "{{":
		l.emit(tokOutputBegin, opener)
		return l.tag(tokOutputEnd, "}}")
	}
	if n, ok := rawTag(l.src[l.at:]); ok {
		return l.raw(n)
	}
	l.emit(tokBlockBegin, opener)
	return l.tag(tokBlockEnd, "%}")
}

// nextTag finds "{{", "{%" or "{#"; -1 when there is none.
func nextTag(s string) int {
	for from := 0; ; {
		i := strings.IndexByte(s[from:], '{')
		if i < 0 || from+i+1 >= len(s) {
			return -1
		}
		switch s[from+i+1] {
		case '{', '%', '#':
			return from + i
		}
		from += i + 1
	}
}

// strip removes whitespace before a tag: all of it for '-', the indentation of
// a block or comment that starts its line, nothing for '+'.
func (l *lexer) strip(text string, sign byte, block bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == '+' || !block:
		return text
	}
	start := strings.LastIndexByte(text, '\n') + 1
	if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
		return text[:start]
	}
	return text
}

func (l *lexer) data(text string) {
	if text != "" {
		l.emit(tokData, text)
	}
}

// tagEnd reports how long the end of a tag at the start of s is, the whitespace
// that it swallows included; 0 when there is none. Only '%}' and '#}' know '+'
// and take a newline.
func tagEnd(s, closer string) int {
	block := closer != "}}"
	switch {
	case strings.HasPrefix(s, "-"+closer):
		tail := s[1+len(closer):]
		return len(s) - len(strings.TrimLeftFunc(tail, isSpace))
	case block && strings.HasPrefix(s, "+"+closer):
		return 1 + len(closer)
	case strings.HasPrefix(s, closer):
		n := len(closer)
		if block && strings.HasPrefix(s[n:], "\n") {
			n++
		}
		return n
	}
	return 0
}

func (l *lexer) comment() error {
	rest := l.src[l.at:]
	end := strings.Index(rest, "#}")
	if end < 0 {
		return failAt(l.line, "a comment is not closed; add #}")
	}
	if end > 0 && (rest[end-1] == '-' || rest[end-1] == '+') {
		end--
	}
	l.skip(end + tagEnd(rest[end:], "#}"))
	return nil
}

// rawTag matches the rest of "{% raw %}" and returns its length.
func rawTag(s string) (int, bool) {
	return wordTag(s, "raw")
}

func wordTag(s, word string) (int, bool) {
	trimmed := strings.TrimLeftFunc(s, isSpace)
	after, ok := strings.CutPrefix(trimmed, word)
	if !ok {
		return 0, false
	}
	after = strings.TrimLeftFunc(after, isSpace)
	at := len(s) - len(after)
	switch {
	case strings.HasPrefix(after, "-%}"):
		return at + tagEnd(after, "%}"), true
	case strings.HasPrefix(after, "%}"):
		return at + len("%}"), true
	}
	return 0, false
}

// raw reads until endraw; n is the length of what is left of the raw tag.
func (l *lexer) raw(n int) error {
	l.skip(n)
	rest := l.src[l.at:]
	for from := 0; ; {
		i := strings.Index(rest[from:], "{%")
		if i < 0 {
			return failAt(l.line, "a raw block is not closed; add {%% endraw %%}")
		}
		open := from + i
		at := open + 2
		sign := byte(0)
		if at < len(rest) && (rest[at] == '-' || rest[at] == '+') {
			sign = rest[at]
			at++
		}
		if end, ok := endraw(rest[at:]); ok {
			l.data(l.strip(rest[:open], sign, true))
			l.skip(at + end)
			return nil
		}
		from = open + 2
	}
}

func endraw(s string) (int, bool) {
	after, ok := strings.CutPrefix(strings.TrimLeftFunc(s, isSpace), "endraw")
	if !ok {
		return 0, false
	}
	after = strings.TrimLeftFunc(after, isSpace)
	n := tagEnd(after, "%}")
	return len(s) - len(after) + n, n > 0
}

// tag reads what is inside a tag. A closer inside brackets does not close it.
func (l *lexer) tag(end kind, closer string) error {
	var open []byte
	for l.at < len(l.src) {
		rest := l.src[l.at:]
		if len(open) == 0 {
			if n := tagEnd(rest, closer); n > 0 {
				l.emit(end, closer)
				l.skip(n)
				return nil
			}
		}
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case isSpace(r):
			l.skip(size)
		case rest[0] == '\'' || rest[0] == '"':
			if err := l.string(rest); err != nil {
				return err
			}
		case rest[0] >= '0' && rest[0] <= '9':
			if err := l.number(rest); err != nil {
				return err
			}
		case r == '_' || unicode.IsLetter(r):
			n := strings.IndexFunc(rest, func(r rune) bool {
				return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
			})
			if n < 0 {
				n = len(rest)
			}
			l.emit(tokName, rest[:n])
			l.skip(n)
		default:
			var err error
			if open, err = l.operator(rest, open); err != nil {
				return err
			}
		}
	}
	return failAt(l.line, "a tag is not closed; add %s", closer)
}

// operators, longest first.
var operators = []string{"//", "**", "==", "!=", "<=", ">=",
	"+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ":", "|", ",", ";", "(", ")", "[", "]", "{", "}"}

var closers = map[byte]byte{'(': ')', '[': ']', '{': '}'}

func (l *lexer) operator(rest string, open []byte) ([]byte, error) {
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(", "[", "{":
			open = append(open, closers[op[0]])
		case ")", "]", "}":
			if len(open) == 0 || open[len(open)-1] != op[0] {
				return nil, failAt(l.line, "unexpected %q", op)
			}
			open = open[:len(open)-1]
		}
		l.emit(tokOp, op)
		l.skip(len(op))
		return open, nil
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return nil, failAt(l.line, "unexpected character %q", r)
}
