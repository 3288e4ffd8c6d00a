package mirror

import (
	"math"

	"warmpath/routing/blockkey"
)

// addCopy notes a store of n in a tier. announced says that the engine is known
// to repeat what it said before.
func (m *Mirror) addCopy(n int32, t tier, announced bool) {
	one := m.slab.at(n)
	switch {
	case one.copies[t] == 0:
		m.unlist(n)
		one.copies[t] = 1
		m.count(n, t, 1, 1)
		m.show(n, t)
		m.checkCapacity()
	case announced || m.once || m.cfg.Repeats == Once:
		m.stats.Announced++
		if one.absorbedIn(t) && m.named(n) { // told as what it amounts to
			if one.copies[t] == 1 {
				m.hide(n, t, 1)
				m.show(n, t)
			} else {
				m.tellRemoval(n, t, 1, false)
				m.tellStore(&m.out, n, t)
			}
		}
		one.absorbed &^= 1 << t
	case one.copies[t] == math.MaxUint16:
		m.distrust("too many copies of a block")
	default:
		m.stats.Copied++
		m.repeat(n, t)
		m.checkCapacity()
	}
}

// repeat adds a copy to a block that is there.
func (m *Mirror) repeat(n int32, t tier) {
	one := m.slab.at(n)
	one.copies[t]++
	one.absorbed &^= 1 << t
	m.count(n, t, 0, 1)
	if m.named(n) {
		m.tellStore(&m.out, n, t)
	}
}

// named says whether events tell n by the engine's name too.
func (m *Mirror) named(n int32) bool {
	return m.layouts[m.slab.at(n).layout].k > 0 && !m.unadoptable
}

// dropCopy takes one copy of n out of a tier in which it is.
func (m *Mirror) dropCopy(n int32, t tier) {
	m.lessen(n, t, m.slab.at(n).copies[t]-1)
}

// setCopies makes n have so many copies in a tier in which it is.
func (m *Mirror) setCopies(n int32, t tier, left int64) {
	most := int64(math.MaxUint16)
	if m.once || m.cfg.Repeats == Once {
		most = 1
	}
	left = min(left, most)
	one := m.slab.at(n)
	for int64(one.copies[t]) < left {
		m.repeat(n, t)
	}
	if int64(one.copies[t]) > left {
		m.lessen(n, t, uint16(left))
	}
	m.checkCapacity()
}

// lessen takes copies of n away until left are there.
func (m *Mirror) lessen(n int32, t tier, left uint16) {
	one := m.slab.at(n)
	went := int(one.copies[t] - left)
	one.copies[t] = left
	if left > 0 {
		one.absorbed |= 1 << t
		m.count(n, t, 0, -went)
		m.tellRemoval(n, t, went, false)
		return
	}
	one.absorbed &^= 1 << t
	m.count(n, t, -1, -went)
	m.hide(n, t, went)
	if !one.gone() {
		return
	}
	if one.layout == 0 {
		m.release(n)
	} else {
		m.rest(n)
	}
}

// count keeps the numbers of blocks and of copies. A partial block is no block.
func (m *Mirror) count(n int32, t tier, blocks, copies int) {
	if m.slab.at(n).is(flagPartial) {
		return
	}
	m.present[t] += blocks
	if t == gpu {
		m.copies += copies
	}
}

// checkCapacity sees repeats for what they are when there are more copies than
// the engine has room for: announcements, of which the last says what is. So a
// block whose last event was a removal is gone, and any other is there once.
func (m *Mirror) checkCapacity() {
	if m.once || m.adopting || m.cfg.Capacity == 0 || m.cfg.Repeats == Once || m.copies <= m.cfg.Capacity || m.copies == m.present[gpu] {
		return
	}
	m.once = true
	m.stats.Collapses++
	for n := range m.slab.all() {
		for t := range tier(tiers) {
			one := m.slab.at(n)
			switch {
			case !one.is(flagUsed) || one.copies[t] == 0:
			case one.absorbedIn(t):
				m.lessen(n, t, 0)
			case one.copies[t] > 1:
				m.lessen(n, t, 1)
				one.absorbed &^= 1 << t
			}
		}
	}
	m.out.announcements()
}

