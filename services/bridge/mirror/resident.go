package mirror

import (
	"slices"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// Resident returns the events that tell in a new epoch all that there is: a
// clear, the blocks, parents before their children, and the doubt if there is
// one. What comes of Apply afterwards continues them.
func (m *Mirror) Resident() []*pb.KVEvent {
	return m.beginEpoch("told again")
}

// tellAll tells every block in every tier.
func (m *Mirror) tellAll(out *output) {
	if m.present == [tiers]int{} {
		return
	}
	order := m.chains()
	out.expect(maxRun)
	for t := range tier(tiers) {
		for _, n := range order {
			if !m.slab.at(n).shownIn(t) {
				continue
			}
			m.tellStore(out, n, t)
		}
	}
	for t := range tier(tiers) { // apart, so that chains stay whole
		for _, n := range order {
			if m.slab.at(n).shownIn(t) {
				m.tellCopies(out, n, t, 1)
			}
		}
	}
}

// chains is the nodes that show keys, in chains, parents first.
func (m *Mirror) chains() []int32 {
	var order, path []int32
	seen := make([]bool, m.slab.next)
	for n := range m.slab.all() {
		for up := n; up != 0 && !seen[up]; {
			seen[up] = true
			one := m.slab.at(up)
			if one.layout == 0 || !m.completes(up) || one.shown == 0 {
				break
			}
			path = append(path, up)
			up = 0
			if !one.is(flagFirst) {
				up = m.findKey(one.layout, one.prev)
			}
		}
		slices.Reverse(path)
		order = append(order, path...)
		path = path[:0]
	}
	return order
}

// Visit calls f for every block key in every tier, until f returns false, in an
// order that depends on the events alone.
func (m *Mirror) Visit(f func(t pb.Tier, key blockkey.Key) bool) {
	inner := map[blockkey.Key]uint8{} // the tiers in which a shared key was given
	for n := range m.slab.all() {
		one := m.slab.at(n)
		if one.layout == 0 || one.shown == 0 || !m.completes(n) {
			continue
		}
		for t := range tier(tiers) {
			if !one.shownIn(t) {
				continue
			}
			keys := m.keysOf(n)
			for _, k := range keys[:len(keys)-1] {
				if inner[k]>>t&1 != 0 {
					continue
				}
				inner[k] |= 1 << t
				if !f(t.proto(), k) {
					return
				}
			}
			if !m.shownEarlier(n, t) && !f(t.proto(), one.key) {
				return
			}
		}
	}
}

// shownEarlier says whether a twin that comes before n shows n's key in a tier.
func (m *Mirror) shownEarlier(n int32, t tier) bool {
	one := m.slab.at(n)
	for other := m.findKey(one.layout, one.key); other != n; other = m.slab.at(other).twin {
		if m.slab.at(other).shownIn(t) {
			return true
		}
	}
	return false
}
