package mismatch

import (
	"cmp"
	"slices"
)

const (
	// ringSize is how many samples of a kind of request a window keeps: what an
	// alarm must be found within.
	ringSize = 48
	// recentHits and recentLengths are how many of them an alarm looks at, so that
	// what was good before the fault does not hide it for long.
	recentHits    = 16
	recentLengths = 24
)

// ring keeps the last samples, oldest first.
type ring struct{ samples []sample }

func (r *ring) add(s sample) {
	if len(r.samples) == ringSize {
		copy(r.samples, r.samples[1:])
		r.samples = r.samples[:ringSize-1]
	}
	r.samples = append(r.samples, s)
}

// cell is a kind of request of which a fault may hit all or none.
type cell struct{ salted, lora bool }

var cells = []cell{{false, false}, {true, false}, {false, true}, {true, true}}

// window is the evidence of a replica, or of the whole pool. Each cell has its
// own ring, so that rare kinds of requests gather evidence too.
type window struct{ rings map[cell]*ring }

func newWindow() *window { return &window{rings: map[cell]*ring{}} }

func (w *window) add(s sample) {
	c := cell{s.salted, s.lora != ""}
	if w.rings[c] == nil {
		w.rings[c] = &ring{}
	}
	w.rings[c].add(s)
}

// clear forgets what led to an alarm, so that only what comes after it can end it.
func (w *window) clear() { w.rings = map[cell]*ring{} }

// where returns the samples that a condition holds for, in the order of time.
func (w *window) where(keep func(*sample) bool) []*sample {
	var out []*sample
	for _, c := range cells {
		r := w.rings[c]
		if r == nil {
			continue
		}
		for i := range r.samples {
			if keep(&r.samples[i]) {
				out = append(out, &r.samples[i])
			}
		}
	}
	if len(w.rings) > 1 {
		slices.SortStableFunc(out, func(a, b *sample) int { return cmp.Compare(a.at, b.at) })
	}
	return out
}

// latest are the last n.
func latest(samples []*sample, n int) []*sample { return samples[max(0, len(samples)-n):] }

// count is how many a condition holds for.
func count(samples []*sample, holds func(*sample) bool) int {
	n := 0
	for _, s := range samples {
		if holds(s) {
			n++
		}
	}
	return n
}

// Conditions on samples.
func anySample(*sample) bool      { return true }
func isBad(s *sample) bool        { return s.hit.bad() }
func isUnder(s *sample) bool      { return s.hit == under }
func isJudged(s *sample) bool     { return s.hit != neutral }
func isComparable(s *sample) bool { return s.comparable }
func differs(s *sample) bool      { return s.comparable && s.diff != 0 }
func isSalted(s *sample) bool     { return s.salted }
func isAdapted(s *sample) bool    { return s.lora != "" }
func isChat(s *sample) bool       { return s.chat }
func isReported(s *sample) bool   { return s.reported }
func shouldReport(s *sample) bool { return s.expected }
func mightReport(s *sample) bool  { return s.expected || s.guessed }
func isOver(s *sample) bool       { return s.hit == over }
func otherBlock(s *sample) bool   { return s.engineBlock != 0 && s.engineBlock != s.block }
func all(samples []*sample, holds func(*sample) bool) bool {
	return count(samples, holds) == len(samples)
}

// split parts samples by a condition.
func split(samples []*sample, by func(*sample) bool) (yes, no []*sample) {
	for _, s := range samples {
		if by(s) {
			yes = append(yes, s)
		} else {
			no = append(no, s)
		}
	}
	return yes, no
}
