package simengine

import (
	"errors"
	"strconv"
	"sync"

	"warmpath/engine"
)

var errDraining = errors.New("the replica is draining and takes no new requests")

// ticket is a request's place in the engine, read by the handler that waits.
type ticket struct {
	id        string // in the engine
	requestID string // as it came
	// progress holds one signal; the handler reads the latest output after it, so a
	// slow reader costs no memory.
	progress chan struct{}

	mu  sync.Mutex
	out engine.Output
}

func (t *ticket) set(out engine.Output) {
	t.mu.Lock()
	t.out = out
	t.mu.Unlock()
	select {
	case t.progress <- struct{}{}:
	default:
	}
}

func (t *ticket) latest() engine.Output {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out
}

// submit puts a request into the engine at the clock's present.
func (s *Server) submit(requestID string, q engine.Request) (*ticket, error) {
	t := &ticket{requestID: requestID, progress: make(chan struct{}, 1)}
	finished, err := s.enter(t, q)
	s.tellFinished(finished)
	if err != nil {
		return nil, err
	}
	if s.cfg.Hooks.Accepted != nil {
		s.cfg.Hooks.Accepted(requestID)
	}
	return t, nil
}

func (s *Server) enter(t *ticket, q engine.Request) (finished []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil || s.isDraining() {
		return nil, errDraining
	}
	finished = s.advance()
	// The same request may come twice: a retry, or a client that reuses ids.
	t.id = t.requestID
	for s.tickets[t.id] != nil || t.id == "" {
		s.next++
		t.id = t.requestID + "#" + strconv.FormatUint(s.next, 10)
	}
	q.ID = t.id
	if err := s.engine.Submit(s.cfg.Clock.Now(), q); err != nil {
		return finished, err
	}
	s.tickets[t.id] = t
	finished = append(finished, s.advance()...)
	s.arm()
	return finished, nil
}

// abort takes a request out of the engine; nothing happens when it has finished.
func (s *Server) abort(t *ticket) {
	s.mu.Lock()
	if s.engine == nil || s.tickets[t.id] != t {
		s.mu.Unlock()
		return
	}
	finished := s.advance()
	if s.tickets[t.id] == t {
		s.engine.Abort(s.cfg.Clock.Now(), t.id)
		delete(s.tickets, t.id)
		finished = append(finished, t.requestID)
		finished = append(finished, s.advance()...)
		s.metrics.finished.WithLabelValues("abort").Inc()
	}
	s.arm()
	s.mu.Unlock()
	s.tellFinished(finished)
}

// tick is the clock's callback.
func (s *Server) tick() {
	s.mu.Lock()
	if s.engine == nil {
		s.mu.Unlock()
		return
	}
	finished := s.advance()
	s.arm()
	s.mu.Unlock()
	s.tellFinished(finished)
}

func (s *Server) tellFinished(requestIDs []string) {
	if s.cfg.Hooks.Finished == nil {
		return
	}
	for _, id := range requestIDs {
		s.cfg.Hooks.Finished(id)
	}
}

// advance moves the engine to the present, delivers what it did, and returns
// the requests that finished. The caller holds mu.
func (s *Server) advance() (finished []string) {
	for _, out := range s.engine.Advance(s.cfg.Clock.Now()) {
		t := s.tickets[out.ID]
		if t == nil {
			continue
		}
		if out.Finished {
			delete(s.tickets, out.ID)
			finished = append(finished, t.requestID)
		}
		s.metrics.observe(out)
		t.set(out)
	}
	for _, change := range s.engine.Changes() {
		s.out.push(change.Events)
	}
	return finished
}

// arm asks the clock for the engine's next instant. The caller holds mu.
func (s *Server) arm() {
	at, ok := s.engine.Next()
	if ok && s.disarm != nil && at == s.armed && at > s.cfg.Clock.Now() {
		return
	}
	if s.disarm != nil {
		s.disarm()
		s.disarm = nil
	}
	if ok {
		s.armed, s.disarm = at, s.cfg.Clock.At(at, s.tick)
	}
}

// open is how many requests are in the engine.
func (s *Server) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tickets)
}
