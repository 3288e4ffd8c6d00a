package streams_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

// publishAll publishes messages [from, to) of a subject and waits for them.
func publishAll(t testing.TB, js jetstream.JetStream, subject string, from, to int) {
	t.Helper()
	ctx := testContext(t)
	p := streams.NewPublisher(js, streams.PublisherConfig{Name: t.Name()})
	for i := from; i < to; i++ {
		if err := p.Publish(ctx, message(subject, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFollowerFromSequenceAndOn(t *testing.T) {
	everyDeployment(t, func(t *testing.T, _ []*natsserver.Server, js jetstream.JetStream, replicas int) {
		streamstest.Apply(t, js, replicas, "chat")
		subject := streams.KVSubject("chat", "e0")
		publishAll(t, js, subject, 0, 9000)
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		f := streams.NewFollower(js, streams.FollowConfig{Stream: "KV_chat", From: 11, Idle: time.Millisecond,
			OnHole: func(from, to uint64) { t.Errorf("hole %d to %d", from, to) }})
		next := uint64(11)
		err := f.Run(ctx, func(e streams.Event) error {
			if e.Seq != next || e.ID != fmt.Sprintf("%s/%d", subject, next-1) || e.Stream != "KV_chat" ||
				e.Subject != subject || e.Schema != "warmpath.v1.KVBatch" || string(e.Data) != fmt.Sprintf("message %d", next-1) ||
				time.Since(e.Time).Abs() > within {
				return fmt.Errorf("event is %+v, want %d", e, next)
			}
			next++
			if e.Seq == 9000 {
				publishAll(t, js, subject, 9000, 9100)
			}
			if e.Seq == 9100 {
				cancel()
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		head, err := f.Head(testContext(t))
		if err != nil || head != 9100 || f.Position() != 9100 || f.Lag() != 0 {
			t.Errorf("head %d, position %d, lag %d, %v", head, f.Position(), f.Lag(), err)
		}
	})
}

func TestFollowerAcrossKills(t *testing.T) {
	process := streamstest.StartProcess(t)
	_, js := streamstest.Connect(t, process.URL())
	_, other := streamstest.Connect(t, process.URL())
	streamstest.Apply(t, js, 1, "chat")
	subject := streams.KVSubject("chat", "e0")
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	f := streams.NewFollower(js, streams.FollowConfig{Stream: "KV_chat",
		OnHole: func(from, to uint64) { t.Errorf("hole %d to %d", from, to) }})
	var ids []string
	var following sync.WaitGroup
	following.Go(func() {
		err := f.Run(ctx, func(e streams.Event) error {
			ids = append(ids, e.ID)
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	const rounds, each = 3, 1000
	for i := range rounds {
		publishAll(t, other, subject, i*each, (i+1)*each)
		streamstest.Until(t, func() bool { return f.Position() == uint64((i+1)*each) })
		process.Kill()
		process.Start()
	}
	cancel()
	following.Wait()
	wantSequence(t, ids, subject, rounds*each)
}

func TestFollowerReportsHoles(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	subject := streams.KVSubject("chat", "e0")
	publishAll(t, js, subject, 0, 10)
	ctx := testContext(t)
	stream, err := js.Stream(ctx, "KV_chat")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSequence(3)); err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{5, 6} {
		if err := stream.DeleteMsg(ctx, seq); err != nil {
			t.Fatal(err)
		}
	}
	wantSteps := func(from uint64, want string) {
		t.Helper()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		steps := ""
		var f *streams.Follower
		f = streams.NewFollower(js, streams.FollowConfig{Stream: "KV_chat", From: from, Idle: time.Millisecond,
			OnHole: func(from, to uint64) { steps += fmt.Sprintf("(%d-%d)", from, to) },
			OnIdle: func() error {
				if f.Position() == 10 {
					cancel()
				}
				return nil
			},
		})
		err := f.Run(ctx, func(e streams.Event) error {
			steps += fmt.Sprintf("[%d]", e.Seq)
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if steps != want {
			t.Errorf("from %d: %s, want %s", from, steps, want)
		}
	}
	wantSteps(0, "(1-2)[3][4](5-6)[7][8][9][10]")
	wantSteps(2, "(2-2)[3][4](5-6)[7][8][9][10]")
	wantSteps(6, "(6-6)[7][8][9][10]")
	if err := stream.Purge(ctx); err != nil {
		t.Fatal(err)
	}
	wantSteps(9, "(9-10)")
	wantSteps(11, "")
}

func TestFollowerIdle(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	publishAll(t, js, streams.KVSubject("chat", "e0"), 0, 10)
	stop := errors.New("stop")
	seen, idles := 0, 0
	err := streams.Follow(testContext(t), js, streams.FollowConfig{Stream: "KV_chat", Idle: 5 * time.Millisecond,
		OnIdle: func() error {
			if seen < 10 {
				return nil // Messages may be later than the first idle time.
			}
			if idles++; idles == 3 {
				return stop
			}
			return nil
		},
	}, func(streams.Event) error { seen++; return nil })
	if !errors.Is(err, stop) || seen != 10 {
		t.Errorf("saw %d, ended with %v", seen, err)
	}
	bad := errors.New("bad")
	if err := streams.Follow(testContext(t), js, streams.FollowConfig{Stream: "KV_chat"}, func(streams.Event) error { return bad }); !errors.Is(err, bad) {
		t.Errorf("ended with %v", err)
	}
}

func TestFollowerStreamMadeAnew(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	ctx := testContext(t)
	if err := streams.Follow(ctx, js, streams.FollowConfig{Stream: "KV_chat"}, nil); !errors.Is(err, streams.ErrNoStream) {
		t.Errorf("without a stream: %v", err)
	}
	streamstest.Apply(t, js, 1, "chat")
	subject := streams.KVSubject("chat", "e0")
	publishAll(t, js, subject, 0, 10)
	var once sync.Once
	for _, again := range []int{3, 20} { // Shorter and longer than before.
		var position atomic.Uint64
		err := streams.Follow(ctx, js, streams.FollowConfig{Stream: "KV_chat", Stall: 50 * time.Millisecond, Idle: time.Millisecond,
			OnIdle: func() error {
				if position.Load() == 0 {
					return nil
				}
				once.Do(func() {
					if err := js.DeleteStream(ctx, "KV_chat"); err != nil {
						t.Error(err)
					}
					streamstest.Apply(t, js, 1, "chat")
					publishAll(t, js, subject, 0, again)
				})
				return nil
			},
		}, func(e streams.Event) error { position.Store(e.Seq); return nil })
		var reset *streams.ResetError
		if !errors.As(err, &reset) || reset.Position != position.Load() || reset.Last != uint64(again) {
			t.Errorf("made anew with %d: %v", again, err)
		}
		once = sync.Once{}
	}
	// Asking for what is beyond the end is the same mistake.
	var reset *streams.ResetError
	if err := streams.Follow(ctx, js, streams.FollowConfig{Stream: "KV_chat", From: 1000}, nil); !errors.As(err, &reset) {
		t.Errorf("from beyond the end: %v", err)
	}
}

// A consumer that vanishes on the server is replaced.
func TestFollowerStall(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	subject := streams.KVSubject("chat", "e0")
	publishAll(t, js, subject, 0, 10)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var once sync.Once
	var ids []string
	err := streams.Follow(ctx, js, streams.FollowConfig{Stream: "KV_chat", Stall: 100 * time.Millisecond, Idle: time.Millisecond,
		OnIdle: func() error {
			if len(ids) < 10 {
				return nil
			}
			once.Do(func() {
				stream, err := js.Stream(ctx, "KV_chat")
				if err != nil {
					t.Error(err)
					return
				}
				for name := range stream.ConsumerNames(ctx).Name() {
					if err := stream.DeleteConsumer(ctx, name); err != nil {
						t.Error(err)
					}
				}
				publishAll(t, js, subject, 10, 20)
			})
			return nil
		},
	}, func(e streams.Event) error {
		ids = append(ids, e.ID)
		if len(ids) == 20 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	wantSequence(t, ids, subject, 20)
}

// Messages as large as the server takes: requests end by bytes.
func TestFollowerLargeMessages(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	ctx := testContext(t)
	p := streams.NewPublisher(js, streams.PublisherConfig{})
	const n, size = 12, 7 << 20
	for i := range n {
		m := message(streams.KVSubject("chat", "e0"), i)
		m.Data = make([]byte, size)
		if err := p.Publish(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	m := message(streams.KVSubject("chat", "e0"), n)
	m.Data = make([]byte, streams.MaxPayload)
	if err := p.Publish(ctx, m); err == nil {
		t.Error("a message that is too large was taken")
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	wantSequence(t, contents(t, js, "KV_chat"), streams.KVSubject("chat", "e0"), n)
}
