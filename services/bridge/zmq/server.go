package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
)

// acceptPause is between two tries when the system has no file descriptors left.
const acceptPause = 100 * time.Millisecond

var errDown = errors.New("refused: the socket is down")

// server accepts peers, each on a goroutine of its own from the first byte.
type server struct {
	listener net.Listener
	typ      zmq4.SocketType
	limit    int // bytes of a message
	maxPeers int // 0: any number
	// serve owns the link until it returns; failed, if any, learns of peers that
	// did not become one. Both are called from several goroutines.
	serve  func(ctx context.Context, l *link)
	failed func(peer string, err error)

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	down  bool
	peers sync.WaitGroup
}

// run accepts until ctx ends, and returns when every peer's goroutine has.
func (s *server) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer s.peers.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { s.listener.Close() })
	defer stop()
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return
		}
		if err != nil {
			s.fail("", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		s.peers.Go(func() { s.greet(ctx, conn) })
	}
}

func (s *server) fail(peer string, err error) {
	if s.failed != nil {
		s.failed(peer, err)
	}
}

// greet shakes hands with a peer and serves it.
func (s *server) greet(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	if err := s.admit(conn); err != nil {
		s.fail(conn.RemoteAddr().String(), err)
		return
	}
	defer s.forget(conn)
	l, err := open(ctx, conn, s.typ, true, s.limit, handshakeTimeout)
	if err != nil {
		if ctx.Err() == nil {
			s.fail(conn.RemoteAddr().String(), err)
		}
		return
	}
	defer l.close()
	s.serve(ctx, l)
}

// admit counts a peer in, or says why not.
func (s *server) admit(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	if s.maxPeers > 0 && len(s.conns) >= s.maxPeers {
		return fmt.Errorf("refused: %d peers are connected already", len(s.conns))
	}
	if s.conns == nil {
		s.conns = make(map[net.Conn]struct{})
	}
	s.conns[conn] = struct{}{}
	return nil
}

func (s *server) forget(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// hangUp closes every connection; while down, new ones are closed at once.
func (s *server) hangUp(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	for conn := range s.conns {
		conn.Close()
	}
	clear(s.conns)
}

// has tells a connection that was not hung up.
func (s *server) has(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.conns[conn]
	return ok
}
