package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Defaults of a follower. A zero field of FollowConfig takes them.
const (
	// DefaultStall is how long a follower may receive nothing while the stream
	// grows, until it makes a new consumer.
	DefaultStall = 10 * time.Second
	// DefaultIdle is how soon after the last message OnIdle is called.
	DefaultIdle = time.Second
	// consumerInactive is how long the server keeps a consumer that nobody pulls
	// from: those that were left behind need no right to delete them.
	consumerInactive = 30 * time.Second
	// apiTimeout bounds each question to the server: one that got lost in a
	// restart is asked again.
	apiTimeout = 2 * time.Second
	// followBackoff to followBackoffMax are the pauses before a new consumer.
	followBackoff    = 20 * time.Millisecond
	followBackoffMax = time.Second
)

// FollowConfig says what to follow and from where.
type FollowConfig struct {
	// Stream is the name, such as KVStream(pool) or RouteStream.
	Stream string
	// From is the first sequence wanted; 0 is 1.
	From uint64
	// OnHole is told of sequences that the stream does not have: retention or an
	// operator removed them. Called in order with the messages, from the same
	// goroutine.
	OnHole func(from, to uint64)
	// Stall is how long to receive nothing, while the stream has more, before the
	// consumer is made anew. 0 is DefaultStall.
	Stall time.Duration
	// Idle is the time without a message after which OnIdle is called, and again
	// each time it has passed. 0 is DefaultIdle.
	Idle time.Duration
	// OnIdle is called from the goroutine that handles messages; an error ends
	// the follower. Nil: nothing is called.
	OnIdle func() error

	// filter and lastPerSubject are for followers of last values. Holes are
	// natural there and not reported.
	filter         string
	lastPerSubject bool
	// await waits for a stream that is not there at first.
	await bool
	// onInfo is called with what is known of the stream, before messages; onBeat
	// every few seconds, also while the server is away.
	onInfo func(*jetstream.StreamInfo)
	onBeat func()
}

// deliver is what a follower does with a message: the event, and its headers.
type deliver func(Event, nats.Header) error

// Follower reads a stream in order from a sequence, without end: it waits for
// more at the head, survives restarts of the server and its own reconnects, and
// continues after the last message handled. Position, Head, Lag and Restarts are
// safe for concurrent use with Run; Run is called once.
type Follower struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	cfg FollowConfig
	log *slog.Logger

	position atomic.Uint64
	head     atomic.Uint64 // highest sequence known to exist
	restarts atomic.Uint64

	// created is when the stream was made; zero until it was seen. Its absence
	// afterwards is a failure to wait out.
	created time.Time
	// behind counts in a row that the stream ended before the position.
	behind int
}

// NewFollower makes a follower; Run starts it.
func NewFollower(js jetstream.JetStream, cfg FollowConfig) *Follower {
	cfg.From = or(cfg.From, 1)
	cfg.Stall = or(cfg.Stall, DefaultStall)
	cfg.Idle = or(cfg.Idle, DefaultIdle)
	f := &Follower{nc: js.Conn(), js: js, cfg: cfg, log: slog.With("stream", cfg.Stream)}
	f.position.Store(cfg.From - 1)
	return f
}

// Follow is NewFollower and Run.
func Follow(ctx context.Context, js jetstream.JetStream, cfg FollowConfig, handle func(Event) error) error {
	return NewFollower(js, cfg).Run(ctx, handle)
}

// Position is the last sequence handled, or reported as a hole.
func (f *Follower) Position() uint64 { return f.position.Load() }

// Lag is how many sequences are known to wait after Position; it is learned
// from the messages and may be behind the stream by what has not arrived.
func (f *Follower) Lag() uint64 {
	position, head := f.position.Load(), f.head.Load()
	if head <= position {
		return 0
	}
	return head - position
}

// Restarts is how often following broke off and began again after the position:
// the connection or the server was lost, a message on the way, or the consumer.
func (f *Follower) Restarts() uint64 { return f.restarts.Load() }

