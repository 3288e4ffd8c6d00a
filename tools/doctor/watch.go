package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

const (
	// connectPatience bounds the wait for a subscription to stand.
	connectPatience = 10 * time.Second
	// maxWatched bounds the ranks that are listened to; more of them show nothing
	// that these do not.
	maxWatched = 16
)

// sight is what the socket of one rank showed.
type sight struct {
	rank      int
	endpoint  string
	connected bool
	failure   error
	facts     facts
}

// watching is the subscriptions of one look. Its mutex guards the sights.
type watching struct {
	mu     sync.Mutex
	sights []*sight
	// news holds one mark whenever something changed.
	news chan struct{}
}

func (w *watching) change(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// until waits until ready, called with the mutex held, or for at most patience.
// It reports whether ready came.
func (w *watching) until(ctx context.Context, patience time.Duration, ready func() bool) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		w.mu.Lock()
		done := ready()
		w.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-w.news:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// stands reports whether any subscription stands.
func (w *watching) stands() bool {
	for _, s := range w.sights {
		if s.connected {
			return true
		}
	}
	return false
}

// settled reports whether every subscription stands or has failed.
func (w *watching) settled() bool {
	for _, s := range w.sights {
		if !s.connected && s.failure == nil {
			return false
		}
	}
	return true
}

// total is the facts of all ranks together.
func (w *watching) total() facts {
	all := newFacts()
	for _, s := range w.sights {
		all.add(s.facts)
	}
	return all
}

// watch subscribes to every rank's events, all topics, and reports the ports that
// do not let it. stop ends the subscriptions; it may be called again.
func (x *examination) watch(ctx context.Context) (w *watching, stop func()) {
	w = &watching{news: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	stop = func() { cancel(); running.Wait() }
	base, _ := x.endpoint()
	for rank := range min(max(x.engine.Ranks, 1), maxWatched) {
		endpoint, err := zmq.AtRank(base, rank)
		s := &sight{rank: rank, endpoint: endpoint, facts: newFacts()}
		if err != nil {
			x.found("kv port", Problem, err.Error(), "rank "+fmt.Sprint(rank)+" has no port of its own there", "give rank 0's endpoint as tcp://host:port by --kv")
			continue
		}
		if !x.listens() {
			if d, err := knock(ctx, endpoint); d != open {
				x.closed(ctx, s, d, err)
				continue
			}
		}
		w.sights = append(w.sights, s)
		running.Go(func() { x.subscribe(ctx, w, s) })
	}
	patience := connectPatience
	if x.listens() {
		patience = max(patience, x.Wait)
	}
	w.until(ctx, patience, w.settled)
	x.judgePorts(w)
	return w, stop
}

// listens reports whether the engine dials.
func (x *examination) listens() bool { return x.KVListen != "" }

func (x *examination) subscribe(ctx context.Context, w *watching, s *sight) {
	decoder := kvevents.NewDecoder(kvevents.Limits{})
	err := zmq.Subscribe(ctx, zmq.Subscription{
		Endpoint: s.endpoint, Listen: x.listens(),
		State: func(state zmq.State) {
			w.change(func() {
				switch state.Change {
				case zmq.Connected:
					s.connected = true
				case zmq.Failed:
					s.failure = state.Err
				}
			})
		},
		Ignored: func(reason zmq.Reason) { w.change(func() { s.facts.ignored[string(reason)]++ }) },
	}, func(frame zmq.Frame) {
		batch, err := decoder.Decode(frame.Payload)
		w.change(func() { s.facts.take(frame, batch, err) })
	})
	if err != nil {
		w.change(func() { s.failure = err })
	}
}

// judgePorts reports whether the subscriptions stand.
func (x *examination) judgePorts(w *watching) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sights {
		switch {
		case s.connected && x.listens():
			x.found("kv port", OK, fmt.Sprintf("a publisher dialed %s", s.endpoint), "", "")
		case s.connected && x.guessed():
			x.found("kv port", OK, fmt.Sprintf("subscribed to %s, a guess that holds", s.endpoint), "the engine does not say where it publishes, and a bridge does not guess", "give the bridge --kv "+x.where())
		case s.connected:
			x.found("kv port", OK, fmt.Sprintf("subscribed to %s", s.endpoint), "", "")
		case s.failure != nil && x.listens():
			x.found("kv port", Problem, fmt.Sprintf("%s: %v", s.endpoint, s.failure), "the endpoint cannot be bound, or what dialed it does not speak ZMQ", "stop what listens there (such as a bridge), or give another --kv-listen")
		case s.failure != nil:
			x.found("kv port", Problem, fmt.Sprintf("%s accepts connections, but: %v", s.endpoint, s.failure), "what listens there is no ZMQ publisher; it may be the engine's HTTP port, or another program", "give the port of --kv-events-config by --kv")
		case x.listens():
			x.found("kv port", Problem, fmt.Sprintf("nothing dialed %s within %v", s.endpoint, max(connectPatience, x.Wait)),
				"the engine binds its endpoint itself, or its events are off, or it cannot reach this host",
				"give the engine the endpoint tcp://<this host>:"+portOf(s.endpoint)+" (without * it connects), or give --kv instead of --kv-listen; "+switchOnEvents(x.engine.Kind, portOf(s.endpoint)))
		default:
			x.found("kv port", Problem, fmt.Sprintf("%s accepts connections, but does not shake hands within %v", s.endpoint, connectPatience), "what listens there is no ZMQ publisher, or hangs", "give the port of --kv-events-config by --kv")
		}
	}
}
