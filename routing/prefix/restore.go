package prefix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"
)

// ErrSnapshot is what every error of Restore wraps.
var ErrSnapshot = errors.New("index snapshot cannot be used")

// Restore returns the index that AppendSnapshot wrote, with the bounds of cfg. It
// reads the snapshots of earlier versions too.
// A snapshot that is damaged, cut short or of an unknown version is an error
// that wraps ErrSnapshot, and never a partial index. It allocates in proportion
// to the snapshot at most.
func Restore(snapshot []byte, cfg Config) (*Index, error) {
	n := len(snapshot) - checksumBytes
	switch {
	case n < len(snapshotMagic):
		return nil, fmt.Errorf("%w: it has only %d bytes", ErrSnapshot, len(snapshot))
	case string(snapshot[:7]) != snapshotMagic[:7] || snapshot[7] < oldestVersion || snapshot[7] > snapshotMagic[7]:
		return nil, fmt.Errorf("%w: it does not begin as one of version %d to %d does; take an older one, or replay the stream", ErrSnapshot, oldestVersion, snapshotMagic[7])
	case binary.LittleEndian.Uint64(snapshot[n:]) != xxh3.Hash(snapshot[:n]):
		return nil, fmt.Errorf("%w: its checksum is wrong; take an older one, or replay the stream", ErrSnapshot)
	}
	r := reader{in: snapshot[len(snapshotMagic):n], version: snapshot[7]}
	x := NewWith(cfg)
	r.restore(x)
	if r.err == nil && len(r.in) > 0 {
		r.fail("%d bytes follow its end", len(r.in))
	}
	if r.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, r.err)
	}
	x.fit()
	return x, nil
}

// reader reads a snapshot. After an error it reads zeros.
type reader struct {
	in      []byte
	version byte
	err     error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.in = nil
}

func (r *reader) uvarint(what string) uint64 {
	v, n := binary.Uvarint(r.in)
	if n <= 0 {
		r.fail("%s is cut short", what)
		return 0
	}
	r.in = r.in[n:]
	return v
}

// upTo reads a number that is at most limit.
func (r *reader) upTo(limit uint64, what string) uint64 {
	v := r.uvarint(what)
	if v > limit {
		r.fail("%s is %d, more than %d", what, v, limit)
		return 0
	}
	return v
}

// length reads how many items follow, of at least size bytes each.
func (r *reader) length(size int, what string) int {
	return int(r.upTo(uint64(len(r.in)/size), what))
}

func (r *reader) bytes(n int, what string) []byte {
	if len(r.in) < n {
		r.fail("%s is cut short", what)
		return make([]byte, n)
	}
	out := r.in[:n]
	r.in = r.in[n:]
	return out
}

func (r *reader) restore(x *Index) {
	x.position = r.uvarint("position")
	for _, n := range x.stats.counters() {
		*n = r.uvarint("a counter")
	}
	high := r.upTo(math.MaxInt32, "number of sets at most")
	x.cursor = int(r.upTo(numSegments-1, "cursor"))
	x.hand = int(r.upTo(numSegments-1, "hand"))
	owners := r.lanes(x)
	r.replicas(x, owners)
	if r.err != nil {
		return
	}
	refs := r.sets(x)
	r.segments(x, refs)
	if r.err != nil {
		return
	}
	for _, one := range refs {
		if x.sets.at(one).refs == 0 {
			r.fail("a set has no keys")
			return
		}
	}
	if high < uint64(x.sets.live) {
		r.fail("there were %d sets at most, and are %d", high, x.sets.live)
	}
	x.sets.high = uint32(high)
	r.swept(x)
	r.count(x, refs)
}

// swept checks that the lanes being swept are gone from the segments before the
// cursor: they are used again once the rest is done.
func (r *reader) swept(x *Index) {
	known := map[ref]bool{}
	for i := range x.table.segments[:min(x.cursor, len(x.table.segments))] {
		for _, in := range x.table.segments[i].slots {
			if in.ref.isSingle() {
				if bitOf(x.sweeping, in.ref.element().lane()) {
					r.fail("segment %d is not swept", i)
					return
				}
				continue
			}
			if in.ref == nobody || known[in.ref] {
				continue
			}
			known[in.ref] = true
			x.members = x.sets.elements(x.members[:0], in.ref)
			for _, e := range x.members {
				if bitOf(x.sweeping, e.lane()) {
					r.fail("segment %d is not swept", i)
					return
				}
			}
		}
	}
}

