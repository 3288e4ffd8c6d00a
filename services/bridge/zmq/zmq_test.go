package zmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// zmq4's own PUB socket never ends its writer; it is used here as a peer only.
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

const patience = 30 * time.Second // how long a test waits for what must happen

// subscription is a Subscribe that runs for a test.
type subscription struct {
	t       *testing.T
	frames  chan Frame
	states  chan State
	ignored chan Reason
	stop    func()
}

func subscribe(t *testing.T, s Subscription) *subscription {
	t.Helper()
	sub := &subscription{t: t, frames: make(chan Frame, 1<<16), states: make(chan State, 1<<16), ignored: make(chan Reason, 1<<16)}
	s.State = func(st State) { sub.states <- st }
	s.Ignored = func(r Reason) { sub.ignored <- r }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Subscribe(ctx, s, func(f Frame) { sub.frames <- f }) }()
	sub.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Subscribe: %v", err)
		}
	})
	t.Cleanup(sub.stop)
	return sub
}

func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s", what)
		panic("unreachable")
	}
}

// await skips states until one of kind.
func (s *subscription) await(kind Change) State {
	s.t.Helper()
	for {
		if st := receive(s.t, s.states, kind.String()+" state"); st.Change == kind {
			return st
		}
	}
}

func publisher(t *testing.T, p Publishing) *Publisher {
	t.Helper()
	pub, err := NewPublisher(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pub.Close)
	return pub
}

func subscribers(t *testing.T, p *Publisher, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.AwaitSubscribers(ctx, n); err != nil {
		t.Fatalf("%d subscribers: %v", n, err)
	}
}

func seq8(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func TestDialReceivesFrames(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:0", "ipc://" + filepath.Join(t.TempDir(), "kv.sock")} {
		pub := publisher(t, Publishing{Endpoint: endpoint})
		sub := subscribe(t, Subscription{Endpoint: pub.Endpoint(), Topic: "kv"})
		subscribers(t, pub, 1)
		before := time.Now().UnixMicro()
		long := bytes.Repeat([]byte("x"), 300_000) // longer than any buffer
		pub.Send([]byte("load"), seq8(1), []byte("not subscribed"))
		pub.Send([]byte("kv@a"), seq8(1<<63+5), []byte("payload"))
		pub.Send([]byte("kv"), seq8(2), long)
		pub.Send([]byte("kv"), seq8(3), nil)
		f := receive(t, sub.frames, "frame")
		if string(f.Topic) != "kv@a" || f.Seq != 1<<63+5 || string(f.Payload) != "payload" || f.Conn != 1 || f.AtUS < before {
			t.Errorf("got %+v", f)
		}
		if f := receive(t, sub.frames, "long frame"); !bytes.Equal(f.Payload, long) {
			t.Errorf("long payload has %d bytes", len(f.Payload))
		}
		if f := receive(t, sub.frames, "empty frame"); f.Seq != 3 || len(f.Payload) != 0 {
			t.Errorf("got %+v", f)
		}
		if st := receive(t, sub.states, "state"); st.Change != Connected || st.Addr != pub.Endpoint() || st.Conn != 1 {
			t.Errorf("first state %+v", st)
		}
		sub.stop()
	}
}

func TestDialReconnects(t *testing.T) {
	pub := publisher(t, Publishing{Endpoint: "tcp://127.0.0.1:0"})
	pub.HangUp(true)
	sub := subscribe(t, Subscription{Endpoint: pub.Endpoint()})
	if st := sub.await(Failed); st.Err == nil {
		t.Error("a failure has no reason")
	}
	pub.HangUp(false)
	for i := range uint64(3) {
		if st := sub.await(Connected); st.Conn != i+1 {
			t.Errorf("connection %d has number %d", i+1, st.Conn)
		}
		subscribers(t, pub, 1)
		pub.Send([]byte("t"), seq8(i), []byte("p"))
		if f := receive(t, sub.frames, "frame"); f.Seq != i || f.Conn != i+1 {
			t.Errorf("got %+v", f)
		}
		pub.HangUp(false)
		if st := sub.await(Disconnected); st.Err == nil || st.Conn != i+1 {
			t.Errorf("got %+v", st)
		}
	}
}

