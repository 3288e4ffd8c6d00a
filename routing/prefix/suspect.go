package prefix

import "strings"

// maxDoubt bounds the bytes of a doubt's reason that are kept: reasons are a few
// words.
const maxDoubt = 200

// doubtReason is a reason that does not keep its message alive.
func doubtReason(reason string) string {
	if len(reason) > maxDoubt {
		reason = strings.ToValidUTF8(reason[:maxDoubt], "")
	}
	return strings.Clone(reason)
}

// setDoubt notes what the publisher said of its doubt in batch seq.
func (x *Index) setDoubt(r *replica, reason string, seq uint64) {
	x.fixed += int64(len(reason) - len(r.doubt))
	r.doubt, r.doubtSeq = reason, seq
}

// SuspectAll makes every replica suspect until its next epoch and returns how many
// were not: a part of the stream is missing, and nobody can say whose batches it
// had.
func (x *Index) SuspectAll() int {
	x.writer.Lock()
	defer x.writer.Unlock()
	x.gate.lock()
	defer x.gate.unlock()
	n := 0
	for _, r := range x.sorted {
		if !r.suspect() {
			n++
		}
		r.unsure = true
		x.settle(r)
	}
	return n
}
