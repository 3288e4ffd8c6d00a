package prefix

import (
	"math/bits"

	"warmpath/routing/blockkey"
)

const (
	// bankSlots is how many cache lives one bank holds: the bits of a word.
	bankSlots = 64
	// numSegments splits a bank, so that freeing what dead lives left behind can
	// be spread over many batches: one segment of an index of a million keys is
	// about 4,000 keys, swept in some 50 µs.
	numSegments = 256
)

// holders says which slots hold a key, per tier.
type holders [NumTiers]uint64

// any is the slots that hold the key in some tier.
func (h holders) any() uint64 {
	return h[GPU] | h[CPU] | h[Disk] | h[Remote]
}

// bank is a table from key to its holders among up to 64 cache lives. A life
// takes a slot, which is a bit in every entry. When the life ends its slot is
// left out of owned, which takes its blocks away at once; the bits themselves
// are swept later, a segment a batch, and only then is the slot used again.
type bank struct {
	segments [numSegments]map[blockkey.Key]holders
	owner    [bankSlots]*replica
	// owned, dirty and free part the slots: in use; dead, with bits left; clean.
	owned, dirty, free uint64
	// sweeping is the dirty slots that the running sweep clears, cursor the
	// segment it comes to next.
	sweeping uint64
	cursor   int
	// keys counts the entries of all segments.
	keys int
}

func newBank() *bank {
	return &bank{free: ^uint64(0)}
}

// segment is the part of the bank where a key belongs. Keys are hashes, so any
// bits of them do.
func segment(k blockkey.Key) int {
	return int(k >> 56)
}

// get returns a key's holders, dead ones included.
func (b *bank) get(k blockkey.Key) holders {
	return b.segments[segment(k)][k]
}

// take gives a clean slot to r; ok is false when there is none.
func (b *bank) take(r *replica) (slot int, ok bool) {
	if b.free == 0 {
		return 0, false
	}
	slot = bits.TrailingZeros64(b.free)
	bit := uint64(1) << slot
	b.free &^= bit
	b.owned |= bit
	b.owner[slot] = r
	return slot, true
}

// release ends the life in a slot, at once for readers.
func (b *bank) release(slot int) {
	bit := uint64(1) << slot
	b.owned &^= bit
	b.dirty |= bit
	b.owner[slot] = nil
}

// store marks keys as held by a slot in a tier and returns how many were not.
func (b *bank) store(slot int, t Tier, keys []blockkey.Key) (stored int) {
	bit := uint64(1) << slot
	for _, k := range keys {
		seg := b.segments[segment(k)]
		if seg == nil {
			seg = map[blockkey.Key]holders{}
			b.segments[segment(k)] = seg
		}
		h, exists := seg[k]
		if h[t]&bit != 0 {
			continue
		}
		h[t] |= bit
		seg[k] = h
		stored++
		if !exists {
			b.keys++
		}
	}
	return stored
}

// remove takes the mark away and returns from how many keys.
func (b *bank) remove(slot int, t Tier, keys []blockkey.Key) (removed int) {
	bit := uint64(1) << slot
	for _, k := range keys {
		seg := b.segments[segment(k)]
		h := seg[k]
		if h[t]&bit == 0 {
			continue
		}
		h[t] &^= bit
		b.put(seg, k, h)
		removed++
	}
	return removed
}

// put writes back what is left of an entry.
func (b *bank) put(seg map[blockkey.Key]holders, k blockkey.Key, h holders) {
	if h.any() == 0 {
		delete(seg, k)
		b.keys--
		return
	}
	seg[k] = h
}

// sweep clears the bits of dead lives from one segment. A slot that was dead
// when a sweep of the whole bank began is clean when it ends.
func (b *bank) sweep() {
	if b.sweeping == 0 {
		if b.dirty == 0 {
			return
		}
		b.sweeping, b.cursor = b.dirty, 0
	}
	seg := b.segments[b.cursor]
	for k, h := range seg {
		if h.any()&b.sweeping == 0 {
			continue
		}
		for t := range h {
			h[t] &^= b.sweeping
		}
		b.put(seg, k, h)
	}
	if len(seg) == 0 {
		b.segments[b.cursor] = nil
	}
	if b.cursor++; b.cursor == numSegments {
		b.dirty &^= b.sweeping
		b.free |= b.sweeping
		b.sweeping = 0
	}
}
