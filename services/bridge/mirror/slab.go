package mirror

import (
	"iter"

	"warmpath/routing/blockkey"
)

// node is one engine block. A mirror has millions of them, so it has no pointer
// and nothing that only some need. Its number is its place in the slab; 0 is
// none.
type node struct {
	// name is the engine's hash.
	name uint64
	// key is the block key at the last pool boundary that is not after its end,
	// prev the one before the first pool block that it has a part of (0 when k ≥ 1
	// and there is none).
	key, prev blockkey.Key
	// copies counts what lies in each tier.
	copies [tiers]uint16
	// newer and older are neighbours in the list of names.
	newer, older int32
	// twin is the next node with the same key: engines tell blocks apart by more
	// than keys do.
	twin int32
	// side is its place in what its layout keeps beside, -1 for none.
	side   int32
	layout uint8
	flags  uint8
	// shown has a bit for each tier in which the block, and those before it in the
	// same pool block, are; absorbed for each in which the last event was the
	// removal of one copy of several.
	shown, absorbed uint8
}

const (
	// flagFirst marks a node in the prompt's first pool block.
	flagFirst = 1 << iota
	// flagPartial marks a block of layout 0 that is not a whole one.
	flagPartial
	// flagListed marks a node in the list of names.
	flagListed
	// flagUsed marks a node that is not free.
	flagUsed
)

func (n *node) is(flag uint8) bool         { return n.flags&flag != 0 }
func (n *node) shownIn(t tier) bool        { return n.shown>>t&1 != 0 }
func (n *node) absorbedIn(t tier) bool     { return n.absorbed>>t&1 != 0 }
func (n *node) gone() bool                 { return n.copies == [tiers]uint16{} }
func (n *node) set(flag uint8, value bool) { n.flags = n.flags&^flag | mask(value, flag) }

func mask(value bool, flag uint8) uint8 {
	if value {
		return flag
	}
	return 0
}

const chunkBits = 12

// slab is the nodes, in chunks so that growing copies none.
type slab struct {
	chunks []*[1 << chunkBits]node
	next   int32 // number that was never used
	free   []int32
	used   int
}

func newSlab() slab { return slab{next: 1} }

func (s *slab) at(n int32) *node { return &s.chunks[n>>chunkBits][n&(1<<chunkBits-1)] }

// take returns an empty node.
func (s *slab) take() int32 {
	s.used++
	if last := len(s.free) - 1; last >= 0 {
		n := s.free[last]
		s.free = s.free[:last]
		*s.at(n) = node{flags: flagUsed, side: -1}
		return n
	}
	n := s.next
	s.next++
	if int(n>>chunkBits) == len(s.chunks) {
		s.chunks = append(s.chunks, new([1 << chunkBits]node))
	}
	*s.at(n) = node{flags: flagUsed, side: -1}
	return n
}

func (s *slab) give(n int32) {
	*s.at(n) = node{}
	s.free = append(s.free, n)
	s.used--
}

// all is the nodes in use, by number. It may be changed meanwhile.
func (s *slab) all() iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for n := int32(1); n < s.next; n++ {
			if s.at(n).is(flagUsed) && !yield(n) {
				return
			}
		}
	}
}

// table finds nodes by 64 bits: open addressing over their numbers, with enough
// of the hash beside to search, grow and delete without a look at the nodes.
type table struct {
	slots []entry
	shift uint8 // a tag's home is tag >> shift
	count int
}

type entry struct {
	tag uint32
	n   int32
}

// tagOf mixes a name or key and the layout it belongs to. Names may be anything,
// such as 1, 2, 3.
func tagOf(layout uint8, v uint64) uint32 {
	return uint32(((v ^ v>>32) + uint64(layout)*0xd6e8feb86659fd93) * 0x9e3779b97f4a7c15 >> 32)
}

const minTableBits = 6

// add enters n, which is not in it.
func (t *table) add(tag uint32, n int32) {
	if 5*t.count >= 4*len(t.slots) {
		t.grow()
	}
	i := tag >> t.shift
	for t.slots[i].n != 0 {
		i = t.after(i)
	}
	t.slots[i] = entry{tag, n}
	t.count++
}

func (t *table) after(i uint32) uint32 { return (i + 1) & uint32(len(t.slots)-1) }

func (t *table) grow() {
	old := t.slots
	if len(old) == 0 {
		t.slots, t.shift = make([]entry, 1<<minTableBits), 32-minTableBits
	} else {
		t.slots = make([]entry, 2*len(old))
		t.shift--
	}
	for _, e := range old {
		if e.n == 0 {
			continue
		}
		i := e.tag >> t.shift
		for t.slots[i].n != 0 {
			i = t.after(i)
		}
		t.slots[i] = e
	}
}

// place is where n is, which must be in the table.
func (t *table) place(tag uint32, n int32) uint32 {
	i := tag >> t.shift
	for t.slots[i].n != n {
		i = t.after(i)
	}
	return i
}

