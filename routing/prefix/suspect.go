package prefix

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
