package streams

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// probeToken marks replies to probes among a lane's replies.
const probeToken = "probe"

// noSequence is an expected last sequence that no stream has. The server looks
// for duplicates first, so a message with a known id and this expectation is
// answered as a duplicate when it is stored, and refused when it is not: a
// question that never stores anything.
const noSequence = "9000000000000000000"

const (
	errCodeWrongSequence         = 10071
	errCodeWrongSequenceClusterd = 10164
)

// probe is a round of questions about which entries are stored.
type probe struct {
	round   string
	waiting map[uint64]struct{} // entries not answered
	stored  map[uint64]struct{}
	failed  bool
	done    chan struct{} // closed when all are answered, or one failed
}

func (q *probe) finish() {
	select {
	case <-q.done:
	default:
		close(q.done)
	}
}

// ask finds out which of the entries that were sent are stored, and takes those
// at the front as acknowledged. False when it could not be found out now.
func (l *lane) ask() bool {
	l.mu.Lock()
	q := &probe{waiting: map[uint64]struct{}{}, stored: map[uint64]struct{}{}, done: make(chan struct{})}
	var questions []*nats.Msg
	q.round = strconv.FormatInt(time.Now().UnixNano(), 36)
	for n := l.first; n < l.next && l.at(n).sent; n++ {
		e := l.at(n)
		if e.msg.ID == "" {
			continue
		}
		q.waiting[n] = struct{}{}
		questions = append(questions, &nats.Msg{
			Subject: e.msg.Subject,
			Reply:   l.prefix + probeToken + "." + q.round + "." + strconv.FormatUint(n, 10),
			Header:  nats.Header{nats.MsgIdHdr: {e.msg.ID}, nats.ExpectedLastSeqHdr: {noSequence}},
		})
	}
	l.probe = q
	l.mu.Unlock()
	if len(questions) == 0 {
		return true
	}
	for _, m := range questions {
		if err := l.p.nc.PublishMsg(m); err != nil {
			return false
		}
	}
	timeout := time.NewTimer(l.p.cfg.AckWait)
	defer timeout.Stop()
	select {
	case <-l.quit:
		return false
	case <-timeout.C:
		return false
	case <-q.done:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probe = nil
	if q.failed {
		return false
	}
	// What is stored is a prefix of what was sent.
	for n := l.first; n < l.next; n++ {
		if _, ok := q.stored[n]; !ok {
			break
		}
		l.stored(n)
	}
	return true
}

// onProbe takes an answer; rest is <round>.<entry>.
func (l *lane) onProbe(rest string, m *nats.Msg) {
	round, entry, _ := strings.Cut(rest, ".")
	q := l.probe
	if q == nil || q.round != round {
		return
	}
	n, err := strconv.ParseUint(entry, 10, 64)
	if err != nil {
		return
	}
	var r reply
	switch err := json.Unmarshal(m.Data, &r); {
	case err != nil:
		q.failed = true // No stream, or no leader.
	case r.Error == nil && r.Duplicate:
		q.stored[n] = struct{}{}
	case r.Error != nil && (r.Error.ErrCode == errCodeWrongSequence || r.Error.ErrCode == errCodeWrongSequenceClusterd):
	default:
		q.failed = true // Such as a message that is being stored right now.
	}
	delete(q.waiting, n)
	if q.failed || len(q.waiting) == 0 {
		q.finish()
	}
}
