package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

var end = seq8(endSequence)

// ring answers as an engine that holds the sequences first..last.
func ring(first, last uint64, withTopic bool) func(from uint64, reply func(parts ...[]byte) error) error {
	return func(from uint64, reply func(parts ...[]byte) error) error {
		send := func(topic string, seq, payload []byte) error {
			if withTopic {
				return reply(nil, []byte(topic), seq, payload)
			}
			return reply(nil, seq, payload)
		}
		for seq := max(from, first); seq <= last; seq++ {
			if err := send("kv", seq8(seq), fmt.Append(nil, "batch ", seq)); err != nil {
				return err
			}
		}
		return send("", end, nil)
	}
}

func router(t *testing.T, answer func(from uint64, reply func(parts ...[]byte) error) error) string {
	t.Helper()
	r, err := NewRouter("tcp://127.0.0.1:0", answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r.Endpoint()
}

func TestReplay(t *testing.T) {
	for _, withTopic := range []bool{false, true} {
		for _, c := range []struct {
			first, last, from uint64
			want              Replayed
		}{
			{0, 9, 3, Replayed{First: 3, Last: 9, Count: 7, Complete: true, Asked: 1}},
			{5, 2000, 3, Replayed{First: 5, Last: 2000, Count: 1996, Complete: true, Asked: 1}}, // starts above what was asked
			{0, 9, 10, Replayed{Complete: true, Asked: 1}},                                      // nothing from there on
		} {
			var seqs []uint64
			got, err := Replay(context.Background(), router(t, ring(c.first, c.last, withTopic)), c.from, func(f Frame) error {
				if want := fmt.Sprint("batch ", f.Seq); string(f.Payload) != want || (string(f.Topic) == "kv") != withTopic || f.AtUS == 0 {
					t.Errorf("frame %+v", f)
				}
				seqs = append(seqs, f.Seq)
				return nil
			})
			if err != nil || got != c.want || uint64(len(seqs)) != got.Count {
				t.Errorf("topic %v, %d..%d from %d: %+v, %v; %d handed over", withTopic, c.first, c.last, c.from, got, err, len(seqs))
			}
		}
	}
}

func TestReplayIgnoresStrays(t *testing.T) {
	endpoint := router(t, func(from uint64, reply func(parts ...[]byte) error) error {
		for _, parts := range [][][]byte{
			{nil, seq8(1), []byte("below what was asked")},
			{nil, []byte("t"), seq8(5), []byte("ok")},
			{nil, seq8(5), []byte("again")},
			{nil, []byte("hello")},
			{nil, []byte("t"), []byte("short"), []byte("p")},
			{nil, []byte("t"), seq8(6), nil}, // no payload, yet no end
			{nil, []byte("t"), end, nil},
		} {
			if err := reply(parts...); err != nil {
				return err
			}
		}
		return nil
	})
	var got []uint64
	res, err := Replay(context.Background(), endpoint, 4, func(f Frame) error { got = append(got, f.Seq); return nil })
	if err != nil || !res.Complete || res.Stray != 4 || !reflect.DeepEqual(got, []uint64{5, 6}) {
		t.Errorf("got %v, %+v, %v", got, res, err)
	}
}

func TestReplayEnds(t *testing.T) {
	boom := errors.New("boom")
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, never greets
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	mute := router(t, func(uint64, func(parts ...[]byte) error) error { return nil })
	half := router(t, func(from uint64, reply func(parts ...[]byte) error) error { return reply(nil, seq8(from), []byte("p")) })
	hangsUp := router(t, func(from uint64, reply func(parts ...[]byte) error) error { return boom })
	stray := router(t, func(from uint64, reply func(parts ...[]byte) error) error {
		for {
			if err := reply(nil, seq8(from), make([]byte, 1<<16)); err != nil {
				return err
			}
		}
	})
	take := func(Frame) error { return nil }
	for _, c := range []struct {
		name   string
		r      Replaying
		handle func(Frame) error
		want   error
		count  uint64
	}{
		{"nobody listens", Replaying{Endpoint: "tcp://" + gone.Addr().String()}, take, ErrNoAnswer, 0},
		{"no handshake", Replaying{Endpoint: "tcp://" + silent.Addr().String(), Quiet: 50 * time.Millisecond}, take, ErrNoAnswer, 0},
		{"no reply", Replaying{Endpoint: mute, Quiet: 50 * time.Millisecond}, take, ErrNoAnswer, 0},
		{"handler stops", Replaying{Endpoint: half}, func(Frame) error { return boom }, boom, 1},
		{"handler stops", Replaying{Endpoint: router(t, ring(0, 9, true))}, func(f Frame) error {
			if f.Seq == 4 {
				return boom
			}
			return nil
		}, boom, 5},
		{"hang-up", Replaying{Endpoint: hangsUp}, take, nil, 0},
		{"never ends", Replaying{Endpoint: stray, Total: 100 * time.Millisecond}, take, nil, 1},
		{"too large", Replaying{Endpoint: half, MaxFrame: 40}, take, nil, 0},
	} {
		got, err := c.r.Do(context.Background(), c.handle)
		if err == nil || (c.want != nil && !errors.Is(err, c.want)) || got.Complete {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
		if c.name != "too large" && got.Count != c.count {
			t.Errorf("%s: %d frames, want %d", c.name, got.Count, c.count)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Replay(ctx, mute, 0, take); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestReplayAsksAgain has a router that drops replies, as libzmq's do when they
// are not taken fast enough, and an engine that never had some batches.
func TestReplayAsksAgain(t *testing.T) {
	var asked []uint64
	endpoint := router(t, func(from uint64, reply func(parts ...[]byte) error) error {
		asked = append(asked, from)
		for n, seq := 0, from; seq < 100; seq++ {
			if seq == 50 || seq == 51 { // not there, however often asked for
				continue
			}
			if n++; n%30 == 0 { // dropped, this time
				continue
			}
			if err := reply(nil, seq8(seq), []byte("p")); err != nil {
				return err
			}
		}
		if len(asked) == 4 {
			return nil // the end is dropped
		}
		return reply(nil, end, nil)
	})
	var seqs []uint64
	got, err := Replaying{Endpoint: endpoint, From: 10}.Do(context.Background(), func(f Frame) error {
		seqs = append(seqs, f.Seq)
		return nil
	})
	want := Replayed{First: 10, Last: 99, Count: 88, Missing: 2, Asked: 5, Complete: true}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if !reflect.DeepEqual(asked, []uint64{10, 39, 50, 81, 100}) {
		t.Errorf("asked from %v", asked)
	}
	for i, seq := range seqs {
		if wantSeq := uint64(10 + i); seq != wantSeq && seq != wantSeq+2 {
			t.Fatalf("frame %d has sequence %d", i, seq)
		}
	}
}

// TestReplayFromAnotherImplementation has zmq4's ROUTER at the other end.
func TestReplayFromAnotherImplementation(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	theirs := zmq4.NewRouter(ctx)
	defer theirs.Close()
	defer cancel()
	if err := theirs.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		req, err := theirs.Recv()
		if err != nil || len(req.Frames) != 3 || len(req.Frames[1]) != 0 || string(req.Frames[2]) != string(seq8(8)) {
			failed <- fmt.Errorf("request %v, %w", req.Frames, err)
			return
		}
		for _, parts := range [][][]byte{{nil, nil, seq8(8), []byte("a")}, {nil, nil, seq8(9), []byte("b")}, {nil, nil, end, nil}} {
			if err := theirs.SendMulti(zmq4.NewMsgFrom(append([][]byte{req.Frames[0]}, parts...)...)); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	got, err := Replay(ctx, "tcp://"+theirs.Addr().String(), 8, func(Frame) error { return nil })
	if err != nil || got != (Replayed{First: 8, Last: 9, Count: 2, Asked: 1, Complete: true}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
}
