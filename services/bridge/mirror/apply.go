package mirror

import (
	"slices"

	"warmpath/services/bridge/kvevents"
)

func (m *Mirror) apply(e *kvevents.Event) {
	if e.Kind == kvevents.Cleared {
		m.cleared(e)
		return
	}
	t, known := tierOf(e.Tier)
	if !known && e.Kind != kvevents.Moved {
		m.stats.UnknownTiers++
		return
	}
	if !m.counts(e) {
		return
	}
	if known {
		m.warm(m.layoutIn(t), e.Hashes)
	}
	switch e.Kind {
	case kvevents.Stored:
		m.stored(e, t)
	case kvevents.Removed:
		for i, name := range e.Hashes {
			left := int64(-1)
			if i < len(e.CopiesLeft) {
				left = e.CopiesLeft[i]
			}
			m.removed(t, name, left, e.EveryTier)
		}
	case kvevents.Moved:
		m.moved(e, t, known)
	}
}

// counts says whether an event is of the cache group that prefixes are found by:
// one whose attention sees the whole prefix, and the first of several.
func (m *Mirror) counts(e *kvevents.Event) bool {
	switch e.Spec {
	case "":
		// Without a kind only the group that is known to count does, or the first.
		if e.HasGroup && e.Group != m.group {
			m.stats.OtherGroups++
			return false
		}
	case "full_attention", "mla_attention", "sink_full_attention":
		if m.groupSeen && e.Group > m.group {
			m.stats.OtherGroups++
			return false
		}
		if m.groupSeen && e.Group < m.group {
			m.distrust("attention groups mixed")
		}
		m.group, m.groupSeen = e.Group, true
		m.unadoptable = m.unadoptable || m.group != 0
	default:
		m.stats.OtherGroups++
		return false
	}
	switch {
	case e.Window == 0 || e.Window == m.window:
	case e.Window < m.window:
		m.stats.OtherWindows++
		m.unadoptable = true
		return false
	default:
		if m.window != 0 {
			m.distrust("attention windows mixed")
			m.unadoptable = true
		}
		m.window = e.Window
	}
	return true
}

// distrust begins a doubt that lasts until the cache is cleared, if anything that
// was taken can be wrong.
func (m *Mirror) distrust(why string) {
	if m.present != [tiers]int{} && m.sticky == "" {
		m.sticky = why
	}
}

// stored takes a run of blocks.
func (m *Mirror) stored(e *kvevents.Event, t tier) {
	m.stats.Stores += uint64(len(e.Hashes))
	n, tokens := len(e.Hashes), len(e.Tokens)
	if n == 0 {
		return
	}
	if tokens == 0 {
		m.update(e, t, e.Hashes)
		return
	}
	size := m.blockSize(e, t)
	switch {
	case size < 1, tokens/size > n:
		m.stats.Unaligned++
		m.update(e, t, e.Hashes)
		return
	case e.HasParent && slices.Contains(e.Hashes, e.Parent):
		m.stats.OwnParents++
		m.update(e, t, e.Hashes)
		return
	}
	whole := min(n, tokens/size)
	if whole > 0 {
		if of, usual := m.learn(t, size); usual {
			m.run(e, t, of, whole)
		} else {
			m.partials(t, e.Hashes[:whole])
		}
	}
	rest := e.Hashes[whole:]
	if len(rest) > 0 && tokens%size > 0 {
		m.partials(t, rest[:1])
		rest = rest[1:]
	}
	m.update(e, t, rest)
}

// blockSize is the tokens of a block of e, 0 when nothing tells it.
func (m *Mirror) blockSize(e *kvevents.Event, t tier) int {
	switch n := len(e.Hashes); {
	case e.BlockSize > 0:
		return e.BlockSize
	case m.sizes[t] != 0:
		return m.layouts[m.sizes[t]].size
	case len(e.Tokens)%n == 0:
		return len(e.Tokens) / n
	}
	return 0
}

// layoutIn is the layout of a tier's blocks: another tier's if nothing else is
// known, as most engines move blocks as they are.
func (m *Mirror) layoutIn(t tier) uint8 {
	if m.sizes[t] != 0 {
		return m.sizes[t]
	}
	for _, of := range m.sizes {
		if of != 0 {
			return of
		}
	}
	return 0
}