// Head asks the server for the stream's last sequence.
func (f *Follower) Head(ctx context.Context) (uint64, error) {
	seq, err := LastSeq(ctx, f.js, f.cfg.Stream)
	if err == nil {
		f.sawHead(seq)
	}
	return seq, err
}

func (f *Follower) sawHead(seq uint64) {
	for {
		known := f.head.Load()
		if seq <= known || f.head.CompareAndSwap(known, seq) {
			return
		}
	}
}

// Run follows until ctx ends, and returns its error then. It returns earlier
// with ErrNoStream when the stream is not there at first, a *ResetError when
// the stream ends before the position, and with the error of handle or OnIdle.
// handle is called in order, from Run's goroutine.
func (f *Follower) Run(ctx context.Context, handle func(Event) error) error {
	return f.run(ctx, func(e Event, _ nats.Header) error { return handle(e) })
}

func (f *Follower) run(ctx context.Context, handle deliver) error {
	backoff := followBackoff
	trouble := trouble{log: f.log}
	for {
		before := f.position.Load()
		err := f.follow(ctx, handle)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var transient *transientError
		if !errors.As(err, &transient) {
			return err
		}
		if f.position.Load() > before {
			backoff = followBackoff
		}
		f.restarts.Add(1)
		f.beat()
		trouble.warn("following broke off", transient.Error(), "position", f.position.Load())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, followBackoffMax)
	}
}

// transientError wraps what a new consumer may cure.
type transientError struct{ err error }

func (e *transientError) Error() string { return e.err.Error() }
func (e *transientError) Unwrap() error { return e.err }

// follow makes a consumer after the position and reads it until it breaks.
func (f *Follower) follow(ctx context.Context, handle deliver) error {
	// Before the first question, so that no reconnect is missed.
	reconnected := f.nc.StatusChanged(nats.CONNECTED)
	defer f.nc.RemoveStatusListener(reconnected)
	if err := f.check(ctx); err != nil {
		return err
	}
	p, err := f.open(ctx)
	if err != nil {
		return &transientError{err}
	}
	defer p.close()
	idle := time.NewTimer(f.cfg.Idle)
	defer idle.Stop()
	pulse := time.NewTicker(pullHeartbeat)
	defer pulse.Stop()
	stall := time.NewTicker(f.cfg.Stall)
	defer stall.Stop()
	armed := true
	var count, atPulse, atStall uint64
	for {
		// The queue is emptied before timers are looked at: they cost.
		for drained := false; !drained && ctx.Err() == nil; {
			select {
			case m := <-p.messages:
				armed = false
				count++
				if err := f.take(p, m, handle); err != nil {
					return err
				}
				drained = count%256 == 0
			default:
				drained = true
			}
		}
		if !armed && len(p.messages) == 0 {
			idle.Reset(f.cfg.Idle)
			armed = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-p.messages:
			armed = false
			count++
			if err := f.take(p, m, handle); err != nil {
				return err
			}
		case <-idle.C:
			armed = false
			if err := f.onIdle(); err != nil {
				return err
			}
		case <-reconnected:
			return &transientError{errors.New("connection was made anew")}
		case <-pulse.C:
			f.beat()
			if count != atPulse {
				p.heard, atPulse = time.Now(), count
			}
			if p.silent() && len(p.messages) == 0 {
				return &transientError{fmt.Errorf("no heartbeat for %v", silence)}
			}
		case <-stall.C:
			if count == atStall {
				if err := f.watch(ctx, p); err != nil {
					return err
				}
			}
			atStall = count
		}
	}
}

func (f *Follower) beat() {
	if f.cfg.onBeat != nil {
		f.cfg.onBeat()
	}
}

func (f *Follower) onIdle() error {
	if f.cfg.OnIdle == nil {
		return nil
	}
	if err := f.cfg.OnIdle(); err != nil {
		return fmt.Errorf("idle at %s %d: %w", f.cfg.Stream, f.position.Load(), err)
	}
	return nil
}

