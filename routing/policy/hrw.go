package policy

import (
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	pb "warmpath/schemas/warmpathv1"
)

// HRW is the rendezvous weight of a replica for a key: the replica with the
// highest weight is the key's own. Adding or removing a replica moves only the
// keys that it gains or loses.
func HRW(key uint64, replica string) uint64 {
	return xxh3.HashStringSeed(replica, key)
}

// highest returns which of the given candidates has the highest weight for key;
// the first in order of replica should two be equal. at is not empty.
func highest(d *pb.Decided, at []int, key uint64) int {
	best, weight := at[0], HRW(key, d.Candidates[at[0]].Replica)
	for _, i := range at[1:] {
		if w := HRW(key, d.Candidates[i].Replica); w > weight {
			best, weight = i, w
		}
	}
	return best
}

// byWeight sorts the given candidates by falling weight for key.
func byWeight(d *pb.Decided, at []int, key uint64) []int {
	sorted := slices.Clone(at)
	slices.SortStableFunc(sorted, func(i, j int) int {
		a, b := HRW(key, d.Candidates[i].Replica), HRW(key, d.Candidates[j].Replica)
		switch {
		case a > b:
			return -1
		case a < b:
			return 1
		}
		return 0
	})
	return sorted
}

// held is how many leading keys a candidate has, or is about to have.
func held(c *pb.Candidate) int {
	return int(max(c.PredictedBlocks, c.TotalBlocks, c.GpuBlocks))
}

// newKey is the first key that no eligible candidate has: what sets a request
// apart from everything that was routed before, so that requests which only
// share what many replicas have are spread by it. When all keys are held it is
// the last; a prompt without a full block goes by its session, and one without
// that by the decision's seed.
func newKey(d *pb.Decided, eligible []int) uint64 {
	deepest := 0
	for _, i := range eligible {
		deepest = max(deepest, held(d.Candidates[i]))
	}
	switch {
	case len(d.Keys) > 0:
		return d.Keys[min(deepest, len(d.Keys)-1)]
	case d.SessionKey != 0:
		return d.SessionKey
	}
	return d.Seed
}

// placeKey is what a request is placed by without knowing any cache: its
// session, or else the key of the block that ends its first prefixTokens
// tokens, or of its last block when it is shorter.
func placeKey(d *pb.Decided, prefixTokens float64) uint64 {
	switch {
	case d.SessionKey != 0:
		return d.SessionKey
	case len(d.Keys) == 0:
		return d.Seed
	}
	blocks := 1
	if d.BlockTokens > 0 {
		blocks = max(blocks, int(math.Ceil(prefixTokens/float64(d.BlockTokens))))
	}
	return d.Keys[min(blocks, len(d.Keys))-1]
}

// Streams of random numbers that one seed gives.
const (
	drawExplore uint64 = iota + 1
	drawExplored
	drawRandom
	drawLeast
)

// draw returns 64 random bits that depend on seed and stream only (splitmix64).
func draw(seed, stream uint64) uint64 {
	z := seed + stream*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// unit makes a number in [0, 1) of random bits.
func unit(bits uint64) float64 {
	return float64(bits>>11) / (1 << 53)
}
