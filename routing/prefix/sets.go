package prefix

import (
	"math/bits"
	"slices"
	"unsafe"
)

// ref says who holds a key: nobody, one element, or a set of several that keys
// share. Most blocks of a pool are held by one replica, and those of a shared
// prefix by the same ones, so that there are few sets and a key costs four bytes
// whatever the size of the pool.
type ref uint32

const (
	nobody ref = 0
	// single marks the ref of one element; without it a ref is a set's id.
	single ref = 1 << 31
)

// element is a tier of a lane: lane<<2 | tier.
type element uint32

func elementOf(lane int, t Tier) element { return element(lane<<2 | int(t)) }

func (e element) lane() int  { return int(e >> 2) }
func (e element) tier() Tier { return Tier(e & 3) }

func (r ref) isSingle() bool   { return r&single != 0 }
func (r ref) element() element { return element(r &^ single) }

// form is how a set is written down; it follows from what is in it, so that
// equal sets are equal words.
type form uint8

const (
	// narrow: the gpu tier of lanes below 64, in bits.
	narrow form = iota
	// dense: for each tier of tiers, a bit for each lane below 64*words.
	dense
	// listed: the elements in order, two a word.
	listed
)

// set is a set of two elements or more.
type set struct {
	bits uint64
	body []uint64
	// refs is how many keys have it, n how many elements it has.
	refs, n uint32
	hash    uint32
	words   uint16
	form    form
	tiers   uint8
}

const (
	setBytes = int64(unsafe.Sizeof(set{}))
	// chunkBits of an id are its place in a chunk.
	chunkBits = 8
)

// lanes is a bit for each lane, in words, per tier.
type lanes [NumTiers][]uint64

// sets interns the sets of an index.
type sets struct {
	chunks [][]set
	// next is the first id never given, high the most that were in use at once in
	// the whole history; free is the ids below next that are not in use.
	next, high uint32
	free       []uint32
	// index is an open-addressing table of ids by hash.
	index []uint32
	live  int
	// bodies is the memory of all bodies.
	bodies int64
	// scratch and body are where sets are put together.
	scratch lanes
	used    int // words of scratch
	body    []uint64
}

func newSets() sets {
	return sets{next: 1, index: make([]uint32, 16)}
}

func (s *sets) at(r ref) *set {
	return &s.chunks[r>>chunkBits][r&(1<<chunkBits-1)]
}

// bytes is the memory of all sets. It counts as many as there ever were at
// once, which the sets of a restored index are accounted as, too.
func (s *sets) bytes() int64 {
	index := int64(16)
	for index*3 < int64(s.high)*4 {
		index *= 2
	}
	return int64(s.high)*(setBytes+4) + index*4 + s.bodies
}

// with returns r and e together; it is r when e is in it already.
func (s *sets) with(r ref, e element) ref {
	switch {
	case r == nobody:
		return single | ref(e)
	case s.has(r, e):
		return r
	}
	if b, ok := s.narrow(r); ok && e.tier() == GPU && e.lane() < 64 {
		return s.internNarrow(b | 1<<e.lane())
	}
	s.open(r, e.lane())
	s.scratch[e.tier()][e.lane()>>6] |= 1 << (e.lane() & 63)
	return s.intern()
}

// without returns r less e; it is r when e is not in it.
func (s *sets) without(r ref, e element) ref {
	if !s.has(r, e) {
		return r
	}
	if r.isSingle() {
		return nobody
	}
	if b, ok := s.narrow(r); ok {
		return s.internNarrow(b &^ (1 << e.lane()))
	}
	s.open(r, e.lane())
	s.scratch[e.tier()][e.lane()>>6] &^= 1 << (e.lane() & 63)
	return s.intern()
}

// less returns r without every element of the lanes in gone.
func (s *sets) less(r ref, gone []uint64) ref {
	if r.isSingle() {
		if l := r.element().lane(); bitOf(gone, l) {
			return nobody
		}
		return r
	}
	if b, ok := s.narrow(r); ok {
		if b&gone[0] == 0 {
			return r
		}
		return s.internNarrow(b &^ gone[0])
	}
	s.open(r, 0)
	changed := false
	for t := range s.scratch {
		for w := range s.used {
			changed = changed || s.scratch[t][w]&gone[w] != 0
			s.scratch[t][w] &^= gone[w]
		}
	}
	if !changed {
		return r
	}
	return s.intern()
}

// narrow is r as the gpu tier of lanes below 64, if that is all it is.
func (s *sets) narrow(r ref) (b uint64, ok bool) {
	if r.isSingle() {
		e := r.element()
		return 1 << (e.lane() & 63), e.tier() == GPU && e.lane() < 64
	}
	t := s.at(r)
	return t.bits, t.form == narrow
}

