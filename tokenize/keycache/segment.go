package keycache

import (
	"slices"
	"strings"
)

const (
	// minCut is the shortest part that a cut at a token makes: below some 60
	// tokens, looking a part up costs more than tokenizing it.
	minCut = 256
	// minLine is the same for cuts at lines, of which there are many: a part of
	// some 500 tokens is tokenized in about 50 µs.
	minLine = 2048
)

// segmenter cuts texts into segments. Where it cuts depends only on the text up
// to the cut and, for a cut to stand at all, on the token or the character after
// it; so a text that goes on is cut in the same places as far as it is the same.
// It is immutable.
type segmenter struct {
	nodes  []node // nodes[0] is the root
	starts []byte // first bytes of tokens
	lines  bool
}

// node is a place in the tree of the tokens' bytes.
type node struct {
	bytes    []byte
	children []int32
	token    bool
}

func newSegmenter(cuts Cuts) *segmenter {
	s := &segmenter{nodes: make([]node, 1), lines: cuts.Lines}
	for _, token := range cuts.Tokens {
		at := int32(0)
		for i := range len(token) {
			at = s.child(at, token[i])
		}
		if at != 0 {
			s.nodes[at].token = true
		}
	}
	s.starts = s.nodes[0].bytes
	return s
}

// child returns the node after at for a byte, made when there is none.
func (s *segmenter) child(at int32, b byte) int32 {
	if i := slices.Index(s.nodes[at].bytes, b); i >= 0 {
		return s.nodes[at].children[i]
	}
	next := int32(len(s.nodes))
	s.nodes = append(s.nodes, node{})
	s.nodes[at].bytes = append(s.nodes[at].bytes, b)
	s.nodes[at].children = append(s.nodes[at].children, next)
	return next
}

// token returns the length of the longest token that text begins with, or 0.
func (s *segmenter) token(text string) int {
	at, length := int32(0), 0
	for i := range len(text) {
		k := slices.Index(s.nodes[at].bytes, text[i])
		if k < 0 {
			break
		}
		if at = s.nodes[at].children[k]; s.nodes[at].token {
			length = i + 1
		}
	}
	return length
}

// walk is one pass over a text.
type walk struct {
	s          *segmenter
	text       string
	start      int // of the segment that is next
	cut, after int // the next token, from and to; len(text) when there is none
	// next is where each of the first bytes comes next, for the few that tokens
	// usually begin with.
	next [4]int
}

func (s *segmenter) walk(text string) walk {
	w := walk{s: s, text: text}
	for i := range w.next {
		w.next[i] = -1
	}
	w.find(0)
	return w
}

// segment returns the next segment, and whether the text goes on after it.
// Together the segments are the text. It must not be called after the last.
func (w *walk) segment() (segment string, more bool) {
	for {
		if w.s.lines {
			if end := w.line(); end > 0 {
				return w.take(end), true
			}
		}
		if w.cut == len(w.text) {
			return w.take(len(w.text)), false
		}
		cut := w.cut
		w.find(w.after)
		if cut-w.start >= minCut {
			return w.take(cut), true
		}
	}
}

func (w *walk) take(end int) string {
	segment := w.text[w.start:end]
	w.start = end
	return segment
}

// line returns the first place before the next token to cut at a line, or 0.
func (w *walk) line() int {
	for at := w.start + minLine; at < w.cut; {
		i := strings.IndexByte(w.text[at-1:w.cut-1], '\n')
		if i < 0 {
			return 0
		}
		at += i
		if c := w.text[at]; c > ' ' && c < 0x7f && c != '/' {
			return at
		}
		at++
	}
	return 0
}

// find sets cut and after to the first token from a place on.
func (w *walk) find(from int) {
	for from < len(w.text) {
		at := w.candidate(from)
		if at == len(w.text) {
			break
		}
		if n := w.s.token(w.text[at:]); n > 0 {
			w.cut, w.after = at, at+n
			return
		}
		from = at + 1
	}
	w.cut, w.after = len(w.text), len(w.text)
}

// candidate returns the first place from which a token may begin.
func (w *walk) candidate(from int) int {
	starts := w.s.starts
	if len(starts) > len(w.next) {
		for ; from < len(w.text); from++ {
			if slices.Contains(starts, w.text[from]) {
				return from
			}
		}
		return from
	}
	nearest := len(w.text)
	for i, b := range starts {
		if w.next[i] < from {
			if k := strings.IndexByte(w.text[from:], b); k >= 0 {
				w.next[i] = from + k
			} else {
				w.next[i] = len(w.text)
			}
		}
		nearest = min(nearest, w.next[i])
	}
	return nearest
}
