package streams

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	// pullBatch and pullBytes are what one request asks for at most; the bytes
	// must hold the largest message. The next request is sent when half of one is
	// there, so that the server is never idle: two may be in memory at once.
	pullBatch = 4096
	pullBytes = 4 * MaxPayload
	// pullExpires ends a request that brought nothing; heartbeats come meanwhile.
	pullExpires   = 20 * time.Second
	pullHeartbeat = time.Second
	// silence is how long without message or heartbeat until the consumer counts
	// as lost.
	silence = 3 * pullHeartbeat
)

// pull is one ephemeral consumer, read in order: no acknowledgements, and any
// message that is missing ends it. A new one continues after the position.
type pull struct {
	nc       *nats.Conn
	sub      *nats.Subscription
	messages chan *nats.Msg
	stream   string
	subject  string // of pull requests

	expected    uint64 // next sequence of the consumer
	outstanding int    // messages asked for and not there
	heard       time.Time
}

// open makes the consumer after the position and asks for the first messages.
func (f *Follower) open(ctx context.Context) (*pull, error) {
	cfg := jetstream.ConsumerConfig{
		Name:              nuid.Next(),
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       f.position.Load() + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubject:     f.cfg.filter,
		InactiveThreshold: consumerInactive,
		MemoryStorage:     true,
		Replicas:          1,
	}
	if f.cfg.lastPerSubject && f.position.Load() == 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverLastPerSubjectPolicy, 0
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	consumer, err := f.js.CreateConsumer(ctx, f.cfg.Stream, cfg)
	if err != nil {
		return nil, fmt.Errorf("make a consumer: %w", err)
	}
	// Room for all that can be outstanding, and statuses between.
	messages := make(chan *nats.Msg, 3*pullBatch)
	inbox := f.nc.NewInbox()
	sub, err := f.nc.ChanSubscribe(inbox, messages)
	if err != nil {
		return nil, fmt.Errorf("subscribe to deliveries: %w", err)
	}
	p := &pull{
		nc:       f.nc,
		sub:      sub,
		messages: messages,
		stream:   f.cfg.Stream,
		subject:  "$JS.API.CONSUMER.MSG.NEXT." + f.cfg.Stream + "." + consumer.CachedInfo().Name,
		expected: 1,
		heard:    time.Now(),
	}
	if err := p.request(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pull) close() {
	// On a connection that is closed already there is nothing to unsubscribe.
	_ = p.sub.Unsubscribe()
}

// silent says whether the server has not been heard for too long. The caller
// sets heard when messages come.
func (p *pull) silent() bool { return time.Since(p.heard) > silence }

// pullBody is the request for messages; the time limits are in nanoseconds.
var pullBody = fmt.Appendf(nil, `{"batch":%d,"max_bytes":%d,"expires":%d,"idle_heartbeat":%d}`,
	pullBatch, pullBytes, pullExpires.Nanoseconds(), pullHeartbeat.Nanoseconds())

// request asks for more when little is outstanding.
func (p *pull) request() error {
	if p.outstanding > pullBatch/2 {
		return nil
	}
	if err := p.nc.PublishRequest(p.subject, p.sub.Subject, pullBody); err != nil {
		return fmt.Errorf("ask for messages: %w", err)
	}
	p.outstanding += pullBatch
	return nil
}

// receive takes what arrived. ok is false for a status that needs no action; an
// error ends the consumer. pending is what the consumer has left.
func (p *pull) receive(m *nats.Msg) (event Event, pending uint64, ok bool, err error) {
	if m.Reply == "" || len(m.Data) == 0 {
		if status := m.Header.Get("Status"); status != "" {
			return Event{}, 0, false, p.status(status, m)
		}
	}
	d, err := parseDelivery(m.Reply)
	if err != nil {
		return Event{}, 0, false, err
	}
	if d.consumerSeq != p.expected {
		return Event{}, 0, false, fmt.Errorf("delivery %d came where %d was due: messages were dropped on the way", d.consumerSeq, p.expected)
	}
	p.expected++
	p.outstanding--
	if err := p.request(); err != nil {
		return Event{}, 0, false, err
	}
	return Event{
		Stream:  p.stream,
		Seq:     d.streamSeq,
		Time:    d.time,
		Subject: m.Subject,
		Schema:  headerValue(m.Header, schemaHeader),
		ID:      headerValue(m.Header, nats.MsgIdHdr),
		Digest:  headerValue(m.Header, digestHeader),
		Data:    m.Data,
	}, d.pending, true, nil
}

// status handles what the server says about requests.
func (p *pull) status(code string, m *nats.Msg) error {
	p.heard = time.Now()
	if code == "100" {
		return nil
	}
	// A request ended by time or bytes; what it did not bring is not outstanding.
	description := strings.ToLower(m.Header.Get("Description"))
	if code == "408" || description == "message size exceeds maxbytes" || description == "batch completed" {
		left, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		if err != nil || left > p.outstanding {
			return errors.New("server said that a request ended, not how much of it was left")
		}
		p.outstanding -= left
		return p.request()
	}
	return fmt.Errorf("server answered %s %s", code, description)
}

// headerValue is Header.Get without its canonical spelling, which costs.
func headerValue(h nats.Header, key string) string {
	if v := h[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// delivery is what the reply subject of a consumer's message says.
type delivery struct {
	streamSeq, consumerSeq, pending uint64
	time                            time.Time
}

// parseDelivery reads $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.
// <consumer seq>.<time>.<pending>, or the later form, which has domain and
// account hash after $JS.ACK and may have more at the end.
func parseDelivery(subject string) (delivery, error) {
	rest, ok := strings.CutPrefix(subject, "$JS.ACK.")
	if !ok {
		return delivery{}, fmt.Errorf("delivery has reply %q, which is not of a consumer", subject)
	}
	skip := 3
	if dots := strings.Count(rest, "."); dots > 6 {
		skip = 5
	} else if dots < 6 {
		return delivery{}, fmt.Errorf("delivery has reply %q, which is too short", subject)
	}
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	var numbers [4]uint64
	for i := range numbers {
		var token string
		token, rest, _ = strings.Cut(rest, ".")
		n, err := strconv.ParseUint(token, 10, 64)
		if err != nil {
			return delivery{}, fmt.Errorf("delivery has reply %q: %w", subject, err)
		}
		numbers[i] = n
	}
	return delivery{
		streamSeq: numbers[0], consumerSeq: numbers[1], pending: numbers[3],
		time: time.Unix(0, int64(numbers[2])).UTC(),
	}, nil
}
