package zmq

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

const (
	// A restarting engine is away for tens of seconds; five seconds more are lost
	// on nobody, and a tenth of a second misses little of one that is back at once.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second

	defaultQueueFrames = 1024
	defaultQueueBytes  = 64 << 20
	defaultMaxPeers    = 1024
)

// Change is what happened to a subscription's connections.
type Change uint8

// The changes.
const (
	// Listening: the endpoint is bound; State.Addr is where.
	Listening Change = iota + 1
	// Connected: a publisher is connected and has been sent the subscription.
	Connected
	// Disconnected: that connection ended; State.Err says how. What its publisher
	// sends until it is connected again is lost, and shows as a gap.
	Disconnected
	// Failed: a connection did not come about; State.Err says why.
	Failed
)

func (c Change) String() string {
	switch c {
	case Listening:
		return "listening"
	case Connected:
		return "connected"
	case Disconnected:
		return "disconnected"
	case Failed:
		return "failed"
	}
	return "unknown"
}

// State is a change of a subscription's connections.
type State struct {
	Change Change
	// Addr is the endpoint dialed or bound, or the address of a peer that dialed.
	Addr string
	// Conn is Frame.Conn of the connection; 0 for Listening and Failed.
	Conn uint64
	// Err is the reason of Disconnected and Failed.
	Err error
}

// Subscription says what to subscribe to. An engine's events and SGLang's load
// reports (topic "load") come in the same three parts.
type Subscription struct {
	// Endpoint is tcp://HOST:PORT or ipc://PATH; with Listen also tcp://*:PORT.
	Endpoint string
	// Listen binds Endpoint, for engines that dial; any number may, and each may
	// leave and come back. Otherwise Endpoint is dialed, again and again.
	Listen bool
	// Topic is the prefix of the topics wanted; empty for all.
	Topic string
	// MaxFrame bounds a message in bytes; 0 means 16 MiB.
	MaxFrame int
	// QueueFrames and QueueBytes bound what waits for the handler; 0 means 1024
	// frames and 64 MiB.
	QueueFrames int
	QueueBytes  int64
	// MaxPeers bounds the connections of a listener; 0 means 1024.
	MaxPeers int
	// State, if set, learns of every change of a connection.
	State func(State)
	// Ignored, if set, learns of every message that was no frame.
	Ignored func(Reason)
}

func (s *Subscription) defaults() {
	if s.MaxFrame <= 0 {
		s.MaxFrame = defaultMaxFrame
	}
	if s.QueueFrames <= 0 {
		s.QueueFrames = defaultQueueFrames
	}
	if s.QueueBytes <= 0 {
		s.QueueBytes = defaultQueueBytes
	}
	if s.MaxPeers <= 0 {
		s.MaxPeers = defaultMaxPeers
	}
}

// Subscribe hands over frames until ctx ends, and then returns nil; an error
// means that it could not begin (an endpoint of the wrong form, or in use).
//
// handle, State and Ignored are called on the calling goroutine, one at a time,
// in the order of each connection: whatever a publisher sent before its
// connection broke comes before Disconnected. While handle is busy the queue
// fills, and then the sockets wait. What is queued when ctx ends is not handed
// over: an engine's replay has it.
func Subscribe(ctx context.Context, s Subscription, handle func(Frame)) error {
	s.defaults()
	at, err := parseEndpoint(s.Endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	sub := &subscriber{Subscription: s, queue: newQueue(s.QueueFrames, s.QueueBytes)}
	if s.Listen {
		listener, err := at.listen(ctx)
		if err != nil {
			return err
		}
		srv := &server{
			listener: listener, typ: zmq4.Sub, limit: s.MaxFrame, maxPeers: s.MaxPeers,
			serve: func(ctx context.Context, l *link) { sub.read(ctx, l, l.peer()) },
			failed: func(peer string, err error) {
				sub.say(ctx, State{Change: Failed, Addr: peer, Err: err})
			},
		}
		running.Go(func() {
			sub.say(ctx, State{Change: Listening, Addr: bound(listener)})
			srv.run(ctx)
		})
	} else {
		if err := at.dialable(); err != nil {
			return err
		}
		running.Go(func() {
			redial(ctx, at, zmq4.Sub, s.MaxFrame,
				func(l *link) { sub.read(ctx, l, at.String()) },
				func(err error) { sub.say(ctx, State{Change: Failed, Addr: at.String(), Err: err}) })
		})
	}
	sub.queue.drain(ctx, func(it item) {
		switch {
		case it.state != nil:
			if s.State != nil {
				s.State(*it.state)
			}
		case it.reason != "":
			if s.Ignored != nil {
				s.Ignored(it.reason)
			}
		default:
			handle(it.frame)
		}
	})
	return nil
}

// redial keeps a connection for as long as ctx lives: serve owns each until it
// returns. The wait grows while connections fail, and is short after one that
// did not.
func redial(ctx context.Context, at endpoint, typ zmq4.SocketType, limit int, serve func(*link), failed func(error)) {
	wait := minBackoff
	for ctx.Err() == nil {
		l, err := connect(ctx, at, typ, limit)
		if err == nil {
			serve(l)
			l.close()
			wait = minBackoff
		} else if ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-time.After(wait/2 + rand.N(wait)): // jittered, so that many bridges do not return at once
		case <-ctx.Done():
		}
		wait = min(2*wait, maxBackoff)
	}
}

func connect(ctx context.Context, at endpoint, typ zmq4.SocketType, limit int) (*link, error) {
	conn, err := at.dial(ctx)
	if err != nil {
		return nil, err
	}
	return open(ctx, conn, typ, false, limit, handshakeTimeout)
}

// subscriber is a running subscription.
type subscriber struct {
	Subscription
	queue *queue
	conns atomic.Uint64
}

func (s *subscriber) say(ctx context.Context, st State) { s.queue.put(ctx, item{state: &st}) }

// read queues what one publisher sends, until its connection ends.
func (s *subscriber) read(ctx context.Context, l *link, addr string) {
	id := s.conns.Add(1)
	// Subscribing is a message of the byte 1 and the topic (ZMTP 3.0; later
	// versions accept it).
	err := l.write(append([]byte{1}, s.Topic...))
	if err == nil {
		err = l.flush()
	}
	if err == nil {
		s.say(ctx, State{Change: Connected, Addr: addr, Conn: id})
		err = s.readFrames(ctx, l, id)
	}
	if errors.Is(err, ErrTooLarge) {
		s.queue.put(ctx, item{reason: ReasonSize})
	}
	s.say(ctx, State{Change: Disconnected, Addr: addr, Conn: id, Err: err})
}

func (s *subscriber) readFrames(ctx context.Context, l *link, id uint64) error {
	for {
		parts, err := l.receive()
		if err != nil {
			return err
		}
		f, reason := parseFrame(parts)
		if reason == "" && !bytes.HasPrefix(f.Topic, []byte(s.Topic)) {
			reason = ReasonTopic
		}
		if reason != "" {
			f = Frame{}
		} else {
			f.AtUS, f.Conn = time.Now().UnixMicro(), id
		}
		if !s.queue.put(ctx, item{frame: f, reason: reason}) {
			return ctx.Err()
		}
	}
}
