package mirror

import (
	"slices"
	"strings"

	"warmpath/routing/blockkey"
	"warmpath/services/bridge/kvevents"
)

// maxPath bounds the blocks that are looked at before a run: a million tokens in
// blocks of 16.
const maxPath = 1 << 16

// run takes the first blocks of a store, all of whose tokens are there.
func (m *Mirror) run(e *kvevents.Event, t tier, of uint8, blocks int) {
	size := m.layouts[of].size
	announced := e.Origin == "REUSED"
	c, known := m.start(e, of)
	if !known && !e.HasParent && m.deep(e, of) {
		announced = true // the beginning of it is elsewhere
	}
	m.pinned = c.part
	m.out.expect(blocks * max(m.layouts[of].k, 1))
	for i, name := range e.Hashes[:blocks] {
		tokens, extras := e.Tokens[i*size:][:size], []blockkey.Extra(nil)
		if i < len(e.Extras) {
			extras = e.Extras[i]
		}
		var n int32
		if known {
			n = m.find(of, name)
			if n != 0 && m.refills(e, n, c, tokens, extras) {
				m.addCopy(n, t, announced)
				m.wake(n)
				continue // what follows stands where it would without this one
			}
			if n = m.placeAs(n, of, name, m.content(of, c, tokens, extras)); n == 0 {
				m.full()
				break
			}
		} else if n = m.known(of, name, tokens, extras); n == 0 {
			o := orphan{parent: e.Parent, hasParent: e.HasParent, layout: of, tokens: tokens, extras: extras}
			if i > 0 {
				o.parent, o.hasParent = e.Hashes[i-1], true
			}
			m.orphaned(o, t, name, announced)
			continue
		}
		known = true
		m.addCopy(n, t, announced)
		m.wake(n)
		c = m.after(n)
		m.pinned = n
	}
	m.pinned = 0
}

// refills says whether a run that has come to c brings the named node n back into
// the path that leads to c, from which it was evicted alone. An engine that
// evicts from the middle tells all that was missing of a prompt in one run behind
// the last block that was not; the names say where each one stands.
func (m *Mirror) refills(e *kvevents.Event, n int32, c cursor, tokens []uint32, extras []blockkey.Extra) bool {
	own := m.before(n)
	switch {
	case own == c, own.first && c.first && own.at == c.at && own.part == c.part:
		return false // it comes back where it was
	case own.first:
		root, ok := m.root(e)
		if !ok {
			return false
		}
		own.key = root // whole blocks do not keep it
	}
	return m.same(n, m.content(m.slab.at(n).layout, own, tokens, extras)) && m.leads(n, c)
}

// leads says whether the path from the root to c passes n.
func (m *Mirror) leads(n int32, c cursor) bool {
	of := m.slab.at(n).layout
	for step := 0; step < maxPath && (!c.first || c.at > 0); step++ {
		last := c.part
		if c.at == 0 {
			last = m.findKey(of, c.key)
		}
		switch {
		case last == 0:
			return false
		case last == n, m.completes(n) && m.slab.at(n).key == m.slab.at(last).key:
			return true
		}
		c = m.before(last)
	}
	return false
}

// known is the node of a block whose place is unknown, if its name says it; 0 when
// it does not.
func (m *Mirror) known(of uint8, name uint64, tokens []uint32, extras []blockkey.Extra) int32 {
	n := m.find(of, name)
	if n != 0 && !m.matches(n, tokens, extras) {
		m.replace(n)
		return 0
	}
	return n
}

// full begins the doubt of a mirror that cannot remember more.
func (m *Mirror) full() {
	m.stats.NoRoom++
	if m.sticky == "" {
		m.sticky = "memory bound"
	}
}

// start is where a run begins; false when that is unknown.
func (m *Mirror) start(e *kvevents.Event, of uint8) (cursor, bool) {
	if e.HasParent {
		return m.behind(e.Parent, of)
	}
	if m.deep(e, of) {
		return cursor{}, false
	}
	root, ok := m.root(e)
	return cursor{key: root, first: true}, ok
}

// root is what the first block of e's prompt continues; false when that is unknown.
func (m *Mirror) root(e *kvevents.Event) (blockkey.Key, bool) {
	lora := e.LoRA
	if lora == "" && e.HasLoRAID {
		if lora = m.cfg.LoRAs[e.LoRAID]; lora == "" {
			m.stats.UnnamedLoRAs++
			return 0, false
		}
	}
	if strings.ContainsRune(lora, 0) || strings.ContainsRune(e.Salt, 0) {
		return 0, false // a root must be the root of one prompt only
	}
	return blockkey.Root(m.cfg.Model, lora, e.Salt), true
}

// behind is the cursor behind the block with a name.
func (m *Mirror) behind(name uint64, of uint8) (cursor, bool) {
	if n := m.find(of, name); n != 0 {
		if m.slab.at(n).is(flagListed) { // in use as a name
			m.unlist(n)
			m.list(n, true)
		}
		return m.after(n), true
	}
	for other := range m.layouts[1:] {
		if n := m.find(uint8(other+1), name); n != 0 && m.completes(n) {
			return m.after(n), true
		}
	}
	return cursor{}, false
}

