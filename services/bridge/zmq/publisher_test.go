package zmq

import (
	"context"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

func TestHighWaterMark(t *testing.T) {
	pub := publisher(t, Publishing{Endpoint: "tcp://127.0.0.1:0", HWM: 10})
	stop := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var got []uint64
	go func() {
		done <- Subscribe(ctx, Subscription{Endpoint: pub.Endpoint(), QueueFrames: 1}, func(f Frame) {
			<-stop
			if len(f.Payload) == 0 {
				cancel()
				return
			}
			got = append(got, f.Seq)
		})
	}()
	subscribers(t, pub, 1)
	payload := make([]byte, 1<<20)
	sent := uint64(0)
	for ; pub.Dropped() == 0; sent++ {
		pub.Send([]byte("t"), seq8(sent), payload)
	}
	close(stop)
	pub.Drain()
	pub.Send([]byte("t"), seq8(sent), nil)
	if err := receive(t, done, "end"); err != nil {
		t.Fatal(err)
	}
	if uint64(len(got))+pub.Dropped() != sent {
		t.Errorf("sent %d, got %d, dropped %d", sent, len(got), pub.Dropped())
	}
}

// TestPeersOfAnotherImplementation has zmq4's own sockets at the other end.
func TestPeersOfAnotherImplementation(t *testing.T) {
	pub := zmq4.NewPub(context.Background())
	defer pub.Close()
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	sub := subscribe(t, Subscription{Endpoint: "tcp://" + pub.Addr().String(), Topic: "kv"})
	sub.await(Connected)
	var f Frame
	for n := uint64(0); f.Payload == nil; n++ { // its subscriptions cannot be awaited
		if err := pub.SendMulti(zmq4.NewMsgFrom([]byte("kv@x"), seq8(n), []byte("p"))); err != nil {
			t.Fatal(err)
		}
		select {
		case f = <-sub.frames:
		case <-time.After(10 * time.Millisecond):
		}
	}
	if string(f.Topic) != "kv@x" || string(f.Payload) != "p" {
		t.Errorf("got %+v", f)
	}

	ours := publisher(t, Publishing{Endpoint: "tcp://127.0.0.1:0"})
	theirs := zmq4.NewSub(context.Background())
	defer theirs.Close()
	if err := theirs.Dial(ours.Endpoint()); err != nil {
		t.Fatal(err)
	}
	if err := theirs.SetOption(zmq4.OptionSubscribe, "kv"); err != nil {
		t.Fatal(err)
	}
	subscribers(t, ours, 1)
	ours.Send([]byte("kv"), seq8(1), []byte("p"))
	msg, err := theirs.Recv()
	if err != nil || len(msg.Frames) != 3 || string(msg.Frames[2]) != "p" {
		t.Errorf("got %v, %v", msg, err)
	}
}

func BenchmarkPublishSubscribe(b *testing.B) {
	pub, err := NewPublisher(Publishing{Endpoint: "tcp://127.0.0.1:0", HWM: 1000, Wait: true})
	if err != nil {
		b.Fatal(err)
	}
	defer pub.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done, seen := make(chan error, 1), make(chan struct{})
	n := b.N
	go func() {
		got := 0
		done <- Subscribe(ctx, Subscription{Endpoint: pub.Endpoint()}, func(Frame) {
			if got++; got == n {
				close(seen)
			}
		})
	}()
	if err := pub.AwaitSubscribers(ctx, 1); err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 5500) // 64 blocks of 16 tokens
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range n {
		pub.Send([]byte("kv@engine:5557@model"), seq8(uint64(i)), payload)
	}
	<-seen
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
}
