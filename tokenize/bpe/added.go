package bpe

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	"warmpath/tokenize/bpe/unicode16"
)

// addedVocab holds the tokens added on top of the model's vocabulary and finds
// them in text: those that are not normalized in the text as it is, the others
// in the normalized text between. It is immutable.
type addedVocab struct {
	tokens     []addedEntry
	byContent  map[string]uint32
	byID       map[uint32]int // index in tokens
	special    map[string]bool
	raw        *trie // nil without such tokens
	normalized *trie
	word       *unicode16.Set // \w, set when a token needs it
}

type addedEntry struct {
	addedToken
	id   uint32
	form string // content after normalization when that matters, or content
}

// newAddedVocab gives the tokens their ids as the crate does: the id that the
// model or an earlier added token has for that content, else the next free one,
// whatever the file says.
func newAddedVocab(list []addedToken, v *vocab, normalize func(string) string) (*addedVocab, error) {
	a := &addedVocab{byContent: map[string]uint32{}, byID: map[uint32]int{}, special: map[string]bool{}}
	next := uint32(v.size())
	for _, t := range list {
		if t.Content == "" {
			continue
		}
		id, ok := a.byContent[t.Content]
		if !ok {
			if id = v.id(t.Content); id == none {
				id = next
				next++
			}
		}
		e := addedEntry{addedToken: t, id: id, form: t.Content}
		if t.Normalized {
			e.form = normalize(t.Content)
		}
		a.byContent[t.Content] = id
		if t.Special {
			a.special[t.Content] = true
		}
		if i, ok := a.byID[id]; ok {
			a.tokens[i] = e
			continue
		}
		a.byID[id] = len(a.tokens)
		a.tokens = append(a.tokens, e)
	}
	return a, a.index()
}

func (a *addedVocab) index() error {
	for i, e := range a.tokens {
		if e.form == "" {
			return fmt.Errorf("added_tokens: %q is empty after normalization", e.Content)
		}
		t := &a.raw
		if e.Normalized {
			t = &a.normalized
		}
		if *t == nil {
			*t = newTrie()
		}
		if err := (*t).add(e.form, int32(i)); err != nil {
			return fmt.Errorf("added_tokens: %q, the form of %q to look for, is the form of another token too", e.form, e.Content)
		}
		if e.SingleWord && a.word == nil {
			a.word = unicode16.RegexWord()
		}
	}
	return nil
}

// split cuts s at the tokens that t finds: text is called for what lies between
// and token for each token, in order. The rules about where a token begins and
// ends after stripping are the crate's, with their quirks: a token refused for
// not being a single word still hides what overlaps it.
func (a *addedVocab) split(t *trie, s string, text func(start, end int), token func(id uint32)) {
	if t == nil {
		text(0, len(s))
		return
	}
	done, spacesEnd := 0, 0
	for from := 0; ; {
		start, end, value := t.find(s, from)
		if value < 0 {
			break
		}
		from = end
		e := &a.tokens[value]
		if e.SingleWord && !a.standsAlone(s, start, end) {
			continue
		}
		if e.LStrip {
			start = max(done, spacesBefore(s, start, done))
		}
		if e.RStrip {
			// A token that is a space itself meets the same run again.
			spacesEnd = max(spacesEnd, spacesAfter(s, max(end, spacesEnd)))
			end = spacesEnd
		}
		if done < start {
			text(done, start)
		}
		token(e.id)
		done = end
	}
	if done != len(s) {
		text(done, len(s))
	}
}

func (a *addedVocab) standsAlone(s string, start, end int) bool {
	if start > 0 {
		if r, _ := utf8.DecodeLastRuneInString(s[:start]); a.word.Contains(r) {
			return false
		}
	}
	if end < len(s) {
		if r, _ := utf8.DecodeRuneInString(s[end:]); a.word.Contains(r) {
			return false
		}
	}
	return true
}

func spacesBefore(s string, i, least int) int {
	for i > least {
		r, n := utf8.DecodeLastRuneInString(s[:i])
		if !unicode.IsSpace(r) {
			break
		}
		i -= n
	}
	return i
}

func spacesAfter(s string, i int) int {
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		if !unicode.IsSpace(r) {
			break
		}
		i += n
	}
	return i
}
