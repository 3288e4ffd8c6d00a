// Package onig matches text against the part of Oniguruma's regular expression
// syntax that tokenizer files use: literals, classes with nesting and
// intersection, properties, greedy, lazy and possessive repeats, groups, case
// folding of ASCII and look-around. It exists because Go's regexp has neither
// look-around nor Oniguruma's leftmost-first order of alternatives. A pattern
// outside that part is refused by name; nothing is approximated.
package onig

import (
	"fmt"
	"unicode/utf8"
)

// Pattern is a compiled pattern. It is immutable and safe for concurrent use.
type Pattern struct {
	prog  []inst
	least int // characters of the shortest match
	// first holds every character that a match can begin with; nil when a
	// match may be empty or begins with an assertion.
	first *class
}

// Compile parses a pattern. The error names the construct that is not
// supported and where it stands.
func Compile(source string) (*Pattern, error) {
	if !utf8.ValidString(source) {
		return nil, fmt.Errorf("pattern %q is not valid UTF-8", source)
	}
	p := parser{source: source}
	tree, err := p.alternatives(0)
	if err == nil && p.pos < len(source) {
		err = p.errorf("unmatched )")
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", source, err)
	}
	c := compiler{}
	c.emit(tree)
	c.add(inst{op: opMatch})
	if len(c.prog) > maxProgram {
		return nil, fmt.Errorf("pattern %q: repeats make it too long (%d steps, at most %d)", source, len(c.prog), maxProgram)
	}
	least, _ := width(tree)
	return &Pattern{prog: c.prog, least: least, first: firstOf(tree)}, nil
}

// CanBeEmpty says whether a match may have no characters.
func (p *Pattern) CanBeEmpty() bool { return p.least == 0 }

// Find returns the leftmost match in s that begins at or after byte from, as
// byte offsets. Text before from is seen by look-behind. The text must be valid
// UTF-8 and from must lie on a character.
func (p *Pattern) Find(s string, from int) (start, end int, ok bool) {
	m := matcher{prog: p.prog, s: s}
	for at := from; ; {
		if p.first == nil || p.mayStart(s, at) {
			if end, ok := m.run(0, at); ok {
				return at, end, true
			}
		}
		if at >= len(s) {
			return 0, 0, false
		}
		at += runeLen(s, at)
	}
}

func (p *Pattern) mayStart(s string, at int) bool {
	if at >= len(s) {
		return false
	}
	r, _ := decode(s, at)
	return p.first.has(r)
}

// FindAll calls yield for each match in s from left to right, as Oniguruma's
// find iterators do: an empty match right after the one before it is skipped.
// It stops when yield returns false.
func (p *Pattern) FindAll(s string, yield func(start, end int) bool) {
	last := -1
	for at := 0; at <= len(s); {
		start, end, ok := p.Find(s, at)
		if !ok {
			return
		}
		if start == end && end == last {
			if at >= len(s) {
				return
			}
			at += runeLen(s, at)
			continue
		}
		at, last = end, end
		if !yield(start, end) {
			return
		}
	}
}

func decode(s string, i int) (rune, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return rune(b), 1
	}
	return utf8.DecodeRuneInString(s[i:])
}

func runeLen(s string, i int) int {
	_, n := decode(s, i)
	return n
}
