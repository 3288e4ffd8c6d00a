package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// TestSilentPeerKeepsNobodyOut connects peers that never shake hands, or do so
// badly, and then a proper one.
func TestSilentPeerKeepsNobodyOut(t *testing.T) {
	sub := subscribe(t, Subscription{Endpoint: "tcp://127.0.0.1:0", Listen: true})
	addr := sub.await(Listening).Addr
	dial := func(b []byte) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(addr, "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, make([]byte, 48)...)
	dial(nil)
	dial([]byte("GET / HTTP/1.1\r\nHost: engine\r\nUser-Agent: a scraper that found the wrong port\r\n\r\n"))
	dial(append(bytes.Clone(greeting), 4, 8, 5, 'R', 'E', 'A', 'D', 'Y', 0, 0)) // metadata cut short: zmq4 panics
	dial(append(bytes.Clone(greeting), 6, 0x7f, 0, 0, 0, 0, 0, 0, 0))           // a command of 9 EB
	other, large, malformed := 0, 0, 0
	for range 3 {
		switch err := sub.await(Failed).Err; {
		case errors.Is(err, ErrNotZeroMQ):
			other++
		case errors.Is(err, ErrTooLarge):
			large++
		case strings.Contains(err.Error(), "malformed metadata"):
			malformed++
		default:
			t.Error(err)
		}
	}
	if other != 1 || large != 1 || malformed != 1 {
		t.Errorf("refused %d, %d and %d peers, want one of each kind", other, large, malformed)
	}
	pub := publisher(t, Publishing{Endpoint: addr, Dial: true})
	subscribers(t, pub, 1)
	pub.Send([]byte("t"), seq8(1), nil)
	receive(t, sub.frames, "frame")
}

func TestPingIsAnswered(t *testing.T) {
	pub := publisher(t, Publishing{Endpoint: "tcp://127.0.0.1:0"})
	conn, err := net.Dial("tcp", strings.TrimPrefix(pub.Endpoint(), "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := open(context.Background(), conn, zmq4.Sub, false, 1000, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if err := l.write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := l.flush(); err != nil {
		t.Fatal(err)
	}
	if err := l.zmtp.SendCmd(zmq4.CmdPing, []byte{0, 0}); err != nil {
		t.Fatal(err)
	}
	if cmd, err := l.zmtp.RecvCmd(); err != nil || cmd.Name != zmq4.CmdPong {
		t.Errorf("got %+v, %v", cmd, err)
	}
}

func TestFraming(t *testing.T) {
	frame := func(flags byte, n int) []byte {
		if flags&flagLong != 0 {
			return append(binary.BigEndian.AppendUint64([]byte{flags}, uint64(n)), make([]byte, min(n, 5000))...)
		}
		return append([]byte{flags, byte(n)}, make([]byte, n)...)
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, c := range []struct {
		name   string
		stream []byte
		bad    bool
	}{
		{"short and long", join(frame(1, 10), frame(1, 0), frame(2, 900), frame(0, 90)), false},
		{"long over the limit", frame(2, 1001), true},
		{"sum over the limit", join(frame(1, 200), frame(3, 700), frame(0, 101)), true},
		{"sum at the limit", join(frame(1, 200), frame(3, 700), frame(0, 100)), false},
		{"length bomb", frame(2, 1<<62), true},
		{"parts bomb", bytes.Repeat(frame(1, 0), maxParts+1), true},
	} {
		for _, step := range []int{1, 2, 7, 1 << 20} {
			f := framing{limit: 1000}
			var err error
			for b := c.stream; len(b) > 0 && err == nil; b = b[min(step, len(b)):] {
				err = f.see(b[:min(step, len(b))])
			}
			if (err != nil) != c.bad || (!c.bad && !f.whole()) {
				t.Errorf("%s by %d bytes: %v, whole %v", c.name, step, err, f.whole())
			}
		}
	}
}

func TestAtRank(t *testing.T) {
	for _, c := range []struct {
		base string
		rank int
		want string
	}{
		{"tcp://*:5557", 0, "tcp://*:5557"}, {"tcp://*:5557", 3, "tcp://*:5560"}, {"tcp://[::1]:5557", 1, "tcp://[::1]:5558"},
		{"ipc:///run/kv", 0, "ipc:///run/kv"}, {"ipc:///run/kv", 1, ""}, {"tcp://h:65535", 1, ""}, {"tcp://h:1", -1, ""},
	} {
		got, err := AtRank(c.base, c.rank)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("AtRank(%q, %d) = %q, %v", c.base, c.rank, got, err)
		}
	}
}
