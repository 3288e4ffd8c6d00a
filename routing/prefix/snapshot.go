package prefix

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/zeebo/xxh3"
)

// A snapshot is the whole state: not only what answers depend on, but also what
// dead lives left behind, how large each segment is and where the sweep stands,
// because what a budget evicts depends on those. So an index that was restored
// and one that was not go on in the same way. In uvarints where nothing else is
// said, and in this order:
//
//	magic         8 bytes, the version in the last
//	position      and the counters of stats
//	high, cursor, hand
//	lanes         number, then for each 0 free, 1 dirty, 2 dirty and being swept,
//	              else 3 + the order of its replica
//	replicas      number, then for each, by name: name, epoch (16 bytes), seq,
//	              flags (1 byte: 1 unsure, 2 a doubt was told; in version 1 only
//	              unsure), with flag 2 the doubt's seq, its reason's length and
//	              reason; holes, touches
//	sets          number, then for each, in the order that keys first have them:
//	              number of elements, the first, the steps to the next ones
//	segments      number, 0 or 4,096, then for each: slots, homes, keys, then for each key, in order: step from the
//	              key before, ref (element<<1 | 1, or the number of a set <<1), depth
//	checksum      XXH3-64 of all that, 8 bytes little endian
const snapshotMagic = "wpindex\x02"

// oldestVersion is the first version that Restore still reads.
const oldestVersion = 1

// The flags of a replica in a snapshot.
const (
	flagUnsure = 1 << iota
	flagDoubt
	allFlags = flagUnsure | flagDoubt
)

const checksumBytes = 8

// The states of a lane in a snapshot.
const (
	laneFree = iota
	laneDirty
	laneSweeping
	laneLive
)

// AppendSnapshot appends the whole state of the index to dst. Equal streams give
// equal bytes, also when one index was restored on the way. Matches go on
// meanwhile; Apply and Drop wait.
func (x *Index) AppendSnapshot(dst []byte) []byte {
	x.writer.Lock()
	defer x.writer.Unlock()
	start := len(dst)
	// About 11 bytes a key on a pool like the bench's: mostly one growth.
	dst = slices.Grow(dst, 12*x.table.keys+64*len(x.sorted)+4*numSegments)
	dst = append(dst, snapshotMagic...)
	dst = binary.AppendUvarint(dst, x.position)
	for _, n := range x.stats.counters() {
		dst = binary.AppendUvarint(dst, *n)
	}
	dst = binary.AppendUvarint(dst, uint64(x.sets.high))
	dst = binary.AppendUvarint(dst, uint64(x.cursor))
	dst = binary.AppendUvarint(dst, uint64(x.hand))
	dst = x.appendLanes(dst)
	dst = binary.AppendUvarint(dst, uint64(len(x.sorted)))
	for _, r := range x.sorted {
		dst = r.append(dst)
	}
	order, numbers := x.numberSets()
	dst = binary.AppendUvarint(dst, uint64(len(order)))
	for _, r := range order {
		dst = x.appendSet(dst, r)
	}
	dst = binary.AppendUvarint(dst, uint64(len(x.table.segments)))
	for i := range x.table.segments {
		dst = x.table.segments[i].append(dst, uint64(i)<<(64-segmentBits), numbers)
	}
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[start:]))
}

// counters lists what a snapshot keeps of the stats.
func (s *Stats) counters() []*uint64 {
	return []*uint64{
		&s.Batches, &s.Stale, &s.Duplicates, &s.Gaps, &s.Missing, &s.Late,
		&s.UnknownRemovals, &s.UnknownEvents, &s.Evicted,
	}
}

func (x *Index) appendLanes(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(x.owners)))
	for lane, r := range x.owners {
		state := uint64(laneFree)
		switch {
		case r != nil:
			state = laneLive + uint64(r.order)
		case bitOf(x.sweeping, lane):
			state = laneSweeping
		case bitOf(x.dirty, lane):
			state = laneDirty
		}
		dst = binary.AppendUvarint(dst, state)
	}
	return dst
}

func (r *replica) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(r.name)))
	dst = append(dst, r.name...)
	dst = append(dst, r.epoch[:]...)
	dst = binary.AppendUvarint(dst, r.seq)
	flags := byte(0)
	if r.unsure {
		flags |= flagUnsure
	}
	if r.doubtSeq > 0 {
		flags |= flagDoubt
	}
	dst = append(dst, flags)
	if r.doubtSeq > 0 {
		dst = binary.AppendUvarint(dst, r.doubtSeq)
		dst = binary.AppendUvarint(dst, uint64(len(r.doubt)))
		dst = append(dst, r.doubt...)
	}
	h := &r.history
	dst = binary.AppendUvarint(dst, uint64(len(h.holes)))
	for _, s := range h.holes {
		dst = binary.AppendUvarint(dst, s.first)
		dst = binary.AppendUvarint(dst, s.last-s.first)
	}
	dst = binary.AppendUvarint(dst, h.cleared)
	dst = binary.AppendUvarint(dst, uint64(len(h.touched)))
	for _, k := range slices.SortedFunc(maps.Keys(h.touched), compareTouches) {
		dst = binary.LittleEndian.AppendUint64(dst, k.key)
		dst = append(dst, byte(k.tier))
		dst = binary.AppendUvarint(dst, h.touched[k])
	}
	return dst
}

// numberSets numbers the sets in the order that keys first have them, so that a
// snapshot does not tell the history of their ids.
func (x *Index) numberSets() (order []ref, numbers []uint32) {
	numbers = make([]uint32, x.sets.next)
	seen := make([]bool, x.sets.next)
	for i := range x.table.segments {
		for _, in := range x.table.segments[i].slots {
			if in.ref != nobody && !in.ref.isSingle() && !seen[in.ref] {
				seen[in.ref] = true
				numbers[in.ref] = uint32(len(order))
				order = append(order, in.ref)
			}
		}
	}
	return order, numbers
}

func (x *Index) appendSet(dst []byte, r ref) []byte {
	x.members = x.sets.elements(x.members[:0], r)
	dst = binary.AppendUvarint(dst, uint64(len(x.members)))
	last := element(0)
	for _, e := range x.members {
		dst = binary.AppendUvarint(dst, uint64(e-last))
		last = e
	}
	return dst
}

func (s *segment) append(dst []byte, first uint64, numbers []uint32) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s.slots)))
	dst = binary.AppendUvarint(dst, uint64(s.homes))
	dst = binary.AppendUvarint(dst, uint64(s.count))
	for _, in := range s.slots {
		if in.ref == nobody {
			continue
		}
		dst = binary.AppendUvarint(dst, in.key()-first)
		first = in.key()
		if in.ref.isSingle() {
			dst = binary.AppendUvarint(dst, uint64(in.ref.element())<<1|1)
		} else {
			dst = binary.AppendUvarint(dst, uint64(numbers[in.ref])<<1)
		}
		dst = binary.AppendUvarint(dst, uint64(in.depth))
	}
	return dst
}
