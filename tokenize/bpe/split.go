package bpe

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"warmpath/tokenize/bpe/onig"
)

// A stage is one pre-tokenizer: it cuts a piece of text into smaller ones and
// gives them to the encoding's next stage. Text is never empty. first says that
// the text begins where the request's text begins.
type stage interface {
	apply(e *encoding, next int, text string, first bool)
}

// behavior says what becomes of the matches that a split finds.
type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

func parseBehavior(name, path string) (behavior, error) {
	for b, known := range []string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"} {
		if name == known {
			return behavior(b), nil
		}
	}
	return 0, fmt.Errorf("%s.behavior: %q is not known", path, name)
}

// scanStage cuts text with a hand-written scanner; its matches leave no gaps,
// or the gaps are pieces too.
type scanStage struct{ scanner scanner }

func (st scanStage) apply(e *encoding, next int, text string, first bool) {
	for i := 0; i < len(text); {
		end := st.scanner.next(text, i)
		e.piece(next, text[i:end], first && i == 0)
		i = end
	}
}

// matchFunc calls yield for each match in text, in order, as byte offsets.
type matchFunc func(text string, yield func(start, end int) bool)

// splitStage cuts text at matches.
type splitStage struct {
	find     matchFunc
	behavior behavior
	invert   bool
}

func (st splitStage) apply(e *encoding, next int, text string, first bool) {
	b := st.behavior
	if b == mergedWithNext {
		st.withNext(e, next, text, first)
		return
	}
	f := folder{e: e, next: next, text: text, first: first, behavior: b}
	done := 0
	st.find(text, func(start, end int) bool {
		if start > done {
			f.part(done, start, st.invert)
		}
		f.part(start, end, !st.invert)
		done = end
		return true
	})
	if done < len(text) {
		f.part(done, len(text), st.invert)
	}
	f.flush()
}

// folder joins consecutive parts of a text as a behavior wants. Its three
// joining rules are the crate's folds, one part at a time.
type folder struct {
	e        *encoding
	next     int
	text     string
	first    bool
	behavior behavior

	open       bool // a part is held back
	start, end int
	afterMatch bool
}

func (f *folder) part(start, end int, match bool) {
	join := false
	switch f.behavior {
	case removed:
		if match {
			return
		}
	case mergedWithPrevious:
		join = match && !f.afterMatch
	case contiguous:
		join = match == f.afterMatch
	}
	f.afterMatch = match
	if join && f.open {
		f.end = end
		return
	}
	f.flush()
	f.open, f.start, f.end = true, start, end
}

func (f *folder) flush() {
	if f.open && f.start < f.end {
		f.e.piece(f.next, f.text[f.start:f.end], f.first && f.start == 0)
	}
	f.open = false
}

// withNext gives each match to what follows it. Of several matches in a row
// only the last is joined; the crate folds from the right, so all the parts are
// gathered first.
func (st splitStage) withNext(e *encoding, next int, text string, first bool) {
	type part struct {
		start, end int
		match      bool
	}
	var parts []part
	done := 0
	st.find(text, func(start, end int) bool {
		if start > done {
			parts = append(parts, part{done, start, st.invert})
		}
		parts = append(parts, part{start, end, !st.invert})
		done = end
		return true
	})
	if done < len(text) {
		parts = append(parts, part{done, len(text), st.invert})
	}
	out := parts[:0:0]
	beforeMatch := false
	for i := len(parts) - 1; i >= 0; i-- {
		p := parts[i]
		if p.match && !beforeMatch && len(out) > 0 {
			out[len(out)-1].start = p.start
		} else {
			out = append(out, p)
		}
		beforeMatch = p.match
	}
	for i := len(out) - 1; i >= 0; i-- {
		if p := out[i]; p.start < p.end {
			e.piece(next, text[p.start:p.end], first && p.start == 0)
		}
	}
}

// findRegex returns the matches of a pattern.
func findRegex(re *onig.Pattern) matchFunc { return re.FindAll }

// findString returns the places where s stands.
func findString(s string) matchFunc {
	return func(text string, yield func(start, end int) bool) {
		for at := 0; ; {
			i := strings.Index(text[at:], s)
			if i < 0 || !yield(at+i, at+i+len(s)) {
				return
			}
			at += i + len(s)
		}
	}
}

// findRunes returns each character for which is holds.
func findRunes(is func(rune) bool) matchFunc {
	return func(text string, yield func(start, end int) bool) {
		for i, r := range text {
			if is(r) && !yield(i, i+utf8.RuneLen(r)) {
				return
			}
		}
	}
}

// prefixStage puts a space before text that has none.
type prefixStage struct{}

func (prefixStage) apply(e *encoding, next int, text string, first bool) {
	if text[0] != ' ' {
		text = " " + text
	}
	e.piece(next, text, first)
}

// mapStage replaces each byte by its character of the byte-level alphabet, for
// vocabularies that lack some of those.
type mapStage struct{}

func (mapStage) apply(e *encoding, next int, text string, first bool) {
	e.piece(next, string(appendMapped(nil, text)), first)
}

// metaspaceStage replaces spaces by a mark, puts one before the text, and cuts
// before each.
type metaspaceStage struct {
	mark   string
	always bool
	first  bool
	split  bool
}

func (st metaspaceStage) apply(e *encoding, next int, text string, first bool) {
	text = strings.ReplaceAll(text, " ", st.mark)
	if (st.always || st.first && first) && !strings.HasPrefix(text, st.mark) {
		text = st.mark + text
	}
	if !st.split {
		e.piece(next, text, first)
		return
	}
	for start := 0; start < len(text); {
		from := start
		if strings.HasPrefix(text[start:], st.mark) {
			from += len(st.mark)
		}
		end := len(text)
		if i := strings.Index(text[from:], st.mark); i >= 0 {
			end = from + i
		}
		e.piece(next, text[start:end], first && start == 0)
		start = end
	}
}

// fixedStage cuts text every so many characters.
type fixedStage struct{ length int }

func (st fixedStage) apply(e *encoding, next int, text string, first bool) {
	start, n := 0, 0
	for i := range text {
		if n == st.length {
			e.piece(next, text[start:i], first && start == 0)
			start, n = i, 0
		}
		n++
	}
	e.piece(next, text[start:], first && start == 0)
}