// take handles one message of the consumer, or a status in its place.
func (f *Follower) take(p *pull, m *nats.Msg, handle deliver) error {
	event, pending, ok, err := p.receive(m)
	if err != nil {
		return &transientError{err}
	}
	if !ok {
		return nil
	}
	position := f.position.Load()
	if event.Seq <= position {
		// The server begins at its end when asked for more: the stream is another.
		return &transientError{fmt.Errorf("message %d came at position %d", event.Seq, position)}
	}
	if event.Seq > position+1 {
		f.hole(position+1, event.Seq-1)
	}
	f.sawHead(event.Seq + pending)
	if err := handle(event, m.Header); err != nil {
		return fmt.Errorf("handle %s %d: %w", f.cfg.Stream, event.Seq, err)
	}
	f.position.Store(event.Seq)
	return nil
}

func (f *Follower) hole(from, to uint64) {
	if f.cfg.filter != "" {
		return
	}
	f.log.Warn("stream has a hole", "from", from, "to", to)
	if f.cfg.OnHole != nil {
		f.cfg.OnHole(from, to)
	}
	f.position.Store(to)
}

// check compares the position with the stream: reports what retention has
// removed, and finds out when the stream is not the one followed.
func (f *Follower) check(ctx context.Context) error {
	info, err := f.info(ctx)
	if err != nil {
		return err
	}
	position := f.position.Load()
	f.sawHead(info.State.LastSeq)
	if f.created.IsZero() {
		f.created = info.Created
	}
	if f.cfg.onInfo != nil {
		f.cfg.onInfo(info)
	}
	if !info.Created.Equal(f.created) {
		return &ResetError{Stream: f.cfg.Stream, Position: position, Last: info.State.LastSeq}
	}
	if info.State.LastSeq < position {
		// A new leader may know less for a moment.
		if f.behind++; f.behind < 3 {
			return &transientError{fmt.Errorf("stream ends at %d, before position %d", info.State.LastSeq, position)}
		}
		return &ResetError{Stream: f.cfg.Stream, Position: position, Last: info.State.LastSeq}
	}
	f.behind = 0
	if first := info.State.FirstSeq; first > position+1 {
		f.hole(position+1, first-1)
	}
	return nil
}

func (f *Follower) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := f.js.Stream(ctx, f.cfg.Stream)
	switch {
	case err == nil:
		return stream.CachedInfo(), nil
	case errors.Is(err, jetstream.ErrStreamNotFound) && f.created.IsZero() && !f.cfg.await:
		return nil, fmt.Errorf("follow %s: %w", f.cfg.Stream, ErrNoStream)
	}
	return nil, &transientError{fmt.Errorf("ask for stream %s: %w", f.cfg.Stream, err)}
}

// watch is the stall watchdog, called when nothing came for a whole period: it
// asks for a new consumer when the stream has more, or is another.
func (f *Follower) watch(ctx context.Context, p *pull) error {
	info, err := f.info(ctx)
	if err != nil {
		return err
	}
	if len(p.messages) > 0 {
		return nil
	}
	f.sawHead(info.State.LastSeq)
	// With a filter the stream's end says nothing about what should have come.
	position := f.position.Load()
	if info.State.LastSeq < position || !info.Created.Equal(f.created) ||
		(f.cfg.filter == "" && info.State.LastSeq > position) {
		return &transientError{fmt.Errorf("nothing came for %v while the stream ends at %d", f.cfg.Stall, info.State.LastSeq)}
	}
	return nil
}

// LastSeq asks for the last sequence of a stream, 0 when nothing was ever
// stored. It returns ErrNoStream when the stream does not exist.
func LastSeq(ctx context.Context, js jetstream.JetStream, stream string) (uint64, error) {
	s, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, fmt.Errorf("last sequence of %s: %w", stream, ErrNoStream)
	}
	if err != nil {
		return 0, fmt.Errorf("last sequence of %s: %w", stream, err)
	}
	return s.CachedInfo().State.LastSeq, nil
}

// TailStart is the sequence that the newest n messages of a stream begin at, at
// least 1. Errors are those of LastSeq.
func TailStart(ctx context.Context, js jetstream.JetStream, stream string, n uint64) (uint64, error) {
	last, err := LastSeq(ctx, js, stream)
	if err != nil {
		return 0, err
	}
	if last > n {
		return last - n + 1, nil
	}
	return 1, nil
}
