package analytics

import (
	"container/list"
	"time"

	"github.com/zeebo/xxh3"

	pb "warmpath/schemas/warmpathv1"
)

// JoinConfig bounds what the join of decisions and outcomes remembers. Every
// bound is by stream content, so that a restart decides the same.
type JoinConfig struct {
	// LostAfter is the stream time after a request's last decision or move at
	// which its outcome is given up. Default 1 h, longer than any request lives.
	LostAfter time.Duration
	// MaxOpen bounds the requests that wait for an outcome; over it the oldest is
	// given up. Default 50,000: about 100 MB with 8 candidates each.
	MaxOpen int
	// Remember is for how many messages the id of an ended request is kept, to
	// know a late or repeated event of it. Default 1,048,576 messages: at 500
	// requests a second that is far more than the stream's own two minutes, and
	// costs about 20 MB.
	Remember uint64
}

func (c JoinConfig) withDefaults() JoinConfig {
	if c.LostAfter <= 0 {
		c.LostAfter = time.Hour
	}
	if c.MaxOpen <= 0 {
		c.MaxOpen = 50_000
	}
	if c.Remember == 0 {
		c.Remember = 1 << 20
	}
	return c
}

// joinCounts count what the join met. They only grow.
type joinCounts struct {
	lost, unmatched, duplicates, late uint64
}

// joiner joins the events of ROUTE by request. It is pure: the same events in the
// same order give the same outcomes, and after resume it goes on as if it had
// seen everything from the start. Not safe for concurrent use.
type joiner struct {
	cfg    JoinConfig
	counts joinCounts
	// emitted is the last sequence whose outcomes are written already: events up
	// to it only rebuild what is open.
	emitted uint64

	open map[requestKey]*openRequest
	// byFirst holds the open requests in the order of their first decision, byTouch
	// in the order of their last event.
	byFirst, byTouch *list.List

	closed      map[requestKey]uint64
	closedOrder []closedRequest // a queue from closedHead, sequences ascending
	closedHead  int
}

// requestKey names a request in maps: a hash of pool and id, because ids are long
// and many. A collision within the remembered set is not to be expected in the
// life of a deployment.
type requestKey uint64

func keyOf(pool, requestID string) requestKey {
	return requestKey(xxh3.HashString(pool + "\x00" + requestID))
}

type openRequest struct {
	key       requestKey
	firstSeq  uint64
	touched   time.Time
	decisions []decision
	moves     uint32
	moveCause string
	// Places in the two orders.
	first, touch *list.Element
}

type closedRequest struct {
	key requestKey
	seq uint64
}

// newJoiner returns a joiner that has written everything up to emitted. ended are
// the requests written already that it must know, in ascending order: all since
// cfg.Remember messages before the sequence that the events start from.
func newJoiner(cfg JoinConfig, emitted uint64, ended []closedRequest) *joiner {
	j := &joiner{
		cfg: cfg.withDefaults(), emitted: emitted,
		open: make(map[requestKey]*openRequest), byFirst: list.New(), byTouch: list.New(),
		closed: make(map[requestKey]uint64, len(ended)),
	}
	for _, e := range ended {
		j.closed[e.key] = e.seq
	}
	j.closedOrder = ended
	return j
}

// apply takes the event at seq, stored by the stream at the given time, and
// appends the outcomes it brought about to dst. event is a Decided, a Moved or a
// Finished; nil stands for an event that could not be read, which still moves time.
func (j *joiner) apply(dst []*outcome, seq uint64, at time.Time, event any) []*outcome {
	before := len(dst)
	if seq > j.emitted {
		dst = j.expire(dst, seq, at)
	}
	switch e := event.(type) {
	case *pb.Decided:
		dst = j.decided(dst, seq, at, e)
	case *pb.Moved:
		j.moved(seq, at, e)
	case *pb.Finished:
		dst = j.finished(dst, seq, at, e)
	}
	floor := j.floor(seq)
	for _, o := range dst[before:] {
		o.floor = floor
	}
	if seq > j.emitted {
		j.forget(seq)
	}
	return dst
}

