package prefix

import (
	"math/bits"
	"slices"
	"strings"

	"warmpath/routing/blockkey"
)

// Match is how much of a prompt one replica holds, in blocks.
type Match struct {
	Replica string
	// Epoch is zero for a replica that only predictions know.
	Epoch Epoch
	// GPU and Total count leading blocks without a hole: those on the gpu tier,
	// and those in any tier.
	GPU, Total int
	// Predicted counts leading blocks that are held or that a decision is about
	// to create; never below Total.
	Predicted int
	// Tiers parts Total by the best tier of each block.
	Tiers [NumTiers]int
	// Suspect is true when the replica's history has a hole or its publisher is in
	// doubt, so that it may hold more or less than this.
	Suspect bool
	// Entries counts the (tier, key) pairs that the replica holds of any prompt; 0
	// for one that only predictions know.
	Entries int
}

// Match appends to dst what each known replica holds of a prompt, sorted by
// replica, and returns the KV stream sequence that the answer stands at. p may
// be nil; with it, replicas of which only predictions are known, and match,
// appear too. Safe for concurrent use; it does not allocate when dst has room and
// the pool has had at most 8,192 lives at a time.
func (x *Index) Match(dst []Match, keys []blockkey.Key, p *Predictions) (matches []Match, position uint64) {
	x.gate.rlock()
	defer x.gate.runlock()
	first := len(dst)
	dst = slices.Grow(dst, len(x.sorted))[:first+len(x.sorted)]
	out := dst[first:]
	for i, r := range x.sorted {
		out[i] = Match{Replica: r.name, Epoch: r.epoch, Suspect: r.suspect(), Entries: r.total()}
	}
	switch {
	case x.table.segments == nil: // nobody holds anything
	case len(x.live) == 1:
		x.matchNarrow(out, keys)
	case len(x.live) <= matchWords:
		var scratch [2 + NumTiers][matchWords]uint64
		w := wide{x: x, out: out, held: scratch[0][:], gpu: scratch[1][:]}
		for t := range w.now {
			w.now[t] = scratch[2+t][:]
		}
		w.match(keys)
	case len(x.live) > matchWords:
		w := wide{x: x, out: out, held: make([]uint64, len(x.live)), gpu: make([]uint64, len(x.live))}
		for t := range w.now {
			w.now[t] = make([]uint64, len(x.live))
		}
		w.match(keys)
	}
	for i := range out {
		m := &out[i]
		m.Predicted = m.Total
		m.Tiers[GPU] = m.Total - m.Tiers[CPU] - m.Tiers[Disk] - m.Tiers[Remote]
	}
	if p != nil {
		dst = x.predict(dst, first, keys, p)
	}
	return dst, x.position
}

// matchWords is the words of lanes for which a match has room on its stack:
// 4,096 replicas, and as many lives that ended and are not swept yet.
const matchWords = 128

// matchNarrow fills in the matches, all of Tiers but GPU, of a pool whose lanes
// are bits of one word. Blocks in a row mostly have the same holders, so it goes
// by runs of equal refs.
func (x *Index) matchNarrow(out []Match, keys []blockkey.Key) {
	held, gpu := x.live[0], x.live[0] // lanes that hold every block so far
	last, start := nobody, 0          // the run
	lower := [NumTiers]uint64{}       // lanes whose best tier in the run is this one
	segments := x.table.segments
	for i, k := range keys {
		if i%readAhead == 0 {
			fetch(segments, keys[i:min(i+readAhead, len(keys))])
		}
		r := segments[segmentOf(k)].lookup(k)
		if r == last && r != nobody {
			continue
		}
		x.addRun(out, &lower, i-start)
		last, start = r, i
		now := x.sets.narrowRows(r)
		all := now[GPU] | now[CPU] | now[Disk] | now[Remote]
		x.each(held&^all, 0, func(r *replica) { out[r.order].Total = i })
		x.each(gpu&^now[GPU], 0, func(r *replica) { out[r.order].GPU = i })
		held &= all
		gpu &= now[GPU]
		if held == 0 {
			return
		}
		lower = [NumTiers]uint64{}
		for t, rest := CPU, held&^now[GPU]; rest != 0; t++ {
			lower[t] = rest & now[t]
			rest &^= now[t]
		}
	}
	x.addRun(out, &lower, len(keys)-start)
	x.each(held, 0, func(r *replica) { out[r.order].Total = len(keys) })
	x.each(gpu, 0, func(r *replica) { out[r.order].GPU = len(keys) })
}

// addRun counts n blocks more for the lanes that have them in a lower tier only.
func (x *Index) addRun(out []Match, lower *[NumTiers]uint64, n int) {
	if lower[CPU]|lower[Disk]|lower[Remote] == 0 {
		return
	}
	for t := CPU; t < NumTiers; t++ {
		x.each(lower[t], 0, func(r *replica) { out[r.order].Tiers[t] += n })
	}
}

// each calls f for the owner of every lane in a word.
func (x *Index) each(lanes uint64, word int, f func(*replica)) {
	for ; lanes != 0; lanes &= lanes - 1 {
		f(x.owners[word<<6|bits.TrailingZeros64(lanes)])
	}
}

