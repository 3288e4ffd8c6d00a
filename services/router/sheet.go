package router

import (
	"sync"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
)

// sheet is a decision's candidates with what they point at, made at once and used
// again: there is one for every replica, and hundreds of small messages cost more
// than the decision.
type sheet struct {
	candidates []pb.Candidate
	list       []*pb.Candidate
	loads      []pb.LoadTerms
	ages       []int64
	indexed    []uint64
	epochs     []prefix.Epoch
	tiers      []pb.TierBlocks
	tierLists  []*pb.TierBlocks
}

var sheets = sync.Pool{New: func() any { return new(sheet) }}

// newSheet returns an empty sheet for n candidates.
func newSheet(n int) *sheet {
	p := sheets.Get().(*sheet)
	if cap(p.candidates) < n {
		*p = sheet{
			make([]pb.Candidate, n), make([]*pb.Candidate, n), make([]pb.LoadTerms, n), make([]int64, n), make([]uint64, n),
			make([]prefix.Epoch, n), make([]pb.TierBlocks, n), make([]*pb.TierBlocks, n),
		}
	}
	p.candidates, p.list, p.loads, p.ages = p.candidates[:n], p.list[:n], p.loads[:n], p.ages[:n]
	p.indexed, p.epochs, p.tiers, p.tierLists = p.indexed[:n], p.epochs[:n], p.tiers[:n], p.tierLists[:n]
	return p
}

// release has the sheet used again: nobody may hold a candidate of it any more.
func (p *sheet) release() {
	if p == nil {
		return
	}
	p.empty()
	sheets.Put(p)
}

func (p *sheet) empty() {
	clear(p.candidates)
	clear(p.loads)
	clear(p.indexed)
}

// fill lists the pool's replicas as a request may use them, sorted by id.
func (p *sheet) fill(exclude []string, s shape, fleet []seen) []*pb.Candidate {
	for i, f := range fleet {
		c := &p.candidates[i]
		c.Replica = f.entry.Replica
		c.Epoch = p.epochs[i][:copy(p.epochs[i][:], f.entry.Epoch)]
		c.Ineligible = ineligible(exclude, s, f)
		c.IndexedBlocks = &p.indexed[i]
		c.Load = &p.loads[i]
		c.Load.ReportAgeUs = &p.ages[i]
		p.tierLists[i] = &p.tiers[i]
		c.Tiers = p.tierLists[i : i : i+1] // most have one
		p.list[i] = c
	}
	return p.list
}

// appendTier adds one to a candidate's tiers, where the sheet has room for it in
// place.
func appendTier(tiers []*pb.TierBlocks, tier pb.Tier, blocks uint32) []*pb.TierBlocks {
	if len(tiers) < cap(tiers) {
		tiers = tiers[:len(tiers)+1]
		tiers[len(tiers)-1].Tier, tiers[len(tiers)-1].Blocks = tier, blocks
		return tiers
	}
	return append(tiers, &pb.TierBlocks{Tier: tier, Blocks: blocks})
}
