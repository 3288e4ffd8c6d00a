package audit

import (
	"fmt"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// routed is what every event of the route stream has.
type routed interface {
	GetPool() string
	GetGateway() string
	GetRequestId() string
	GetAttempt() uint32
}

func differenceOf(seq uint64, m routed, field, was, is string) Difference {
	return Difference{Pool: m.GetPool(), RequestID: m.GetRequestId(), Attempt: m.GetAttempt(), Seq: seq,
		Field: field, Recorded: was, Recomputed: is}
}

// checkOrder: the route stream is never deleted from, so that its sequences
// follow each other without a hole.
func (a *auditor) checkOrder(e streams.Event) {
	if a.first == 0 {
		a.first = e.Seq
	} else if e.Seq != a.last+1 {
		a.differ(Difference{Seq: e.Seq, Field: "sequence", Recorded: fmt.Sprint(e.Seq), Recomputed: fmt.Sprint(a.last + 1)})
	}
	a.last = e.Seq
}

// checkDigest holds an event against the digest it was published with. It finds
// what cannot be recomputed, such as a changed seed or time.
func (a *auditor) checkDigest(e streams.Event, m routed) {
	switch digest := streams.Digest(e.Data); {
	case e.Digest == digest:
	case e.Digest == "" && a.allowUndigested:
		a.result.Undigested++
	case e.Digest == "":
		a.differ(differenceOf(e.Seq, m, "digest", "none", digest))
	default:
		a.differ(differenceOf(e.Seq, m, "digest", e.Digest, digest))
	}
}

// checkPlace: a gateway publishes under its own subject.
func (a *auditor) checkPlace(e streams.Event, m routed) {
	if want := streams.RouteSubject(m.GetPool(), m.GetGateway()); e.Subject != want {
		a.differ(differenceOf(e.Seq, m, "subject", e.Subject, want))
	}
}

func (a *auditor) decide(seq uint64, d *pb.Decided) {
	a.result.Decisions++
	a.decisions[d.Pool] = append(a.decisions[d.Pool], recorded{seq, d})
	r := a.requests[d.RequestId]
	if r == nil {
		r = &request{chosen: map[uint32]string{}}
		a.requests[d.RequestId] = r
	}
	if _, again := r.chosen[d.Attempt]; again {
		a.differ(differenceOf(seq, d, "decision", "a second time", "once an attempt"))
	}
	r.chosen[d.Attempt] = d.Chosen
}

func (a *auditor) finished(seq uint64, f *pb.Finished) {
	a.result.Finished++
	if f.Status != pb.Status_STATUS_NO_REPLICA {
		a.expectChosen(seq, f, f.Replica)
	}
	r := a.requests[f.RequestId]
	if r == nil {
		return
	}
	if r.finished {
		a.differ(differenceOf(seq, f, "outcome", "a second time", "once a request"))
	}
	r.finished = true
}

// expectChosen: what is said of a replica must be of the one that was chosen.
func (a *auditor) expectChosen(seq uint64, m routed, replica string) {
	r := a.requests[m.GetRequestId()]
	if r == nil && a.first > 1 {
		a.result.BeforeRange++
		return
	}
	if r == nil {
		a.differ(differenceOf(seq, m, "decision", "none", "one before its outcome"))
		return
	}
	chosen, ok := r.chosen[m.GetAttempt()]
	switch {
	case !ok && a.first > 1:
		a.result.BeforeRange++
	case !ok:
		a.differ(differenceOf(seq, m, "decision", "none", "one for this attempt"))
	case chosen != replica:
		a.differ(differenceOf(seq, m, "replica", replica, chosen))
	}
}
