package zmq

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/go-zeromq/zmq4"
)

// Router is a ROUTER socket that answers replays, as engines have one.
type Router struct {
	endpoint string
	server   *server
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// NewRouter binds endpoint. answer is called for each request of a DEALER, with
// the first sequence wanted, and sends its replies by reply; it may be called
// from several goroutines. A request of another shape is ignored, as engines do:
// its sender waits in vain. Close ends it.
func NewRouter(endpoint string, answer func(from uint64, reply func(parts ...[]byte) error) error) (*Router, error) {
	at, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := at.listen(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &Router{endpoint: bound(listener), cancel: cancel}
	r.server = &server{listener: listener, typ: zmq4.Router, limit: defaultMaxFrame, serve: func(_ context.Context, l *link) {
		for {
			parts, err := l.receive()
			if err != nil {
				return
			}
			if len(parts) != 2 || len(parts[0]) != 0 || len(parts[1]) != seqBytes {
				continue
			}
			err = answer(binary.BigEndian.Uint64(parts[1]), l.write)
			if err == nil {
				err = l.flush()
			}
			if err != nil {
				return
			}
		}
	}}
	r.running.Go(func() { r.server.run(ctx) })
	return r, nil
}

// Endpoint is what it is bound to, with the port that it was given.
func (r *Router) Endpoint() string { return r.endpoint }

// HangUp closes every connection; while down, new ones are closed at once.
func (r *Router) HangUp(down bool) { r.server.hangUp(down) }

// Close ends it and waits for its goroutines.
func (r *Router) Close() {
	r.cancel()
	r.running.Wait()
}
