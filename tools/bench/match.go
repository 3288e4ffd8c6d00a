package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"warmpath/routing/prefix"
)

const (
	// shortPrompt and longPrompt are the blocks of the prompts matched.
	shortPrompt = 256
	longPrompt  = 2048
	// matchTime is how long a round matches for one figure.
	matchTime = 40 * time.Millisecond
)

// lengths are the prompts' blocks for this run's sizes.
func (b *bench) lengths() []int {
	if b.quick {
		return []int{shortPrompt / 8, longPrompt / 8}
	}
	return []int{shortPrompt, longPrompt}
}

// match matches prompts against an index that nobody writes.
func (b *bench) match(context.Context) error {
	f := b.filled(base)
	if err := b.matchShape(f, "", ratioAtMost(1.5)); err != nil {
		return err
	}
	if err := b.allocations(f); err != nil {
		return err
	}
	return b.memoryReads()
}

// memoryReads measures what the machine itself takes to read memory at random
// places, which no index of hashes reads less than once a block: reads that may
// overlap, and reads of which each needs the one before.
func (b *bench) memoryReads() error {
	const lineWords = 8 // of 64 bytes
	lines := 4 << 20
	if b.quick {
		lines = 1 << 14
	}
	words := make([]uint64, lines*lineWords)
	for i := range lines { // the multiplier is odd and its remainder by four is one: a single cycle
		words[i*lineWords] = uint64(i*0x5851f42d+0x14057b7f) % uint64(lines)
	}
	reads := min(lines, 1<<20)
	var overlapping, chained []float64
	sum := uint64(0)
	for range b.rounds {
		overlapping = append(overlapping, nanoseconds(func() {
			at := uint64(1)
			for range reads {
				at = at*0x5851f42d4c957f2d + 1
				sum += words[(at>>32)%uint64(lines)*lineWords]
			}
		})/float64(reads))
		chained = append(chained, nanoseconds(func() {
			at := sum % uint64(lines)
			for range reads {
				at = words[at*lineWords]
			}
			sum += at
		})/float64(reads))
	}
	runtime.KeepAlive(sum)
	if err := b.report(pair{values: overlapping}.figure("machine: a random read of memory, overlapping", "ns"), nil); err != nil {
		return err
	}
	return b.report(pair{values: chained}.figure("machine: a random read of memory, one after another", "ns"), nil)
}

func (b *bench) matchShape(f *filled, of string, limit *bound) error {
	for _, n := range b.lengths() {
		prompts := f.prompts(n)
		if err := f.verify(prompts); err != nil {
			return err
		}
		depths := make([]int, f.replicas)
		matches := make([]prefix.Match, 0, f.replicas)
		for _, one := range []struct {
			name    string
			prompts []prompt
		}{{"", prompts[:1]}, {", many prompts in turn", prompts}} {
			p := interleave(b.rounds,
				func() float64 {
					return b.perPrompt(one.prompts, func(p prompt) { f.floor.match(depths, p.keys) })
				},
				func() float64 {
					return b.perPrompt(one.prompts, func(p prompt) { matches, _ = f.index.Match(matches[:0], p.keys, nil) })
				})
			if err := b.report(p.figure(fmt.Sprintf("match %s blocks%s%s", short(float64(n)), one.name, of), "ns"), limit); err != nil {
				return err
			}
		}
	}
	return nil
}

// perPrompt is the mean time of f over all prompts, taken again and again, in
// nanoseconds.
func (b *bench) perPrompt(prompts []prompt, f func(prompt)) float64 {
	for _, p := range prompts { // what the last measurement pushed out of the caches
		f(p)
	}
	budget := matchTime
	if b.quick {
		budget /= 20
	}
	n := 0
	began := time.Now()
	for time.Since(began) < budget {
		for _, p := range prompts {
			f(p)
		}
		n += len(prompts)
	}
	return float64(time.Since(began).Nanoseconds()) / float64(n)
}

// allocations counts them per match, with predictions too.
func (b *bench) allocations(f *filled) error {
	prompts := f.prompts(b.lengths()[1])
	predictions := prefix.NewPredictions(time.Hour)
	for i, p := range prompts {
		predictions.Add(fmt.Sprint(i), f.names[(p.owner+1)%f.replicas], p.keys, 0)
	}
	depths := make([]int, f.replicas)
	matches := make([]prefix.Match, 0, f.replicas)
	for _, with := range []struct {
		name string
		p    *prefix.Predictions
	}{{"allocations per match", nil}, {"allocations per match, with predictions", predictions}} {
		i := 0
		next := func() prompt { i++; return prompts[i%len(prompts)] }
		figure := pair{
			floors: []float64{allocations(1000, func() { f.floor.match(depths, next().keys) })},
			values: []float64{allocations(1000, func() { matches, _ = f.index.Match(matches[:0], next().keys, with.p) })},
		}.figure(with.name, "allocs")
		if err := b.report(figure, valueAtMost(0)); err != nil {
			return err
		}
	}
	return nil
}

