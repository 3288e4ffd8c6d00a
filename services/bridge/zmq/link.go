package zmq

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

const (
	greetingBytes = 64
	signature     = 0xff // the greeting's first byte
	// maxParts is far above the five of any message here; each costs memory even
	// when empty.
	maxParts = 64
	// bufferBytes holds some ten batches, so that a batch costs a fraction of a
	// system call in either direction.
	bufferBytes = 64 << 10

	// Bits of a frame's first byte (ZMTP 3.0).
	flagMore = 1
	flagLong = 2
)

// framing follows the frames in a stream of bytes after the greeting.
type framing struct {
	limit  uint64 // bytes of a message
	skip   uint64 // bytes of the greeting or of a body, still to come
	header [9]byte
	n      int    // bytes of the header that came
	total  uint64 // bytes of the message, as announced so far
	parts  int
}

// see takes the stream's next bytes. It fails as soon as a header announces too
// much, before anyone could allocate it.
func (f *framing) see(b []byte) error {
	for len(b) > 0 {
		if f.skip > 0 {
			k := min(f.skip, uint64(len(b)))
			f.skip -= k
			b = b[k:]
			continue
		}
		f.header[f.n] = b[0]
		f.n++
		b = b[1:]
		long := f.header[0]&flagLong != 0
		switch {
		case long && f.n == 9:
			f.skip = binary.BigEndian.Uint64(f.header[1:])
		case !long && f.n == 2:
			f.skip = uint64(f.header[1])
		default:
			continue
		}
		f.n = 0
		f.parts++
		if f.skip > f.limit-f.total || f.parts > maxParts {
			return ErrTooLarge
		}
		f.total += f.skip
		if f.header[0]&flagMore == 0 {
			f.total, f.parts = 0, 0
		}
	}
	return nil
}

// whole tells that the last frame is complete.
func (f *framing) whole() bool { return f.skip == 0 && f.n == 0 }

// wire is a connection with buffers, a limit on what it lets in, and writes that
// do not cut each other's frames.
type wire struct {
	net.Conn
	in   *bufio.Reader
	seen framing
	head byte // the first byte that came
	came bool

	mu      sync.Mutex
	out     *bufio.Writer
	pending []byte // of zmq4's own writes, until a frame is whole
	wrote   framing
}

func newWire(conn net.Conn, limit int) *wire {
	return &wire{
		Conn: conn, in: bufio.NewReaderSize(conn, bufferBytes), out: bufio.NewWriterSize(conn, bufferBytes),
		seen:  framing{skip: greetingBytes, limit: uint64(limit)},
		wrote: framing{skip: greetingBytes, limit: math.MaxUint64},
	}
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	if !w.came && n > 0 {
		w.came, w.head = true, p[0]
	}
	if e := w.seen.see(p[:n]); e != nil {
		return 0, e
	}
	return n, err
}

// Write is zmq4's way out. It writes a frame's header and body one after the
// other, and may do so from the reading goroutine (a PONG).
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending, p...)
	if err := w.wrote.see(p); err != nil {
		return 0, err
	}
	if !w.wrote.whole() {
		return len(p), nil
	}
	_, err := w.out.Write(w.pending)
	w.pending = w.pending[:0]
	if err == nil {
		err = w.out.Flush()
	}
	return len(p), err
}

// link is an open connection to a peer.
type link struct {
	wire *wire
	zmtp *zmq4.Conn
	stop func() bool
}

// open shakes hands over conn, which it owns from here on: it is closed when that
// fails or takes longer than patience, when ctx ends, and by close. limit bounds
// the messages received.
func open(ctx context.Context, conn net.Conn, typ zmq4.SocketType, server bool, limit int, patience time.Duration) (*link, error) {
	l := &link{wire: newWire(conn, limit), stop: context.AfterFunc(ctx, func() { conn.Close() })}
	err := l.handshake(typ, server, patience)
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *link) handshake(typ zmq4.SocketType, server bool, patience time.Duration) (err error) {
	defer func() {
		// zmq4's reader of metadata slices by lengths that the peer names.
		if r := recover(); r != nil {
			err = fmt.Errorf("handshake: malformed metadata: %v", r)
		}
	}()
	if err := l.wire.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	l.zmtp, err = zmq4.Open(l.wire, null.Security(), typ, nil, server, nil)
	if err != nil && l.wire.came && l.wire.head != signature {
		return ErrNotZeroMQ
	}
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	return l.wire.SetDeadline(time.Time{})
}

// receive returns the next message's parts. One goroutine may call it.
func (l *link) receive() ([][]byte, error) {
	for {
		msg, err := l.zmtp.RecvMsg() // answers PINGs
		if err != nil {
			return nil, err
		}
		if msg.Type != zmq4.CmdMsg {
			return msg.Frames, nil
		}
	}
}

// write puts a message into the buffer; flush sends what is there. Both are safe
// for concurrent use.
func (l *link) write(parts ...[]byte) error {
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	for i, part := range parts {
		var header [9]byte
		size := 2
		if i < len(parts)-1 {
			header[0] |= flagMore
		}
		if len(part) > math.MaxUint8 {
			header[0] |= flagLong
			binary.BigEndian.PutUint64(header[1:], uint64(len(part)))
			size = 9
		} else {
			header[1] = byte(len(part))
		}
		l.wire.out.Write(header[:size]) //nolint:errcheck // the writer keeps its error: the next write returns it
		if _, err := l.wire.out.Write(part); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) flush() error {
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	return l.wire.out.Flush()
}

func (l *link) peer() string { return l.wire.RemoteAddr().String() }

func (l *link) close() {
	l.stop()
	l.wire.Close()
}