// delete takes n out and closes the gap.
func (t *table) delete(tag uint32, n int32) {
	gap := t.place(tag, n)
	for i := t.after(gap); t.slots[i].n != 0; i = t.after(i) {
		home := t.slots[i].tag >> t.shift
		// What is at i may go to the gap unless its home lies behind the gap.
		if (i-home)&uint32(len(t.slots)-1) >= (i-gap)&uint32(len(t.slots)-1) {
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = entry{}
	t.count--
}

// warmFrom is how many names are worth reading ahead.
const warmFrom = 8

// warm reads what finding names will read: the tables of a large cache lie in
// slow memory, and reads that do not wait for each other overlap.
func (m *Mirror) warm(layout uint8, names []uint64) {
	if len(names) < warmFrom || m.byName.count == 0 || m.byKey.count == 0 {
		return
	}
	home := func(t *table, v uint64) *entry { return &t.slots[tagOf(layout, v)>>t.shift] }
	var sink uint64
	for _, name := range names {
		sink += uint64(home(&m.byName, name).tag)
	}
	for _, name := range names {
		sink += m.slab.at(home(&m.byName, name).n).key
	}
	for _, name := range names {
		sink += uint64(home(&m.byKey, m.slab.at(home(&m.byName, name).n).key).tag)
	}
	m.read = sink
}

// find returns the node of a layout with an engine's name, 0 for none.
func (m *Mirror) find(layout uint8, name uint64) int32 {
	t := &m.byName
	if t.count == 0 {
		return 0
	}
	tag := tagOf(layout, name)
	for i := tag >> t.shift; t.slots[i].n != 0; i = t.after(i) {
		if t.slots[i].tag != tag {
			continue
		}
		if n := t.slots[i].n; m.slab.at(n).name == name && m.slab.at(n).layout == layout {
			return n
		}
	}
	return 0
}

// findKey returns the first node of a layout that ends with a key, 0 for none.
func (m *Mirror) findKey(layout uint8, key blockkey.Key) int32 {
	t := &m.byKey
	if t.count == 0 {
		return 0
	}
	tag := tagOf(layout, key)
	for i := tag >> t.shift; t.slots[i].n != 0; i = t.after(i) {
		if t.slots[i].tag != tag {
			continue
		}
		if n := t.slots[i].n; m.slab.at(n).key == key && m.slab.at(n).layout == layout {
			return n
		}
	}
	return 0
}

// addKey makes n findable by its key, after the others that have it.
func (m *Mirror) addKey(n int32) {
	one := m.slab.at(n)
	head := m.findKey(one.layout, one.key)
	if head == 0 {
		m.byKey.add(tagOf(one.layout, one.key), n)
		return
	}
	for m.slab.at(head).twin != 0 {
		head = m.slab.at(head).twin
	}
	m.slab.at(head).twin = n
}

func (m *Mirror) deleteKey(n int32) {
	one := m.slab.at(n)
	tag := tagOf(one.layout, one.key)
	head := m.findKey(one.layout, one.key)
	switch {
	case head != n:
		for m.slab.at(head).twin != n {
			head = m.slab.at(head).twin
		}
		m.slab.at(head).twin = one.twin
	case one.twin == 0:
		m.byKey.delete(tag, n)
	default:
		m.byKey.slots[m.byKey.place(tag, n)].n = one.twin
	}
	one.twin = 0
}

// lru is a list of nodes through newer and older.
type lru struct {
	newest, oldest int32
	count          int
}

// list puts n into the names, as the newest or the oldest of them.
func (m *Mirror) list(n int32, newest bool) {
	l, one := &m.names, m.slab.at(n)
	one.set(flagListed, true)
	l.count++
	switch {
	case l.newest == 0:
		l.newest, l.oldest = n, n
	case newest:
		one.older = l.newest
		m.slab.at(l.newest).newer = n
		l.newest = n
	default:
		one.newer = l.oldest
		m.slab.at(l.oldest).older = n
		l.oldest = n
	}
}

// unlist takes n out of the names, if it is there.
func (m *Mirror) unlist(n int32) {
	l, one := &m.names, m.slab.at(n)
	if !one.is(flagListed) {
		return
	}
	one.set(flagListed, false)
	l.count--
	if one.newer == 0 {
		l.newest = one.older
	} else {
		m.slab.at(one.newer).older = one.older
	}
	if one.older == 0 {
		l.oldest = one.newer
	} else {
		m.slab.at(one.older).newer = one.newer
	}
	one.newer, one.older = 0, 0
}

// take returns an empty node, for which the oldest name goes if there must be
// room; 0 when all that is remembered is present.
func (m *Mirror) take() int32 {
	if m.slab.used < m.cfg.MaxBlocks {
		return m.slab.take()
	}
	oldest := m.names.oldest
	if oldest != 0 && oldest == m.pinned {
		oldest = m.slab.at(oldest).newer
	}
	if oldest == 0 {
		return 0
	}
	m.stats.Forgotten++
	m.release(oldest)
	return m.slab.take()
}
