package bpe

import (
	"fmt"
	"strings"
)

// trie finds the patterns of a set in a text: the leftmost, and of those that
// begin at one place the longest. It is immutable.
type trie struct {
	nodes []trieNode
	first [256]bool // bytes that a pattern begins with
	only  int       // the one such byte, -1 when there are several
}

type trieNode struct {
	bytes string  // that lead on from here
	to    []int32 // and where to
	value int32   // index of the pattern that ends here, or -1
}

func newTrie() *trie {
	return &trie{nodes: []trieNode{{value: -1}}, only: -1}
}

// add puts in a pattern, which must not be empty. A second equal one is an
// error, as it is in the crate.
func (t *trie) add(pattern string, value int32) error {
	if !t.first[pattern[0]] {
		if len(t.nodes) == 1 {
			t.only = int(pattern[0])
		} else {
			t.only = -1
		}
		t.first[pattern[0]] = true
	}
	at := int32(0)
	for i := range len(pattern) {
		k := strings.IndexByte(t.nodes[at].bytes, pattern[i])
		if k < 0 {
			k = len(t.nodes[at].to)
			t.nodes[at].bytes += pattern[i : i+1]
			t.nodes[at].to = append(t.nodes[at].to, int32(len(t.nodes)))
			t.nodes = append(t.nodes, trieNode{value: -1})
		}
		at = t.nodes[at].to[k]
	}
	if t.nodes[at].value >= 0 {
		return fmt.Errorf("%q is there twice", pattern)
	}
	t.nodes[at].value = value
	return nil
}

// find returns the first match at or after from; value is -1 without one.
func (t *trie) find(s string, from int) (start, end int, value int32) {
	for i := from; i < len(s); i++ {
		if t.only >= 0 {
			n := strings.IndexByte(s[i:], byte(t.only))
			if n < 0 {
				break
			}
			i += n
		} else if !t.first[s[i]] {
			continue
		}
		if end, value := t.longest(s, i); value >= 0 {
			return i, end, value
		}
	}
	return 0, 0, -1
}

func (t *trie) longest(s string, from int) (end int, value int32) {
	value = -1
	at := int32(0)
	for i := from; i < len(s); i++ {
		node := &t.nodes[at]
		k := strings.IndexByte(node.bytes, s[i])
		if k < 0 {
			break
		}
		at = node.to[k]
		if v := t.nodes[at].value; v >= 0 {
			end, value = i+1, v
		}
	}
	return end, value
}
