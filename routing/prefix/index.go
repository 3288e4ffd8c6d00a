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
package prefix

import (
	"bytes"
	"slices"
	"strings"
	"sync"

	"warmpath/routing/blockkey"
)

// Index is the exact prefix index of one pool. One goroutine at a time may call
// Apply and Drop; any number may read. A reader sees a batch wholly or not at all.
type Index struct {
	mu       sync.RWMutex
	banks    []*bank
	replicas map[string]*replica
	// sorted is the replicas by name; a replica's order is its place here.
	sorted   []*replica
	position uint64
	stats    Stats
}

// replica is one replica's current epoch.
type replica struct {
	name    string
	order   int
	epoch   Epoch
	seq     uint64
	suspect bool
	// entries counts the (tier, key) pairs that the replica holds.
	entries int
	bank    *bank
	slot    int
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
	// Stale is true for a batch of an earlier epoch, Duplicate for one whose seq
	// was passed already. Both are ignored.
	Stale, Duplicate bool
	// Gap is how many batches of the epoch are missing before this one.
	Gap uint64
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
	// Batches seen, of which Stale and Duplicates were ignored.
	Batches, Stale, Duplicates uint64
	// Gaps is how often batches were missing, Missing how many.
	Gaps, Missing uint64
	// UnknownRemovals counts removals of what was not held, UnknownEvents events
	// of a later schema.
	UnknownRemovals, UnknownEvents uint64
}

// New returns an empty index at position 0.
func New() *Index {
	return &Index{replicas: map[string]*replica{}}
}

// Apply folds the next batch of the stream into the index. A batch whose seq is
// not the one expected is applied all the same, and its replica is suspect until
// its next epoch. A batch that was applied before changes nothing.
func (x *Index) Apply(b Batch) Applied {
	x.mu.Lock()
	defer x.mu.Unlock()
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
	}
	if b.unknown > 0 {
		r.suspect = true
		a.Unknown = b.unknown
		x.stats.UnknownEvents += uint64(b.unknown)
	}
	for _, c := range b.changes {
		x.change(r, c, &a)
	}
	x.stats.UnknownRemovals += uint64(a.UnknownRemoved)
	for _, bank := range x.banks {
		bank.sweep()
	}
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
		switch bytes.Compare(b.epoch[:], r.epoch[:]) {
		case -1:
			a.Stale = true
			return r, a
		case 1:
			x.restart(r)
			r.epoch, r.seq, r.suspect = b.epoch, 0, false
			a.NewEpoch = true
		}
	}
	if b.seq <= r.seq {
		a.Duplicate = true
		return r, a
	}
	if a.Gap = b.seq - r.seq - 1; a.Gap > 0 {
		r.suspect = true
	}
	r.seq = b.seq
	return r, a
}

// change applies one event to r.
func (x *Index) change(r *replica, c change, a *Applied) {
	switch c.kind {
	case store:
		n := r.bank.store(r.slot, c.tier, c.keys)
		r.entries += n
		x.stats.Entries += n
		a.Stored += n
	case remove:
		n := r.bank.remove(r.slot, c.tier, c.keys)
		r.entries -= n
		x.stats.Entries -= n
		a.Removed += n
		a.UnknownRemoved += len(c.keys) - n
	case clearAll:
		x.restart(r)
		a.Cleared = true
	}
}

// add makes a replica known.
func (x *Index) add(name string, epoch Epoch) *replica {
	r := &replica{name: name, epoch: epoch}
	x.place(r)
	x.replicas[name] = r
	at, _ := slices.BinarySearchFunc(x.sorted, name, func(r *replica, name string) int {
		return strings.Compare(r.name, name)
	})
	x.sorted = slices.Insert(x.sorted, at, r)
	x.reorder(at)
	return r
}

// place gives r a slot of the first bank that has one.
func (x *Index) place(r *replica) {
	for _, b := range x.banks {
		if slot, ok := b.take(r); ok {
			r.bank, r.slot = b, slot
			return
		}
	}
	b := newBank()
	x.banks = append(x.banks, b)
	r.bank = b
	r.slot, _ = b.take(r) // a new bank has every slot
}

// restart empties r by giving it a clean slot.
func (x *Index) restart(r *replica) {
	if r.entries == 0 {
		return // every bit of the slot is clear
	}
	r.bank.release(r.slot)
	x.stats.Entries -= r.entries
	r.entries = 0
	x.place(r)
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
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.replicas[name]
	if r == nil {
		return
	}
	r.bank.release(r.slot)
	x.stats.Entries -= r.entries
	delete(x.replicas, name)
	x.sorted = slices.Delete(x.sorted, r.order, r.order+1)
	x.reorder(r.order)
}

// Position is the highest KV stream sequence applied, 0 before the first.
func (x *Index) Position() uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.position
}

// Has says whether a replica holds a block in a tier.
func (x *Index) Has(replica string, t Tier, k blockkey.Key) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	r := x.replicas[replica]
	return r != nil && t < NumTiers && r.bank.get(k)[t]>>r.slot&1 != 0
}

// Stats returns the index's counters.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := x.stats
	s.Replicas = len(x.sorted)
	for _, r := range x.sorted {
		if r.suspect {
			s.Suspects++
		}
	}
	for _, b := range x.banks {
		s.Keys += b.keys
	}
	return s
}
