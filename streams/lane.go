package streams

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
)

const (
	// batchIdle: the server forgets a batch that is silent for 10 seconds, so a
	// new one is begun well before.
	batchIdle = 5 * time.Second
	// First and longest pause before sending again.
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
	// maxPatience is how many times AckWait the wait for an answer may become.
	maxPatience = 4
	// flowEvery asks the server to acknowledge every message: the last ones of a
	// burst would otherwise wait for more to come.
	flowEvery = "1"
	// Operations of the batched publishing protocol.
	opStart, opAppend = "0", "1"
	batchSuffix       = ".$FI"
)

// Errors of the server that concern the message and will not go away.
const (
	errCodeTooLarge       = 10054
	errCodeHeaderTooLarge = 10097
)

// entry is a message in flight.
type entry struct {
	msg      Message
	deadline time.Time
	// sent: it may be stored. Until then it certainly is not.
	sent bool
}

// lane is a publisher's way into one stream. Entries are numbered from 1; those
// in [first, next) are in flight, entry n at ring[n % len(ring)].
//
// While sending, publish sends at once. When something breaks, sending stops,
// entries are only queued, and the runner finds out what is stored and starts a
// new batch with the rest. Order rests on the server refusing what comes after
// a gap in a batch, so neither a message lost on the way nor what the client
// buffers over a reconnect can overtake an earlier one.
type lane struct {
	p      *Publisher
	stream string
	prefix string // of reply subjects
	sub    *nats.Subscription
	wake   chan struct{}
	quit   chan struct{}
	done   chan struct{}

	mu          sync.Mutex
	changed     *sync.Cond // room, outcome or end
	ring        []entry
	first, next uint64
	bytes       int
	sending     bool
	broken      string // why sending stopped
	closed      bool
	batch       string // "" before the next batch
	base        uint64 // entry that is sequence 1 of the batch
	lastSent    time.Time
	progress    time.Time // last time an outcome came, or waiting began
	backoff     time.Duration
	patience    time.Duration // wait for an answer; grows while none comes
	refused     uint64        // entry that the server will never take
	probe       *probe
	stats       PublisherStats
}

func newLane(p *Publisher, stream string) (*lane, error) {
	l := &lane{
		p:       p,
		stream:  stream,
		prefix:  p.nc.NewInbox() + ".",
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
		ring:    make([]entry, p.cfg.MaxInFlight),
		first:   1,
		next:    1,
		sending: true,
		backoff: minBackoff,

		patience: p.cfg.AckWait,
	}
	l.changed = sync.NewCond(&l.mu)
	sub, err := p.nc.Subscribe(l.prefix+">", l.onReply)
	if err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	// What is in flight bounds the replies.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	l.sub = sub
	go l.run()
	return l, nil
}

func (l *lane) at(n uint64) *entry { return &l.ring[n%uint64(len(l.ring))] }