// narrowRows is a set of lanes below 64, per tier.
func (s *sets) narrowRows(r ref) (rows [NumTiers]uint64) {
	switch {
	case r == nobody:
		return rows
	case r.isSingle():
		rows[r.element().tier()] = 1 << r.element().lane()
		return rows
	}
	t := s.at(r)
	if t.form == narrow {
		rows[GPU] = t.bits
		return rows
	}
	n := 0 // one word is always dense
	for i := range rows {
		if t.tiers>>i&1 != 0 {
			rows[i] = t.body[n]
			n++
		}
	}
	return rows
}

// wide is a match over lanes of many words.
type wide struct {
	x   *Index
	out []Match
	// held and gpu are the lanes that hold every block so far, now the holders in
	// the run, of which the words from lo to hi matter: those in which a lane is
	// held.
	held, gpu []uint64
	now       lanes
	lo, hi    int
}

// match is matchNarrow for many words.
func (m *wide) match(keys []blockkey.Key) {
	x := m.x
	m.hi = len(x.live)
	copy(m.held, x.live)
	copy(m.gpu, x.live)
	last, start, lower := nobody, 0, false
	segments := x.table.segments
	for i, k := range keys {
		if i%readAhead == 0 {
			fetch(segments, keys[i:min(i+readAhead, len(keys))])
		}
		r := segments[segmentOf(k)].lookup(k)
		if r == last && r != nobody {
			continue
		}
		if lower {
			m.addRun(i - start)
		}
		last, start = r, i
		if lower = m.narrow(r, i); m.lo == m.hi {
			return
		}
	}
	if lower {
		m.addRun(len(keys) - start)
	}
	for w := m.lo; w < m.hi; w++ {
		x.each(m.held[w], w, func(r *replica) { m.out[r.order].Total = len(keys) })
		x.each(m.gpu[w], w, func(r *replica) { m.out[r.order].GPU = len(keys) })
	}
}

// narrow leaves out the lanes that do not hold block i, whose holders are r, and
// says whether any holds it in a lower tier only.
func (m *wide) narrow(r ref, i int) (lower bool) {
	x, out := m.x, m.out
	for t := range m.now {
		clear(m.now[t][m.lo:m.hi])
	}
	x.sets.expandWithin(r, &m.now, m.lo, m.hi)
	lo, hi := m.hi, m.lo
	for w := m.lo; w < m.hi; w++ {
		gpu := m.now[GPU][w]
		all := gpu | m.now[CPU][w] | m.now[Disk][w] | m.now[Remote][w]
		x.each(m.held[w]&^all, w, func(r *replica) { out[r.order].Total = i })
		x.each(m.gpu[w]&^gpu, w, func(r *replica) { out[r.order].GPU = i })
		m.held[w] &= all
		m.gpu[w] &= gpu
		if m.held[w] != 0 {
			lo, hi = min(lo, w), w+1
			lower = lower || m.held[w]&^gpu != 0
		}
	}
	m.lo, m.hi = lo, max(lo, hi)
	return lower
}

// addRun counts n blocks more for the lanes that have them in a lower tier only.
func (m *wide) addRun(n int) {
	for w := m.lo; w < m.hi; w++ {
		rest := m.held[w] &^ m.now[GPU][w]
		for t := CPU; rest != 0; t++ {
			m.x.each(rest&m.now[t][w], w, func(r *replica) { m.out[r.order].Tiers[t] += n })
			rest &^= m.now[t][w]
		}
	}
}

// expandWithin sets the bits of r in the words of dst from lo to hi, which are
// clear.
func (s *sets) expandWithin(r ref, dst *lanes, lo, hi int) {
	put := func(e element) {
		if w := e.lane() >> 6; w >= lo && w < hi {
			dst[e.tier()][w] |= 1 << (e.lane() & 63)
		}
	}
	switch {
	case r == nobody:
		return
	case r.isSingle():
		put(r.element())
		return
	}
	t := s.at(r)
	if t.form == listed {
		for _, e := range t.list() {
			put(e)
		}
		return
	}
	var rows lanes
	if words := min(hi, t.rows(&rows)); lo < words {
		for i := range rows {
			if rows[i] != nil {
				copy(dst[i][lo:words], rows[i][lo:words])
			}
		}
	}
}

// predict extends the matches from dst[first] on by what p predicts.
func (x *Index) predict(dst []Match, first int, keys []blockkey.Key, p *Predictions) []Match {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for i := range dst[first:] {
		m := &dst[first+i]
		about := p.about(m.Replica)
		if about.none() {
			continue
		}
		r := x.sorted[i]
		for m.Predicted < len(keys) {
			k := keys[m.Predicted]
			if !about.has(k) && !x.sets.holds(x.table.get(k), r.lane) {
				break
			}
			m.Predicted++
		}
	}
	known := len(dst)
	for name := range p.replicas {
		dst = x.predictUnknown(dst, name, keys, p)
	}
	for name := range p.learned {
		if p.replicas[name] == nil {
			dst = x.predictUnknown(dst, name, keys, p)
		}
	}
	if len(dst) > known {
		slices.SortFunc(dst[first:], func(a, b Match) int { return strings.Compare(a.Replica, b.Replica) })
	}
	return dst
}

// predictUnknown appends the match of a replica that is not in the index.
func (x *Index) predictUnknown(dst []Match, name string, keys []blockkey.Key, p *Predictions) []Match {
	if x.replicas[name] != nil {
		return dst
	}
	about := p.about(name)
	m := Match{Replica: name}
	for m.Predicted < len(keys) && about.has(keys[m.Predicted]) {
		m.Predicted++
	}
	if m.Predicted > 0 {
		dst = append(dst, m)
	}
	return dst
}