// rest puts a named node that is in no tier among the names, unless others
// stand on it.
func (m *Mirror) rest(n int32) {
	if m.layouts[m.slab.at(n).layout].parts > 1 && m.part(n).child != 0 {
		return
	}
	m.list(n, true)
}

// show says that n came to a tier, and shows what it completes.
func (m *Mirror) show(n int32, t tier) {
	one := m.slab.at(n)
	l := &m.layouts[one.layout]
	if l.k > 0 {
		one.shown |= 1 << t
		for _, k := range m.keysOf(n)[:l.k-1] {
			held := l.inner[k]
			held[t]++
			l.inner[k] = held
		}
		m.tellStore(&m.out, n, t)
		return
	}
	if l.parts < 2 {
		return // it has no name
	}
	p := m.part(n)
	if p.parent != 0 && !m.slab.at(p.parent).shownIn(t) {
		return
	}
	one.shown |= 1 << t
	if m.completes(n) {
		m.tellStore(&m.out, n, t)
		return
	}
	for child := p.child; child != 0; child = m.part(child).after {
		if m.slab.at(child).copies[t] > 0 {
			m.show(child, t)
		}
	}
}

// hide says that n left a tier, with so many copies, and hides what it was a
// part of.
func (m *Mirror) hide(n int32, t tier, went int) {
	one := m.slab.at(n)
	if !one.shownIn(t) {
		return
	}
	one.shown &^= 1 << t
	if m.completes(n) {
		m.hideInner(n, t)
		m.tellRemoval(n, t, went, true)
		return
	}
	for child := m.part(n).child; child != 0; child = m.part(child).after {
		m.hide(child, t, 0)
	}
}

// hideInner says that n's keys but the last left a tier with it.
func (m *Mirror) hideInner(n int32, t tier) {
	l := &m.layouts[m.slab.at(n).layout]
	if l.k < 2 {
		return
	}
	for _, k := range m.keysOf(n)[:l.k-1] {
		held := l.inner[k]
		if held[t]--; held == [tiers]uint32{} {
			delete(l.inner, k)
		} else {
			l.inner[k] = held
		}
	}
}

// tellStore tells n in a tier, and which copies of what when it is named.
func (m *Mirror) tellStore(out *output, n int32, t tier) {
	one := m.slab.at(n)
	out.stores(t, one.prev, one.is(flagFirst), m.keysOf(n), one.name, m.named(n))
}

// tellRemoval tells that copies of n left a tier, and its keys if they did.
func (m *Mirror) tellRemoval(n int32, t tier, went int, keys bool) {
	if !m.named(n) {
		went = 0
	}
	var gone []blockkey.Key
	if keys {
		gone = m.left(n, t)
	}
	m.out.removes(t, gone, m.slab.at(n).name, went)
}

// left is the keys of n that no other node shows in a tier.
func (m *Mirror) left(n int32, t tier) []blockkey.Key {
	l, keys := &m.layouts[m.slab.at(n).layout], m.keysOf(n)
	m.buf.left = m.buf.left[:0]
	for _, k := range keys[:len(keys)-1] {
		if l.inner[k][t] == 0 {
			m.buf.left = append(m.buf.left, k)
		}
	}
	if !m.shownByTwin(n, t) {
		m.buf.left = append(m.buf.left, keys[len(keys)-1])
	}
	return m.buf.left
}

// shownByTwin says whether another node shows n's key in a tier.
func (m *Mirror) shownByTwin(n int32, t tier) bool {
	one := m.slab.at(n)
	for other := m.findKey(one.layout, one.key); other != 0; other = m.slab.at(other).twin {
		if other != n && m.slab.at(other).shownIn(t) {
			return true
		}
	}
	return false
}
