package bench

import (
	"encoding/binary"
	"math/bits"

	"warmpath/routing/blockkey"
)

// maskBits is how many replicas one map of masks holds.
const maskBits = 64

// floor is the plainest index that could answer at all, against which ours is
// measured in the same run: a Go map from key to a mask of replicas, one map per
// 64 replicas. It has no tiers, no locks and no epochs, checks nothing, and
// cannot give a replica's blocks back.
type floor struct {
	masks []map[uint64]uint64
	live  []uint64 // the replicas there are, by map
}

func newFloor(replicas int) *floor {
	f := &floor{}
	for left := replicas; left > 0; left -= maskBits {
		f.masks = append(f.masks, map[uint64]uint64{})
		f.live = append(f.live, ^uint64(0)>>(maskBits-min(left, maskBits)))
	}
	return f
}

func (f *floor) store(replica int, keys []blockkey.Key) {
	m, bit := f.masks[replica/maskBits], uint64(1)<<(replica%maskBits)
	for _, k := range keys {
		m[k] |= bit
	}
}

// remove is not part of the floor's figures; only the writer that runs beside a
// reader needs it, so that it has something to do.
func (f *floor) remove(replica int, keys []blockkey.Key) {
	m, bit := f.masks[replica/maskBits], uint64(1)<<(replica%maskBits)
	for _, k := range keys {
		m[k] &^= bit
	}
}

// match writes every replica's depth: masks are intersected until none is left.
func (f *floor) match(depths []int, keys []blockkey.Key) {
	for i, m := range f.masks {
		out := depths[i*maskBits:]
		held := f.live[i]
		for at, k := range keys {
			here := m[k]
			for gone := held &^ here; gone != 0; gone &= gone - 1 {
				out[bits.TrailingZeros64(gone)] = at
			}
			if held &= here; held == 0 {
				break
			}
		}
		for ; held != 0; held &= held - 1 {
			out[bits.TrailingZeros64(held)] = len(keys)
		}
	}
}

// forget takes a replica out the only way there is: by looking at every key.
func (f *floor) forget(replica int) {
	m, bit := f.masks[replica/maskBits], uint64(1)<<(replica%maskBits)
	for k, here := range m {
		if here&bit != 0 {
			m[k] = here &^ bit
		}
	}
}

// save writes keys and masks as they come, unsorted and unchecked.
func (f *floor) save(dst []byte) []byte {
	for _, m := range f.masks {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(len(m)))
		for k, here := range m {
			dst = binary.LittleEndian.AppendUint64(dst, k)
			dst = binary.LittleEndian.AppendUint64(dst, here)
		}
	}
	return dst
}

// load is the inverse of save.
func (f *floor) load(src []byte) {
	for i := range f.masks {
		n := binary.LittleEndian.Uint64(src)
		src = src[8:]
		m := make(map[uint64]uint64, n)
		for range n {
			m[binary.LittleEndian.Uint64(src)] = binary.LittleEndian.Uint64(src[8:])
			src = src[16:]
		}
		f.masks[i] = m
	}
}
