package mirror

import (
	"slices"

	"warmpath/routing/blockkey"
)

// layout is one way in which the engine cuts tokens into blocks. Tiers of the
// same block size share one. A block has k ≥ 1 keys when the engine's blocks are
// as large as the pool's or a multiple; when they are smaller a pool block has
// several parts, and only the last of them completes a key.
type layout struct {
	size int
	// refused is true when neither size divides the other.
	refused bool
	// k is the keys a block, 0 when parts > 1; parts the blocks a key.
	k, parts int

	free []int32
	// keys holds, for k > 1, k keys a node; parts and tokens, for parts > 1, where
	// a node stands and its tokens, and extras its content.
	keys []blockkey.Key
	// inner counts, for k > 1, in each tier the nodes that show a key which is not
	// their last: blocks that differ later share it.
	inner  map[blockkey.Key][tiers]uint32
	linked []part
	tokens []uint32
	extras map[int32][]blockkey.Extra
}

// part is where an engine block stands within its pool block.
type part struct {
	// parent is the part before it, 0 for the first; child the first of those after
	// it, before and after its siblings.
	parent, child, before, after int32
	// at counts the parts before it.
	at int32
}

// maxLayouts bounds how often block sizes may change.
const maxLayouts = 16

// layoutOf returns the layout for a block size, 0 when there are too many.
func (m *Mirror) layoutOf(size int) uint8 {
	for i := range m.layouts[1:] {
		if m.layouts[i+1].size == size {
			return uint8(i + 1)
		}
	}
	if len(m.layouts) > maxLayouts {
		return 0
	}
	l := layout{size: size, extras: map[int32][]blockkey.Extra{}, inner: map[blockkey.Key][tiers]uint32{}}
	switch b := m.cfg.BlockTokens; {
	case size%b == 0:
		l.k, l.parts = size/b, 1
	case b%size == 0:
		l.parts = b / size
	default:
		l.refused = true
	}
	m.layouts = append(m.layouts, l)
	return uint8(len(m.layouts) - 1)
}

// learn notes that a tier has whole blocks of a size, and returns their layout;
// false when they are not what the tier has usually.
func (m *Mirror) learn(t tier, size int) (uint8, bool) {
	known := m.sizes[t]
	if known != 0 && m.layouts[known].size >= size {
		return known, m.layouts[known].size == size && !m.layouts[known].refused
	}
	of := m.layoutOf(size)
	if of == 0 {
		m.changing = true
		return 0, false
	}
	m.sizes[t] = of
	if known != 0 {
		m.outgrow(t, known)
	}
	return of, !m.layouts[of].refused
}

// outgrow makes partial blocks of what a tier has in a layout that turned out to
// be smaller than its usual one.
func (m *Mirror) outgrow(t tier, of uint8) {
	for n := range m.slab.all() {
		if one := m.slab.at(n); one.layout == of && one.copies[t] > 0 {
			m.stats.PartialSeen++
			m.demote(n, true)
		}
	}
}

// cursor is where a run of blocks stands: what the next block continues.
type cursor struct {
	// key is that of the last whole pool block, or the root.
	key blockkey.Key
	// first is true within the prompt's first pool block.
	first bool
	// at counts the parts of the pool block that are there, of which part is the
	// last.
	at   int
	part int32
}

// after is the cursor behind a named node.
func (m *Mirror) after(n int32) cursor {
	one := m.slab.at(n)
	if m.completes(n) {
		return cursor{key: one.key}
	}
	return cursor{key: one.key, first: one.is(flagFirst), at: int(m.part(n).at) + 1, part: n}
}

// before is the cursor in front of a named node.
func (m *Mirror) before(n int32) cursor {
	one := m.slab.at(n)
	c := cursor{key: one.prev, first: one.is(flagFirst)}
	if m.layouts[one.layout].parts > 1 {
		p := m.part(n)
		c.at, c.part = int(p.at), p.parent
	}
	return c
}

// part is a node's of a layout with parts.
func (m *Mirror) part(n int32) *part {
	one := m.slab.at(n)
	return &m.layouts[one.layout].linked[one.side]
}

// completes says whether a pool block ends with a named node.
func (m *Mirror) completes(n int32) bool {
	l := &m.layouts[m.slab.at(n).layout]
	return l.parts == 1 || int(m.part(n).at) == l.parts-1
}

// keysOf is the keys of a node that completes one. They are valid until the next
// change.
func (m *Mirror) keysOf(n int32) []blockkey.Key {
	one := m.slab.at(n)
	l := &m.layouts[one.layout]
	if l.k > 1 {
		return l.keys[int(one.side)*l.k:][:l.k]
	}
	m.buf.single[0] = one.key
	return m.buf.single[:]
}

// content is what a block is: where it stands and which keys it gives.
type content struct {
	cursor
	// end is the key behind it, keys those it gives when it gives several.
	end    blockkey.Key
	keys   []blockkey.Key
	tokens []uint32
	extras []blockkey.Extra
}

type scratch struct {
	single [1]blockkey.Key
	keys   []blockkey.Key
	left   []blockkey.Key
	tokens []uint32
	extras []blockkey.Extra
	path   []int32
}

// content is that of a block behind c. It is valid until the next call.
func (m *Mirror) content(of uint8, c cursor, tokens []uint32, extras []blockkey.Extra) content {
	l := &m.layouts[of]
	out := content{cursor: c, end: c.key, tokens: tokens, extras: extras}
	switch {
	case l.parts > 1:
		if c.at == l.parts-1 {
			whole, all := m.gather(l, c, tokens, extras)
			out.end = blockkey.Next(c.key, whole, all)
		}
		return out
	case l.k == 1:
		out.end = blockkey.Next(c.key, tokens, extras)
	default:
		b := m.cfg.BlockTokens
		m.buf.keys = m.buf.keys[:0]
		for i := range l.k {
			out.end = blockkey.Next(out.end, tokens[i*b:][:b], m.within(extras, i, l.k))
			m.buf.keys = append(m.buf.keys, out.end)
		}
		out.keys = m.buf.keys
	}
	if c.first {
		out.key = 0 // the root is of no use to a whole block
	}
	return out
}

