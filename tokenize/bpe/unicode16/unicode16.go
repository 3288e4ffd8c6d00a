// Package unicode16 holds the character classes of Unicode 16.0, the version
// built into Oniguruma 6.9.10, which the Rust tokenizers crate splits text
// with. Go's own tables are a version newer (17.0); text next to a character
// added since then would split differently, so those characters are taken back
// out here. The differences were measured by asking the crate about every code
// point.
package unicode16

import (
	"strings"
	"sync"
	"unicode"
)

// GoVersion is the version of Go's tables that the differences in this package
// were measured against.
const GoVersion = "17.0.0"

// span is an inclusive range of code points.
type span struct{ lo, hi rune }

// later lists the code points assigned between Unicode 16.0 and GoVersion.
var later = [...]span{
	{0x088f, 0x088f}, {0x0c5c, 0x0c5c}, {0x0cdc, 0x0cdc}, {0x1acf, 0x1add}, {0x1ae0, 0x1aeb},
	{0x20c1, 0x20c1}, {0x2b96, 0x2b96}, {0xa7ce, 0xa7cf}, {0xa7d2, 0xa7d2}, {0xa7d4, 0xa7d4},
	{0xa7f1, 0xa7f1}, {0xfbc3, 0xfbd2}, {0xfd90, 0xfd91}, {0xfdc8, 0xfdce}, {0x10940, 0x10959},
	{0x10ec5, 0x10ec7}, {0x10ed0, 0x10ed8}, {0x10efa, 0x10efb}, {0x11b60, 0x11b67},
	{0x11db0, 0x11ddb}, {0x11de0, 0x11de9}, {0x16ea0, 0x16eb8}, {0x16ebb, 0x16ed3},
	{0x16ff2, 0x16ff6}, {0x187f8, 0x187ff}, {0x18d09, 0x18d1e}, {0x18d80, 0x18df2},
	{0x1ccfa, 0x1ccfc}, {0x1ceba, 0x1ced0}, {0x1cee0, 0x1cef0}, {0x1e6c0, 0x1e6de},
	{0x1e6e0, 0x1e6f5}, {0x1e6fe, 0x1e6ff}, {0x1f6d8, 0x1f6d8}, {0x1f777, 0x1f77a},
	{0x1f8d0, 0x1f8d8}, {0x1fa54, 0x1fa57}, {0x1fa8a, 0x1fa8a}, {0x1fa8e, 0x1fa8e},
	{0x1fac8, 0x1fac8}, {0x1facd, 0x1facd}, {0x1faea, 0x1faea}, {0x1faef, 0x1faef},
	{0x1fbfa, 0x1fbfa}, {0x2b73a, 0x2b73f}, {0x2cea2, 0x2cead}, {0x323b0, 0x33479},
}

// glottal is the one character whose category changed since: a lower case
// letter in 16.0, an other letter in 17.0.
const glottal = 0x0295

// Set is an immutable set of code points, safe for concurrent use.
type Set struct {
	bits []uint64
}

// Contains says whether the set holds r.
func (s *Set) Contains(r rune) bool {
	i := uint32(r) >> 6
	return int(i) < len(s.bits) && s.bits[i]>>(uint32(r)&63)&1 != 0
}

