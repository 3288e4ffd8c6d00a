package prefix

import (
	"math/bits"
	"slices"
	"unsafe"
)

// sweepSlots bounds what a batch sweeps, to some 20 µs, but for the last segment.
const sweepSlots = 4096

// ends says whether a batch ends a life. Such a batch takes effect before
// anything is swept, unless much is left of others.
func (x *Index) ends(b Batch) bool {
	r := x.replicas[b.replica]
	if r == nil || x.dead >= 1024 {
		return false
	}
	if r.epoch != b.epoch {
		return true
	}
	return slices.ContainsFunc(b.changes, func(c change) bool { return c.kind == clearAll })
}

// sweep takes what dead lanes left behind out of some segments; readers come in
// between them. It changes no answer. One segment a batch has the table clean
// after 4,096 batches, and the more lives end, the more is swept, so that even a
// replica that clears its cache with every batch leaves few lanes behind.
func (x *Index) sweep() {
	slots := 0
	for n := 1 + min(7, x.dead/64); n > 0 && x.dead > 0 && slots < sweepSlots; n-- {
		if x.table.segments != nil {
			slots += len(x.table.segments[x.cursor].slots)
		}
		x.gate.lock()
		x.sweepSegment()
		x.gate.unlock()
	}
}

// sweepSegment clears dead lanes from the next segment. A lane that was dead when
// a sweep of the whole table began is clean when it ends.
func (x *Index) sweepSegment() {
	if x.cursor == 0 {
		copy(x.sweeping, x.dirty)
	}
	if x.table.segments != nil {
		x.clean(&x.table.segments[x.cursor])
	}
	if x.cursor++; x.cursor < numSegments {
		return
	}
	x.cursor = 0
	for w := range x.sweeping {
		x.dead -= bits.OnesCount64(x.sweeping[w])
		x.dirty[w] &^= x.sweeping[w]
		x.sweeping[w] = 0
	}
}

// renaming remembers what refs become while a segment is walked.
type renaming [64]struct{ from, to ref }

// clean takes the lanes being swept out of a segment.
func (x *Index) clean(s *segment) {
	var known renaming
	x.table.retain(s, builtLoad, func(in *slot) bool {
		one := &known[in.ref%ref(len(known))]
		if one.from != in.ref {
			one.from, one.to = in.ref, x.sets.less(in.ref, x.sweeping)
		}
		if one.to == in.ref {
			return true
		}
		from, to := in.ref, one.to
		if !from.isSingle() && x.sets.at(from).refs == 1 {
			one.from = nobody // its id may come to mean something else
		}
		in.ref = to
		x.sets.move(from, to, 1)
		return to != nobody
	})
	if s.sparse() && s.slots != nil {
		x.table.replace(s, s.rebuilt(s.count, builtLoad))
	}
}

// bytes is the index's memory: its slots, its sets, its replicas and what is
// noted of holes, by the sizes that the allocator gives. What grows by doubling
// is counted at the size that its highest count needed, so that an index counts
// the same whether it was folded or restored.
func (x *Index) bytes() int64 {
	b := int64(unsafe.Sizeof(*x)) + x.table.bytes + x.sets.bytes() + x.fixed + int64(x.touches)*touchBytes
	if x.table.segments != nil {
		b += int64(numSegments) * int64(unsafe.Sizeof(segment{}))
	}
	return b + int64(len(x.live))*(3*8+64*8)
}

// fit evicts until the index keeps to its budget.
func (x *Index) fit() {
	if x.cfg.MaxBytes <= 0 {
		return
	}
	for x.bytes() > x.cfg.MaxBytes && x.table.keys > 0 {
		if x.dead > 0 { // the least useful of all
			x.sweepSegment()
			continue
		}
		x.evictSegment()
	}
}

// evictSegment takes the deepest sixteenth of all keys, or a little more, out of
// the next segment. What is deepest ends a match the latest and is shared the
// least, and what had followed it is of no use without it.
func (x *Index) evictSegment() {
	class, eligible := numDepths, 0
	for eligible*16 <= x.table.keys {
		class--
		eligible += x.table.depths[class]
	}
	s := &x.table.segments[x.hand]
	x.hand = (x.hand + 1) % numSegments
	x.table.retain(s, maxLoad-0.02, func(in *slot) bool {
		if depthClass(in.depth) < class {
			return true
		}
		x.members = x.sets.elements(x.members[:0], in.ref)
		for _, e := range x.members {
			if r := x.owners[e.lane()]; r != nil {
				x.count(r, e.tier(), -1)
				x.stats.Evicted++
			}
		}
		x.sets.move(in.ref, nobody, 1)
		return false
	})
}
