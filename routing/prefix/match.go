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
	// Suspect is true when the replica's history has a hole, so that it may hold
	// more or less than this.
	Suspect bool
}

// Match appends to dst what each known replica holds of a prompt, sorted by
// replica, and returns the KV stream sequence that the answer stands at. p may
// be nil; with it, replicas of which only predictions are known, and match,
// appear too. Safe for concurrent use; it does not allocate when dst has room.
func (x *Index) Match(dst []Match, keys []blockkey.Key, p *Predictions) (matches []Match, position uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	first := len(dst)
	for _, r := range x.sorted {
		dst = append(dst, Match{Replica: r.name, Epoch: r.epoch, Suspect: r.suspect})
	}
	out := dst[first:]
	for _, b := range x.banks {
		b.match(out, keys)
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

// match fills in the matches of the bank's replicas: all of Tiers but GPU.
func (b *bank) match(out []Match, keys []blockkey.Key) {
	held, gpu := b.owned, b.owned // slots that hold every block so far
	for i, k := range keys {
		if held == 0 {
			return
		}
		h := b.get(k)
		all := h.any()
		b.each(held&^all, func(r *replica) { out[r.order].Total = i })
		b.each(gpu&^h[GPU], func(r *replica) { out[r.order].GPU = i })
		held &= all
		gpu &= h[GPU]
		lower := held &^ h[GPU]
		for t := CPU; lower != 0; t++ {
			b.each(lower&h[t], func(r *replica) { out[r.order].Tiers[t]++ })
			lower &^= h[t]
		}
	}
	b.each(held, func(r *replica) { out[r.order].Total = len(keys) })
	b.each(gpu, func(r *replica) { out[r.order].GPU = len(keys) })
}

// each calls f for the owner of every slot in a set.
func (b *bank) each(slots uint64, f func(*replica)) {
	for ; slots != 0; slots &= slots - 1 {
		f(b.owner[bits.TrailingZeros64(slots)])
	}
}

// predict extends the matches from dst[first] on by what p predicts.
func (x *Index) predict(dst []Match, first int, keys []blockkey.Key, p *Predictions) []Match {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for i := range dst[first:] {
		m := &dst[first+i]
		about := p.replicas[m.Replica]
		if len(about) == 0 {
			continue
		}
		r := x.sorted[i]
		for m.Predicted < len(keys) {
			k := keys[m.Predicted]
			if about[k] == 0 && r.bank.get(k).any()>>r.slot&1 == 0 {
				break
			}
			m.Predicted++
		}
	}
	known := len(dst)
	for name, about := range p.replicas {
		if x.replicas[name] != nil {
			continue
		}
		m := Match{Replica: name}
		for m.Predicted < len(keys) && about[keys[m.Predicted]] > 0 {
			m.Predicted++
		}
		if m.Predicted > 0 {
			dst = append(dst, m)
		}
	}
	if len(dst) > known {
		slices.SortFunc(dst[first:], func(a, b Match) int { return strings.Compare(a.Replica, b.Replica) })
	}
	return dst
}
