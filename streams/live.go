package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// liveQueue is how many live messages may wait for handle; what does not fit
	// is dropped and then read from the stream.
	liveQueue = 8192
	// liveCheck is how often the stream's end is compared with the position, so
	// that a lost message is found also when no other follows it.
	liveCheck = time.Second
	// fillBatch is how many messages one direct read asks for, fillBytes how many
	// bytes; the largest message fits.
	fillBatch = 500
	fillBytes = MaxPayload
	// fillTimeout bounds one direct read, fillGiveUp all reads for one gap.
	fillTimeout = 2 * time.Second
	fillGiveUp  = 2 * time.Minute
	// liveBehind is how many checks in a row must see the stream end before the
	// position, until it counts as made anew: a new leader may know less.
	liveBehind = 3
)

// FollowLive calls handle with the decisions and outcomes of a pool's gateways,
// in the order of ROUTE, as they are republished: with the delay of a plain
// subscription, and no consumer on the server. What got lost on the way is read
// from ROUTE before anything later is handled. from is the first sequence
// wanted, read from ROUTE first; 0 is what comes from now on.
//
// It blocks until ctx ends and returns its error, or earlier with the error of
// handle, ErrNoStream, a *ResetError, or when a gap cannot be filled for
// minutes although the connection is there.
//
// Sequences have holes where other pools' messages are. A republished message
// says which sequence came before it on its own subject, which says nothing
// about the pool's other gateways. So: a message that directly follows the
// position is handled at once; any other makes the range before it be read from
// the stream, filtered by pool, which is complete when that message itself is
// reached.
func FollowLive(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, pool string, from uint64, handle func(Event) error) error {
	if err := ValidName(pool); err != nil {
		return fmt.Errorf("follow live: pool: %w", err)
	}
	l := &live{nc: nc, js: js, pool: pool, handle: handle, log: slog.With("stream", RouteStream, "pool", pool)}
	return l.run(ctx, from)
}

// live is one FollowLive.
type live struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	pool   string
	handle func(Event) error
	log    *slog.Logger

	messages chan *nats.Msg
	// position: everything of the pool up to here has been handled.
	position uint64
	created  time.Time
	behind   int

	answers chan *nats.Msg // of direct reads
	inbox   string
	round   uint64
}

