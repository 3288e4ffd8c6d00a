package streams_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

func TestPublisherKeepsOrder(t *testing.T) {
	everyDeployment(t, func(t *testing.T, _ []*natsserver.Server, js jetstream.JetStream, replicas int) {
		streamstest.Apply(t, js, replicas, "chat")
		ctx := testContext(t)
		p := streams.NewPublisher(js, streams.PublisherConfig{Name: t.Name()})
		subject := streams.KVSubject("chat", "engine-0.dp1")
		const n = 5000
		for i := range n {
			if err := p.Publish(ctx, message(subject, i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if s := p.Stats(); s.Acked != n || s.Lost != 0 || s.InFlight != 0 {
			t.Errorf("stats are %+v", s)
		}
		wantSequence(t, contents(t, js, streams.KVStream("chat")), subject, n)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A publisher that starts over with ids that are stored already stores nothing twice.
func TestPublisherSendsStoredMessagesAgain(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	ctx := testContext(t)
	subject := streams.KVSubject("chat", "e0")
	for range 2 {
		p := streams.NewPublisher(js, streams.PublisherConfig{Name: t.Name()})
		for i := range 100 {
			if err := p.Publish(ctx, message(subject, i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if s := p.Stats(); s.Acked != 100 {
			t.Errorf("stats are %+v", s)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	wantSequence(t, contents(t, js, streams.KVStream("chat")), subject, 100)
}

// The server is killed without warning again and again while two publishers
// share a stream: each one's messages are there once, in order.
func TestPublisherSurvivesKills(t *testing.T) {
	process := streamstest.StartProcess(t)
	_, js := streamstest.Connect(t, process.URL())
	streamstest.Apply(t, js, 1, "chat")
	ctx := testContext(t)
	const publishers = 2
	var stop atomic.Bool
	counts := make([]int, publishers)
	var all sync.WaitGroup
	for i := range publishers {
		_, js := streamstest.Connect(t, process.URL())
		p := streams.NewPublisher(js, streams.PublisherConfig{Name: fmt.Sprint(i), MaxInFlight: 1000, AckWait: 500 * time.Millisecond})
		all.Go(func() {
			subject := streams.KVSubject("chat", fmt.Sprintf("e%d", i))
			for ; !stop.Load(); counts[i]++ {
				if err := p.Publish(ctx, message(subject, counts[i])); err != nil {
					t.Error(err)
					return
				}
			}
			if err := p.Flush(ctx); err != nil {
				t.Error(err)
			}
			s := p.Stats()
			if s.Lost != 0 || s.Recovered == 0 {
				t.Errorf("stats are %+v", s)
			}
			t.Logf("%+v", s)
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	for range 4 {
		before, err := streams.LastSeq(ctx, js, streams.KVStream("chat"))
		if err != nil {
			t.Fatal(err)
		}
		streamstest.Until(t, func() bool {
			seq, err := streams.LastSeq(ctx, js, streams.KVStream("chat"))
			return err == nil && seq > before+3000
		})
		process.Kill()
		process.Start()
		streamstest.Until(t, func() bool {
			_, err := streams.LastSeq(ctx, js, streams.KVStream("chat"))
			return err == nil
		})
	}
	stop.Store(true)
	all.Wait()
	ids := contents(t, js, streams.KVStream("chat"))
	for i := range publishers {
		subject := streams.KVSubject("chat", fmt.Sprintf("e%d", i))
		own := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id[:len(subject)] != subject })
		wantSequence(t, own, subject, counts[i])
	}
}

// What cannot be published is given up in time, reported, and never hidden;
// what comes later is published.
func TestPublisherReportsGaps(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	ctx := testContext(t)
	var mu sync.Mutex
	var gaps []string
	p := streams.NewPublisher(js, streams.PublisherConfig{
		Name: t.Name(), GiveUp: 200 * time.Millisecond, AckWait: 100 * time.Millisecond,
		OnGap: func(first, last streams.Message) {
			mu.Lock()
			defer mu.Unlock()
			gaps = append(gaps, first.ID+" to "+last.ID)
		},
	})
	subject := streams.KVSubject("chat", "e0")
	for i := range 3 { // There is no stream yet.
		if err := p.Publish(ctx, message(subject, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	if len(gaps) == 0 || gaps[0][:len("kv.chat.e0/0 to ")] != "kv.chat.e0/0 to " || gaps[len(gaps)-1][len(gaps[0])-len("kv.chat.e0/2"):] != "kv.chat.e0/2" {
		t.Errorf("gaps are %v", gaps)
	}
	mu.Unlock()
	if s := p.Stats(); s.Lost != 3 || s.Acked != 0 || s.InFlight != 0 || s.Gaps != uint64(len(gaps)) {
		t.Errorf("stats are %+v", s)
	}
	streamstest.Apply(t, js, 1, "chat")
	if err := p.Publish(ctx, message(subject, 3)); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if ids := contents(t, js, "KV_chat"); !slices.Equal(ids, []string{"kv.chat.e0/3"}) {
		t.Errorf("stream has %v", ids)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Publish(ctx, message(subject, 4)); !errors.Is(err, streams.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

// Publish waits for room no longer than its context, and Close reports what it leaves.
func TestPublisherIsBounded(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	reported := 0
	p := streams.NewPublisher(js, streams.PublisherConfig{Name: t.Name(), MaxInFlight: 2,
		OnGap: func(first, last streams.Message) { reported++ }})
	subject := streams.KVSubject("chat", "e0")
	ctx, cancel := context.WithCancel(testContext(t))
	for i := range 2 {
		if err := p.Publish(ctx, message(subject, i)); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error)
	go func() { ended <- p.Publish(ctx, message(subject, 2)) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a full publisher took a message: %v", err)
	}
	if err := p.Flush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("flush ended with %v", err)
	}
	if err := p.Close(); err == nil || reported != 1 {
		t.Errorf("close said %v, and reported %d", err, reported)
	}
	if err := p.Close(); err != nil {
		t.Errorf("close again said %v", err)
	}
}

func TestPublisherRefusesSubjects(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	p := streams.NewPublisher(js, streams.PublisherConfig{})
	for _, subject := range []string{"", "kv", "kv.chat", "kv..e0", "kv.chat.e0.dp1", "kv.chat.*", "other.chat.e0", "live.route.chat.gw"} {
		if p.Publish(testContext(t), message(subject, 0)) == nil {
			t.Errorf("subject %q was taken", subject)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
