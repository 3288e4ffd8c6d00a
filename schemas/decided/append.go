package decided

import (
	"fmt"
	"slices"

	pb "warmpath/schemas/warmpathv1"
)

// Append appends a decision to dst, encoded: the bytes of a deterministic
// proto.Marshal in half its time, which for a large pool is as long as deciding
// takes. Fields of a newer schema are left out of candidates. It returns an error
// for a string that is not UTF-8. The caller must not change d meanwhile.
func Append(dst []byte, d *pb.Decided) ([]byte, error) { return Whole(d).Append(dst) }

// AppendAnswer appends a router's answer to dst, as Append does a decision.
func AppendAnswer(dst []byte, a *pb.RouteResponse) ([]byte, error) {
	w := writer{buf: dst}
	if d := a.Decision; d != nil {
		w.buf = slices.Grow(w.buf, room(d, nil)+len(a.Address))
		start := w.open(decisionField)
		w.decision(d, nil)
		w.close(start)
	}
	w.text(2, a.Address)
	w.varint(3, uint64(a.ErrorCode))
	w.text(4, a.Error)
	if a.DataParallelRank != nil {
		w.present(5, uint64(*a.DataParallelRank))
	}
	w.unknown(a)
	return w.done()
}

// room is about how many bytes a decision takes.
func room(d *pb.Decided, candidates []byte) int {
	const names, candidate = 512, 160
	if candidates != nil {
		return names + 8*len(d.Keys) + len(candidates)
	}
	return names + 8*len(d.Keys) + candidate*len(d.Candidates)
}

func (w *writer) done() ([]byte, error) {
	if w.invalid != "" {
		return w.buf, fmt.Errorf("%q is not UTF-8", w.invalid)
	}
	return w.buf, nil
}

// decision writes the fields of one, with candidates that are encoded already
// instead of its own if there are any.
func (w *writer) decision(d *pb.Decided, candidates []byte) {
	w.text(1, d.Pool)
	w.text(2, d.Gateway)
	w.text(requestIDField, d.RequestId)
	w.varint(attemptField, uint64(d.Attempt))
	w.varint(5, uint64(d.DecidedAtUs))
	w.text(6, d.Decider)
	w.text(7, d.Model)
	w.text(8, d.Lora)
	w.varint(9, uint64(d.BlockTokens))
	w.varint(10, d.PromptTokens)
	w.packed(keysField, d.Keys)
	w.fixed(12, d.SessionKey)
	if candidates != nil {
		w.buf = append(w.buf, candidates...)
	} else {
		for _, c := range d.Candidates {
			w.candidate(c)
		}
	}
	w.text(chosenField, d.Chosen)
	w.text(15, d.FirstChoice)
	w.varint(16, uint64(d.Reason))
	w.text(17, d.FallbackCause)
	if d.Policy != nil {
		w.policy(d.Policy)
	}
	w.fixed(19, d.Seed)
	w.varint(20, d.Turn)
	w.varint(21, d.KvSeq)
	w.varint(22, uint64(d.IndexAgeUs))
	w.varint(23, d.DecideUs)
	w.varint(24, d.WaitUs)
	w.varint(25, d.PredictedCachedTokens)
	w.text(26, d.TokenSource)
	w.unknown(d)
}

func (w *writer) candidate(c *pb.Candidate) {
	defer w.close(w.open(candidatesField))
	w.text(replicaField, c.Replica)
	w.bytes(2, c.Epoch)
	w.varint(3, uint64(c.GpuBlocks))
	w.varint(4, uint64(c.TotalBlocks))
	for _, t := range c.Tiers {
		start := w.open(5)
		w.varint(1, uint64(t.Tier))
		w.varint(2, uint64(t.Blocks))
		w.close(start)
	}
	w.varint(6, uint64(c.PredictedBlocks))
	w.boolean(7, c.Suspect)
	if c.Load != nil {
		w.load(c.Load)
	}
	w.double(9, c.PrefillTokensPerSecond)
	w.double(10, c.Score)
	w.text(11, c.Ineligible)
	w.varint(12, c.ExpectedCachedTokens)
	if c.IndexedBlocks != nil {
		w.present(13, *c.IndexedBlocks)
	}
}

func (w *writer) load(l *pb.LoadTerms) {
	defer w.close(w.open(8))
	w.varint(1, l.QueuedPrefillTokens)
	w.varint(2, uint64(l.InFlight))
	w.varint(3, uint64(l.Running))
	w.varint(4, uint64(l.Waiting))
	w.double(5, l.KvUsed)
	if l.ReportAgeUs != nil {
		w.present(6, uint64(*l.ReportAgeUs))
	}
}

func (w *writer) policy(p *pb.PolicyRef) {
	defer w.close(w.open(18))
	w.text(1, p.Name)
	w.varint(2, uint64(p.Version))
	for _, one := range p.Params {
		start := w.open(3)
		w.text(1, one.Name)
		w.double(2, one.Value)
		w.unknown(one)
		w.close(start)
	}
	w.unknown(p)
}
