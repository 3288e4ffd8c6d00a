package onig

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"warmpath/tokenize/bpe/unicode16"
)

// node is a part of a pattern.
type node interface{}

type (
	nodeChar   struct{ class *class }
	nodeConcat []node
	nodeAlt    []node
	nodeRepeat struct {
		body     node
		min, max int // max -1: no bound
		mode     repeatMode
	}
	nodeLook struct {
		body           node
		behind, negate bool
		lengths        []int // look-behind: the lengths in characters that the body can have
	}
	nodeAtomic struct{ body node }
	nodeAnchor struct{ kind anchor }
)

type repeatMode uint8

const (
	greedy repeatMode = iota
	lazy
	possessive
)

type anchor uint8

const (
	lineBegin anchor = iota
	lineEnd
	textBegin
	textEnd
)

// maxRepeat bounds {n,m}, which is compiled by copying.
const maxRepeat = 1000

type parser struct {
	source string
	pos    int
	fold   bool
	depth  int
}

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %s", p.pos, fmt.Sprintf(format, args...))
}

func (p *parser) more() bool { return p.pos < len(p.source) }

func (p *parser) peek(prefix string) bool { return strings.HasPrefix(p.source[p.pos:], prefix) }

func (p *parser) accept(prefix string) bool {
	if p.peek(prefix) {
		p.pos += len(prefix)
		return true
	}
	return false
}

func (p *parser) next() rune {
	r, n := utf8.DecodeRuneInString(p.source[p.pos:])
	p.pos += n
	return r
}

// alternatives parses up to a closing bracket or the end.
func (p *parser) alternatives(depth int) (node, error) {
	if depth > 50 {
		return nil, p.errorf("groups are nested more than 50 deep")
	}
	p.depth = depth
	fold := p.fold
	defer func() { p.fold = fold }()
	var alt nodeAlt
	for {
		n, err := p.concat(depth)
		if err != nil {
			return nil, err
		}
		alt = append(alt, n)
		if !p.accept("|") {
			break
		}
	}
	if len(alt) == 1 {
		return alt[0], nil
	}
	return alt, nil
}

func (p *parser) concat(depth int) (node, error) {
	var seq nodeConcat
	previous := rune(0) // the last literal under case folding
	for p.more() && !p.peek("|") && !p.peek(")") {
		n, lit, err := p.term(depth)
		if err != nil {
			return nil, err
		}
		if p.fold && lit != 0 {
			if err := p.checkFold(previous, lit); err != nil {
				return nil, err
			}
		}
		previous = lit
		if n, err = p.repeats(n); err != nil {
			return nil, err
		}
		if n != nil {
			seq = append(seq, n)
		}
	}
	if len(seq) == 1 {
		return seq[0], nil
	}
	return seq, nil
}

// checkFold refuses what folds to or from more than one character, such as
// "ss" and "ß": Oniguruma matches those, this package does not.
func (p *parser) checkFold(previous, r rune) error {
	if r >= utf8.RuneSelf {
		return p.errorf("case folding of %q is not supported", r)
	}
	pair := strings.ToLower(string([]rune{previous, r}))
	switch pair {
	case "ss", "st", "ff", "fi", "fl":
		return p.errorf("case folding of %q, which one character can stand for, is not supported", pair)
	}
	return nil
}