// has says whether e is in r.
func (s *sets) has(r ref, e element) bool {
	switch {
	case r == nobody:
		return false
	case r.isSingle():
		return r.element() == e
	}
	t := s.at(r)
	switch t.form {
	case narrow:
		return e.tier() == GPU && e.lane() < 64 && t.bits>>e.lane()&1 != 0
	case dense:
		word := e.lane() >> 6
		if t.tiers>>e.tier()&1 == 0 || word >= int(t.words) {
			return false
		}
		row := bits.OnesCount8(t.tiers & (1<<e.tier() - 1))
		return t.body[row*int(t.words)+word]>>(e.lane()&63)&1 != 0
	default:
		_, ok := slices.BinarySearchFunc(t.list(), e, func(a, b element) int { return int(a) - int(b) })
		return ok
	}
}

// list is the elements of a listed set.
func (t *set) list() []element {
	return unsafe.Slice((*element)(unsafe.Pointer(unsafe.SliceData(t.body))), t.n)
}

// holds says whether a lane has any tier in r.
func (s *sets) holds(r ref, lane int) bool {
	for t := GPU; t < NumTiers; t++ {
		if s.has(r, elementOf(lane, t)) {
			return true
		}
	}
	return false
}

// elements appends the elements of r in order.
func (s *sets) elements(dst []element, r ref) []element {
	switch {
	case r == nobody:
		return dst
	case r.isSingle():
		return append(dst, r.element())
	}
	t := s.at(r)
	if t.form == listed {
		return append(dst, t.list()...)
	}
	var rows lanes
	words := t.rows(&rows)
	for w := range words {
		all := uint64(0)
		for i := range rows {
			if rows[i] != nil {
				all |= rows[i][w]
			}
		}
		for ; all != 0; all &= all - 1 {
			b := bits.TrailingZeros64(all)
			for i := range rows {
				if rows[i] != nil && rows[i][w]>>b&1 != 0 {
					dst = append(dst, elementOf(w<<6|b, Tier(i)))
				}
			}
		}
	}
	return dst
}

// rows points at the words of a narrow or dense set, nil for a tier that it has
// not.
func (t *set) rows(rows *lanes) (words int) {
	if t.form == narrow {
		rows[GPU] = unsafe.Slice(&t.bits, 1)
		return 1
	}
	rest := t.body
	for i := range rows {
		if t.tiers>>i&1 != 0 {
			rows[i], rest = rest[:t.words], rest[t.words:]
		}
	}
	return int(t.words)
}

// open writes r into scratch, which has room for a lane more.
func (s *sets) open(r ref, lane int) {
	need := lane>>6 + 1
	if r.isSingle() {
		need = max(need, r.element().lane()>>6+1)
	} else if t := s.at(r); t.form != narrow {
		need = max(need, int(t.words))
	}
	s.zero(need)
	s.expand(r, &s.scratch)
}

func (s *sets) zero(words int) {
	s.used = words
	for i := range s.scratch {
		if cap(s.scratch[i]) < words {
			s.scratch[i] = make([]uint64, words*2)
		}
		s.scratch[i] = s.scratch[i][:words]
		clear(s.scratch[i])
	}
}

// expand sets the bits of r in dst, which has as many words as r needs, or more.
// The bits of a tier are overwritten as far as r goes.
func (s *sets) expand(r ref, dst *lanes) {
	if r.isSingle() {
		e := r.element()
		dst[e.tier()][e.lane()>>6] |= 1 << (e.lane() & 63)
		return
	}
	t := s.at(r)
	if t.form == listed {
		for _, e := range t.list() {
			dst[e.tier()][e.lane()>>6] |= 1 << (e.lane() & 63)
		}
		return
	}
	var rows lanes
	t.rows(&rows)
	for i := range rows {
		copy(dst[i], rows[i])
	}
}

// internNarrow is the ref of the gpu tier of lanes below 64.
func (s *sets) internNarrow(b uint64) ref {
	switch bits.OnesCount64(b) {
	case 0:
		return nobody
	case 1:
		return single | ref(elementOf(bits.TrailingZeros64(b), GPU))
	}
	return s.lookup(set{bits: b, n: uint32(bits.OnesCount64(b)), words: 1, form: narrow, tiers: 1}, nil)
}

