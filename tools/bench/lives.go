package bench

import (
	"context"
	"fmt"
	"time"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
)

// maxClear is how soon a cleared replica must be gone from the answers.
const maxClear = 100 // µs

// clear ends replicas' cache lives and looks when a match no longer shows them.
func (b *bench) clear(context.Context) error {
	for _, s := range []struct {
		shape
		name string
	}{{base, "1 M entries"}, {tenfold, "10 M entries"}} {
		if err := b.clearShape(s.shape, s.name); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) clearShape(s shape, name string) error {
	f := b.filled(s)
	var plain []float64
	for r := range min(b.rounds, 3) {
		plain = append(plain, nanoseconds(func() { f.floor.forget(r) })/1e3)
	}
	matches := make([]prefix.Match, 0, f.replicas)
	var cleared, began []float64
	for r := range f.replicas / 2 { // half the fleet is cleared, half begins a new life
		took, err := f.gone(&matches, r, clearEvent())
		if err != nil {
			return err
		}
		cleared = append(cleared, took)
	}
	for r := f.replicas / 2; r < f.replicas; r++ {
		f.author.restart(r, 2)
		took, err := f.gone(&matches, r, storeEvent(step{keys: f.prompt(0, r, 1)[:0]}))
		if err != nil {
			return err
		}
		began = append(began, took)
	}
	if n := f.index.Stats().Entries; n != 0 {
		return fmt.Errorf("all replicas were cleared, and %d entries are left", n)
	}
	if err := b.report(pair{values: cleared, floors: plain}.figure("clear a replica, "+name, "µs"), valueAtMost(maxClear)); err != nil {
		return err
	}
	if err := b.report(pair{values: began, floors: plain}.figure("a replica's new epoch, "+name, "µs"), valueAtMost(maxClear)); err != nil {
		return err
	}
	worst := Figure{Name: "the slowest of these, " + name, Value: quantile(append(cleared, began...), 1), Unit: "µs"}
	return b.report(worst, nil)
}

// gone applies an event that empties a replica, and matches a prompt whose first
// block it held; it returns how many microseconds both took.
func (f *filled) gone(matches *[]prefix.Match, replica int, event *pb.KVEvent) (float64, error) {
	keys := f.prompt(0, replica, 1)
	*matches, _ = f.index.Match((*matches)[:0], keys, nil)
	if (*matches)[replica].Total != 1 {
		return 0, fmt.Errorf("%s does not hold what it stored", f.names[replica])
	}
	batch := f.author.batch(replica, event)
	began := time.Now()
	f.index.Apply(batch)
	*matches, _ = f.index.Match((*matches)[:0], keys, nil)
	took := float64(time.Since(began).Nanoseconds()) / 1e3
	if (*matches)[replica].Total != 0 {
		return 0, fmt.Errorf("%s was cleared, and a match shows it", f.names[replica])
	}
	return took, nil
}

// snapshot writes an index to bytes and reads it back.
func (b *bench) snapshot(context.Context) error {
	f := b.filled(base)
	var data, plain []byte
	saved := interleave(b.rounds,
		func() float64 { return seconds(func() { plain = f.floor.save(plain[:0]) }) },
		func() float64 { return seconds(func() { data = f.index.AppendSnapshot(data[:0]) }) })
	var restored *prefix.Index
	var fault error
	loaded := interleave(b.rounds,
		func() float64 {
			empty := newFloor(f.replicas)
			return seconds(func() { empty.load(plain) })
		},
		func() float64 {
			return seconds(func() { restored, fault = prefix.Restore(data, prefix.Config{}) })
		})
	if fault != nil {
		return fault
	}
	again := &filled{fleet: f.fleet, index: restored, floor: f.floor}
	if err := again.verify(f.prompts(b.lengths()[1])); err != nil {
		return fmt.Errorf("restored: %w", err)
	}
	if string(restored.AppendSnapshot(nil)) != string(data) {
		return fmt.Errorf("the restored index has another snapshot than it came from")
	}
	entries := float64(f.index.Stats().Entries)
	size := pair{values: []float64{float64(len(data)) / entries}, floors: []float64{float64(len(plain)) / entries}}
	if err := b.report(saved.figure("snapshot of 1 M entries", "s"), valueAtMost(1)); err != nil {
		return err
	}
	if err := b.report(loaded.figure("restore of 1 M entries", "s"), valueAtMost(1)); err != nil {
		return err
	}
	return b.report(size.figure("snapshot, size", "bytes/entry"), valueAtMost(12))
}