// update takes a store that says of blocks where they are but not what.
func (m *Mirror) update(e *kvevents.Event, t tier, names []uint64) {
	if len(names) == 0 {
		return
	}
	of := m.layoutIn(t)
	if e.BlockSize > 0 && len(e.Tokens) == 0 && of != 0 && m.layouts[of].size != e.BlockSize {
		of = 0 // a name of the same hash is not one of the same tokens
	}
	reused := e.Origin == "REUSED"
	for _, name := range names {
		n := int32(0)
		if of != 0 {
			n = m.find(of, name)
		}
		if n == 0 {
			n = m.find(0, name)
		}
		if n == 0 {
			n = m.unname(name, false)
		} else if m.slab.at(n).layout != 0 && m.sizes[t] == 0 {
			m.sizes[t] = of
		}
		if n != 0 {
			m.addCopy(n, t, reused)
		}
	}
}

// partials takes blocks that are not whole ones: known, but in no key.
func (m *Mirror) partials(t tier, names []uint64) {
	for _, name := range names {
		m.stats.PartialSeen++
		if m.sizes[t] != 0 && m.find(m.sizes[t], name) != 0 {
			continue
		}
		n := m.find(0, name)
		if n == 0 {
			n = m.unname(name, true)
		}
		if n != 0 {
			m.addCopy(n, t, false)
		}
	}
}

// holder is the node of a name that is in a tier, or else any.
func (m *Mirror) holder(t tier, name uint64) int32 {
	n := int32(0)
	if of := m.layoutIn(t); of != 0 {
		n = m.find(of, name)
	}
	if n != 0 && m.slab.at(n).copies[t] > 0 || m.nameless == 0 {
		return n
	}
	if other := m.find(0, name); other != 0 {
		return other
	}
	return n
}

// removed takes one copy of a block away, or all but left of them.
func (m *Mirror) removed(t tier, name uint64, left int64, everyTier bool) {
	m.stats.Removals++
	n := m.holder(t, name)
	switch {
	case n == 0 || m.slab.at(n).copies[t] == 0:
		if !everyTier {
			m.stats.UnknownRemovals++
		}
	case everyTier:
		m.setCopies(n, t, 0)
	case left >= 0:
		m.setCopies(n, t, left)
	default:
		m.dropCopy(n, t)
	}
}

// moved takes one copy of each block from one tier to another.
func (m *Mirror) moved(e *kvevents.Event, to tier, known bool) {
	from, leaves := tierOf(e.FromTier)
	if !leaves || !known {
		m.stats.UnknownTiers++
	}
	for _, name := range e.Hashes {
		n := int32(0)
		if leaves {
			n = m.holder(from, name)
		}
		held := n != 0 && m.slab.at(n).copies[from] > 0
		if leaves && !held {
			m.stats.UnknownRemovals++
		}
		if known { // before it leaves, so that it is never nowhere
			target := n
			if n == 0 || m.slab.at(n).layout != 0 && m.slab.at(n).layout != m.layoutIn(to) {
				target = m.holder(to, name)
			}
			if target == 0 {
				target = m.unname(name, false)
			}
			if target != 0 {
				if one := m.slab.at(target); one.layout != 0 && m.sizes[to] == 0 {
					m.sizes[to] = one.layout
				}
				m.addCopy(target, to, !held)
			}
		}
		if held {
			m.dropCopy(n, from)
		}
	}
}

// cleared takes everything, or one tier if the engine named one and has others.
func (m *Mirror) cleared(e *kvevents.Event) {
	m.stats.Clears++
	if t, named := tierOf(e.Tier); named {
		others := m.present
		others[t] = 0
		if others != [tiers]int{} || m.lost != "" || m.sticky != "" {
			for n := range m.slab.all() {
				if m.slab.at(n).copies[t] > 0 {
					m.setCopies(n, t, 0)
				}
			}
			return
		}
	}
	m.empty()
	m.lost, m.sticky = "", ""
	m.out.clear("engine cleared its cache")
}

// empty takes everything out of every tier and keeps the names, untold.
func (m *Mirror) empty() {
	for n := range m.slab.all() {
		one := m.slab.at(n)
		if one.layout == 0 {
			m.release(n)
			continue
		}
		if one.gone() {
			continue
		}
		one.copies, one.shown, one.absorbed = [tiers]uint16{}, 0, 0
		m.rest(n)
	}
	for i := range m.layouts {
		clear(m.layouts[i].inner)
	}
	m.present, m.copies = [tiers]int{}, 0
}
