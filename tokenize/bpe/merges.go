package bpe

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// pairTable maps a pair of ids to the rank of the rule that merges them and
// the id of the result: open addressing, two thirds full at most, one cache
// line a look-up. It is immutable.
type pairTable struct {
	entries []pairEntry
}

type pairEntry struct {
	key  uint64 // left id in the high half; freePair when free
	rank uint32
	id   uint32
}

// freePair cannot be a pair: no id is as large.
const freePair = ^uint64(0)

func pairKey(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) }

func (t *pairTable) slot(key uint64) int {
	hash := key * 0x9e3779b97f4a7c15 // 2^64 over the golden ratio
	hash ^= hash >> 32
	hi, _ := bits.Mul64(hash*0x9e3779b97f4a7c15, uint64(len(t.entries)))
	return int(hi)
}

func (t *pairTable) put(e pairEntry) {
	i := t.slot(e.key)
	for t.entries[i].key != freePair && t.entries[i].key != e.key {
		if i++; i == len(t.entries) {
			i = 0
		}
	}
	t.entries[i] = e
}

// find returns the rule for a pair; without one the rank is none.
func (t *pairTable) find(left, right uint32) (rank, id uint32) {
	key := pairKey(left, right)
	for i := t.slot(key); ; {
		e := &t.entries[i]
		if e.key == key {
			return e.rank, e.id
		}
		if e.key == freePair {
			return none, none
		}
		if i++; i == len(t.entries) {
			i = 0
		}
	}
}

// newPairTable resolves the merge rules. Of two rules for one pair the last
// counts, as in the crate. prefix is the continuing subword prefix, which the
// right token loses.
func newPairTable(v *vocab, rules []mergeRule, prefix string) (*pairTable, error) {
	t := &pairTable{entries: make([]pairEntry, len(rules)*3/2+8)}
	for i := range t.entries {
		t.entries[i].key = freePair
	}
	var joined []byte
	for rank, r := range rules {
		left, right := v.id(r.left), v.id(r.right)
		if left == none || right == none {
			missing := r.left
			if left != none {
				missing = r.right
			}
			return nil, fmt.Errorf("model.merges[%d]: %q is not in model.vocab", rank, missing)
		}
		if len(r.right) < len(prefix) {
			return nil, fmt.Errorf("model.merges[%d]: %q is shorter than the continuing_subword_prefix", rank, r.right)
		}
		joined = append(append(joined[:0], r.left...), r.right[len(prefix):]...)
		id := v.id(string(joined))
		if id == none {
			return nil, fmt.Errorf("model.merges[%d]: the result %q is not in model.vocab", rank, joined)
		}
		t.put(pairEntry{key: pairKey(left, right), rank: uint32(rank), id: id})
	}
	return t, nil
}

// joinedBefore returns the characters, other than mark, that any rule's result
// has right before a mark. Between any other character and a mark nothing
// merges: text can be cut there without changing the ids, which keeps pieces
// short and their results reusable.
func joinedBefore(rules []mergeRule, mark string) string {
	var before []rune
	for _, r := range rules {
		joined := r.left + r.right
		for from := 0; ; {
			i := strings.Index(joined[from:], mark)
			if i < 0 {
				break
			}
			i += from
			from = i + len(mark)
			if c, n := utf8.DecodeLastRuneInString(joined[:i]); n > 0 && joined[i-n:i] != mark && !slices.Contains(before, c) {
				before = append(before, c)
			}
		}
	}
	return string(before)
}
