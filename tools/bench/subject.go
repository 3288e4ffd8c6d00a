package bench

import (
	"fmt"

	"warmpath/routing/blockkey"
	"warmpath/routing/prefix"
)

// fill applies batches to an empty index.
func fill(batches []prefix.Batch) *prefix.Index {
	x := prefix.New()
	for _, b := range batches {
		x.Apply(b)
	}
	return x
}

// fillFloor stores the same events in an empty floor.
func fillFloor(replicas int, steps []step) *floor {
	f := newFloor(replicas)
	for _, s := range steps {
		f.store(s.replica, s.keys)
	}
	return f
}

// filled is one fleet, held by an index and by a floor.
type filled struct {
	*fleet
	author *author
	index  *prefix.Index
	floor  *floor
}

func (b *bench) filled(s shape) *filled {
	f := &filled{fleet: newFleet(b.size(s))}
	f.author = f.fleet.author()
	f.index = prefix.New()
	f.floor = newFloor(f.replicas)
	for s := range f.steps() {
		f.index.Apply(f.author.batch(s.replica, storeEvent(s)))
		f.floor.store(s.replica, s.keys)
	}
	return f
}

// prompt is what a request asks for, and whose chain it is.
type prompt struct {
	owner int
	keys  []blockkey.Key
}

// prompts are prompts of n blocks over all families and up to 16 replicas, so that
// one after the other does not find the same few lines in the processor's cache.
func (f *fleet) prompts(n int) []prompt {
	var all []prompt
	owners := min(f.replicas, 16)
	for i := range owners {
		for family := range min(f.families, 4) {
			owner := i * f.replicas / owners
			all = append(all, prompt{owner, f.prompt(family, owner, n)})
		}
	}
	return all
}

// verify compares the answers of both with what the workload says they are: a
// wrong index may be as fast as it likes.
func (f *filled) verify(prompts []prompt) error {
	depths := make([]int, f.replicas)
	var matches []prefix.Match
	for _, p := range prompts {
		matches, _ = f.index.Match(matches[:0], p.keys, nil)
		if err := f.check(matches, p); err != nil {
			return err
		}
		f.floor.match(depths, p.keys)
		for r, got := range depths {
			if want := f.depth(p.owner, len(p.keys), r); got != want {
				return fmt.Errorf("floor: %s holds %d blocks of a prompt of %d, not %d", f.names[r], got, len(p.keys), want)
			}
		}
	}
	return nil
}

func (f *filled) check(matches []prefix.Match, p prompt) error {
	if len(matches) != f.replicas {
		return fmt.Errorf("a match names %d replicas, not %d", len(matches), f.replicas)
	}
	for r, m := range matches {
		want := f.depth(p.owner, len(p.keys), r)
		if m.Replica != f.names[r] || m.Total != want || m.Predicted != want || m.Suspect {
			return fmt.Errorf("match of %d blocks of %s's chain: got %+v; %s holds %d", len(p.keys), f.names[p.owner], m, f.names[r], want)
		}
		if !f.tiered && m.GPU != want {
			return fmt.Errorf("match of %d blocks of %s's chain: got %+v; all are on the gpu", len(p.keys), f.names[p.owner], m)
		}
	}
	return nil
}
