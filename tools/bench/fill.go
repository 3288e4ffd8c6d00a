package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"

	"google.golang.org/protobuf/proto"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
)

// The bounds of memory per entry: the floor is 18 bytes at 64 replicas.
const (
	maxBytesPerEntry     = 28
	maxBytesPerEntryWide = 40
	maxAccountingError   = 5 // percent, either way
)

// apply fills an index and the floor, one writer each.
func (b *bench) apply(context.Context) error {
	if err := b.applyShape(base, "apply, one writer", ratioAtLeast(0.8)); err != nil {
		return err
	}
	return b.applyEncoded()
}

func (b *bench) applyShape(s shape, name string, limit *bound) error {
	f := newFleet(b.size(s))
	steps := slices.Collect(f.steps())
	entries := 0
	for _, s := range steps {
		entries += len(s.keys)
	}
	batches := f.author().batches()
	var x *prefix.Index
	p := interleave(b.rounds,
		func() float64 { return float64(entries) / seconds(func() { fillFloor(f.replicas, steps) }) },
		func() float64 { return float64(entries) / seconds(func() { x = fill(batches) }) })
	if got := x.Stats(); got.Entries != entries || got.Suspects > 0 {
		return fmt.Errorf("the index holds %d entries of %d, %d of %d replicas suspect", got.Entries, entries, got.Suspects, got.Replicas)
	}
	return b.report(p.figure(name, "entries/s"), limit)
}

// applyEncoded is apply from the bytes that a stream delivers.
func (b *bench) applyEncoded() error {
	f := newFleet(b.size(base))
	steps := slices.Collect(f.steps())
	a := f.author()
	var encoded [][]byte
	for _, s := range steps {
		data, err := proto.Marshal(a.message(s.replica, storeEvent(s)))
		if err != nil {
			return err
		}
		encoded = append(encoded, data)
	}
	var fault error
	p := interleave(b.rounds,
		func() float64 { return float64(f.entries()) / seconds(func() { fillFloor(f.replicas, steps) }) },
		func() float64 {
			return float64(f.entries()) / seconds(func() {
				x := prefix.New()
				for i, data := range encoded {
					message := &pb.KVBatch{}
					if err := proto.Unmarshal(data, message); err != nil {
						fault = err
					}
					batch, err := prefix.FromProto(message, uint64(i+1))
					if err != nil {
						fault = err
					}
					x.Apply(batch)
				}
			})
		})
	if fault != nil {
		return fault
	}
	return b.report(p.figure("apply, decoding included", "entries/s"), nil)
}

// memory measures the heap that a filled index keeps, all in.
func (b *bench) memory(context.Context) error {
	return b.memoryShape(base, "", maxBytesPerEntry)
}

func (b *bench) memoryShape(s shape, of string, limit float64) error {
	f := newFleet(b.size(s))
	steps := slices.Collect(f.steps())
	batches := f.author().batches()
	entries, accounted := 0.0, 0.0
	p := interleave(min(b.rounds, 3),
		func() float64 {
			before := heapBytes()
			plain := fillFloor(f.replicas, steps)
			held := heapBytes() - before
			runtime.KeepAlive(plain)
			return held
		},
		func() float64 {
			before := heapBytes()
			x := fill(batches)
			held := heapBytes() - before
			stats := x.Stats()
			entries, accounted = float64(stats.Entries), float64(stats.Bytes)
			return held
		})
	runtime.KeepAlive(steps)
	runtime.KeepAlive(batches)
	heap := median(p.values)
	for i := range p.values {
		p.values[i] /= entries
		p.floors[i] /= entries
	}
	if err := b.report(p.figure("memory, all in"+of, "bytes/entry"), valueAtMost(limit)); err != nil {
		return err
	}
	if b.quick { // too small to tell from what the runtime itself takes
		return nil
	}
	off := Figure{Name: "memory, accounted against measured" + of, Value: math.Abs(accounted/heap-1) * 100, Unit: "% off"}
	return b.report(off, valueAtMost(maxAccountingError))
}

// wide is the same with 1,024 replicas.
func (b *bench) wide(context.Context) error {
	const of = ", 1,024 replicas"
	if err := b.applyShape(wide, "apply, one writer"+of, nil); err != nil {
		return err
	}
	if err := b.memoryShape(wide, of, maxBytesPerEntryWide); err != nil {
		return err
	}
	return b.matchShape(b.filled(wide), of, nil)
}

// tiers is the same with blocks in all tiers, some in two.
func (b *bench) tiers(context.Context) error {
	const of = ", mixed tiers"
	if err := b.applyShape(mixed, "apply, one writer"+of, nil); err != nil {
		return err
	}
	if err := b.memoryShape(mixed, of, maxBytesPerEntry); err != nil {
		return err
	}
	return b.matchShape(b.filled(mixed), of, nil)
}