// deep says whether a run without a parent begins with a block that is known to
// have one: engines announce what they hold without saying where it stands.
func (m *Mirror) deep(e *kvevents.Event, of uint8) bool {
	name, size := e.Hashes[0], m.layouts[of].size
	if n := m.find(of, name); n != 0 {
		c := m.before(n)
		return (!c.first || c.at > 0) && m.matches(n, e.Tokens[:size], firstExtras(e))
	}
	n := m.find(0, name)
	return n != 0 && m.orphans[n] != nil
}

func firstExtras(e *kvevents.Event) []blockkey.Extra {
	if len(e.Extras) == 0 {
		return nil
	}
	return e.Extras[0]
}

// place returns the node of a block with a content, which is new or known; 0
// when there is no room.
func (m *Mirror) place(of uint8, name uint64, c content) int32 {
	return m.placeAs(m.find(of, name), of, name, c)
}

// placeAs is place where n has the name already, 0 for none.
func (m *Mirror) placeAs(n int32, of uint8, name uint64, c content) int32 {
	if n != 0 {
		if m.same(n, c) {
			return n
		}
		m.replace(n)
	}
	n = m.take()
	if n == 0 {
		return 0
	}
	m.fill(n, of, name, c)
	m.list(n, true) // until it is somewhere
	if m.nameless > 0 {
		m.inherit(n, c)
	}
	return n
}

// inherit gives a node that is new what is known of its name.
func (m *Mirror) inherit(n int32, c content) {
	one := m.slab.at(n)
	old := m.find(0, one.name)
	if old == 0 {
		return
	}
	was := m.slab.at(old)
	if was.is(flagPartial) {
		m.release(old) // the same blocks, whole now
		return
	}
	if o := m.orphans[old]; o != nil {
		if o.layout != one.layout {
			return
		}
		if !slices.Equal(o.tokens, c.tokens) {
			m.stats.Replaced++
			m.release(old)
			return
		}
	}
	for t := range tier(tiers) {
		if was.copies[t] == 0 || m.layoutIn(t) != one.layout {
			continue
		}
		m.unlist(n)
		one.copies[t], was.copies[t] = was.copies[t], 0
		one.absorbed |= was.absorbed & (1 << t)
		m.show(n, t)
		m.tellCopies(&m.out, n, t, 1)
	}
	if was.gone() {
		m.stats.Named++
		m.release(old)
	}
}

// tellCopies tells what there is of n in a tier beyond what was told.
func (m *Mirror) tellCopies(out *output, n int32, t tier, told int) {
	one := m.slab.at(n)
	if !m.named(n) {
		return
	}
	copies := int(one.copies[t])
	if one.absorbedIn(t) {
		copies++
	}
	for ; told < copies; told++ {
		m.tellStore(out, n, t)
	}
	if one.absorbedIn(t) {
		out.removes(t, nil, one.name, 1)
	}
}

// replace forgets a node whose name the engine gives to another block.
func (m *Mirror) replace(n int32) {
	m.stats.Replaced++
	for t := range tier(tiers) {
		if went := int(m.slab.at(n).copies[t]); went > 0 {
			m.slab.at(n).copies[t] = 0
			m.count(n, t, -1, -went)
			m.hide(n, t, went)
		}
	}
	m.abandon(n, false)
	m.release(n)
}

// demote takes n's keys away and keeps what is known of where it lies.
func (m *Mirror) demote(n int32, partial bool) {
	one := m.slab.at(n)
	for t := range tier(tiers) {
		if went := int(one.copies[t]); went > 0 {
			m.count(n, t, -1, -went)
			m.hide(n, t, went)
		}
	}
	m.abandon(n, partial)
	name, copies, absorbed := one.name, one.copies, one.absorbed
	m.release(n)
	if copies == [tiers]uint16{} {
		return
	}
	old := m.find(0, name)
	if old == 0 {
		old = m.unname(name, partial) // there is room: n just left
	}
	for t := range tier(tiers) {
		if was := m.slab.at(old); was.copies[t] == 0 && copies[t] > 0 {
			was.copies[t], was.absorbed = copies[t], was.absorbed|absorbed&(1<<t)
			m.count(old, t, 1, int(copies[t]))
		}
	}
}

// abandon demotes the parts that stand on n.
func (m *Mirror) abandon(n int32, partial bool) {
	if m.layouts[m.slab.at(n).layout].parts < 2 {
		return
	}
	for m.part(n).child != 0 {
		m.demote(m.part(n).child, partial)
	}
}

// release forgets a node, which nothing stands on.
func (m *Mirror) release(n int32) {
	one := m.slab.at(n)
	m.unlist(n)
	l := &m.layouts[one.layout]
	if one.layout == 0 {
		m.releaseNameless(n)
	} else {
		if m.completes(n) {
			m.deleteKey(n)
		}
		if l.parts > 1 {
			m.unlink(n)
			delete(l.extras, one.side)
		}
		if one.side >= 0 {
			l.free = append(l.free, one.side)
		}
	}
	m.byName.delete(tagOf(one.layout, one.name), n)
	m.slab.give(n)
}