// busy matches while another goroutine writes at full speed. The floor cannot be
// read and written at once: its writer works on a map of its own, which shows
// what the machine itself does to a reader's slowest matches.
func (b *bench) busy(ctx context.Context) error {
	f := b.filled(base)
	other := newFloor(f.replicas)
	for s := range f.steps() {
		other.store(s.replica, s.keys)
	}
	limit := b.lengths()[1]
	work, otherWork := f.churn(limit), f.churn(limit)
	alone := func() (float64, float64) {
		return b.writeFor(otherWork, other.turn), b.writeFor(work, f.turn)
	}
	var quiet pair
	for range b.rounds {
		x, y := alone()
		quiet.add(x, y)
	}
	if err := b.report(quiet.figure("apply, removals and repeated stores", "entries/s"), nil); err != nil {
		return err
	}
	var writing pair
	for _, n := range b.lengths() {
		prompts := f.prompts(n)
		depths := make([]int, f.replicas)
		matches := make([]prefix.Match, 0, f.replicas)
		var p50, p99, tail pair
		for range b.rounds {
			runtime.GC()
			times, rate := b.readWhile(n, otherWork, other.turn, prompts, func(p prompt) { f.floor.match(depths, p.keys) })
			p50.floors, p99.floors = append(p50.floors, quantile(times, 0.5)), append(p99.floors, quantile(times, 0.99))
			writing.floors = append(writing.floors, rate)
			runtime.GC()
			times, rate = b.readWhile(n, work, f.turn, prompts, func(p prompt) { matches, _ = f.index.Match(matches[:0], p.keys, nil) })
			p50.values, p99.values = append(p50.values, quantile(times, 0.5)), append(p99.values, quantile(times, 0.99))
			writing.values = append(writing.values, rate)
			tail.floors = append(tail.floors, last(p99.floors)/last(p50.floors))
			tail.values = append(tail.values, last(p99.values)/last(p50.values))
		}
		if err := f.verify(prompts); err != nil {
			return fmt.Errorf("after the writer: %w", err)
		}
		name := fmt.Sprintf("match %s blocks, writer busy, ", short(float64(n)))
		for _, one := range []struct {
			pair
			what, unit string
			limit      *bound
		}{{p50, "p50", "ns", nil}, {p99, "p99", "ns", nil}, {tail, "p99/p50", "times", valueAtMost(5)}} {
			if err := b.report(one.figure(name+one.what, one.unit), one.limit); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return b.report(writing.figure("apply beside a reader", "entries/s"), nil)
}

func last(v []float64) float64 { return v[len(v)-1] }

// turn does the next step of a writer's work on the index.
func (f *filled) turn(t *turn) { f.index.Apply(f.author.batch(t.replica, t.event)) }

// turn does the same on a floor.
func (f *floor) turn(t *turn) {
	if t.removes {
		f.remove(t.replica, t.keys)
		return
	}
	f.store(t.replica, t.keys)
}

// writeFor writes for a while, alone, and returns the entries a second.
func (b *bench) writeFor(work *churn, write func(*turn)) float64 {
	budget := 5 * matchTime
	if b.quick {
		budget /= 20
	}
	entries := 0
	began := time.Now()
	for time.Since(began) < budget {
		t := work.turn()
		write(t)
		entries += len(t.keys)
	}
	return float64(entries) / time.Since(began).Seconds()
}

// readWhile matches prompts one by one while a writer works without pause, and
// returns each match's nanoseconds and the writer's entries a second.
func (b *bench) readWhile(n int, work *churn, write func(*turn), prompts []prompt, match func(prompt)) ([]float64, float64) {
	samples := 100_000
	if n > shortPrompt {
		samples = 20_000
	}
	if b.quick {
		samples = 1000
	}
	var stop atomic.Bool
	var started, writer sync.WaitGroup
	started.Add(1)
	entries := 0
	var took time.Duration
	writer.Go(func() {
		began := time.Now()
		started.Done()
		for !stop.Load() {
			t := work.turn()
			write(t)
			entries += len(t.keys)
		}
		took = time.Since(began)
	})
	started.Wait()
	times := make([]float64, samples)
	for i := range times {
		p := prompts[i%len(prompts)]
		began := time.Now()
		match(p)
		times[i] = float64(time.Since(began).Nanoseconds())
	}
	stop.Store(true)
	writer.Wait()
	return times, float64(entries) / took.Seconds()
}
