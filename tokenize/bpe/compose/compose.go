// Package compose brings text into the Unicode normal forms exactly as the Rust
// tokenizers crate does. That crate's tables date from Unicode 10: marks and
// compositions that came later do nothing there. Nor does it insert a grapheme
// joiner into long runs of marks, as golang.org/x/text does. Engines normalize
// with the crate, so its answers are the right ones here, whatever the standard
// says today.
package compose

import (
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Form is a normal form. It is safe for concurrent use.
type Form uint8

// The normal forms.
const (
	NFC Form = iota
	NFD
	NFKC
	NFKD
)

func (f Form) library() norm.Form {
	return [...]norm.Form{NFC: norm.NFC, NFD: norm.NFD, NFKC: norm.NFKC, NFKD: norm.NFKD}[f]
}

// String normalizes s, which must be valid UTF-8.
func (f Form) String(s string) string {
	if f == NFC && belowMarks(s) || ascii(s) || f.library().IsNormalString(s) {
		// What is normal under newer tables is so under older ones too: the
		// difference is in characters that the older leave alone.
		return s
	}
	n := normalizer{
		form:      f,
		compat:    f == NFKC || f == NFKD,
		recompose: f == NFC || f == NFKC,
		out:       make([]byte, 0, len(s)+len(s)/8),
	}
	if n.recompose {
		n.pairs = compositions()
	}
	n.run(s)
	return string(n.out)
}

// belowMarks says whether all of s lies below U+0300, where everything is in
// NFC already.
func belowMarks(s string) bool {
	for i := range len(s) {
		if s[i] >= 0xcc {
			return false
		}
	}
	return true
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// normalizer works on one stretch at a time: from a character that nothing
// before it can change to the next such.
type normalizer struct {
	form              Form
	compat, recompose bool
	pairs             map[[2]rune]rune
	chars             []char
	out               []byte
}

type char struct {
	r     rune
	class uint8 // canonical combining class
}

func (n *normalizer) run(s string) {
	lib := n.form.library()
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			n.flush()
			n.chars = append(n.chars, char{r: rune(s[i])})
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		p := lib.PropertiesString(s[i:])
		if inert(r) || p.BoundaryBefore() && n.startsAfresh(p) {
			n.flush()
		}
		n.decompose(r, p)
		i += size
	}
	n.flush()
}

// startsAfresh says whether the decomposition begins with a character that
// joins nothing before it; x/text looks only at the character itself.
func (n *normalizer) startsAfresh(p norm.Properties) bool {
	d := p.Decomposition()
	return !n.compat || len(d) == 0 || n.form.library().Properties(d).BoundaryBefore()
}

// decompose appends the full decomposition of r.
func (n *normalizer) decompose(r rune, p norm.Properties) {
	switch {
	case inert(r), n.compat && undecomposed(r):
		n.chars = append(n.chars, char{r: r})
	case r >= hangulBase && r < hangulEnd:
		n.hangul(r - hangulBase)
	case len(p.Decomposition()) > 0 && (n.compat || canonical(r)):
		d := p.Decomposition()
		for len(d) > 0 {
			part, size := utf8.DecodeRune(d)
			n.chars = append(n.chars, char{part, class(part)})
			d = d[size:]
		}
	default:
		n.chars = append(n.chars, char{r, p.CCC()})
	}
}

// canonical says whether r has a decomposition in NFD; x/text's forms each
// know only their own.
func canonical(r rune) bool {
	var buf [utf8.UTFMax]byte
	size := utf8.EncodeRune(buf[:], r)
	return len(norm.NFD.Properties(buf[:size]).Decomposition()) > 0
}

func class(r rune) uint8 {
	if inert(r) {
		return 0
	}
	var buf [utf8.UTFMax]byte
	size := utf8.EncodeRune(buf[:], r)
	return norm.NFD.Properties(buf[:size]).CCC()
}

// flush orders the stretch's marks, composes it and writes it out.
func (n *normalizer) flush() {
	if len(n.chars) == 0 {
		return
	}
	order(n.chars)
	if n.recompose {
		n.compose()
	}
	for _, c := range n.chars {
		n.out = utf8.AppendRune(n.out, c.r)
	}
	n.chars = n.chars[:0]
}

// order is the canonical ordering: a stable sort of each run of marks by class.
// Runs are short, but for hostile text, so a merge of counted classes is used
// for long ones.
func order(chars []char) {
	for i := 0; i < len(chars); {
		if chars[i].class == 0 {
			i++
			continue
		}
		end := i
		for end < len(chars) && chars[end].class != 0 {
			end++
		}
		sortRun(chars[i:end])
		i = end
	}
}

func sortRun(run []char) {
	if len(run) > 32 {
		countingSort(run)
		return
	}
	for i := 1; i < len(run); i++ {
		for j := i; j > 0 && run[j].class < run[j-1].class; j-- {
			run[j], run[j-1] = run[j-1], run[j]
		}
	}
}

func countingSort(run []char) {
	var starts [257]int
	for _, c := range run {
		starts[int(c.class)+1]++
	}
	for i := 1; i < len(starts); i++ {
		starts[i] += starts[i-1]
	}
	sorted := make([]char, len(run))
	for _, c := range run {
		sorted[starts[c.class]] = c
		starts[c.class]++
	}
	copy(run, sorted)
}

// compose is the standard's algorithm: a character joins the last starter if
// nothing between them has a class as high.
func (n *normalizer) compose() {
	starter := -1
	blocked := 0 // highest class since the starter plus one; 0: nothing between
	kept := n.chars[:0]
	for _, c := range n.chars {
		if starter >= 0 && blocked <= int(c.class) {
			if joined, ok := n.join(kept[starter].r, c.r); ok {
				kept[starter].r = joined
				continue
			}
		}
		if c.class == 0 {
			starter, blocked = len(kept), 0
		} else {
			blocked = int(c.class) + 1
		}
		kept = append(kept, c)
	}
	n.chars = kept
}

func (n *normalizer) join(a, b rune) (rune, bool) {
	if r, ok := joinHangul(a, b); ok {
		return r, true
	}
	r, ok := n.pairs[[2]rune{a, b}]
	return r, ok
}

// compositions returns the pairs that compose, taken from the decompositions.
var compositions = sync.OnceValue(func() map[[2]rune]rune {
	pairs := map[[2]rune]rune{}
	for r := rune(0xc0); r < 0x20000; r++ {
		if r >= hangulBase && r < hangulEnd || !utf8.ValidRune(r) || inert(r) {
			continue
		}
		s := string(r)
		d := []rune(string(norm.NFD.PropertiesString(s).Decomposition()))
		if len(d) < 2 || norm.NFC.String(s) != s {
			continue // none, or excluded from composition
		}
		head := []rune(norm.NFC.String(string(d[:len(d)-1])))
		if len(head) == 1 {
			pairs[[2]rune{head[0], d[len(d)-1]}] = r
		}
	}
	return pairs
})
