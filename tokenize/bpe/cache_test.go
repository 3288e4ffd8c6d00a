package bpe

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestCacheRemembersWords(t *testing.T) {
	c := newWordCache(shortBits)
	for n := 2; n <= shortMax; n++ {
		p := strings.Repeat("x", n)
		lo, hi := shortKey(p)
		if _, ok := c.appendShort(nil, p, lo, hi); ok {
			t.Errorf("%q is known before it was put in", p)
		}
		ids := make([]uint32, min(n, shortIDs))
		for i := range ids {
			ids[i] = uint32(n*100 + i)
		}
		c.putShort(p, lo, hi, ids)
		if got, ok := c.appendShort([]uint32{1}, p, lo, hi); !ok || !slices.Equal(got, append([]uint32{1}, ids...)) {
			t.Errorf("%q gives %v, %v, want 1 and %v", p, got, ok, ids)
		}
	}
	lo, hi := shortKey("ab")
	c.putShort("ab", lo, hi, make([]uint32, shortIDs+1))
	if _, ok := c.appendShort(nil, "ab", lo, hi); ok {
		t.Error("a word with more ids than fit is known")
	}
	long := strings.Repeat("y", longMax)
	c.putLong(long, []uint32{5, 6})
	if got, ok := c.appendLong([]uint32{4}, long); !ok || !slices.Equal(got, []uint32{4, 5, 6}) {
		t.Errorf("a long piece gives %v, %v", got, ok)
	}
	if _, ok := c.appendLong(nil, long[1:]); ok {
		t.Error("another long piece is known")
	}
}

// Words that all share one line: what is read is the word's ids, never a
// mixture of two writes.
func TestCacheLinesAreReadWhole(t *testing.T) {
	c := newWordCache(0)
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for i := range 20000 {
				w := uint32(i*7+g) % 4
				word := fmt.Sprintf("word%02d", w)
				lo, hi := shortKey(word)
				want := []uint32{w, w + 100, w + 200, w + 300, w + 400}[:w+2]
				got, ok := c.appendShort(nil, word, lo, hi)
				if ok && !slices.Equal(got, want) {
					t.Errorf("%s is %v, want %v", word, got, want)
					return
				}
				c.putShort(word, lo, hi, want)
				if g == 0 { // sometimes read what was just written
					if again, ok := c.appendShort(nil, word, lo, hi); ok && !slices.Equal(again, want) {
						t.Errorf("%s is %v, want %v", word, again, want)
						return
					}
				}
			}
		})
	}
	group.Wait()
}
