package prefix

import (
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"warmpath/routing/blockkey"
)

const (
	// segmentBits of a key choose its segment. 4,096 segments are small enough to
	// be rebuilt in one go: 140 keys each in an index of half a million, 13,000
	// (some 20 µs) in one of 55 million.
	segmentBits = 12
	numSegments = 1 << segmentBits
	// minTail is the slots beyond the last home, into which the last keys may
	// spill, and minHomes the homes that a segment has at least.
	minTail  = 8
	minHomes = 4
	// A segment is rebuilt larger when it is more than maxLoad full, to
	// builtLoad, and smaller when it is less than minLoad full: DESIGN.md has
	// what other loads cost.
	maxLoad   = 0.80
	builtLoad = 0.50
	minLoad   = 0.20
	slotBytes = int64(unsafe.Sizeof(slot{}))
)

// slot is one key and who holds it. The zero slot is empty: it has the greatest
// key, so that a search ends there. That is a key too, so it is the ref nobody
// which says that a slot is empty.
type slot struct {
	// inverse is the key with every bit flipped.
	inverse uint64
	ref     ref
	// depth is the block's place in its prompt, from 1, as far as known: what is
	// deepest goes first when memory is short.
	depth uint32
}

func (s *slot) key() blockkey.Key { return ^s.inverse }

// segment is an open-addressing table of the keys that share their first bits.
// Keys are hashes, so a key's home is its place in proportion to all keys: the
// slots are sorted by key, a search ends at the first greater key, and the order
// of arrival leaves no trace.
type segment struct {
	slots []slot
	// homes is the slots that are a key's home: all but the tail.
	homes uint32
	count uint32
}

// segmentOf is the segment where a key belongs.
func segmentOf(k blockkey.Key) int {
	return int(k >> (64 - segmentBits))
}

// home is where the search for a key begins.
func (s *segment) home(k blockkey.Key) int {
	hi, _ := bits.Mul64(k<<segmentBits, uint64(s.homes))
	return int(hi)
}

// find is the slot of a key, or where it would be inserted, and who holds it.
func (s *segment) find(k blockkey.Key) (int, ref) {
	return s.findFrom(s.home(k), k)
}

// findFrom is find from a slot on.
func (s *segment) findFrom(i int, k blockkey.Key) (int, ref) {
	slots := s.slots
	for i < len(slots) {
		if slots[i].inverse <= ^k {
			if slots[i].inverse == ^k {
				return i, slots[i].ref
			}
			break
		}
		i++
	}
	return i, nobody
}

// lookup is who holds a key, as find says. Which of the first two slots it would
// be in is computed, not decided: how far a key is from its home cannot be
// predicted, and a processor that guesses wrong forgets the reads for the next
// keys that it had begun. Of prompts that are not in cache it reads nearly twice
// as many blocks as find, which is better at places that were just read.
func (s *segment) lookup(k blockkey.Key) ref {
	slots, inverse := s.slots, ^k
	i := s.home(k)
	if len(slots) < minTail {
		return nobody // it has none: a home has minTail slots after it
	}
	p := (*[2]slot)(slots[i:])
	_, lesser := bits.Sub64(inverse, p[0].inverse, 0)
	if at := &p[lesser&1]; at.inverse == inverse {
		return at.ref
	}
	if p[1].inverse > inverse {
		_, r := s.findFrom(i+2, k)
		return r
	}
	return nobody
}

// readAhead is how many keys' slots are read before the first of them is looked up:
// more than the 10 to 16 reads from memory that a processor has in flight, few for a
// prompt that nobody holds, which reads them in vain. DESIGN.md has what it is worth.
const readAhead = 32

// fetch reads the slots of keys one after the other without looking at them, so
// that the reads overlap. The sum is of no use, but that the reads are not left out.
//
//go:noinline
func fetch(segments []segment, keys []blockkey.Key) (sum uint64) {
	for _, k := range keys {
		s := &segments[segmentOf(k)]
		if i := s.home(k); i < len(s.slots) {
			sum ^= s.slots[i].inverse
		}
	}
	return sum
}

// insert puts a key, which is not there, in at the place that find gave. It
// reports false, and does nothing, when the segment must grow first.
func (s *segment) insert(at int, in slot) bool {
	if s.count >= s.limit() {
		return false
	}
	end := at
	for end < len(s.slots) && s.slots[end].ref != nobody {
		end++
	}
	if end >= len(s.slots)-1 { // the last slot stays empty
		return false
	}
	copy(s.slots[at+1:end+1], s.slots[at:end])
	s.slots[at] = in
	s.count++
	return true
}

// limit is how many keys the segment takes before it grows.
func (s *segment) limit() uint32 {
	return uint32(float64(s.homes) * maxLoad)
}

// erase takes the key at a place away and closes the gap.
func (s *segment) erase(at int) {
	end := at + 1
	for end < len(s.slots) && s.slots[end].ref != nobody && s.home(s.slots[end].key()) < end {
		end++
	}
	copy(s.slots[at:end-1], s.slots[at+1:end])
	s.slots[end-1] = slot{}
	s.count--
}