// lanes reads the lanes and returns each replica's, by order.
func (r *reader) lanes(x *Index) (owners map[uint64]int) {
	n := r.length(1, "number of lanes")
	if n%64 != 0 {
		r.fail("number of lanes is %d, not whole words", n)
		n = 0
	}
	x.owners = make([]*replica, n)
	x.live, x.dirty, x.sweeping = make([]uint64, n/64), make([]uint64, n/64), make([]uint64, n/64)
	owners = map[uint64]int{}
	for lane := range n {
		bit, w := uint64(1)<<(lane&63), lane>>6
		switch state := r.uvarint("a lane"); state {
		case laneFree:
		case laneSweeping:
			x.sweeping[w] |= bit
			fallthrough
		case laneDirty:
			x.dirty[w] |= bit
			x.dead++
		default:
			if _, twice := owners[state-laneLive]; twice {
				r.fail("two lanes have one replica")
			}
			owners[state-laneLive] = lane
		}
	}
	return owners
}

func (r *reader) replicas(x *Index, lanes map[uint64]int) {
	n := r.length(22, "number of replicas")
	if n != len(lanes) {
		r.fail("%d replicas have %d lanes", n, len(lanes))
	}
	for i := 0; i < n && r.err == nil; i++ {
		one := &replica{name: string(r.bytes(r.length(1, "length of a name"), "a name"))}
		one.epoch = Epoch(r.bytes(len(one.epoch), "epoch"))
		one.seq = r.uvarint("seq")
		r.doubts(one)
		r.history(x, one)
		lane, ok := lanes[uint64(i)]
		switch {
		case r.err != nil:
			return
		case one.name == "" || i > 0 && one.name <= x.sorted[i-1].name:
			r.fail("replicas are not sorted by name")
			return
		case !ok:
			r.fail("replica %d has no lane", i)
			return
		}
		x.place(one, lane)
		x.enlist(one)
	}
}

// doubts reads whether and why a replica is suspect, its holes aside.
func (r *reader) doubts(one *replica) {
	flags := r.bytes(1, "flags")[0]
	if r.version == 1 {
		one.unsure = flags != 0
		return
	}
	if flags > allFlags {
		r.fail("flags are %#x", flags)
		return
	}
	one.unsure = flags&flagUnsure != 0
	if flags&flagDoubt == 0 {
		return
	}
	one.doubtSeq = r.upTo(one.seq, "seq of a doubt")
	if one.doubtSeq == 0 {
		r.fail("a doubt has no seq")
	}
	one.doubt = string(r.bytes(int(r.upTo(maxDoubt, "length of a doubt")), "a doubt"))
}

func (r *reader) history(x *Index, one *replica) {
	h := &one.history
	holes := r.length(2, "number of holes")
	if holes > maxHoles || holes > 0 && one.unsure {
		r.fail("%d holes", holes)
		return
	}
	after := uint64(0) // no hole begins before this
	for range holes {
		first, more := r.uvarint("a hole"), r.uvarint("a hole")
		if first <= after || more >= one.seq || first > one.seq-1-more {
			r.fail("holes are not in order")
			return
		}
		h.holes = append(h.holes, span{first, first + more})
		after = first + more + 1
	}
	h.cleared = r.upTo(one.seq, "seq of a clear")
	touches := r.length(10, "number of touches")
	if touches > maxTouches || holes == 0 && (touches > 0 || h.cleared > 0) {
		r.fail("%d touches", touches)
		return
	}
	if holes > 0 {
		h.touched = make(map[touch]uint64, touches)
	}
	var last touch
	for i := range touches {
		k := touch{key: binary.LittleEndian.Uint64(r.bytes(8, "a touch"))}
		k.tier = Tier(r.bytes(1, "a touch")[0])
		if k.tier >= NumTiers || i > 0 && compareTouches(last, k) >= 0 {
			r.fail("touches are not in order")
			return
		}
		h.touched[k] = r.upTo(one.seq, "seq of a touch")
		last = k
	}
	x.touches += len(h.touched)
}

