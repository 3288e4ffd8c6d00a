package prefix

import (
	"slices"

	"warmpath/routing/blockkey"
)

// Entry is one block in one tier of one replica.
type Entry struct {
	Replica string
	Tier    Tier
	Key     blockkey.Key
}

// Life is what the index knows of a replica beside its blocks.
type Life struct {
	Replica string
	Epoch   Epoch
	// Seq is the last batch of the epoch that was applied, Missing how many before
	// it are missing and may still come.
	Seq, Missing uint64
	// Suspect is true when the blocks below may not be what the replica holds:
	// batches are missing, or the publisher is in doubt.
	Suspect bool
	// Doubt is why the publisher says that its events may not tell what the replica
	// holds; empty when it does not say so.
	Doubt string
	// Entries counts the (tier, key) pairs held, Tiers parts them by tier.
	Entries int
	Tiers   [NumTiers]int
}

// Lives lists the replicas by name.
func (x *Index) Lives() []Life {
	x.gate.rlock()
	defer x.gate.runlock()
	out := make([]Life, 0, len(x.sorted))
	for _, r := range x.sorted {
		l := Life{Replica: r.name, Epoch: r.epoch, Seq: r.seq, Suspect: r.suspect(), Doubt: r.doubt, Entries: r.total(), Tiers: r.entries}
		for _, h := range r.history.holes {
			l.Missing += h.last - h.first + 1
		}
		out = append(out, l)
	}
	return out
}

// Visit calls f for every entry, by key, then replica, then tier, until f
// returns false. Matches go on meanwhile; Apply and Drop wait. f must not call
// those, nor Visit and AppendSnapshot.
func (x *Index) Visit(f func(Entry) bool) {
	x.writer.Lock()
	defer x.writer.Unlock()
	known := map[ref][]Entry{}
	var members []element
	for i := range x.table.segments {
		for _, in := range x.table.segments[i].slots {
			if in.ref == nobody {
				continue
			}
			holders, ok := known[in.ref]
			if !ok {
				members = x.sets.elements(members[:0], in.ref)
				holders = x.holders(members)
				known[in.ref] = holders
			}
			for _, e := range holders {
				e.Key = in.key()
				if !f(e) {
					return
				}
			}
		}
	}
}

// holders names the live ones of some elements, sorted.
func (x *Index) holders(members []element) []Entry {
	out := make([]Entry, 0, len(members))
	for _, e := range members {
		if r := x.owners[e.lane()]; r != nil {
			out = append(out, Entry{Replica: r.name, Tier: e.tier()})
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		if a.Replica != b.Replica {
			return x.replicas[a.Replica].order - x.replicas[b.Replica].order
		}
		return int(a.Tier) - int(b.Tier)
	})
	return out
}