func TestOtherShapesAreCounted(t *testing.T) {
	pub := publisher(t, Publishing{Endpoint: "tcp://127.0.0.1:0"})
	sub := subscribe(t, Subscription{Endpoint: pub.Endpoint(), MaxFrame: 1000})
	subscribers(t, pub, 1)
	pub.Send([]byte("t"))
	pub.Send([]byte("t"), []byte("payload"))
	pub.Send([]byte("t"), []byte("short"), []byte("payload"))
	pub.Send([]byte("t"), seq8(1), []byte("a"), []byte("b"))
	pub.Send([]byte("t"), seq8(7), make([]byte, 900))
	if f := receive(t, sub.frames, "frame"); f.Seq != 7 {
		t.Errorf("got %+v", f)
	}
	pub.Send([]byte("t"), seq8(8), make([]byte, 999))
	for _, want := range []Reason{ReasonParts, ReasonParts, ReasonSequence, ReasonParts, ReasonSize} {
		if got := receive(t, sub.ignored, "reason"); got != want {
			t.Errorf("ignored for %q, want %q", got, want)
		}
	}
	if st := sub.await(Disconnected); !errors.Is(st.Err, ErrTooLarge) {
		t.Errorf("disconnected by %v", st.Err)
	}
	sub.await(Connected)
	subscribers(t, pub, 1)
	pub.Send([]byte("t"), seq8(9), nil)
	if f := receive(t, sub.frames, "frame after the large one"); f.Seq != 9 {
		t.Errorf("got %+v", f)
	}
}

// TestSlowHandlerLosesNothing sends more than every buffer between holds, to a
// handler that does not return until the publisher had to wait.
func TestSlowHandlerLosesNothing(t *testing.T) {
	const messages, size = 2000, 64 << 10 // 128 MB
	pub := publisher(t, Publishing{Endpoint: "tcp://127.0.0.1:0", HWM: 1, Wait: true})
	ctx, cancel := context.WithCancel(context.Background())
	var got []uint64
	stalled, done := make(chan struct{}), make(chan error, 1)
	go func() {
		s := Subscription{Endpoint: pub.Endpoint(), QueueFrames: 8, QueueBytes: 3 * size}
		done <- Subscribe(ctx, s, func(f Frame) {
			if len(got) == 0 {
				<-stalled
			}
			if got = append(got, f.Seq); len(got) == messages {
				cancel()
			}
		})
	}()
	subscribers(t, pub, 1)
	sent := make(chan int, messages)
	go func() {
		payload := make([]byte, size)
		for i := range messages {
			pub.Send([]byte("t"), seq8(uint64(i)), payload)
			sent <- i
		}
		close(sent)
	}()
	// The sender comes to a stop far from its end: nothing takes the bytes.
	for n, last := 0, -1; n != last; {
		last = n
		time.Sleep(200 * time.Millisecond) // a stop that is only a pause makes the test no stricter, and not fail
		n = len(sent)
	}
	if n := len(sent); n >= messages {
		t.Errorf("%d of %d messages were taken from the publisher while the handler stood still", n, messages)
	}
	close(stalled)
	if err := receive(t, done, "end"); err != nil {
		t.Fatal(err)
	}
	for i, seq := range got {
		if seq != uint64(i) {
			t.Fatalf("message %d has sequence %d", i, seq)
		}
	}
	if len(got) != messages || pub.Dropped() != 0 {
		t.Errorf("got %d messages, %d dropped", len(got), pub.Dropped())
	}
}

func TestStopsWhileHandlerAndQueueAreFull(t *testing.T) {
	pub := publisher(t, Publishing{Endpoint: "tcp://127.0.0.1:0"})
	ctx, cancel := context.WithCancel(context.Background())
	began, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Subscribe(ctx, Subscription{Endpoint: pub.Endpoint(), QueueFrames: 1}, func(Frame) {
			began <- struct{}{}
			<-release
		})
	}()
	subscribers(t, pub, 1)
	for i := range uint64(100) {
		pub.Send([]byte("t"), seq8(i), []byte("p"))
	}
	receive(t, began, "call of the handler")
	cancel()
	close(release)
	if err := receive(t, done, "end"); err != nil {
		t.Error(err)
	}
	// goleak sees to it that the reader, blocked on the full queue, ended too.
}

