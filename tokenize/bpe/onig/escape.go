package onig

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"warmpath/tokenize/bpe/unicode16"
)

// escape parses what follows a backslash: a class, or else one character. Which
// characters \w means differs within brackets.
func (p *parser) escape(word func() *unicode16.Set) (*class, rune, error) {
	if !p.more() {
		return nil, 0, p.errorf("a backslash ends the pattern")
	}
	r := p.next()
	switch r {
	case 's':
		return fromSet(unicode16.Space()), 0, nil
	case 'S':
		return fromSet(unicode16.Space()).negate(), 0, nil
	case 'd':
		return fromSet(unicode16.Digit()), 0, nil
	case 'D':
		return fromSet(unicode16.Digit()).negate(), 0, nil
	case 'w':
		return fromSet(word()), 0, nil
	case 'W':
		return fromSet(word()).negate(), 0, nil
	case 'h':
		return newClass(isHex), 0, nil
	case 'H':
		return newClass(isHex).negate(), 0, nil
	case 'p', 'P':
		c, err := p.property(r == 'P')
		return c, 0, err
	case 't':
		return nil, '\t', nil
	case 'n':
		return nil, '\n', nil
	case 'r':
		return nil, '\r', nil
	case 'f':
		return nil, '\f', nil
	case 'v':
		return nil, '\v', nil
	case 'a':
		return nil, '\a', nil
	case 'e':
		return nil, 0x1b, nil
	case 'x':
		return p.hex()
	case 'u':
		return p.hexDigits(4, 4)
	}
	if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return nil, 0, p.errorf("escape \\%c is not supported", r)
	}
	return nil, r, nil
}

func (p *parser) property(negate bool) (*class, error) {
	end := strings.IndexByte(p.source[p.pos:], '}')
	if !p.peek("{") || end < 0 {
		return nil, p.errorf("\\p without {name}")
	}
	name := p.source[p.pos+1 : p.pos+end]
	p.pos += end + 1
	if rest, ok := strings.CutPrefix(name, "^"); ok {
		name, negate = rest, !negate
	}
	set, ok := unicode16.Property(name)
	if !ok {
		return nil, p.errorf("property %q is not supported", name)
	}
	if negate {
		return fromSet(set).negate(), nil
	}
	return fromSet(set), nil
}

// hex parses \x{H…} and \xHH. Above 7F the latter is a raw byte, which could
// make an invalid character.
func (p *parser) hex() (*class, rune, error) {
	if p.peek("{") {
		end := strings.IndexByte(p.source[p.pos:], '}')
		if end < 0 {
			return nil, 0, p.errorf("\\x{ without }")
		}
		n, err := strconv.ParseUint(p.source[p.pos+1:p.pos+end], 16, 32)
		if err != nil || !utf8.ValidRune(rune(n)) || n > utf8.MaxRune {
			return nil, 0, p.errorf("\\x{%s} is not a character", p.source[p.pos+1:p.pos+end])
		}
		p.pos += end + 1
		return nil, rune(n), nil
	}
	c, r, err := p.hexDigits(2, 2)
	if err == nil && r > 0x7f {
		return nil, 0, p.errorf("\\x%02X, a part of a character, is not supported", r)
	}
	return c, r, err
}

func (p *parser) hexDigits(least, most int) (*class, rune, error) {
	n := 0
	for n < most && p.pos+n < len(p.source) && isHex(rune(p.source[p.pos+n])) {
		n++
	}
	if n < least {
		return nil, 0, p.errorf("%d hexadecimal digits wanted", least)
	}
	v, err := strconv.ParseUint(p.source[p.pos:p.pos+n], 16, 32)
	if err != nil || !utf8.ValidRune(rune(v)) {
		return nil, 0, p.errorf("%q is not a character", p.source[p.pos:p.pos+n])
	}
	p.pos += n
	return nil, rune(v), nil
}

// bracket parses a class after its opening bracket: members, nested classes and
// intersections.
func (p *parser) bracket() (*class, error) {
	negate := p.accept("^")
	if p.peek("]") {
		return nil, p.errorf("an empty class is not supported")
	}
	var result *class
	for {
		part, err := p.members()
		if err != nil {
			return nil, err
		}
		if result == nil {
			result = part
		} else {
			result = intersect(result, part)
		}
		if p.accept("]") {
			break
		}
		if !p.accept("&&") {
			return nil, p.errorf("missing ]")
		}
	}
	if negate {
		return result.negate(), nil
	}
	return result, nil
}

// members parses up to the closing bracket or an intersection.
func (p *parser) members() (*class, error) {
	var all []*class
	for p.more() && !p.peek("]") && !p.peek("&&") {
		c, err := p.member()
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, p.errorf("an empty part of a class is not supported")
	}
	return union(all), nil
}

func (p *parser) member() (*class, error) {
	if p.peek("[:") {
		return nil, p.errorf("a POSIX bracket is not supported")
	}
	if p.accept("[") {
		if p.depth++; p.depth > 50 {
			return nil, p.errorf("classes are nested more than 50 deep")
		}
		return p.bracket()
	}
	c, lo, err := p.classChar()
	if err != nil {
		return nil, err
	}
	if !p.peek("-") || p.peek("-]") {
		if c == nil {
			c = literal(lo)
		}
		return c, nil
	}
	if c != nil || lo == '-' {
		return nil, p.errorf("a - there in a class is not supported: escape it")
	}
	p.pos++
	c, hi, err := p.classChar()
	if err != nil {
		return nil, err
	}
	if c != nil || hi < lo {
		return nil, p.errorf("range from %q has no end", lo)
	}
	return newClass(func(r rune) bool { return r >= lo && r <= hi }), nil
}

// classChar parses one character or class escape within brackets.
func (p *parser) classChar() (*class, rune, error) {
	if !p.more() {
		return nil, 0, p.errorf("missing ]")
	}
	if p.accept(`\`) {
		if p.accept("b") {
			return nil, '\b', nil
		}
		return p.escape(unicode16.OnigClassWord)
	}
	if p.peek("[") {
		return nil, 0, p.errorf("a range cannot end in a class")
	}
	return nil, p.next(), nil
}
