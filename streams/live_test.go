package streams_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

// liveReader follows the live decisions of a pool until it is stopped.
type liveReader struct {
	mu     sync.Mutex
	events []streams.Event
	stop   context.CancelFunc
	ended  chan error
}

func followLive(t testing.TB, nc *nats.Conn, js jetstream.JetStream, pool string, from uint64) *liveReader {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	r := &liveReader{stop: cancel, ended: make(chan error, 1)}
	go func() {
		r.ended <- streams.FollowLive(ctx, nc, js, pool, from, func(e streams.Event) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
			return nil
		})
	}()
	return r
}

func (r *liveReader) ids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, e := range r.events {
		ids = append(ids, e.ID)
	}
	return ids
}

func (r *liveReader) end(t testing.TB) {
	t.Helper()
	r.stop()
	if err := <-r.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("live follower ended with %v", err)
	}
	last := uint64(0)
	for _, e := range r.events {
		if e.Seq <= last {
			t.Errorf("sequence %d came after %d", e.Seq, last)
		}
		last = e.Seq
	}
}

// Two pools share ROUTE: each one's followers get its own messages, all of
// them, in order, those from before and those while they follow.
func TestFollowLiveOfTwoPools(t *testing.T) {
	everyDeployment(t, func(t *testing.T, _ []*natsserver.Server, js jetstream.JetStream, replicas int) {
		streamstest.Apply(t, js, replicas, "chat", "code")
		ctx := testContext(t)
		const before, after = 1300, 500
		p := streams.NewPublisher(js, streams.PublisherConfig{})
		want := map[string][]string{}
		publish := func(n int) {
			for i := range n {
				pool := []string{"chat", "code", "code"}[i%3]
				m := message(streams.RouteSubject(pool, fmt.Sprintf("gw%d", i%2)), len(want[pool]))
				want[pool] = append(want[pool], m.ID)
				if err := p.Publish(ctx, m); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		}
		publish(before)
		readers := map[string]*liveReader{}
		for _, pool := range []string{"chat", "code"} {
			readers[pool] = followLive(t, js.Conn(), js, pool, 1)
		}
		publish(after)
		for pool, r := range readers {
			streamstest.Until(t, func() bool { return len(r.ids()) >= len(want[pool]) })
			r.end(t)
			if got := r.ids(); !slices.Equal(got, want[pool]) {
				t.Errorf("%s: got %d messages, want %d; first %v", pool, len(got), len(want[pool]), got[:min(5, len(got))])
			}
		}
		if e := readers["chat"].events[0]; e.Stream != streams.RouteStream || e.Subject != "route.chat.gw0" || e.Schema != "warmpath.v1.KVBatch" || string(e.Data) != "message 0" || e.Time.IsZero() {
			t.Errorf("event is %+v", e)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What is republished while the follower's connection is away is read from the
// stream, whether or not another message follows.
func TestFollowLiveAcrossKills(t *testing.T) {
	process := streamstest.StartProcess(t)
	_, js := streamstest.Connect(t, process.URL())
	streamstest.Apply(t, js, 1, "chat")
	liveNC, liveJS := streamstest.Connect(t, process.URL())
	r := followLive(t, liveNC, liveJS, "chat", 0)
	subject := streams.RouteSubject("chat", "gw")
	ctx := testContext(t)
	// The first message is read or not, by when the follower has begun.
	n := 0
	streamstest.Until(t, func() bool {
		publishAll(t, js, subject, n, n+1)
		n++
		return len(r.ids()) > 0
	})
	for range 3 {
		publishAll(t, js, subject, n, n+100)
		n += 100
		process.Kill()
		process.Start()
		publishAll(t, js, subject, n, n+100)
		n += 100
	}
	streamstest.Until(t, func() bool {
		ids := r.ids()
		return ids[len(ids)-1] == fmt.Sprintf("%s/%d", subject, n-1)
	})
	r.end(t)
	ids := r.ids()
	if head, err := streams.LastSeq(ctx, js, streams.RouteStream); err != nil || head != uint64(n) {
		t.Fatalf("head is %d, %v", head, err)
	}
	first := n - len(ids)
	for i, id := range ids {
		if want := fmt.Sprintf("%s/%d", subject, first+i); id != want {
			t.Fatalf("message %d is %s, want %s", i, id, want)
		}
	}
}

// A reader that is slower than its queue loses live messages on the way, and
// none to the handler.
func TestFollowLiveSlowReader(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	nc, liveJS := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	subject := streams.RouteSubject("chat", "gw")
	const n = 20000
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	publishAll(t, js, subject, 0, 1)
	release := make(chan struct{})
	var ids []string
	ended := make(chan error, 1)
	go func() {
		ended <- streams.FollowLive(ctx, nc, liveJS, "chat", 1, func(e streams.Event) error {
			<-release
			if ids = append(ids, e.ID); len(ids) == n {
				cancel()
			}
			return nil
		})
	}()
	publishAll(t, js, subject, 1, n)
	close(release)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	wantSequence(t, ids, subject, n)
}

func TestFollowLiveStreamMadeAnew(t *testing.T) {
	server := streamstest.Start(t)
	nc, js := streamstest.Connect(t, server.URL(""))
	if err := streams.FollowLive(testContext(t), nc, js, "chat", 1, nil); !errors.Is(err, streams.ErrNoStream) {
		t.Errorf("without a stream: %v", err)
	}
	streamstest.Apply(t, js, 1, "chat")
	subject := streams.RouteSubject("chat", "gw")
	publishAll(t, js, subject, 0, 10)
	r := followLive(t, nc, js, "chat", 1)
	streamstest.Until(t, func() bool { return len(r.ids()) == 10 })
	if err := js.DeleteStream(testContext(t), streams.RouteStream); err != nil {
		t.Fatal(err)
	}
	streamstest.Apply(t, js, 1, "chat")
	var reset *streams.ResetError
	if err := <-r.ended; !errors.As(err, &reset) {
		t.Errorf("ended with %v", err)
	}
	r.stop()
}
