package router

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
)

// Names of what a starting router waits for.
const (
	partKV    = "the KV stream"
	partFleet = "the fleet"
	partLoad  = "the load"
	partRoute = "the tail of ROUTE"
)

// parts is what has not caught up yet. Safe for concurrent use.
type parts struct {
	state *partsState
}

type partsState struct {
	sync.Mutex
	left []string
	each map[string]chan struct{}
	done chan struct{}
}

func newParts() parts {
	s := &partsState{left: []string{partKV, partFleet, partLoad, partRoute}, each: map[string]chan struct{}{}, done: make(chan struct{})}
	for _, part := range s.left {
		s.each[part] = make(chan struct{})
	}
	return parts{s}
}

// caughtUp takes a part off the list; more than once is harmless.
func (p parts) caughtUp(part string) {
	p.state.Lock()
	defer p.state.Unlock()
	i := slices.Index(p.state.left, part)
	if i < 0 {
		return
	}
	p.state.left = slices.Delete(p.state.left, i, i+1)
	close(p.state.each[part])
	if len(p.state.left) == 0 {
		close(p.state.done)
	}
}

// all is closed when every part has caught up, one when a single part has.
func (p parts) all() <-chan struct{}            { return p.state.done }
func (p parts) one(part string) <-chan struct{} { return p.state.each[part] }

// waits lists what is missing.
func (p parts) waits() []string {
	p.state.Lock()
	defer p.state.Unlock()
	return slices.Clone(p.state.left)
}

// expectPatience is how long a starting router waits for each replica's last
// values. Those that are there come within milliseconds; of one that was just
// deleted or expired none comes.
const expectPatience = 2 * time.Second

// expected are the replicas whose last values a starting router waits for. Safe
// for concurrent use.
type expected struct {
	sync.Mutex
	left  map[string]struct{}
	done  func()
	timer *time.Timer
}

// expect asks which replicas have a last value under a filter of a stream. The
// part has caught up when all have been heard.
func (r *Router) expect(ctx context.Context, part, stream, filter string) (*expected, error) {
	names, err := atStart(ctx, r, "subjects of "+stream, func(ctx context.Context) (map[string]struct{}, error) {
		s, err := r.js.Stream(ctx, stream)
		if err != nil {
			return nil, err
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err != nil {
			return nil, err
		}
		names := map[string]struct{}{}
		for subject := range info.State.Subjects {
			names[streams.SubjectReplica(subject)] = struct{}{}
		}
		return names, nil
	})
	if err != nil {
		return nil, err
	}
	done := func() { r.missing.caughtUp(part) }
	if len(names) == 0 {
		done()
	}
	return &expected{left: names, done: done, timer: time.AfterFunc(expectPatience, done)}, nil
}

// heard takes a replica off the list.
func (e *expected) heard(replica string) {
	e.Lock()
	defer e.Unlock()
	if len(e.left) == 0 {
		return
	}
	if delete(e.left, replica); len(e.left) == 0 {
		e.done()
	}
}

func (e *expected) stop() { e.timer.Stop() }
