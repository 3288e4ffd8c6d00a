package chat

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// maxJSONDepth bounds the nesting of what a client sends: templates walk it by
// recursive macros, and a stack that overflows ends the process.
const maxJSONDepth = 100

// parseJSON reads one JSON value. Objects keep their order, a repeated key its
// first place and last value; 1 is an integer and 1.0 a float, as in Python.
func parseJSON(src []byte) (jinja.Value, error) {
	p := jsonParser{src: src}
	p.space()
	v, err := p.value(0)
	if err != nil {
		return v, err
	}
	if p.space(); p.at < len(src) {
		return v, p.fail("nothing after the value")
	}
	return v, nil
}

type jsonParser struct {
	src []byte
	at  int
}

func (p *jsonParser) fail(expected string) error {
	return fmt.Errorf("JSON, byte %d: expected %s", p.at, expected)
}

func (p *jsonParser) space() {
	for p.at < len(p.src) {
		switch p.src[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *jsonParser) peek() byte {
	if p.at < len(p.src) {
		return p.src[p.at]
	}
	return 0
}

func (p *jsonParser) value(depth int) (jinja.Value, error) {
	if depth > maxJSONDepth {
		return jinja.None(), fmt.Errorf("JSON nested more than %d deep", maxJSONDepth)
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		s, err := p.string()
		return jinja.NewString(s), err
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case p.word("null"):
		return jinja.None(), nil
	case p.word("true"):
		return jinja.NewBool(true), nil
	case p.word("false"):
		return jinja.NewBool(false), nil
	}
	return jinja.None(), p.fail("a value")
}

func (p *jsonParser) word(w string) bool {
	if len(p.src)-p.at >= len(w) && string(p.src[p.at:p.at+len(w)]) == w {
		p.at += len(w)
		return true
	}
	return false
}

func (p *jsonParser) object(depth int) (jinja.Value, error) {
	v := jinja.NewDict()
	d := v.AsDict()
	d.Keys = make([]string, 0, 4) // most objects of chats have no more
	p.at++
	for p.space(); p.peek() != '}'; {
		if p.peek() != '"' {
			return v, p.fail("a member's name")
		}
		key, err := p.string()
		if err != nil {
			return v, err
		}
		if p.space(); p.peek() != ':' {
			return v, p.fail("':'")
		}
		p.at++
		p.space()
		member, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		d.Set(key, member)
		if more, err := p.more('}'); !more || err != nil {
			return v, err
		}
	}
	p.at++
	return v, nil
}

// more reads the comma before another element, or the closer.
func (p *jsonParser) more(closer byte) (bool, error) {
	p.space()
	switch p.peek() {
	case ',':
		p.at++
		if p.space(); p.peek() == closer {
			return false, p.fail("a value after ','")
		}
		return true, nil
	case closer:
		p.at++
		return false, nil
	}
	return false, p.fail("',' or '" + string(closer) + "'")
}

func (p *jsonParser) array(depth int) (jinja.Value, error) {
	var items []jinja.Value
	p.at++
	for p.space(); p.peek() != ']'; {
		item, err := p.value(depth + 1)
		if err != nil {
			return jinja.None(), err
		}
		items = append(items, item)
		if more, err := p.more(']'); !more || err != nil {
			return jinja.NewList(items), err
		}
	}
	p.at++
	return jinja.NewList(items), nil
}

func (p *jsonParser) number() (jinja.Value, error) {
	start := p.at
	float := false
	digits := func() bool {
		from := p.at
		for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
			p.at++
		}
		return p.at > from
	}
	if p.peek() == '-' {
		p.at++
	}
	first := p.peek()
	whole := p.at
	if !digits() || first == '0' && p.at-whole > 1 {
		return jinja.None(), p.fail("a number")
	}
	if p.peek() == '.' {
		p.at++
		if float = true; !digits() {
			return jinja.None(), p.fail("digits after '.'")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if float = true; !digits() {
			return jinja.None(), p.fail("an exponent")
		}
	}
	text := string(p.src[start:p.at])
	if float {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil && !math.IsInf(f, 0) {
			return jinja.None(), fmt.Errorf("JSON number %s: %w", text, err)
		}
		return jinja.NewFloat(f), nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return jinja.NewInt(n), nil
	}
	return newBigInt(text), nil
}

// A bigInt is an integer beyond 64 bits. The library has no such value; as a
// callable whose name is the number it passes through templates untouched, and
// is printed by the helpers of this package.
func newBigInt(digits string) jinja.Value { return jinja.NewCallable(digits, nil) }

func bigInt(v jinja.Value) (string, bool) {
	if !v.IsCallable() {
		return "", false
	}
	name := v.AsCallable().Name
	return name, name != "" && strings.Trim(name, "-0123456789") == ""
}

var errSurrogate = errors.New("JSON string: half of a surrogate pair, which is no character")

func (p *jsonParser) string() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.src) {
		switch c := p.src[p.at]; {
		case c == '"':
			s := p.src[start:p.at]
			p.at++
			if !utf8.Valid(s) {
				return "", fmt.Errorf("JSON, byte %d: the string is not UTF-8", start)
			}
			return string(s), nil
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			return "", p.fail("an escape: control characters cannot stand in strings")
		}
		p.at++
	}
	return "", p.fail("'\"'")
}

// escaped reads a string from its first escape on.
func (p *jsonParser) escaped(start int) (string, error) {
	b := append(make([]byte, 0, 2*(p.at-start)+32), p.src[start:p.at]...)
	for p.at < len(p.src) {
		c := p.src[p.at]
		p.at++
		switch {
		case c == '"':
			if !utf8.Valid(b) {
				return "", fmt.Errorf("JSON, byte %d: the string is not UTF-8", start)
			}
			return string(b), nil
		case c < 0x20:
			p.at--
			return "", p.fail("an escape: control characters cannot stand in strings")
		case c != '\\':
			b = append(b, c)
			continue
		}
		c = p.peek()
		p.at++
		if i := strings.IndexByte(`"\/bfnrt`, c); c != 0 && i >= 0 {
			b = append(b, "\"\\/\b\f\n\r\t"[i])
			continue
		}
		if c != 'u' {
			p.at--
			return "", p.fail("an escape")
		}
		r, err := p.unicode()
		if err != nil {
			return "", err
		}
		b = utf8.AppendRune(b, r)
	}
	return "", p.fail("'\"'")
}

func (p *jsonParser) unicode() (rune, error) {
	r, err := p.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if !p.word(`\u`) {
		return 0, errSurrogate
	}
	low, err := p.hex4()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, errSurrogate
	}
	return r, nil
}

func (p *jsonParser) hex4() (rune, error) {
	if len(p.src)-p.at < 4 {
		return 0, p.fail("four hexadecimal digits")
	}
	var r rune
	for range 4 {
		c := p.src[p.at]
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, p.fail("four hexadecimal digits")
		}
		p.at++
	}
	return r, nil
}