// publish queues m, and sends it unless sending is broken.
func (l *lane) publish(ctx context.Context, m Message) error {
	if size, most := len(m.Data)+headerSize(m), l.p.nc.MaxPayload(); most > 0 && int64(size) > most {
		return fmt.Errorf("it has %d bytes and the server takes %d: %w", size, most, nats.ErrMaxPayload)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.waitForRoom(ctx, len(m.Data)); err != nil {
		return err
	}
	now := time.Now()
	n := l.next
	*l.at(n) = entry{msg: m, deadline: now.Add(l.p.cfg.GiveUp)}
	if l.first == n {
		l.progress = now
	}
	l.next++
	l.bytes += len(m.Data)
	l.stats.Published++
	if !l.sending {
		return nil
	}
	// With older entries in flight a batch is never left behind: its
	// acknowledgements are theirs.
	if l.first == n && (l.batch == "" || now.Sub(l.lastSent) > batchIdle) {
		l.begin(n)
	}
	l.lastSent = now
	l.send(n)
	return nil
}

// headerSize is what the headers of m take on the wire, at most.
func headerSize(m Message) int { return len(m.ID) + len(m.Schema) + 64 }

func (l *lane) waitForRoom(ctx context.Context, size int) error {
	full := func() bool {
		queued := l.next - l.first
		return queued == uint64(len(l.ring)) || (queued > 0 && l.bytes+size > l.p.cfg.MaxInFlightBytes)
	}
	return l.waitUntil(ctx, func() bool { return !full() })
}

// waitUntil waits with the lock held until condition is true, the lane is
// closed, or ctx ends.
func (l *lane) waitUntil(ctx context.Context, condition func() bool) error {
	if l.closed {
		return ErrClosed
	}
	if condition() {
		return ctx.Err()
	}
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	defer stop()
	for !condition() {
		if l.closed {
			return ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		l.changed.Wait()
	}
	return nil
}

func (l *lane) flush(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	target := l.next
	if l.first >= target {
		return nil
	}
	return l.waitUntil(ctx, func() bool { return l.first >= target })
}

// begin starts a batch whose first message is entry n.
func (l *lane) begin(n uint64) {
	l.batch = nuid.Next()
	l.base = n
}

// send sends entry n in the batch.
func (l *lane) send(n uint64) {
	e := l.at(n)
	op := opAppend
	if n == l.base {
		op = opStart
	}
	reply := l.prefix + l.batch + "." + flowEvery + ".fail." + strconv.FormatUint(n-l.base+1, 10) + "." + op + batchSuffix
	e.sent = true
	m := &nats.Msg{Subject: e.msg.Subject, Reply: reply, Header: headers(e.msg), Data: e.msg.Data}
	if err := l.p.nc.PublishMsg(m); err != nil {
		l.fail(err.Error())
	}
}

func headers(m Message) nats.Header {
	h := nats.Header{schemaHeader: {m.Schema}, digestHeader: {Digest(m.Data)}}
	if m.ID != "" {
		h[nats.MsgIdHdr] = []string{m.ID}
	}
	return h
}

// fail stops sending and wakes the runner.
func (l *lane) fail(reason string) {
	if l.broken == "" {
		l.broken = reason
	}
	l.sending = false
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// stored takes entries up to n as stored.
func (l *lane) stored(n uint64) {
	if n < l.first || n >= l.next {
		return
	}
	l.stats.Acked += n - l.first + 1
	l.drop(n)
	l.progress = time.Now()
	l.backoff, l.patience = minBackoff, l.p.cfg.AckWait
}

// drop takes entries up to n out of flight.
func (l *lane) drop(n uint64) {
	for ; l.first <= n; l.first++ {
		e := l.at(l.first)
		l.bytes -= len(e.msg.Data)
		*e = entry{}
	}
	l.changed.Broadcast()
}

// reply is everything that the server may answer to a message in a batch: a
// flow message (type ack, gap or err), or the plain acknowledgement that ends a
// batch.
type reply struct {
	Type      string    `json:"type"`
	Seq       uint64    `json:"seq"`
	Stream    string    `json:"stream"`
	Count     uint64    `json:"count"`
	Duplicate bool      `json:"duplicate"`
	Error     *apiError `json:"error"`
}

type apiError struct {
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

// ackPrefix starts the one reply that is frequent.
var ackPrefix = []byte(`{"type":"ack","seq":`)

// onReply is called for every reply, one at a time.
func (l *lane) onReply(m *nats.Msg) {
	token, rest, _ := strings.Cut(m.Subject[len(l.prefix):], ".")
	l.mu.Lock()
	defer l.mu.Unlock()
	if token == probeToken {
		l.onProbe(rest, m)
		return
	}
	if token != l.batch {
		return // What an ended batch stored is found by asking.
	}
	if seq, ok := ackSeq(m.Data); ok {
		if seq > 0 {
			l.stored(l.base + seq - 1)
		}
		return
	}
	if status := m.Header.Get("Status"); status != "" {
		if status == "503" {
			status = "503: no such stream, or it has no leader"
		}
		l.fail("server answered " + status)
		return
	}
	var r reply
	if err := json.Unmarshal(m.Data, &r); err != nil {
		l.fail("server answered something unreadable")
		return
	}
	l.onEnd(r, rest)
}

// ackSeq parses the frequent reply.
func ackSeq(data []byte) (uint64, bool) {
	rest, ok := bytes.CutPrefix(data, ackPrefix)
	if !ok {
		return 0, false
	}
	var n uint64
	for i, c := range rest {
		if c < '0' || c > '9' {
			return n, i > 0
		}
		n = n*10 + uint64(c-'0')
	}
	return 0, false
}

// onEnd handles the replies that end a batch. rest is <flow>.<gap>.<seq>.<op>.$FI
// of the message that is answered.
func (l *lane) onEnd(r reply, rest string) {
	switch {
	case r.Type == "gap":
		l.fail("server missed a message")
	case r.Error != nil:
		if r.Error.ErrCode == errCodeTooLarge || r.Error.ErrCode == errCodeHeaderTooLarge {
			if tokens := strings.Split(rest, "."); len(tokens) == 5 {
				if seq, err := strconv.ParseUint(tokens[2], 10, 64); err == nil {
					l.refused = l.base + seq - 1
				}
			}
		}
		l.fail(r.Error.Description)
	case r.Count > 0:
		// The first message was a duplicate, or a broken batch has been closed.
		l.stored(l.base + r.Count - 1)
		l.batch = ""
		if l.first < l.next {
			l.fail("server ended the batch")
		}
	}
}

// run recovers when sending breaks, until the lane is closed.
func (l *lane) run() {
	defer close(l.done)
	tick := time.NewTicker(l.p.cfg.AckWait / 4)
	defer tick.Stop()
	connection := l.p.nc.StatusChanged(nats.RECONNECTING)
	defer l.p.nc.RemoveStatusListener(connection)
	trouble := trouble{log: l.p.log}
	for {
		lost := false
		select {
		case <-l.quit:
			return
		case <-l.wake:
		case _, lost = <-connection:
			if !lost {
				connection = nil // The connection was closed, and its listeners with it.
			}
		case <-tick.C:
		}
		l.mu.Lock()
		if lost && l.sending {
			if l.batch = ""; l.first < l.next {
				l.fail("connection was lost")
			}
		}
		if l.sending && l.first < l.next && time.Since(l.progress) > l.patience {
			// A server that is slow gets slower by what is sent again.
			l.patience = min(2*l.patience, maxPatience*l.p.cfg.AckWait)
			l.fail("server did not answer")
		}
		reason, queued := l.broken, l.next-l.first
		l.mu.Unlock()
		if reason == "" {
			continue
		}
		trouble.warn("publishing broke off", reason, "stream", l.stream, "in_flight", queued)
		if !l.recover() {
			return
		}
	}
}

// recover tries until sending works again; false when the lane is closed.
func (l *lane) recover() bool {
	for {
		l.mu.Lock()
		pause := l.backoff
		l.backoff = min(2*l.backoff, maxBackoff)
		l.mu.Unlock()
		select {
		case <-l.quit:
			return false
		case <-time.After(pause):
		}
		l.giveUp(time.Now())
		if !l.p.nc.IsConnected() {
			continue
		}
		if l.ask() && l.restart() {
			return true
		}
	}
}

// giveUp drops the entries at the front whose time is over or which the server
// refuses, and reports them.
func (l *lane) giveUp(now time.Time) {
	l.mu.Lock()
	end := l.first
	for end < l.next && (now.After(l.at(end).deadline) || end == l.refused) {
		end++
	}
	if end == l.first {
		l.mu.Unlock()
		return
	}
	count := end - l.first
	first, last := l.at(l.first).msg, l.at(end-1).msg
	reason := l.broken
	l.stats.Lost += count
	l.stats.Gaps++
	l.mu.Unlock()
	l.reportGap(first, last, count, reason)
	// Only now, so that Flush returns after the report.
	l.mu.Lock()
	l.drop(end - 1)
	l.mu.Unlock()
}

func (l *lane) reportGap(first, last Message, count uint64, reason string) {
	l.p.log.Error("messages were given up", "stream", l.stream, "first", first.ID, "last", last.ID, "count", count, "reason", reason)
	if l.p.cfg.OnGap != nil {
		l.p.cfg.OnGap(first, last)
	}
}

// restart sends everything in flight in a new batch.
func (l *lane) restart() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken, l.batch, l.sending = "", "", true
	l.stats.Recovered++
	l.progress = time.Now()
	if l.first == l.next {
		return true
	}
	l.begin(l.first)
	l.lastSent = l.progress
	for n := l.first; n < l.next && l.sending; n++ {
		if l.at(n).sent {
			l.stats.Resent++
		}
		l.send(n)
	}
	return l.sending
}

// close ends the lane and returns how many messages were in flight.
func (l *lane) close() int {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return 0
	}
	l.closed = true
	l.sending = false
	l.changed.Broadcast()
	l.mu.Unlock()
	close(l.quit)
	<-l.done
	// On a connection that is closed already there is nothing to unsubscribe.
	_ = l.sub.Unsubscribe()
	l.mu.Lock()
	count := l.next - l.first
	var first, last Message
	if count > 0 {
		first, last = l.at(l.first).msg, l.at(l.next-1).msg
		l.drop(l.next - 1)
		l.stats.Lost += count
		l.stats.Gaps++
	}
	l.mu.Unlock()
	if count > 0 {
		l.reportGap(first, last, count, "publisher was closed")
	}
	return int(count)
}
