package unicode16

import (
	"sync"
	"unicode/utf8"
)

// Class is a set of properties of one code point, those that the split
// patterns of large language models ask for.
type Class uint8

// The properties. Upper and Lower are the two letter sets of the o200k family
// of patterns, which both count letters without case and marks.
const (
	Letter  Class = 1 << iota // \p{L}
	Number                    // \p{N}
	Mark                      // \p{M}
	Punct                     // \p{P} or \p{S}
	White                     // \s
	Newline                   // \r or \n
	Upper                     // Lu, Lt, Lm, Lo or M
	Lower                     // Ll, Lm, Lo or M
)

// tableSize covers every code point that has a class, but for the variation
// selectors supplement, which Of knows.
const tableSize = 0x323b0

// Table maps a code point to its class.
type Table [tableSize]Class

// Classes returns the class table of Unicode 16.0. It is built once, in a few
// milliseconds, and must not be changed.
var Classes = sync.OnceValue(func() *Table {
	t := new(Table)
	add := func(c Class, names ...string) {
		for _, name := range names {
			s, _ := Property(name)
			t.add(s, c)
		}
	}
	add(Letter, "L")
	add(Number, "N")
	add(Mark, "M")
	add(Punct, "P", "S")
	t.add(Space(), White)
	add(Upper, "Lu", "Lt", "Lm", "Lo", "M")
	add(Lower, "Ll", "Lm", "Lo", "M")
	t['\r'] |= Newline
	t['\n'] |= Newline
	return t
})

func (t *Table) add(s *Set, c Class) {
	for i, w := range s.bits {
		if w == 0 || i<<6 >= tableSize {
			continue
		}
		for b := 0; b < 64 && i<<6+b < tableSize; b++ {
			if w>>b&1 != 0 {
				t[i<<6+b] |= c
			}
		}
	}
}

// Of returns the class of r.
func (t *Table) Of(r rune) Class {
	if uint32(r) < tableSize {
		return t[r]
	}
	if r >= 0xe0100 && r <= 0xe01ef { // variation selectors supplement
		return Mark | Upper | Lower
	}
	return 0
}

// At returns the class of the character of s at i and its length in bytes;
// both are zero at the end of s. The text must be valid UTF-8.
func (t *Table) At(s string, i int) (Class, int) {
	if i >= len(s) {
		return 0, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return t[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return t.Of(r), n
}