func (l *live) run(ctx context.Context, from uint64) error {
	l.messages = make(chan *nats.Msg, liveQueue)
	sub, err := l.nc.ChanSubscribe("live.route."+l.pool+".>", l.messages)
	if err != nil {
		return fmt.Errorf("follow live decisions: %w", err)
	}
	// On a connection that is closed already there is nothing to unsubscribe.
	defer func() { _ = sub.Unsubscribe() }()
	l.answers = make(chan *nats.Msg, 2*fillBatch)
	l.inbox = l.nc.NewInbox() + "."
	fill, err := l.nc.ChanSubscribe(l.inbox+"*", l.answers)
	if err != nil {
		return fmt.Errorf("follow live decisions: %w", err)
	}
	defer func() { _ = fill.Unsubscribe() }()
	if err := l.begin(ctx, from); err != nil {
		return err
	}
	check := time.NewTicker(liveCheck)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-l.messages:
			err = l.take(ctx, m)
		case <-check.C:
			err = l.check(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// begin finds where to start, and reads what is in the stream from there.
func (l *live) begin(ctx context.Context, from uint64) error {
	trouble := trouble{log: l.log}
	for pause := followBackoff; ; pause = min(2*pause, followBackoffMax) {
		info, err := l.info(ctx)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("follow live decisions: %w", ErrNoStream)
		case err == nil:
			l.created = info.Created
			l.position = info.State.LastSeq
			if from > 0 {
				l.position = from - 1
				return l.fill(ctx, info.State.LastSeq, false)
			}
			return nil
		}
		trouble.warn("live decisions wait for the stream", err.Error())
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func (l *live) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := l.js.Stream(ctx, RouteStream)
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo(), nil
}

// take handles a live message, after what is missing before it.
func (l *live) take(ctx context.Context, m *nats.Msg) error {
	event, err := storedEvent(m)
	if err != nil {
		l.log.Warn("live message is not of the stream", "subject", m.Subject, "reason", err)
		return nil
	}
	switch {
	case event.Seq <= l.position:
		return nil
	case event.Seq == l.position+1:
		return l.deliver(event)
	}
	return l.fill(ctx, event.Seq, true)
}

func (l *live) deliver(e Event) error {
	if err := l.handle(e); err != nil {
		return fmt.Errorf("handle %s %d: %w", RouteStream, e.Seq, err)
	}
	l.position = e.Seq
	return nil
}

// check looks for what was lost at the end, and for a stream that is not the
// one followed.
func (l *live) check(ctx context.Context) error {
	info, err := l.info(ctx)
	if err != nil {
		return nil // Away for now; live messages or a later check will tell.
	}
	last := info.State.LastSeq
	if last < l.position || !info.Created.Equal(l.created) {
		if l.behind++; l.behind >= liveBehind || !info.Created.Equal(l.created) {
			return &ResetError{Stream: RouteStream, Position: l.position, Last: last}
		}
		return nil
	}
	l.behind = 0
	if last == l.position || len(l.messages) > 0 {
		return nil
	}
	return l.fill(ctx, last, false)
}

// fill handles the pool's messages after the position up to one that is known
// to be stored, by reading the stream. exists says that upTo itself is the
// pool's, so that reading is complete only when it is reached; otherwise upTo is
// where the stream ended, and may be another pool's. Any copy of the stream may
// answer, and one may know less than was stored: then it is asked again.
func (l *live) fill(ctx context.Context, upTo uint64, exists bool) error {
	asked := time.Now()
	for pause := minBackoff; l.position < upTo; pause = min(2*pause, followBackoffMax) {
		before := l.position
		more, err := l.read(ctx)
		if err != nil && !errors.Is(err, errUnanswered) {
			return err
		}
		if l.position > before {
			asked, pause = time.Now(), minBackoff
		}
		switch {
		case err == nil && more:
			continue
		case err == nil && !exists:
			// The rest up to upTo is other pools', or not known to this copy yet; a
			// later message or check reads again. The position stays: reading the
			// range again is cheap, passing over a message is not.
			return nil
		case err == nil && l.position < upTo && l.expired(ctx, upTo):
			l.log.Warn("live decisions were removed before they were read", "from", l.position+1, "to", upTo)
			l.position = upTo
			return nil
		}
		if l.nc.IsConnected() && time.Since(asked) > fillGiveUp {
			return fmt.Errorf("read %s from %d to %d: no copy of the stream has it after %v", RouteStream, l.position+1, upTo, fillGiveUp)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// expired says whether retention has removed a sequence.
func (l *live) expired(ctx context.Context, seq uint64) bool {
	info, err := l.info(ctx)
	return err == nil && info.State.FirstSeq > seq
}

// errUnanswered says that a direct read was not answered to its end.
var errUnanswered = errors.New("direct read was not answered")

// read handles one batch of the pool's messages after the position. more says
// that the answering copy had more.
func (l *live) read(ctx context.Context) (more bool, err error) {
	l.round++
	reply := l.inbox + strconv.FormatUint(l.round, 10)
	body, err := json.Marshal(map[string]any{
		"seq": l.position + 1, "batch": fillBatch, "max_bytes": fillBytes, "next_by_subj": "route." + l.pool + ".>",
	})
	if err != nil {
		return false, fmt.Errorf("ask for %s: %w", RouteStream, err)
	}
	if err := l.nc.PublishRequest("$JS.API.DIRECT.GET."+RouteStream, reply, body); err != nil {
		return false, errUnanswered
	}
	timeout := time.NewTimer(fillTimeout)
	defer timeout.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-timeout.C:
			return false, errUnanswered
		case m := <-l.answers:
			if m.Subject != reply {
				continue // Of a read that was given up.
			}
			switch m.Header.Get("Status") {
			case "":
			case "204":
				return m.Header.Get("Nats-Num-Pending") != "0", nil
			case "404":
				return false, nil
			default:
				return false, errUnanswered
			}
			event, err := storedEvent(m)
			if err != nil {
				return false, fmt.Errorf("read %s: %w", RouteStream, err)
			}
			if event.Seq <= l.position {
				continue
			}
			if err := l.deliver(event); err != nil {
				return false, err
			}
		}
	}
}

// storedEvent is the event of a message that came by direct read or was
// republished: its place in the stream is in its headers.
func storedEvent(m *nats.Msg) (Event, error) {
	seq, err := strconv.ParseUint(headerValue(m.Header, jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return Event{}, fmt.Errorf("header %s: %w", jetstream.SequenceHeader, err)
	}
	at, err := time.Parse(time.RFC3339Nano, headerValue(m.Header, jetstream.TimeStampHeaer))
	if err != nil {
		return Event{}, fmt.Errorf("header %s: %w", jetstream.TimeStampHeaer, err)
	}
	return Event{
		Stream:  headerValue(m.Header, jetstream.StreamHeader),
		Seq:     seq,
		Time:    at,
		Subject: headerValue(m.Header, jetstream.SubjectHeader),
		Schema:  headerValue(m.Header, schemaHeader),
		ID:      headerValue(m.Header, nats.MsgIdHdr),
		Digest:  headerValue(m.Header, digestHeader),
		Data:    m.Data,
	}, nil
}

// sleep waits for d, or returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
