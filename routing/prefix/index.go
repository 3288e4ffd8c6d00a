// Package prefix is the index of which replica holds which prefix: a fold of a
// pool's KV stream.
//
// Presence is a set per (replica, tier, key), and a key names a block and all
// before it, so chains need no links: a block whose parent is unknown simply
// does not count until the parent comes, in whatever order. A match is the
// leading blocks of a prompt that a replica holds without a hole.
//
// Equal streams give equal answers: nothing here reads a clock, draws a random
// number or depends on the order of a map.
//
// DESIGN.md says how it is built, what else was measured, and what it costs.
package prefix

import (
	"math/bits"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"warmpath/routing/blockkey"
)

// Config bounds an index. The zero value has no bounds.
type Config struct {
	// MaxBytes is a hard limit of the index's memory, as Stats.Bytes counts it;
	// over it the deepest blocks go, counted in Stats.Evicted. 0 is no limit. It
	// bounds what the index keeps: while a segment is rebuilt its old and new
	// slots exist both, and the runtime's collector needs room of its own.
	MaxBytes int64
}

// Index is the exact prefix index of one pool. One goroutine at a time may call
// Apply, Drop, AppendSnapshot and Visit (those that come together wait for
// each other); any number may read meanwhile. A reader sees a batch wholly or not
// at all.
type Index struct {
	// writer is held by who changes the index or needs it not to change; gate
	// keeps readers and changes apart, for one batch at a time.
	writer sync.Mutex
	gate   gate

	cfg   Config
	table table
	sets  sets
	// owners is the replica of each lane, nil for none; live, dirty and sweeping
	// are lanes in bits: in use; dead, with blocks left; and dead when the
	// running sweep began.
	owners                []*replica
	live, dirty, sweeping []uint64
	dead                  int // lanes in dirty
	cursor                int // segment that the sweep comes to next
	hand                  int // segment that eviction comes to next

	replicas map[string]*replica
	// sorted is the replicas by name; a replica's order is its place here.
	sorted   []*replica
	position uint64
	stats    Stats
	// fixed is the memory of what is kept per replica; touches counts what all
	// histories have noted.
	fixed   int64
	touches int

	members []element // scratch
	sink    uint32    // keeps warm's reads
}

// replica is one replica's current epoch. It has a lane: a number in the sets of
// holders. When its life ends the lane is taken out of live, which takes its
// blocks away at once; what is left in the table is swept later, a few segments a
// batch, and only then is the lane used again.
type replica struct {
	name  string
	order int
	lane  int
	epoch Epoch
	seq   uint64
	// unsure is true when what the replica holds can no longer be made good in
	// this epoch; history is what is missing and may still come.
	unsure  bool
	history history
	// doubt is why the publisher itself says that its events may not tell what the
	// replica holds, empty when it does not; doubtSeq is the batch that said so, or
	// the opposite, last.
	doubt    string
	doubtSeq uint64
	// entries counts the keys held, per tier.
	entries [NumTiers]int
}

// suspect says whether a part of the replica's history is missing or its
// publisher is in doubt.
func (r *replica) suspect() bool {
	return r.unsure || r.history.open() || r.doubt != ""
}

func (r *replica) total() int {
	return r.entries[GPU] + r.entries[CPU] + r.entries[Disk] + r.entries[Remote]
}

// Applied says what a batch did.
type Applied struct {
	// Stored and Removed count (tier, key) pairs that came and went; what was
	// there already, or was not there, is not counted.
	Stored, Removed int
	// UnknownRemoved counts removals of what the index did not hold.
	UnknownRemoved int
	// Unknown counts events that only a later version of the schema knows.
	Unknown int
	// NewEpoch is true for the first batch of an epoch that the index sees.
	NewEpoch bool
	// Stale is true for a batch of an earlier epoch, Duplicate for one that was
	// applied already or was given up. Both are ignored.
	Stale, Duplicate bool
	// Gap is how many batches of the epoch are missing before this one.
	Gap uint64
	// Late is true for a batch that was missing and came after later ones: it
	// changes what no later one has changed since.
	Late bool
	// Cleared is true when the batch emptied the replica's cache on the way.
	Cleared bool
}

// Stats counts what the index holds and has seen.
type Stats struct {
	// Replicas known, and how many of them are suspect.
	Replicas, Suspects int
	// Entries is the (replica, tier, key) triples held. Keys is the table's
	// entries, those of dead lives included until they are swept.
	Entries, Keys int
	// Sets is how many different sets of two holders or more there are.
	Sets int
	// Batches seen, of which Stale and Duplicates were ignored.
	Batches, Stale, Duplicates uint64
	// Gaps is how often batches were missing, Missing how many, Late how many of
	// those came after all.
	Gaps, Missing, Late uint64
	// UnknownRemovals counts removals of what was not held, UnknownEvents events
	// of a later schema.
	UnknownRemovals, UnknownEvents uint64
	// Tiers parts Entries by tier.
	Tiers [NumTiers]int
	// Bytes is the index's memory, Evicted the entries that went because it would
	// have passed Config.MaxBytes.
	Bytes   int64
	Evicted uint64
}