// sets reads the sets and returns their refs by number.
func (r *reader) sets(x *Index) []ref {
	n := r.length(3, "number of sets")
	refs := make([]ref, 0, n)
	for i := 0; i < n && r.err == nil; i++ {
		size := r.length(1, "size of a set")
		if size < 2 {
			r.fail("a set of %d", size)
			return nil
		}
		x.sets.zero(len(x.live))
		last := uint64(0)
		for j := range size {
			step := r.uvarint("an element")
			if j > 0 && step == 0 || step >= uint64(len(x.owners))<<2-last {
				r.fail("an element is out of order")
				return nil
			}
			last += step
			if !x.used(element(last)) {
				r.fail("an element has a lane that is free")
				return nil
			}
			e := element(last)
			x.sets.scratch[e.tier()][e.lane()>>6] |= 1 << (e.lane() & 63)
		}
		one := x.sets.intern()
		if x.sets.live != i+1 {
			r.fail("a set comes twice")
			return nil
		}
		refs = append(refs, one)
	}
	return refs
}

// used says whether an element's lane may have keys.
func (x *Index) used(e element) bool {
	return bitOf(x.live, e.lane()) || bitOf(x.dirty, e.lane())
}

func (r *reader) segments(x *Index, refs []ref) {
	next := 0 // set that no key has yet
	switch r.uvarint("number of segments") {
	case 0:
		return
	case numSegments:
		x.table.segments = make([]segment, numSegments)
	default:
		r.fail("the number of segments is not %d", numSegments)
	}
	for i := 0; i < numSegments && r.err == nil; i++ {
		size, homes, count := r.uvarint("slots of a segment"), r.uvarint("homes of a segment"), r.length(3, "keys of a segment")
		if count == 0 {
			if size != 0 || homes != 0 {
				r.fail("a segment without keys has slots")
			}
			continue
		}
		// What is sparser was rebuilt smaller.
		if most := uint64(count)*8 + 64; homes < minHomes || homes > most || size < homes+minTail || size > 2*most {
			r.fail("a segment has %d slots, %d homes for %d keys", size, homes, count)
			return
		}
		s := segment{slots: make([]slot, size), homes: uint32(homes)}
		next = r.slots(x, &s, i, count, refs, next)
		x.table.replace(&x.table.segments[i], s)
	}
}

// slots reads the keys of segment i.
func (r *reader) slots(x *Index, s *segment, i, count int, refs []ref, next int) int {
	first := uint64(i) << (64 - segmentBits)
	at := 0
	for j := range count {
		step := r.uvarint("a key")
		key := first + step
		if j > 0 && step == 0 || key < first || segmentOf(key) != i {
			r.fail("a key is out of order")
			return next
		}
		first = key
		in := slot{inverse: ^key}
		switch v := r.uvarint("a ref"); {
		case v&1 != 0:
			if v>>3 >= uint64(len(x.owners)) || !x.used(element(v>>1)) {
				r.fail("a key has a lane that is free")
				return next
			}
			in.ref = single | ref(v>>1)
		case v>>1 > uint64(next) || v>>1 >= uint64(len(refs)):
			r.fail("a key has set %d, out of order", v>>1)
			return next
		default:
			in.ref = refs[v>>1]
			next = max(next, int(v>>1)+1)
			x.sets.at(in.ref).refs++
		}
		in.depth = uint32(r.upTo(orphanDepth, "a depth"))
		at = max(at, s.home(key))
		if at >= len(s.slots)-1 {
			r.fail("the keys of a segment do not fit")
			return next
		}
		s.slots[at] = in
		at++
		s.count++
		x.table.keys++
		x.table.depths[depthClass(in.depth)]++
	}
	return next
}

// count counts the entries.
func (r *reader) count(x *Index, refs []ref) {
	entries := make([]int, len(x.owners)<<2)
	for i := range x.table.segments {
		for _, in := range x.table.segments[i].slots {
			if in.ref.isSingle() {
				entries[in.ref.element()]++
			}
		}
	}
	for _, one := range refs {
		x.members = x.sets.elements(x.members[:0], one)
		for _, e := range x.members {
			entries[e] += int(x.sets.at(one).refs)
		}
	}
	for e, n := range entries {
		if owner := x.owners[element(e).lane()]; owner != nil {
			x.count(owner, element(e).tier(), n)
		}
	}
}