// intern is the ref of what is in scratch.
func (s *sets) intern() ref {
	n, tiers, words := 0, uint8(0), 0
	var last element
	for i := range s.scratch {
		for w, b := range s.scratch[i][:s.used] {
			if b == 0 {
				continue
			}
			n += bits.OnesCount64(b)
			tiers |= 1 << i
			words = max(words, w+1)
			last = elementOf(w<<6|bits.TrailingZeros64(b), Tier(i))
		}
	}
	if n < 2 {
		if n == 0 {
			return nobody
		}
		return single | ref(last)
	}
	t := set{n: uint32(n), words: uint16(words), tiers: tiers}
	s.body = s.body[:0]
	switch rows := bits.OnesCount8(tiers); {
	case tiers == 1 && words == 1:
		t.form, t.bits = narrow, s.scratch[GPU][0]
	case words == 1 || rows*words <= (n+1)/2:
		t.form = dense
		for i := range s.scratch {
			if tiers>>i&1 != 0 {
				s.body = append(s.body, s.scratch[i][:words]...)
			}
		}
	default:
		t.form = listed
		s.list(words, n)
	}
	return s.lookup(t, s.body)
}

// list writes the elements of scratch into body.
func (s *sets) list(words, n int) {
	s.body = slices.Grow(s.body, (n+1)/2)[:(n+1)/2]
	s.body[len(s.body)-1] = 0
	out := unsafe.Slice((*element)(unsafe.Pointer(unsafe.SliceData(s.body))), n)
	at := 0
	for w := range words {
		all := s.scratch[GPU][w] | s.scratch[CPU][w] | s.scratch[Disk][w] | s.scratch[Remote][w]
		for ; all != 0; all &= all - 1 {
			b := bits.TrailingZeros64(all)
			for i := range s.scratch {
				if s.scratch[i][w]>>b&1 != 0 {
					out[at] = elementOf(w<<6|b, Tier(i))
					at++
				}
			}
		}
	}
}

// lookup is the ref of a set, which is added, with no keys yet, if it is new.
func (s *sets) lookup(t set, body []uint64) ref {
	t.hash = t.sum(body)
	mask := uint32(len(s.index) - 1)
	for i := t.hash & mask; s.index[i] != 0; i = (i + 1) & mask {
		if o := s.at(ref(s.index[i])); o.hash == t.hash && o.bits == t.bits && o.form == t.form && o.tiers == t.tiers && o.n == t.n && slices.Equal(o.body, body) {
			return ref(s.index[i])
		}
	}
	if len(body) > 0 {
		t.body = append([]uint64(nil), body...)
		s.bodies += int64(cap(t.body)) * 8
	}
	id := s.next
	if n := len(s.free); n > 0 {
		id, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.next++
		if int(id>>chunkBits) == len(s.chunks) {
			s.chunks = append(s.chunks, make([]set, 1<<chunkBits))
		}
	}
	*s.at(ref(id)) = t
	s.live++
	s.high = max(s.high, uint32(s.live))
	if s.live*4 > len(s.index)*3 {
		s.grow()
	}
	s.enter(id)
	return ref(id)
}

func (t *set) sum(body []uint64) uint32 {
	const mix = 0x9e3779b97f4a7c15 // any odd constant with bits all over does
	h := (t.bits ^ uint64(t.n)<<8 ^ uint64(t.tiers)) * mix
	for _, w := range body {
		h = (bits.RotateLeft64(h, 29) ^ w) * mix
	}
	return uint32(h >> 32)
}

func (s *sets) enter(id uint32) {
	mask := uint32(len(s.index) - 1)
	i := s.at(ref(id)).hash & mask
	for s.index[i] != 0 {
		i = (i + 1) & mask
	}
	s.index[i] = id
}

func (s *sets) grow() {
	old := s.index
	s.index = make([]uint32, 2*len(old))
	for _, id := range old {
		if id != 0 {
			s.enter(id)
		}
	}
}

// move takes n keys from one ref to another. A set that no key has is gone.
func (s *sets) move(from, to ref, n uint32) {
	if to != nobody && !to.isSingle() {
		s.at(to).refs += n
	}
	if from == nobody || from.isSingle() {
		return
	}
	t := s.at(from)
	if t.refs -= n; t.refs == 0 {
		s.drop(uint32(from))
	}
}

func (s *sets) drop(id uint32) {
	t := s.at(ref(id))
	mask := uint32(len(s.index) - 1)
	i := t.hash & mask
	for s.index[i] != id {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; s.index[j] != 0; j = (j + 1) & mask {
		// What follows moves up unless that would put it before its home.
		if home := s.at(ref(s.index[j])).hash & mask; (j-home)&mask >= (j-i)&mask {
			s.index[i] = s.index[j]
			i = j
		}
	}
	s.index[i] = 0
	s.bodies -= int64(cap(t.body)) * 8
	*t = set{}
	s.free = append(s.free, id)
	s.live--
}

func bitOf(words []uint64, i int) bool {
	return i>>6 < len(words) && words[i>>6]>>(i&63)&1 != 0
}