// within is the extras that begin in pool block i of k.
func (m *Mirror) within(extras []blockkey.Extra, i, k int) []blockkey.Extra {
	if len(extras) == 0 {
		return nil
	}
	b := uint64(m.cfg.BlockTokens)
	m.buf.extras = m.buf.extras[:0]
	for _, e := range extras {
		if min(uint64(e.Offset)/b, uint64(k-1)) == uint64(i) {
			e.Offset -= uint32(uint64(i) * b)
			m.buf.extras = append(m.buf.extras, e)
		}
	}
	return m.buf.extras
}

// gather is the tokens and extras of a whole pool block, whose last part is given.
func (m *Mirror) gather(l *layout, c cursor, tokens []uint32, extras []blockkey.Extra) ([]uint32, []blockkey.Extra) {
	m.buf.path = m.buf.path[:0]
	for n := c.part; n != 0; n = m.part(n).parent {
		m.buf.path = append(m.buf.path, n)
	}
	slices.Reverse(m.buf.path)
	m.buf.tokens, m.buf.extras = m.buf.tokens[:0], m.buf.extras[:0]
	for i, n := range m.buf.path {
		side := m.slab.at(n).side
		m.buf.tokens = append(m.buf.tokens, l.tokens[int(side)*l.size:][:l.size]...)
		if len(l.extras) > 0 {
			m.join(l.extras[side], i*l.size)
		}
	}
	m.buf.tokens = append(m.buf.tokens, tokens...)
	m.join(extras, c.at*l.size)
	return m.buf.tokens, m.buf.extras
}

// join appends the extras of a part that begins at an offset. An engine names an
// item again in every part that it reaches into, at offset 0; in the pool's block
// it is one item.
func (m *Mirror) join(extras []blockkey.Extra, offset int) {
	for _, e := range extras {
		if all := m.buf.extras; e.Offset == 0 && offset > 0 && len(all) > 0 && all[len(all)-1].ID == e.ID {
			continue
		}
		e.Offset += uint32(offset)
		m.buf.extras = append(m.buf.extras, e)
	}
}

// same says whether a named node is a block with this content.
func (m *Mirror) same(n int32, c content) bool {
	one := m.slab.at(n)
	l := &m.layouts[one.layout]
	if one.key != c.end || one.prev != c.key || one.is(flagFirst) != c.first {
		return false
	}
	if l.parts == 1 {
		return true
	}
	p := m.part(n)
	if int(p.at) != c.at || p.parent != c.part {
		return false
	}
	return m.completes(n) || slices.Equal(l.tokens[int(one.side)*l.size:][:l.size], c.tokens) && slices.Equal(l.extras[one.side], c.extras)
}

// matches says whether a named node has these tokens, wherever it stands.
func (m *Mirror) matches(n int32, tokens []uint32, extras []blockkey.Extra) bool {
	return m.same(n, m.content(m.slab.at(n).layout, m.before(n), tokens, extras))
}

// fill makes a node of a block with a content.
func (m *Mirror) fill(n int32, of uint8, name uint64, c content) {
	one, l := m.slab.at(n), &m.layouts[of]
	one.name, one.layout, one.key, one.prev = name, of, c.end, c.key
	one.set(flagFirst, c.first)
	switch {
	case l.parts > 1:
		one.side = l.side()
		l.link(m, n, c)
	case l.k > 1:
		one.side = l.side()
		copy(l.keys[int(one.side)*l.k:][:l.k], c.keys)
	}
	m.byName.add(tagOf(of, name), n)
	if m.completes(n) {
		m.addKey(n)
	}
}

// side is a free place in what the layout keeps beside the nodes.
func (l *layout) side() int32 {
	if last := len(l.free) - 1; last >= 0 {
		side := l.free[last]
		l.free = l.free[:last]
		return side
	}
	if l.parts > 1 {
		l.linked = append(l.linked, part{})
		l.tokens = append(l.tokens, make([]uint32, l.size)...)
		return int32(len(l.linked) - 1)
	}
	l.keys = append(l.keys, make([]blockkey.Key, l.k)...)
	return int32(len(l.keys)/l.k - 1)
}

// link puts n behind the part that it continues.
func (l *layout) link(m *Mirror, n int32, c content) {
	side := m.slab.at(n).side
	copy(l.tokens[int(side)*l.size:], c.tokens)
	if len(c.extras) > 0 {
		l.extras[side] = slices.Clone(c.extras)
	}
	p := part{parent: c.part, at: int32(c.at)}
	if c.part != 0 {
		m.unlist(c.part) // it is needed as long as n is
		up := m.part(c.part)
		p.after, up.child = up.child, n
		if p.after != 0 {
			m.part(p.after).before = n
		}
	}
	l.linked[side] = p
}

// unlink takes n, which has no child, from the part before it.
func (m *Mirror) unlink(n int32) {
	p := *m.part(n)
	if p.parent == 0 {
		return
	}
	if p.before == 0 {
		m.part(p.parent).child = p.after
	} else {
		m.part(p.before).after = p.after
	}
	if p.after != 0 {
		m.part(p.after).before = p.before
	}
	if up := m.slab.at(p.parent); m.part(p.parent).child == 0 && up.gone() && !up.is(flagListed) {
		m.list(p.parent, false)
	}
}