func TestListenerTakesSeveralPublishers(t *testing.T) {
	sub := subscribe(t, Subscription{Endpoint: "tcp://127.0.0.1:0", Listen: true, Topic: "kv@"})
	addr := sub.await(Listening).Addr
	publish := func(p *Publisher, name string, n uint64) {
		for i := range n {
			p.Send([]byte("kv@"+name), seq8(i), []byte(name))
		}
	}
	a, b := publisher(t, Publishing{Endpoint: addr, Dial: true}), publisher(t, Publishing{Endpoint: addr, Dial: true})
	subscribers(t, a, 1)
	subscribers(t, b, 1)
	go publish(a, "a", 500)
	publish(b, "b", 500)
	next, conns := map[string]uint64{}, map[string]uint64{}
	for range 1000 {
		f := receive(t, sub.frames, "frame")
		name := string(f.Payload)
		if f.Seq != next[name] {
			t.Fatalf("publisher %s: sequence %d, want %d", name, f.Seq, next[name])
		}
		next[name]++
		conns[name] = f.Conn
	}
	if conns["a"] == conns["b"] {
		t.Errorf("both publishers are connection %d", conns["a"])
	}
	// One goes and comes back; the other stays.
	a.Close()
	if st := sub.await(Disconnected); st.Conn != conns["a"] {
		t.Errorf("connection %d ended, want %d", st.Conn, conns["a"])
	}
	again := publisher(t, Publishing{Endpoint: addr, Dial: true})
	subscribers(t, again, 1)
	publish(again, "a", 1)
	publish(b, "b", 1)
	for range 2 {
		f := receive(t, sub.frames, "frame")
		if string(f.Payload) == "a" && f.Conn == conns["a"] {
			t.Error("the publisher that came back has its old connection's number")
		}
		if string(f.Payload) == "b" && f.Conn != conns["b"] {
			t.Error("the publisher that stayed changed its connection")
		}
	}
}

func TestListenerBeforeAndAfterDialer(t *testing.T) {
	// The address is known only once something listened on it.
	path := "ipc://" + filepath.Join(t.TempDir(), "kv.sock")
	pub := publisher(t, Publishing{Endpoint: path, Dial: true})
	for i := range uint64(2) {
		sub := subscribe(t, Subscription{Endpoint: path, Listen: true})
		subscribers(t, pub, 1)
		pub.Send([]byte("t"), seq8(i), nil)
		if f := receive(t, sub.frames, "frame"); f.Seq != i {
			t.Errorf("got %+v", f)
		}
		sub.stop()
		pub.HangUp(false)
	}
}

func TestPeersAreBounded(t *testing.T) {
	sub := subscribe(t, Subscription{Endpoint: "tcp://127.0.0.1:0", Listen: true, MaxPeers: 1})
	addr := sub.await(Listening).Addr
	first := publisher(t, Publishing{Endpoint: addr, Dial: true})
	subscribers(t, first, 1)
	publisher(t, Publishing{Endpoint: addr, Dial: true})
	if st := sub.await(Failed); !strings.Contains(st.Err.Error(), "refused") {
		t.Errorf("got %v", st.Err)
	}
	first.Send([]byte("t"), seq8(1), nil)
	receive(t, sub.frames, "frame of the first")
}

func TestSubscribeRefuses(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, s := range []Subscription{
		{Endpoint: ""}, {Endpoint: "127.0.0.1:5557"}, {Endpoint: "inproc://kv"}, {Endpoint: "tcp://host"},
		{Endpoint: "tcp://host:70000"}, {Endpoint: "ipc://"}, {Endpoint: "tcp://*:5557"},
		{Endpoint: "tcp://" + busy.Addr().String(), Listen: true},
	} {
		err := Subscribe(context.Background(), s, func(Frame) {})
		if err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(s.Endpoint, "tcp://")) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