func (j *joiner) decided(dst []*outcome, seq uint64, at time.Time, d *pb.Decided) []*outcome {
	key := keyOf(d.GetPool(), d.GetRequestId())
	if j.ended(key, seq) {
		// Known after a restart, or a copy that came after the end.
		j.count(&j.counts.late, seq)
		return dst
	}
	d.Keys = nil // no row has them, and they are most of a decision's memory
	open := j.open[key]
	if open == nil {
		open = &openRequest{key: key, firstSeq: seq}
		open.first, open.touch = j.byFirst.PushBack(open), j.byTouch.PushBack(open)
		j.open[key] = open
	}
	for _, known := range open.decisions {
		if known.event.GetAttempt() == d.GetAttempt() {
			j.count(&j.counts.duplicates, seq)
			return dst
		}
	}
	open.decisions = append(open.decisions, decision{seq: seq, event: d})
	j.touch(open, at)
	if len(j.open) > j.cfg.MaxOpen && seq > j.emitted {
		dst = append(dst, j.lose(j.byFirst.Front().Value.(*openRequest), seq, at))
	}
	return dst
}

func (j *joiner) moved(seq uint64, at time.Time, m *pb.Moved) {
	key := keyOf(m.GetPool(), m.GetRequestId())
	open := j.open[key]
	if open == nil {
		if !j.ended(key, seq) {
			j.count(&j.counts.unmatched, seq)
		}
		return
	}
	if m.GetAttempt() < open.moves {
		j.count(&j.counts.duplicates, seq)
		return
	}
	// Attempts count from 0, each is moved away from at most once.
	open.moves++
	open.moveCause = m.GetCause()
	j.touch(open, at)
}

func (j *joiner) finished(dst []*outcome, seq uint64, at time.Time, f *pb.Finished) []*outcome {
	key := keyOf(f.GetPool(), f.GetRequestId())
	if j.ended(key, seq) {
		j.count(&j.counts.late, seq)
		return dst
	}
	if seq <= j.emitted {
		// Written already, and so long ago that the caller did not say so: an
		// outcome of a request whose decisions lie before the first event.
		return dst
	}
	o := &outcome{seq: seq, time: at, finished: f}
	if open := j.open[key]; open != nil {
		o.decisions, o.moves, o.moveCause = open.decisions, open.moves, open.moveCause
		j.drop(open)
	} else {
		j.counts.unmatched++
	}
	j.close(key, seq)
	return append(dst, o)
}

// expire gives up the requests whose outcome did not come in time.
func (j *joiner) expire(dst []*outcome, seq uint64, at time.Time) []*outcome {
	for e := j.byTouch.Front(); e != nil; e = j.byTouch.Front() {
		open := e.Value.(*openRequest)
		if at.Sub(open.touched) < j.cfg.LostAfter {
			break
		}
		dst = append(dst, j.lose(open, seq, at))
	}
	return dst
}

func (j *joiner) lose(open *openRequest, seq uint64, at time.Time) *outcome {
	j.counts.lost++
	j.drop(open)
	j.close(open.key, seq)
	return &outcome{seq: seq, time: at, decisions: open.decisions, moves: open.moves, moveCause: open.moveCause}
}

// count counts an event once: not again when a restart reads it again.
func (j *joiner) count(counter *uint64, seq uint64) {
	if seq > j.emitted {
		*counter++
	}
}

// ended says whether the request is known at seq to have a row. After a restart
// the row may lie ahead of seq.
func (j *joiner) ended(key requestKey, seq uint64) bool {
	at, ok := j.closed[key]
	return ok && at+j.cfg.Remember > seq
}

func (j *joiner) touch(open *openRequest, at time.Time) {
	open.touched = at
	j.byTouch.MoveToBack(open.touch)
}

func (j *joiner) drop(open *openRequest) {
	j.byFirst.Remove(open.first)
	j.byTouch.Remove(open.touch)
	delete(j.open, open.key)
}

func (j *joiner) close(key requestKey, seq uint64) {
	j.closed[key] = seq
	j.closedOrder = append(j.closedOrder, closedRequest{key: key, seq: seq})
}

// forget drops the ids of requests that ended cfg.Remember messages ago.
func (j *joiner) forget(seq uint64) {
	for j.closedHead < len(j.closedOrder) {
		oldest := j.closedOrder[j.closedHead]
		if oldest.seq+j.cfg.Remember > seq {
			break
		}
		if j.closed[oldest.key] == oldest.seq { // else the id came again, and ended later
			delete(j.closed, oldest.key)
		}
		j.closedHead++
	}
	// Move the queue to the front when half of it is used up: amortised constant.
	if j.closedHead > 1024 && j.closedHead*2 > len(j.closedOrder) {
		j.closedOrder = append(j.closedOrder[:0], j.closedOrder[j.closedHead:]...)
		j.closedHead = 0
	}
}

// floor is the lowest sequence of a decision that is still open after seq; the
// next sequence when none is.
func (j *joiner) floor(seq uint64) uint64 {
	if e := j.byFirst.Front(); e != nil {
		return e.Value.(*openRequest).firstSeq
	}
	return seq + 1
}