// term parses one atom. It also returns the character when that is a literal.
func (p *parser) term(depth int) (node, rune, error) {
	switch {
	case p.accept("("):
		n, err := p.group(depth)
		return n, 0, err
	case p.accept("["):
		c, err := p.bracket()
		if err != nil {
			return nil, 0, err
		}
		if p.fold {
			if err := p.checkClassFold(c); err != nil {
				return nil, 0, err
			}
			c = c.fold()
		}
		return nodeChar{c}, 0, nil
	case p.accept("."):
		return nodeChar{literal('\n').negate()}, 0, nil
	case p.accept("^"):
		return nodeAnchor{lineBegin}, 0, nil
	case p.accept("$"):
		return nodeAnchor{lineEnd}, 0, nil
	case p.accept(`\A`):
		return nodeAnchor{textBegin}, 0, nil
	case p.accept(`\z`):
		return nodeAnchor{textEnd}, 0, nil
	case p.peek("*"), p.peek("+"), p.peek("?"):
		return nil, 0, p.errorf("nothing to repeat")
	}
	if p.accept(`\`) {
		c, r, err := p.escape(unicode16.OnigWord)
		if err != nil {
			return nil, 0, err
		}
		if c != nil {
			return nodeChar{c}, 0, nil
		}
		return p.literal(r), r, nil
	}
	r := p.next()
	return p.literal(r), r, nil
}

func (p *parser) literal(r rune) node {
	if p.fold {
		return nodeChar{literal(r).fold()}
	}
	return nodeChar{literal(r)}
}

// checkClassFold allows only ASCII letters and digits to be folded in a class.
func (p *parser) checkClassFold(c *class) error {
	for r := rune(0x80); r <= 0x24ff; r++ {
		if c.has(r) {
			return p.errorf("case folding of a class with characters beyond ASCII is not supported")
		}
	}
	return nil
}

func (p *parser) group(depth int) (node, error) {
	open := p.pos
	look := nodeLook{}
	kind := "group"
	switch {
	case p.accept("?:"):
	case p.accept("?="):
		kind = "look"
	case p.accept("?!"):
		kind, look.negate = "look", true
	case p.accept("?<="):
		kind, look.behind = "look", true
	case p.accept("?<!"):
		kind, look.behind, look.negate = "look", true, true
	case p.accept("?>"):
		kind = "atomic"
	case p.accept("?i:"):
		fold := p.fold
		p.fold = true
		defer func() { p.fold = fold }()
	case p.accept("?i)"):
		p.fold = true // until the enclosing group ends
		return p.alternatives(depth + 1)
	case p.peek("?"):
		return nil, p.errorf("group (%.4s is not supported", p.source[open:])
	}
	body, err := p.alternatives(depth + 1)
	if err != nil {
		return nil, err
	}
	if !p.accept(")") {
		return nil, p.errorf("missing )")
	}
	switch kind {
	case "look":
		look.body = body
		if look.behind {
			if look.lengths, err = p.lengths(body); err != nil {
				return nil, err
			}
		}
		return look, nil
	case "atomic":
		return nodeAtomic{body}, nil
	}
	return body, nil
}

// lengths returns the lengths that a look-behind's alternatives have.
func (p *parser) lengths(body node) ([]int, error) {
	alt, ok := body.(nodeAlt)
	if !ok {
		alt = nodeAlt{body}
	}
	var all []int
	for _, n := range alt {
		if asserts(n) {
			return nil, p.errorf("an assertion in a look-behind is not supported")
		}
		lo, hi := width(n)
		if lo != hi {
			return nil, p.errorf("look-behind of varying length is not supported")
		}
		all = append(all, lo)
	}
	return all, nil
}

func (p *parser) repeats(n node) (node, error) {
	lo, hi, counted := 0, -1, false
	switch {
	case p.accept("*"):
	case p.accept("+"):
		lo = 1
	case p.accept("?"):
		hi = 1
	case p.peek("{"):
		if lo, hi, counted = p.interval(); !counted {
			return n, nil
		}
		if lo > maxRepeat || hi > maxRepeat {
			return nil, p.errorf("repeat of more than %d", maxRepeat)
		}
		if hi >= 0 && lo > hi {
			return nil, p.errorf("repeat {%d,%d} runs backwards", lo, hi)
		}
	default:
		return n, nil
	}
	switch n.(type) {
	case nodeAnchor, nodeLook:
		return nil, p.errorf("repeat of an assertion is not supported")
	}
	r := nodeRepeat{body: n, min: lo, max: hi}
	switch {
	case counted && p.peek("?"):
		return nil, p.errorf("a ? after {} is not supported")
	case counted && p.accept("+"): // not possessive: the counted repeat, once or more
		n, lo, hi = r, 1, -1
		r = nodeRepeat{body: n, min: lo, max: hi}
	case p.accept("?"):
		r.mode = lazy
	case p.accept("+"):
		r.mode = possessive
	}
	if p.peek("*") || p.peek("+") || p.peek("?") {
		return nil, p.errorf("repeat of a repeat is not supported")
	}
	if hi < 0 {
		if shortest, _ := width(n); shortest == 0 {
			return nil, p.errorf("unbounded repeat of what may be empty is not supported")
		}
		if unbounded(n) {
			return nil, p.errorf("unbounded repeat within an unbounded repeat is not supported: its time may grow exponentially")
		}
	}
	return r, nil
}

// interval parses {n}, {n,}, {,n} or {n,m}; anything else is literal text.
func (p *parser) interval() (lo, hi int, ok bool) {
	end := strings.IndexByte(p.source[p.pos:], '}')
	if end < 2 {
		return 0, 0, false
	}
	text := p.source[p.pos+1 : p.pos+end]
	a, b, comma := strings.Cut(text, ",")
	number := func(s string, absent int) (int, bool) {
		if s == "" {
			return absent, true
		}
		for i := range len(s) {
			if s[i] < '0' || s[i] > '9' {
				return 0, false
			}
		}
		n, err := strconv.Atoi(s)
		return n, err == nil
	}
	lo, okLo := number(a, 0)
	hi, okHi := number(b, -1)
	if !comma {
		hi, okHi = lo, a != ""
	}
	if !okLo || !okHi || comma && a == "" && b == "" {
		return 0, 0, false
	}
	p.pos += end + 1
	return lo, hi, true
}
