package bpe

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// The cache remembers what pieces of text, mostly words, encode to. It is
// shared by all goroutines, read without locks, and of fixed size: a new word
// takes the place of an old one. It has two parts: words of up to 16 bytes lie
// in cache lines of their own, longer pieces behind pointers.
const (
	shortMax  = 16
	shortIDs  = 10 // ids that fit in a line
	shortBits = 16 // 2^16 lines are 4 MiB
	longMax   = 128
	longSlots = 1 << 13 // 5 MiB at most
)

type wordCache struct {
	seed  maphash.Seed
	shift uint // leaves as many bits of a hash as number the lines
	lines []line
	long  []atomic.Pointer[longWord]
}

// line is one cache line: a head, the word, and its ids two by two. The head
// works as a sequence lock: its lowest bit says that a writer is at work, and
// its upper bits change with each write, so a reader that finds the same head
// before and after has read one write's contents.
type line struct {
	head   atomic.Uint64 // count of writes | number of ids | length | writer's bit
	lo, hi atomic.Uint64
	ids    [shortIDs / 2]atomic.Uint64
}

const (
	headBusy   = 1
	lenShift   = 1
	countShift = 8
	seqShift   = 16
)

type longWord struct {
	text string
	ids  []uint32
}

// newWordCache makes a cache of 2^bits lines.
func newWordCache(bits uint) *wordCache {
	return &wordCache{
		seed:  maphash.MakeSeed(),
		shift: 64 - bits,
		lines: make([]line, 1<<bits),
		long:  make([]atomic.Pointer[longWord], longSlots),
	}
}

// shortKey packs a word of 2 to 16 bytes into two numbers; with its length
// they name it.
func shortKey(p string) (lo, hi uint64) {
	b := unsafe.Slice(unsafe.StringData(p), len(p))
	switch {
	case len(b) >= 8:
		return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[len(b)-8:])
	case len(b) >= 4:
		return uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[len(b)-4:]))
	}
	return uint64(b[0]) | uint64(b[1])<<8, uint64(b[len(b)-1])
}

// lineOf picks the word's line. Words cannot be chosen to collide to more harm
// than computing them anew, so the hash needs no secret.
func (c *wordCache) lineOf(lo, hi uint64, n int) *line {
	const a, b = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	h, l := bits.Mul64(lo^a^uint64(n), hi^b)
	h = (h ^ l) * a
	return &c.lines[h>>c.shift]
}

// appendShort appends the ids of a word of 2 to 16 bytes if they are known.
func (c *wordCache) appendShort(dst []uint32, p string, lo, hi uint64) ([]uint32, bool) {
	l := c.lineOf(lo, hi, len(p))
	head := l.head.Load()
	if head&headBusy != 0 || int(head>>lenShift&0x7f) != len(p) || l.lo.Load() != lo || l.hi.Load() != hi {
		return dst, false
	}
	before := len(dst)
	n := int(head >> countShift & 0xff)
	for i := 0; i < n; i += 2 {
		two := l.ids[i/2].Load()
		dst = append(dst, uint32(two))
		if i+1 < n {
			dst = append(dst, uint32(two>>32))
		}
	}
	if l.head.Load() != head {
		return dst[:before], false
	}
	return dst, true
}

// putShort stores a word; it gives up when another goroutine writes there.
func (c *wordCache) putShort(p string, lo, hi uint64, ids []uint32) {
	if len(ids) > shortIDs {
		return
	}
	l := c.lineOf(lo, hi, len(p))
	head := l.head.Load()
	if head&headBusy != 0 || !l.head.CompareAndSwap(head, head|headBusy) {
		return
	}
	l.lo.Store(lo)
	l.hi.Store(hi)
	for i := 0; i < len(ids); i += 2 {
		two := uint64(ids[i])
		if i+1 < len(ids) {
			two |= uint64(ids[i+1]) << 32
		}
		l.ids[i/2].Store(two)
	}
	l.head.Store((head>>seqShift+1)<<seqShift | uint64(len(ids))<<countShift | uint64(len(p))<<lenShift)
}

func (c *wordCache) longSlot(p string) *atomic.Pointer[longWord] {
	return &c.long[maphash.String(c.seed, p)%longSlots]
}

// appendLong appends the ids of a piece of 17 to longMax bytes if they are
// known.
func (c *wordCache) appendLong(dst []uint32, p string) ([]uint32, bool) {
	w := c.longSlot(p).Load()
	if w == nil || w.text != p {
		return dst, false
	}
	return append(dst, w.ids...), true
}

func (c *wordCache) putLong(p string, ids []uint32) {
	w := &longWord{text: string(append([]byte(nil), p...)), ids: append([]uint32(nil), ids...)}
	c.longSlot(p).Store(w)
}
