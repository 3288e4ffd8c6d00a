package bpe

// arrayLimit is the most symbols for which merging by scanning beats the heap.
const arrayLimit = 96

// merger applies merge rules to the symbols of one piece. Its memory is reused;
// one goroutine at a time.
type merger struct {
	symbols []uint32
	ranks   [arrayLimit]uint32
	results [arrayLimit]uint32

	nodes []mergeNode
	queue mergeQueue
}

// merge merges m.symbols in place.
func (m *merger) merge(t *pairTable, oddIDs bool) {
	if len(m.symbols) < 2 {
		return
	}
	if len(m.symbols) <= arrayLimit && !oddIDs {
		m.mergeArray(t)
		return
	}
	m.mergeHeap(t)
}

// mergeArray merges the pair of lowest rank, the leftmost of equals, until none
// is left.
func (m *merger) mergeArray(t *pairTable) {
	ids := m.symbols
	n := len(ids)
	for i := 0; i+1 < n; i++ {
		m.ranks[i], m.results[i] = t.find(ids[i], ids[i+1])
	}
	for n > 1 {
		best, at := none, 0
		for i, r := range m.ranks[:n-1] {
			if r < best {
				best, at = r, i
			}
		}
		if best == none {
			break
		}
		ids[at] = m.results[at]
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(m.ranks[at+1:n-1], m.ranks[at+2:n])
		copy(m.results[at+1:n-1], m.results[at+2:n])
		n--
		if at+1 < n {
			m.ranks[at], m.results[at] = t.find(ids[at], ids[at+1])
		}
		if at > 0 {
			m.ranks[at-1], m.results[at-1] = t.find(ids[at-1], ids[at])
		}
	}
	m.symbols = ids[:n]
}

// mergeNode is a symbol in a list linked both ways.
type mergeNode struct {
	id         uint32
	result     uint32 // what the pair that starts here merges to, or none
	prev, next int32  // -1: none
}

// candidate is a merge that was possible when it was queued.
type candidate struct {
	rank   uint32
	pos    int32
	result uint32
}

// mergeQueue is a heap: the lowest rank first, the leftmost of equals.
type mergeQueue []candidate

func (q mergeQueue) less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].pos < q[j].pos
}

func (q mergeQueue) order() {
	for i := len(q)/2 - 1; i >= 0; i-- {
		q.down(i)
	}
}

func (q mergeQueue) down(i int) {
	for {
		least := 2*i + 1
		if least >= len(q) {
			return
		}
		if least+1 < len(q) && q.less(least+1, least) {
			least++
		}
		if !q.less(least, i) {
			return
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
}

func (q *mergeQueue) push(c candidate) {
	s := append(*q, c)
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s.less(i, parent) {
			break
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
	*q = s
}

func (q *mergeQueue) pop() candidate {
	s := *q
	top := s[0]
	last := len(s) - 1
	s[0] = s[last]
	*q = s[:last]
	q.down(0)
	return top
}

// mergeHeap merges in n log n for long pieces. A queued merge is carried out
// if the pair at its place still gives the same token.
func (m *merger) mergeHeap(t *pairTable) {
	m.nodes, m.queue = m.nodes[:0], m.queue[:0]
	n := len(m.symbols)
	for i, id := range m.symbols {
		m.nodes = append(m.nodes, mergeNode{id: id, result: none, prev: int32(i) - 1, next: int32(i) + 1})
	}
	m.nodes[n-1].next = -1
	for i := range n - 1 {
		rank, result := t.find(m.symbols[i], m.symbols[i+1])
		m.nodes[i].result = result
		if rank != none {
			m.queue = append(m.queue, candidate{rank, int32(i), result})
		}
	}
	m.queue.order()
	for len(m.queue) > 0 {
		c := m.queue.pop()
		node := &m.nodes[c.pos]
		if node.result != c.result {
			continue
		}
		right := &m.nodes[node.next]
		node.id, node.next = c.result, right.next
		right.result = none
		if node.next >= 0 {
			m.nodes[node.next].prev = c.pos
		}
		m.queuePair(t, node.prev)
		m.queuePair(t, c.pos)
	}
	out := m.symbols[:0]
	for i := int32(0); i >= 0; i = m.nodes[i].next {
		out = append(out, m.nodes[i].id)
	}
	m.symbols = out
	m.shrink()
}

func (m *merger) queuePair(t *pairTable, pos int32) {
	if pos < 0 {
		return
	}
	node := &m.nodes[pos]
	if node.next < 0 {
		node.result = none
		return
	}
	rank, result := t.find(node.id, m.nodes[node.next].id)
	node.result = result
	if rank != none {
		m.queue.push(candidate{rank, pos, result})
	}
}

// keepSymbols is how much memory stays for the next piece.
const keepSymbols = 1 << 16

// shrink lets go of the memory that a very long piece took.
func (m *merger) shrink() {
	if cap(m.nodes) > keepSymbols {
		m.nodes = nil
	}
	if cap(m.queue) > keepSymbols {
		m.queue = nil
	}
}