// New returns an empty index at position 0 without bounds.
func New() *Index {
	return NewWith(Config{})
}

// NewWith returns an empty index at position 0 that keeps to cfg.
func NewWith(cfg Config) *Index {
	return &Index{cfg: cfg, replicas: map[string]*replica{}, sets: newSets()}
}

// Apply folds the next batch of the stream into the index. A batch whose seq is
// not the one expected is applied all the same, and its replica is suspect until
// the missing ones have come or its next epoch. A replica whose publisher is in
// doubt is suspect until the publisher says that this is over or begins a new
// epoch; a clear does not end a doubt. A batch that was applied before changes
// nothing.
func (x *Index) Apply(b Batch) Applied {
	x.writer.Lock()
	defer x.writer.Unlock()
	if !x.ends(b) {
		x.sweep()
	}
	for _, c := range b.changes {
		x.sink += x.table.warm(c.keys)
	}
	x.gate.lock()
	a := x.apply(b)
	x.fit()
	x.gate.unlock()
	return a
}

func (x *Index) apply(b Batch) Applied {
	x.position = max(x.position, b.position)
	x.stats.Batches++

	r, a := x.admit(b)
	switch {
	case a.Stale:
		x.stats.Stale++
		return a
	case a.Duplicate:
		x.stats.Duplicates++
		return a
	case a.Gap > 0:
		x.stats.Gaps++
		x.stats.Missing += a.Gap
	case a.Late:
		x.stats.Late++
	}
	if b.unknown > 0 {
		r.unsure = true
		a.Unknown = b.unknown
		x.stats.UnknownEvents += uint64(b.unknown)
	}
	for _, c := range b.changes {
		x.change(r, c, b.seq, &a)
	}
	x.settle(r)
	x.stats.UnknownRemovals += uint64(a.UnknownRemoved)
	return a
}

// admit finds the batch's replica and its place in the epoch.
func (x *Index) admit(b Batch) (*replica, Applied) {
	var a Applied
	r := x.replicas[b.replica]
	if r == nil {
		r = x.add(b.replica, b.epoch)
		a.NewEpoch = true
	} else {
		switch strings.Compare(string(b.epoch[:]), string(r.epoch[:])) {
		case -1:
			a.Stale = true
			return r, a
		case 1:
			x.restart(r)
			x.forget(r)
			x.setDoubt(r, "", 0)
			r.epoch, r.seq, r.unsure = b.epoch, 0, false
			a.NewEpoch = true
		}
	}
	if b.seq <= r.seq {
		a.Late = r.history.fill(b.seq)
		a.Duplicate = !a.Late
		return r, a
	}
	if a.Gap = b.seq - r.seq - 1; a.Gap > 0 && !r.unsure {
		r.history.miss(r.seq+1, b.seq-1)
	}
	r.seq = b.seq
	return r, a
}

// change applies one event of a batch to r.
func (x *Index) change(r *replica, c change, seq uint64, a *Applied) {
	if c.kind == setDoubt {
		if seq >= r.doubtSeq {
			x.setDoubt(r, c.doubt, seq)
		}
		return
	}
	if r.history.open() || a.Late {
		x.changeNoted(r, c, seq, a)
		return
	}
	switch c.kind {
	case store:
		a.Stored += x.store(r, c)
	case remove:
		n := x.remove(r, c)
		a.Removed += n
		a.UnknownRemoved += len(c.keys) - n
	case clearAll:
		x.restart(r)
		a.Cleared = true
	}
}

// store marks keys as held by r in a tier and returns how many were not.
func (x *Index) store(r *replica, c change) (stored int) {
	if len(c.keys) == 0 {
		return 0
	}
	t := &x.table
	if t.segments == nil {
		t.segments = make([]segment, numSegments)
	}
	e := elementOf(r.lane, c.tier)
	depth := x.depth(c)
	// Blocks in a row mostly have the same holders, and so the next ones.
	from, to, n := nobody, single|ref(e), uint32(0)
	for _, k := range c.keys {
		s := &t.segments[segmentOf(k)]
		at, held := s.find(k)
		switch held {
		case nobody:
			t.insert(s, at, slot{^k, single | ref(e), depth})
			stored++
		default:
			if held != from {
				if n > 0 {
					x.sets.move(from, to, n)
					n = 0
				}
				from, to = held, x.sets.with(held, e)
			}
			in := &s.slots[at]
			if depth < in.depth {
				t.deepen(in, depth)
			}
			if to != held {
				in.ref = to
				stored++
				n++
			}
		}
		if depth < orphanDepth-1 {
			depth++
		}
	}
	if n > 0 {
		x.sets.move(from, to, n)
	}
	x.count(r, c.tier, stored)
	return stored
}

// depth is the place of a change's first key in its prompt, as far as known.
func (x *Index) depth(c change) uint32 {
	switch {
	case c.depth > 0:
		return c.depth
	case c.parented:
		return x.table.depthBelow(c.parent)
	}
	return 1
}

