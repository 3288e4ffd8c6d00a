package mirror

import (
	"slices"

	"warmpath/routing/blockkey"
)

// orphan is what is known of a block without a name: it gets one when its parent
// has one.
type orphan struct {
	parent    uint64
	hasParent bool
	layout    uint8
	tokens    []uint32
	extras    []blockkey.Extra

	n              int32
	earlier, later *orphan // in the line of those that wait for the same parent
}

// line is the orphans of one parent, in order of arrival.
type line struct{ first, last *orphan }

const (
	// maxWaitingTokens bounds the tokens that are kept of orphans, 16 MB; beyond
	// them an orphan stays without a name until it is stored again.
	maxWaitingTokens = 4 << 20
	// maxOrphanExtras bounds the content items kept of one.
	maxOrphanExtras = 64
)

// unname returns a new node of a block whose keys are unknown, which must be put
// somewhere at once; 0 when there is no room. A partial block never gets keys.
func (m *Mirror) unname(name uint64, partial bool) int32 {
	n := m.take()
	if n == 0 {
		if !partial {
			m.full()
		}
		return 0
	}
	one := m.slab.at(n)
	one.name = name
	one.set(flagPartial, partial)
	m.byName.add(tagOf(0, name), n)
	m.nameless++
	if !partial {
		m.unnamed++
		m.stats.UnnamedSeen++
	}
	return n
}

func (m *Mirror) releaseNameless(n int32) {
	one := m.slab.at(n)
	for t, copies := range one.copies {
		if copies > 0 {
			m.count(n, tier(t), -1, -int(copies))
		}
	}
	m.nameless--
	if !one.is(flagPartial) {
		m.unnamed--
	}
	if o := m.orphans[n]; o != nil {
		m.leave(o)
	}
}

// orphaned takes a block of a run whose beginning is unknown.
func (m *Mirror) orphaned(o orphan, t tier, name uint64, announced bool) {
	n := m.find(0, name)
	if n != 0 && m.slab.at(n).is(flagPartial) {
		m.release(n)
		n = 0
	}
	if n == 0 {
		if n = m.unname(name, false); n == 0 {
			return
		}
	}
	if old := m.orphans[n]; o.hasParent && (old == nil || !old.alike(&o)) {
		if old != nil {
			m.leave(old)
		}
		m.wait(o, n)
	}
	m.addCopy(n, t, announced)
}

func (o *orphan) alike(other *orphan) bool {
	return o.parent == other.parent && o.layout == other.layout && slices.Equal(o.tokens, other.tokens) && slices.Equal(o.extras, other.extras)
}

// wait puts an orphan in its parent's line, with copies of what it was given.
func (m *Mirror) wait(of orphan, n int32) {
	if m.waitingTokens+len(of.tokens) > maxWaitingTokens || len(of.extras) > maxOrphanExtras {
		return
	}
	m.waitingTokens += len(of.tokens)
	o := &of
	o.n, o.tokens, o.extras = n, slices.Clone(of.tokens), slices.Clone(of.extras)
	m.orphans[n] = o
	at := m.waiting[o.parent]
	if at == nil {
		m.waiting[o.parent] = &line{o, o}
		return
	}
	o.earlier, at.last.later = at.last, o
	at.last = o
}

// leave takes an orphan out of its line.
func (m *Mirror) leave(o *orphan) {
	m.waitingTokens -= len(o.tokens)
	delete(m.orphans, o.n)
	at := m.waiting[o.parent]
	if o.earlier == nil {
		at.first = o.later
	} else {
		o.earlier.later = o.later
	}
	if o.later == nil {
		at.last = o.earlier
	} else {
		o.later.earlier = o.earlier
	}
	if at.first == nil {
		delete(m.waiting, o.parent)
	}
}

// wake names those that wait for n, and those that wait for them.
func (m *Mirror) wake(n int32) {
	if len(m.waiting) == 0 {
		return
	}
	m.woken = append(m.woken[:0], n)
	for len(m.woken) > 0 {
		n, m.woken = m.woken[0], m.woken[1:]
		name := m.slab.at(n).name
		for at := m.waiting[name]; at != nil; at = m.waiting[name] {
			o := at.first
			m.leave(o)
			c, known := m.behind(name, o.layout)
			if !known {
				continue // it ends within a pool block of another layout
			}
			m.pinned = c.part
			child := m.place(o.layout, m.slab.at(o.n).name, m.content(o.layout, c, o.tokens, o.extras))
			if child == 0 {
				m.full()
				return
			}
			m.woken = append(m.woken, child)
		}
	}
}