// sparse says whether a rebuild would give much memory back.
func (s *segment) sparse() bool {
	return float64(s.count) < float64(s.homes)*minLoad
}

// rebuilt returns the segment with homes for count keys at a load.
func (s *segment) rebuilt(count uint32, load float64) segment {
	if count == 0 {
		return segment{}
	}
	return s.copied(int(float64(count)/load)+1, minTail)
}

// grown returns the segment with room for one key more.
func (s *segment) grown() segment {
	if s.count >= s.limit() {
		return s.copied(int(float64(s.count+1)/builtLoad)+1, minTail)
	}
	// The last keys found no place in the tail.
	return s.copied(int(s.homes), 2*(len(s.slots)-int(s.homes)))
}

// copied returns the segment with so many homes, or a few more, and slots beyond
// them. Keys that are no hashes may all have the last home: they get the tail
// that they need.
func (s *segment) copied(homes, tail int) segment {
	for ; ; tail *= 2 {
		out := newSegment(max(homes, minHomes), tail)
		if out.fill(s.slots) {
			return out
		}
	}
}

// newSegment returns an empty segment of at least so many homes: what the
// allocator would round up to is put to use.
func newSegment(homes, tail int) segment {
	slots := slices.Grow([]slot(nil), homes+tail)
	slots = slots[:cap(slots)]
	return segment{slots: slots, homes: uint32(len(slots) - tail)}
}

// fill puts sorted slots into an empty segment; it reports false when they do
// not fit.
func (s *segment) fill(sorted []slot) bool {
	next := 0
	for i := range sorted {
		if sorted[i].ref == nobody {
			continue
		}
		next = max(next, s.home(sorted[i].key()))
		if next >= len(s.slots)-1 {
			return false
		}
		s.slots[next] = sorted[i]
		next++
		s.count++
	}
	return true
}

func (s *segment) bytes() int64 {
	return int64(len(s.slots)) * slotBytes
}

// numDepths is how many classes of depth the table counts.
const numDepths = 128

// orphanDepth is the depth of a block whose parent is not known.
const orphanDepth = math.MaxUint32

// table is every key of the index.
type table struct {
	segments []segment // numSegments, or none before the first key
	keys     int
	// bytes is the memory of all segments.
	bytes int64
	// depths counts keys by the class of their depth.
	depths [numDepths]int
}

// depthClass parts depths into classes that each span at most a quarter of what
// is above them.
func depthClass(d uint32) int {
	if d < 16 {
		return int(d)
	}
	exp := bits.Len32(d) - 1
	return 16 + (exp-4)*4 + int(d>>(exp-2)&3)
}

// get is who holds a key.
func (t *table) get(k blockkey.Key) ref {
	if t.segments == nil {
		return nobody
	}
	return t.segments[segmentOf(k)].lookup(k)
}

// depthBelow is the depth of a child of k.
func (t *table) depthBelow(k blockkey.Key) uint32 {
	if t.segments == nil {
		return orphanDepth
	}
	s := &t.segments[segmentOf(k)]
	i, r := s.find(k)
	if r == nobody || s.slots[i].depth >= orphanDepth-1 {
		return orphanDepth
	}
	return s.slots[i].depth + 1
}

// warm reads where keys are or would be, so that what follows finds them in
// the processor's cache: nothing here waits for anything, so that many reads are
// on their way at once.
func (t *table) warm(keys []blockkey.Key) (sum uint32) {
	if t.segments == nil {
		return 0
	}
	for _, k := range keys {
		s := &t.segments[segmentOf(k)]
		if i := s.home(k); i < len(s.slots) {
			sum += s.slots[i].depth
		}
	}
	return sum
}

// insert adds a key, which is not there, at the place that find gave.
func (t *table) insert(s *segment, at int, in slot) {
	for !s.insert(at, in) {
		t.replace(s, s.grown())
		at, _ = s.find(in.key())
	}
	t.keys++
	t.depths[depthClass(in.depth)]++
}

// erase takes a key away.
func (t *table) erase(s *segment, at int) {
	t.depths[depthClass(s.slots[at].depth)]--
	t.keys--
	s.erase(at)
	if s.sparse() {
		t.replace(s, s.rebuilt(s.count, builtLoad))
	}
}

// deepen corrects the depth of a key.
func (t *table) deepen(s *slot, depth uint32) {
	t.depths[depthClass(s.depth)]--
	t.depths[depthClass(depth)]++
	s.depth = depth
}

// retain keeps the slots of a segment for which keep returns true, and makes the
// segment as small as load allows when it is sparser than that.
func (t *table) retain(s *segment, load float64, keep func(*slot) bool) {
	dropped := uint32(0)
	for i := range s.slots {
		in := &s.slots[i]
		if in.ref == nobody || keep(in) {
			continue
		}
		t.depths[depthClass(in.depth)]--
		t.keys--
		in.ref = nobody // the rebuild leaves it out
		dropped++
	}
	if dropped > 0 {
		t.replace(s, s.rebuilt(s.count-dropped, load))
	}
}

func (t *table) replace(s *segment, with segment) {
	t.bytes += with.bytes() - s.bytes()
	*s = with
}
