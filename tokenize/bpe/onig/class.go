package onig

import (
	"unicode"

	"warmpath/tokenize/bpe/unicode16"
)

// class is a set of characters: a bitmap for ASCII, a test for the rest.
type class struct {
	ascii [2]uint64
	wide  func(rune) bool
}

func newClass(in func(rune) bool) *class {
	c := &class{wide: in}
	for r := range rune(128) {
		if in(r) {
			c.ascii[r>>6] |= 1 << (r & 63)
		}
	}
	return c
}

func (c *class) has(r rune) bool {
	if r < 128 {
		return c.ascii[r>>6]>>(r&63)&1 != 0
	}
	return c.wide(r)
}

func literal(r rune) *class { return newClass(func(c rune) bool { return c == r }) }

func fromSet(s *unicode16.Set) *class { return newClass(s.Contains) }

func (c *class) negate() *class { return newClass(func(r rune) bool { return !c.has(r) }) }

func union(all []*class) *class {
	if len(all) == 1 {
		return all[0]
	}
	return newClass(func(r rune) bool {
		for _, c := range all {
			if c.has(r) {
				return true
			}
		}
		return false
	})
}

func intersect(a, b *class) *class {
	return newClass(func(r rune) bool { return a.has(r) && b.has(r) })
}

// fold adds the characters that differ only in case.
func (c *class) fold() *class {
	return newClass(func(r rune) bool {
		if c.has(r) {
			return true
		}
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			if c.has(f) {
				return true
			}
		}
		return false
	})
}

func isHex(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'f' || r >= 'A' && r <= 'F'
}
