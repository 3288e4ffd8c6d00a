package streams

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Defaults of a publisher. A zero field of PublisherConfig takes them.
const (
	// DefaultMaxInFlight keeps a fast publisher busy over some 50 ms of round
	// trip at 100,000 messages a second.
	DefaultMaxInFlight = 8192
	// DefaultMaxInFlightBytes bounds what waits in memory while no server is there.
	DefaultMaxInFlightBytes = 64 << 20
	// DefaultGiveUp is well within the stream's duplicate window, so that
	// resending until then never stores a message twice.
	DefaultGiveUp = 60 * time.Second
	// DefaultAckWait is how long the server may be silent before outcomes count
	// as unknown: above any healthy commit, below the time a client notices.
	DefaultAckWait = 2 * time.Second
)

// PublisherConfig configures a Publisher. The zero value works.
type PublisherConfig struct {
	// Name says in logs whose publisher it is.
	Name string
	// MaxInFlight bounds the messages per stream that are published and not
	// acknowledged; Publish blocks at the bound. 0 is DefaultMaxInFlight.
	MaxInFlight int
	// MaxInFlightBytes bounds their payload likewise; one message always fits.
	// 0 is DefaultMaxInFlightBytes.
	MaxInFlightBytes int
	// GiveUp is how long a message is tried. Keep it below the stream's duplicate
	// window. 0 is DefaultGiveUp.
	GiveUp time.Duration
	// AckWait is how long without any acknowledgement until messages are sent
	// again. 0 is DefaultAckWait.
	AckWait time.Duration
	// OnGap is told, in order, of the messages that were given up: first to last
	// of them, on one stream. Their outcome is unknown at best. It is called from a
	// goroutine of the publisher, must return soon, and must not call Close or
	// Flush. Gaps are logged and counted whether it is set or not.
	OnGap func(first, last Message)
}

// PublisherStats counts what a publisher did since it was made.
type PublisherStats struct {
	// Published were accepted by Publish. Acked are in the stream. Lost were
	// given up and reported. InFlight is what is left.
	Published, Acked, Lost uint64
	InFlight               int
	// Resent counts messages sent again, Recovered how often sending broke off
	// and started again.
	Resent, Recovered uint64
	// Gaps counts the reports of lost messages.
	Gaps uint64
}

// Publisher publishes messages into streams so that each stream holds them in
// the order of the calls of Publish, once each, whatever happens to the server
// or the connection. It rests on JetStream's batched publishing with gaps
// refused: within such a batch the server stores nothing after a message that
// it did not store. When a batch breaks, the publisher asks by message id which
// messages are stored and continues after them in a new batch.
//
// Messages must have an ID for that; those without may be stored twice after a
// failure. The subject chooses the stream; order holds per stream.
//
// A Publisher is safe for concurrent use. It keeps reconnecting for as long as
// its connection does.
type Publisher struct {
	nc  *nats.Conn
	cfg PublisherConfig
	log *slog.Logger

	mu     sync.Mutex
	lanes  map[string]*lane
	closed bool
}

// NewPublisher makes a publisher on the connection of js. Close ends it.
func NewPublisher(js jetstream.JetStream, cfg PublisherConfig) *Publisher {
	cfg.MaxInFlight = or(cfg.MaxInFlight, DefaultMaxInFlight)
	cfg.MaxInFlightBytes = or(cfg.MaxInFlightBytes, DefaultMaxInFlightBytes)
	cfg.GiveUp = or(cfg.GiveUp, DefaultGiveUp)
	cfg.AckWait = or(cfg.AckWait, DefaultAckWait)
	return &Publisher{
		nc:    js.Conn(),
		cfg:   cfg,
		log:   slog.With("publisher", cfg.Name),
		lanes: map[string]*lane{},
	}
}

// Publish hands m over and returns; the outcome comes later, and Flush waits
// for it. It blocks while too much is in flight, until ctx ends. An error means
// that m was not accepted and will not be published: ErrClosed, the error of
// ctx, or what is wrong with m. m.Data must not be changed afterwards.
func (p *Publisher) Publish(ctx context.Context, m Message) error {
	lane, err := p.lane(m.Subject)
	if err != nil {
		return fmt.Errorf("publish %s: %w", m.ID, err)
	}
	if err := lane.publish(ctx, m); err != nil {
		return fmt.Errorf("publish %s on %s: %w", m.ID, m.Subject, err)
	}
	return nil
}

// Flush waits until every message that was accepted before is acknowledged or
// reported as a gap, or ctx ends.
func (p *Publisher) Flush(ctx context.Context) error {
	for _, l := range p.all() {
		if err := l.flush(ctx); err != nil {
			return fmt.Errorf("flush %s: %w", l.stream, err)
		}
	}
	return nil
}

// Close stops at once; call Flush before. Messages still in flight are reported
// as gaps, and named in the error.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	left := 0
	for _, l := range p.all() {
		left += l.close()
	}
	if left > 0 {
		return fmt.Errorf("publisher closed with %d messages of unknown outcome; flush before", left)
	}
	return nil
}

// Stats returns the counts so far.
func (p *Publisher) Stats() PublisherStats {
	var sum PublisherStats
	for _, l := range p.all() {
		l.mu.Lock()
		s := l.stats
		s.InFlight = int(l.next - l.first)
		l.mu.Unlock()
		sum.Published += s.Published
		sum.Acked += s.Acked
		sum.Lost += s.Lost
		sum.InFlight += s.InFlight
		sum.Resent += s.Resent
		sum.Recovered += s.Recovered
		sum.Gaps += s.Gaps
	}
	return sum
}

func (p *Publisher) all() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*lane, 0, len(p.lanes))
	for _, l := range p.lanes {
		all = append(all, l)
	}
	return all
}

// lane returns the lane of a subject's stream, made at first use.
func (p *Publisher) lane(subject string) (*lane, error) {
	stream, err := streamOf(subject)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	l := p.lanes[stream]
	if l == nil {
		if l, err = newLane(p, stream); err != nil {
			return nil, err
		}
		p.lanes[stream] = l
	}
	return l, nil
}

// streamOf names the stream that stores a subject.
func streamOf(subject string) (string, error) {
	family, rest, _ := strings.Cut(subject, ".")
	pool, name, _ := strings.Cut(rest, ".")
	if pool != "" && name != "" && !strings.ContainsAny(name, ".*> ") {
		switch family {
		case "kv":
			return KVStream(pool), nil
		case "route":
			return RouteStream, nil
		case "load":
			return LoadStream, nil
		}
	}
	return "", fmt.Errorf("subject %q belongs to no stream; make it by KVSubject, RouteSubject or LoadSubject", subject)
}