// remove takes the mark away and returns from how many keys.
func (x *Index) remove(r *replica, c change) (removed int) {
	t := &x.table
	if t.segments == nil {
		return 0
	}
	e := elementOf(r.lane, c.tier)
	from, to, n := nobody, nobody, uint32(0)
	for _, k := range c.keys {
		s := &t.segments[segmentOf(k)]
		at, held := s.find(k)
		if held == nobody {
			continue
		}
		if held != from {
			if n > 0 {
				x.sets.move(from, to, n)
				n = 0
			}
			from, to = held, x.sets.without(held, e)
		}
		if to == held {
			continue
		}
		removed++
		n++
		if to == nobody {
			t.erase(s, at)
		} else {
			s.slots[at].ref = to
		}
	}
	if n > 0 {
		x.sets.move(from, to, n)
	}
	x.count(r, c.tier, -removed)
	return removed
}

// count keeps the number of entries.
func (x *Index) count(r *replica, t Tier, n int) {
	r.entries[t] += n
	x.stats.Tiers[t] += n
	x.stats.Entries += n
}

// replicaBytes is what a replica costs beside its name and its blocks: itself,
// its places in the lists, with their slack, and in the map.
const replicaBytes = int64(unsafe.Sizeof(replica{})) + 4*8 + 64

// add makes a replica known.
func (x *Index) add(name string, epoch Epoch) *replica {
	r := &replica{name: strings.Clone(name), epoch: epoch}
	x.place(r, x.freeLane())
	x.enlist(r)
	return r
}

func (x *Index) enlist(r *replica) {
	x.replicas[r.name] = r
	at, _ := slices.BinarySearchFunc(x.sorted, r.name, func(r *replica, name string) int {
		return strings.Compare(r.name, name)
	})
	x.sorted = slices.Insert(x.sorted, at, r)
	x.reorder(at)
	x.fixed += replicaBytes + int64(len(r.name)+len(r.doubt))
}

// freeLane is the lowest lane that is neither live nor dirty.
func (x *Index) freeLane() int {
	for w := range x.live {
		if free := ^(x.live[w] | x.dirty[w]); free != 0 {
			return w<<6 + bits.TrailingZeros64(free)
		}
	}
	return len(x.live) << 6
}

// place gives r a lane.
func (x *Index) place(r *replica, lane int) {
	for lane>>6 >= len(x.live) {
		x.live, x.dirty, x.sweeping = append(x.live, 0), append(x.dirty, 0), append(x.sweeping, 0)
		x.owners = append(x.owners, make([]*replica, 64)...)
	}
	x.live[lane>>6] |= 1 << (lane & 63)
	x.owners[lane] = r
	r.lane = lane
}

// release ends the life in r's lane, at once for readers.
func (x *Index) release(r *replica) {
	bit := uint64(1) << (r.lane & 63)
	x.live[r.lane>>6] &^= bit
	x.owners[r.lane] = nil
	if r.total() == 0 {
		return // nothing is left of it
	}
	x.dirty[r.lane>>6] |= bit
	x.dead++
	for t := range r.entries {
		x.count(r, Tier(t), -r.entries[t])
	}
}

// restart empties r by giving it a clean lane.
func (x *Index) restart(r *replica) {
	if r.total() == 0 {
		return
	}
	x.release(r)
	x.place(r, x.freeLane())
}

// reorder renumbers the replicas from a place in the sorted list on.
func (x *Index) reorder(from int) {
	for i := from; i < len(x.sorted); i++ {
		x.sorted[i].order = i
	}
}

// Drop forgets a replica and what it held. Should it come back in the same
// epoch, its batches do not start at seq 1, and it is suspect.
func (x *Index) Drop(name string) {
	x.writer.Lock()
	defer x.writer.Unlock()
	x.gate.lock()
	defer x.gate.unlock()
	r := x.replicas[name]
	if r == nil {
		return
	}
	x.release(r)
	x.forget(r)
	delete(x.replicas, name)
	x.sorted = slices.Delete(x.sorted, r.order, r.order+1)
	x.reorder(r.order)
	x.fixed -= replicaBytes + int64(len(r.name)+len(r.doubt))
}

// Position is the highest KV stream sequence applied, 0 before the first.
func (x *Index) Position() uint64 {
	x.gate.rlock()
	defer x.gate.runlock()
	return x.position
}

// Has says whether a replica holds a block in a tier.
func (x *Index) Has(replica string, t Tier, k blockkey.Key) bool {
	x.gate.rlock()
	defer x.gate.runlock()
	r := x.replicas[replica]
	return r != nil && t < NumTiers && x.sets.has(x.table.get(k), elementOf(r.lane, t))
}

// Stats returns the index's counters.
func (x *Index) Stats() Stats {
	x.gate.rlock()
	defer x.gate.runlock()
	s := x.stats
	s.Replicas = len(x.sorted)
	for _, r := range x.sorted {
		if r.suspect() {
			s.Suspects++
		}
	}
	s.Keys = x.table.keys
	s.Sets = x.sets.live
	s.Bytes = x.bytes()
	return s
}
