package streams_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// Leaders of a cluster step down and are restarted while a publisher publishes
// and a follower follows: neither loses, repeats nor reorders anything.
func TestClusterLosesLeaders(t *testing.T) {
	servers := streamstest.Cluster(t, 3)
	urls := servers[0].URL("") + "," + servers[1].URL("") + "," + servers[2].URL("")
	_, js := streamstest.Connect(t, urls)
	streamstest.Apply(t, js, 3, "chat")
	stream := streams.KVStream("chat")
	subject := streams.KVSubject("chat", "e0")
	ctx := testContext(t)

	var followed sync.WaitGroup
	following, stopFollowing := context.WithCancel(ctx)
	var target atomic.Int64
	target.Store(-1)
	var ids []string
	_, followerJS := streamstest.Connect(t, urls)
	follower := streams.NewFollower(followerJS, streams.FollowConfig{Stream: stream, Idle: 10 * time.Millisecond,
		OnHole: func(from, to uint64) { t.Errorf("hole from %d to %d", from, to) },
		OnIdle: func() error {
			if int64(len(ids)) == target.Load() {
				stopFollowing()
			}
			return nil
		},
	})
	followed.Go(func() {
		err := follower.Run(following, func(e streams.Event) error {
			ids = append(ids, e.ID)
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("follower ended with %v", err)
		}
	})

	_, publisherJS := streamstest.Connect(t, urls)
	p := streams.NewPublisher(publisherJS, streams.PublisherConfig{Name: t.Name(), MaxInFlight: 500, AckWait: time.Second})
	var stop atomic.Bool
	published := 0
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for ; !stop.Load(); published++ {
			if err := p.Publish(ctx, message(subject, published)); err != nil {
				t.Error(err)
				return
			}
		}
		if err := p.Flush(ctx); err != nil {
			t.Error(err)
		}
	})

	leader := func() int {
		found := -1
		streamstest.Until(t, func() bool {
			for i, s := range servers {
				if s.Leads(stream) {
					found = i
				}
			}
			return found >= 0
		})
		return found
	}
	progress := func() {
		before := follower.Position()
		streamstest.Until(t, func() bool { return follower.Position() > before+1000 })
	}
	for range 3 {
		progress()
		// A leader may have lost its office meanwhile; another round follows.
		if err := servers[leader()].StepDown(stream); err != nil {
			t.Log(err)
		}
	}
	for range 2 {
		progress()
		i := leader()
		servers[i] = streamstest.Restart(t, servers[i])
		streamstest.Until(t, servers[i].JetStreamReady)
	}
	progress()
	stop.Store(true)
	publishing.Wait()
	t.Logf("%+v", p.Stats())
	if s := p.Stats(); s.Lost != 0 || s.Recovered == 0 {
		t.Errorf("stats are %+v", s)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	target.Store(int64(published))
	followed.Wait()
	stopFollowing()
	wantSequence(t, ids, subject, published)
	if head, err := streams.LastSeq(ctx, js, stream); err != nil || head != uint64(published) {
		t.Errorf("head is %d, %v; want %d", head, err, published)
	}
	fmt.Fprintln(t.Output(), "published", published)
}
