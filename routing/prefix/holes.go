package prefix

import "slices"

// history is the holes in one epoch of a replica. Batches that were lost on the
// way may be resent after later ones were applied; what those have changed since
// is noted, so that a late batch changes only what it is the last to change.
type history struct {
	// holes is the missing seqs, in order, apart from each other.
	holes []span
	// touched is the seq that last stored or removed an element since the first
	// hole, cleared the seq of the last clear.
	touched map[touch]uint64
	cleared uint64
}

// span is seqs from first to last.
type span struct{ first, last uint64 }

type touch struct {
	key  uint64
	tier Tier
}

const (
	// maxHoles and maxTouches bound what is kept of one replica, maxAllTouches of
	// all together. A bridge resends within its window of a few hundred batches;
	// beyond the bounds the replica stays suspect until its next epoch.
	maxHoles      = 64
	maxTouches    = 1 << 15
	maxAllTouches = 1 << 20
	// touchBytes is what a note costs in a Go map at its lowest load.
	touchBytes = 64
)

// open says whether batches are missing that may still come.
func (h *history) open() bool { return len(h.holes) > 0 }

// miss notes that the seqs from first to last are missing, which are later than
// all before.
func (h *history) miss(first, last uint64) {
	h.holes = append(h.holes, span{first, last})
	if h.touched == nil {
		h.touched = map[touch]uint64{}
	}
}

// fill takes seq off the holes and reports whether it was there.
func (h *history) fill(seq uint64) bool {
	i, _ := slices.BinarySearchFunc(h.holes, seq, func(s span, seq uint64) int {
		if s.last < seq {
			return -1
		}
		return 1
	})
	if i == len(h.holes) || h.holes[i].first > seq {
		return false
	}
	was := h.holes[i]
	left := make([]span, 0, 2)
	if was.first < seq {
		left = append(left, span{was.first, seq - 1})
	}
	if seq < was.last {
		left = append(left, span{seq + 1, was.last})
	}
	h.holes = slices.Replace(h.holes, i, i+1, left...)
	return true
}

// touch notes that seq changes an element and reports whether it may: whether
// nothing later has.
func (x *Index) touch(h *history, k touch, seq uint64) bool {
	last, noted := h.touched[k]
	if seq < h.cleared || seq < last {
		return false
	}
	h.touched[k] = seq
	if !noted {
		x.touches++
	}
	return true
}

// settle forgets a history that is whole, and gives up one that is too long.
func (x *Index) settle(r *replica) {
	h := &r.history
	if h.touched == nil {
		return
	}
	switch {
	case !h.open() && !r.unsure:
	case r.unsure, len(h.holes) > maxHoles, len(h.touched) > maxTouches, x.touches > maxAllTouches:
		r.unsure = true
	default:
		return
	}
	x.forget(r)
}

// forget takes r's history away.
func (x *Index) forget(r *replica) {
	x.touches -= len(r.history.touched)
	r.history = history{}
}

// changeNoted is change for a replica with holes.
func (x *Index) changeNoted(r *replica, c change, seq uint64, a *Applied) {
	if c.kind == clearAll {
		x.clearNoted(r, seq)
		a.Cleared = true
		return
	}
	depth := x.depth(c)
	for i, k := range c.keys {
		if !x.touch(&r.history, touch{k, c.tier}, seq) {
			continue
		}
		one := change{kind: c.kind, tier: c.tier, keys: c.keys[i : i+1], depth: depth}
		if c.kind == store {
			a.Stored += x.store(r, one)
		} else {
			n := x.remove(r, one)
			a.Removed += n
			a.UnknownRemoved += 1 - n
		}
		if depth < orphanDepth-1 {
			depth++
		}
	}
}

// clearNoted empties r of all that nothing after seq has stored.
func (x *Index) clearNoted(r *replica, seq uint64) {
	h := &r.history
	if seq < h.cleared {
		return
	}
	h.cleared = seq
	var kept []touch
	for k, last := range h.touched {
		if last <= seq {
			delete(h.touched, k)
			x.touches--
			continue
		}
		if x.sets.has(x.table.get(k.key), elementOf(r.lane, k.tier)) {
			kept = append(kept, k)
		}
	}
	slices.SortFunc(kept, compareTouches)
	depths := make([]uint32, len(kept))
	for i, k := range kept {
		s := &x.table.segments[segmentOf(k.key)]
		at, _ := s.find(k.key)
		depths[i] = s.slots[at].depth
	}
	x.restart(r)
	for i, k := range kept {
		x.store(r, change{kind: store, tier: k.tier, keys: []uint64{k.key}, depth: depths[i]})
	}
}

func compareTouches(a, b touch) int {
	switch {
	case a.key < b.key:
		return -1
	case a.key > b.key:
		return 1
	}
	return int(a.tier) - int(b.tier)
}
