package zmq

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-zeromq/zmq4"
)

// defaultHWM is the engines' own (vLLM's kv-events configuration).
const defaultHWM = 100_000

// Publishing says how to publish.
type Publishing struct {
	// Endpoint is bound, or with Dial dialed: then a subscriber listens there.
	Endpoint string
	Dial     bool
	// HWM is how many messages may wait for one subscriber; 0 means 100,000.
	HWM int
	// Wait makes Send wait for room where a PUB socket drops, so that a
	// measurement loses nothing.
	Wait bool
}

// Publisher is a PUB socket, as engines have one. It is safe for concurrent use.
type Publisher struct {
	cfg      Publishing
	endpoint string
	server   *server // nil when it dials
	cancel   context.CancelFunc
	running  sync.WaitGroup
	dropped  atomic.Uint64

	mu      sync.Mutex
	subs    []*outlet
	changed chan struct{} // closed and replaced when a subscription changes
}

// outlet is one subscriber.
type outlet struct {
	link     *link
	queue    chan outgoing
	done     chan struct{} // closed when it is gone
	topics   []string      // guarded by Publisher.mu
	overflow *atomic.Uint64
}

// outgoing is a message, or a mark to be closed when all before it is written.
type outgoing struct {
	parts [][]byte
	mark  chan struct{}
}

// NewPublisher binds or begins to dial. Close ends it.
func NewPublisher(cfg Publishing) (*Publisher, error) {
	if cfg.HWM <= 0 {
		cfg.HWM = defaultHWM
	}
	at, err := parseEndpoint(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{cfg: cfg, endpoint: at.String(), cancel: cancel, changed: make(chan struct{})}
	if cfg.Dial {
		if err := at.dialable(); err != nil {
			cancel()
			return nil, err
		}
		p.running.Go(func() {
			redial(ctx, at, zmq4.Pub, defaultMaxFrame, func(l *link) { p.serve(ctx, l) }, func(error) {})
		})
		return p, nil
	}
	listener, err := at.listen(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	p.endpoint = bound(listener)
	p.server = &server{listener: listener, typ: zmq4.Pub, limit: defaultMaxFrame, serve: p.serve}
	p.running.Go(func() { p.server.run(ctx) })
	return p, nil
}

// Endpoint is what it is bound to, with the port that it was given, or dials.
func (p *Publisher) Endpoint() string { return p.endpoint }

// Send publishes a message to every subscriber of its first part. The parts must
// not change afterwards. A subscriber that is HWM messages behind does not get
// it, unless Publishing.Wait is set.
func (p *Publisher) Send(parts ...[]byte) {
	topic := string(parts[0])
	p.mu.Lock()
	subs := slices.DeleteFunc(slices.Clone(p.subs), func(o *outlet) bool {
		return !slices.ContainsFunc(o.topics, func(prefix string) bool { return strings.HasPrefix(topic, prefix) })
	})
	p.mu.Unlock()
	for _, o := range subs {
		o.put(parts, p.cfg.Wait)
	}
}

// Dropped counts the messages that a subscriber did not get for want of room.
func (p *Publisher) Dropped() uint64 { return p.dropped.Load() }

// AwaitSubscribers waits for n subscribers that have subscribed to something:
// what is sent before is lost to them.
func (p *Publisher) AwaitSubscribers(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		have, changed := 0, p.changed
		for _, o := range p.subs {
			if len(o.topics) > 0 {
				have++
			}
		}
		p.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Drain waits until everything sent so far is written to the subscribers'
// connections, or they are gone.
func (p *Publisher) Drain() {
	p.mu.Lock()
	subs := slices.Clone(p.subs)
	p.mu.Unlock()
	for _, o := range subs {
		mark := make(chan struct{})
		select {
		case o.queue <- outgoing{mark: mark}:
		case <-o.done:
			continue
		}
		select {
		case <-mark:
		case <-o.done:
		}
	}
}

// HangUp closes every connection, as an engine's end does. A bound publisher
// keeps its port, so that no other process takes it, but while it is down it
// closes each new connection at once.
func (p *Publisher) HangUp(down bool) {
	if p.server != nil {
		p.server.hangUp(down)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.subs {
		o.link.wire.Close()
	}
	p.subs = nil // at once, so that what is sent from here on is for new connections
}

// Close ends it and waits for its goroutines. What is not yet written is lost.
func (p *Publisher) Close() {
	p.cancel()
	p.running.Wait()
}

// serve writes to one subscriber until it is gone.
func (p *Publisher) serve(ctx context.Context, l *link) {
	o := &outlet{link: l, queue: make(chan outgoing, p.cfg.HWM), done: make(chan struct{}), overflow: &p.dropped}
	p.mu.Lock()
	p.subs = append(p.subs, o)
	p.mu.Unlock()
	var writing sync.WaitGroup
	writing.Go(o.write)
	if p.server == nil || p.server.has(l.wire.Conn) { // else hung up while shaking hands
		p.listen(o)
	}
	p.mu.Lock()
	p.subs = slices.DeleteFunc(p.subs, func(other *outlet) bool { return other == o })
	p.change()
	p.mu.Unlock()
	l.close()
	close(o.done)
	writing.Wait()
}

func (p *Publisher) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// listen follows the subscriber's subscriptions until its connection ends.
func (p *Publisher) listen(o *outlet) {
	for {
		parts, err := o.link.receive()
		if err != nil {
			return
		}
		if len(parts) != 1 || len(parts[0]) == 0 || parts[0][0] > 1 {
			continue
		}
		topic := string(parts[0][1:])
		p.mu.Lock()
		if parts[0][0] == 1 {
			o.topics = append(o.topics, topic)
		} else if i := slices.Index(o.topics, topic); i >= 0 {
			o.topics = slices.Delete(o.topics, i, i+1)
		}
		p.change()
		p.mu.Unlock()
	}
}

func (o *outlet) put(parts [][]byte, wait bool) {
	select {
	case o.queue <- outgoing{parts: parts}:
		return
	default:
	}
	if wait {
		select {
		case o.queue <- outgoing{parts: parts}:
			return
		case <-o.done:
		}
	}
	o.overflow.Add(1)
}

// write sends what is queued, in as few system calls as it can.
func (o *outlet) write() {
	for {
		select {
		case out := <-o.queue:
			var err error
			if out.mark == nil {
				err = o.link.write(out.parts...)
			}
			if err == nil && (len(o.queue) == 0 || out.mark != nil) {
				err = o.link.flush()
			}
			if out.mark != nil {
				close(out.mark)
			}
			if err != nil {
				o.link.close() // the reader sees it, and ends the outlet
			}
		case <-o.done:
			return
		}
	}
}