func fromTable(tables ...*unicode.RangeTable) *Set {
	s := &Set{bits: make([]uint64, (unicode.MaxRune+64)>>6)}
	for _, t := range tables {
		for _, r := range t.R16 {
			s.addRange(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
		for _, r := range t.R32 {
			s.addRange(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
	}
	for _, l := range later {
		for r := l.lo; r <= l.hi; r++ {
			s.bits[r>>6] &^= 1 << (uint32(r) & 63)
		}
	}
	return s
}

func (s *Set) addRange(lo, hi, stride rune) {
	for r := lo; r <= hi; r += stride {
		s.bits[r>>6] |= 1 << (uint32(r) & 63)
	}
}

func (s *Set) set(r rune, in bool) *Set {
	s.bits[r>>6] &^= 1 << (uint32(r) & 63)
	if in {
		s.bits[r>>6] |= 1 << (uint32(r) & 63)
	}
	return s
}

// Space is \s: the White_Space property, which has not changed in years.
func Space() *Set { return fromTable(unicode.White_Space) }

// Digit is \d: decimal digits of every script.
func Digit() *Set { return fromTable(unicode.Nd) }

// RegexWord is \w of the Rust regex crate: letters, marks, decimal digits,
// connectors, letter-like numbers and symbols, and the two joiners.
func RegexWord() *Set {
	return fromTable(unicode.L, unicode.M, unicode.Nd, unicode.Pc, unicode.Nl,
		unicode.Other_Alphabetic, unicode.Join_Control)
}

// OnigClassWord is \w of Oniguruma between brackets: RegexWord without the
// joiners.
func OnigClassWord() *Set {
	return fromTable(unicode.L, unicode.M, unicode.Nd, unicode.Pc, unicode.Nl, unicode.Other_Alphabetic)
}

// OnigWord is \w of Oniguruma outside brackets, where it takes another path and
// also has the superscript digits and fractions of Latin-1.
func OnigWord() *Set {
	s := OnigClassWord()
	for _, r := range "\u00b2\u00b3\u00b9\u00bc\u00bd\u00be" {
		s.set(r, true)
	}
	return s
}

// Property returns the set of a general category or a script by the name that
// a pattern gives it in \p{…}: short or long category names, script names;
// case, spaces, hyphens and underscores do not matter. It reports false for a
// name it does not know, among them the unassigned category and its union
// "Other", and scripts that were not compared with the crate.
func Property(name string) (*Set, bool) {
	key := strings.ToLower(strings.NewReplacer(" ", "", "_", "", "-", "").Replace(name))
	switch key {
	case "ll", "lowercaseletter":
		return fromTable(unicode.Ll).set(glottal, true), true
	case "lo", "otherletter":
		return fromTable(unicode.Lo).set(glottal, false), true
	case "space", "whitespace":
		return Space(), true
	}
	t, ok := properties()[key]
	if !ok {
		return nil, false
	}
	return fromTable(t), true
}

var properties = sync.OnceValue(func() map[string]*unicode.RangeTable {
	m := map[string]*unicode.RangeTable{
		"letter": unicode.L, "uppercaseletter": unicode.Lu, "titlecaseletter": unicode.Lt,
		"modifierletter": unicode.Lm,
		"mark":           unicode.M, "nonspacingmark": unicode.Mn, "spacingmark": unicode.Mc, "enclosingmark": unicode.Me,
		"number": unicode.N, "decimalnumber": unicode.Nd, "letternumber": unicode.Nl, "othernumber": unicode.No,
		"punctuation": unicode.P, "connectorpunctuation": unicode.Pc, "dashpunctuation": unicode.Pd,
		"openpunctuation": unicode.Ps, "closepunctuation": unicode.Pe, "initialpunctuation": unicode.Pi,
		"finalpunctuation": unicode.Pf, "otherpunctuation": unicode.Po,
		"symbol": unicode.S, "mathsymbol": unicode.Sm, "currencysymbol": unicode.Sc,
		"modifiersymbol": unicode.Sk, "othersymbol": unicode.So,
		"separator": unicode.Z, "spaceseparator": unicode.Zs, "lineseparator": unicode.Zl,
		"paragraphseparator": unicode.Zp,
		"control":            unicode.Cc, "format": unicode.Cf, "privateuse": unicode.Co,
	}
	for _, name := range []string{
		"L", "Lu", "Lt", "Lm", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No",
		"P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So",
		"Z", "Zs", "Zl", "Zp", "Cc", "Cf", "Co",
	} {
		m[strings.ToLower(name)] = unicode.Categories[name]
	}
	for _, name := range []string{"Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic"} {
		m[strings.ToLower(name)] = unicode.Scripts[name]
	}
	return m
})
