package streams_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

// journal collects lines from another goroutine.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, v ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, v...))
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, " ")
}

func (j *journal) await(t testing.TB, want string) {
	t.Helper()
	streamstest.Until(t, func() bool { return len(j.String()) >= len(want) })
	if got := j.String(); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

// until runs follow in the background until the returned function is called.
func until(t testing.TB, follow func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() { ended <- follow(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("following ended with %v", err)
		}
	}
}

func watch(js jetstream.JetStream, pool string, j *journal) func(context.Context) error {
	return func(ctx context.Context) error {
		return streams.WatchFleet(ctx, js, pool, func(e *pb.FleetEntry, replica string) {
			if e == nil {
				j.add("-%s", replica)
			} else {
				j.add("+%s:%s", replica, e.GetAddress())
			}
		})
	}
}

func put(t testing.TB, js jetstream.JetStream, pool, replica, address string) {
	t.Helper()
	if err := streams.PutFleet(testContext(t), js, &pb.FleetEntry{Pool: pool, Replica: replica, Address: address}); err != nil {
		t.Fatal(err)
	}
}

func TestFleet(t *testing.T) {
	everyDeployment(t, func(t *testing.T, _ []*natsserver.Server, js jetstream.JetStream, replicas int) {
		streamstest.Apply(t, js, replicas, "chat", "code")
		put(t, js, "chat", "e0.dp1", "a")
		put(t, js, "chat", "e0.dp1", "b")
		put(t, js, "code", "e9", "z")
		var j journal
		stop := until(t, watch(js, "chat", &j))
		j.await(t, "+e0.dp1:b")
		put(t, js, "chat", "e1", "c")
		j.await(t, "+e0.dp1:b +e1:c")
		if err := streams.DeleteFleet(testContext(t), js, "chat", "e0.dp1"); err != nil {
			t.Fatal(err)
		}
		j.await(t, "+e0.dp1:b +e1:c -e0.dp1")
		put(t, js, "chat", "e0.dp1", "d")
		j.await(t, "+e0.dp1:b +e1:c -e0.dp1 +e0.dp1:d")
		stop()
	})
}

func TestFleetExpires(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	ctx := testContext(t)
	if _, err := (streams.Topology{Pools: []string{"chat"}, FleetTTL: time.Second}).Apply(ctx, js); err != nil {
		t.Fatal(err)
	}
	var j, late journal
	stop := until(t, watch(js, "chat", &j))
	put(t, js, "chat", "e0", "a")
	j.await(t, "+e0:a -e0")
	// Who comes later does not see what expired before.
	stopLate := until(t, watch(js, "chat", &late))
	put(t, js, "chat", "e1", "b")
	late.await(t, "+e1:b")
	stopLate()
	stop()
}

// A watcher that is cut off lets entries expire by itself.
func TestFleetExpiresWithoutServer(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	ctx := testContext(t)
	if _, err := (streams.Topology{Pools: []string{"chat"}, FleetTTL: 3 * time.Second}).Apply(ctx, js); err != nil {
		t.Fatal(err)
	}
	var j journal
	stop := until(t, watch(js, "chat", &j))
	put(t, js, "chat", "e0", "a")
	j.await(t, "+e0:a")
	server.Shutdown()
	j.await(t, "+e0:a -e0")
	stop()
}

func TestFleetRefusesBadNames(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	ctx := testContext(t)
	if streams.PutFleet(ctx, js, &pb.FleetEntry{Pool: "chat", Replica: "a b"}) == nil {
		t.Error("a bad replica was put")
	}
	if streams.DeleteFleet(ctx, js, "", "e0") == nil {
		t.Error("an empty pool was deleted from")
	}
	if streams.WatchFleet(ctx, js, ">", nil) == nil {
		t.Error("a bad pool was watched")
	}
	if err := streams.WatchFleet(ctx, js, "chat", nil); !errors.Is(err, streams.ErrNoStream) {
		t.Errorf("without a bucket: %v", err)
	}
}

func report(t testing.TB, p *streams.Publisher, pool, replica string, running uint32) {
	t.Helper()
	ctx := testContext(t)
	m, err := streams.NewMessage(streams.LoadSubject(pool, replica), "", &pb.LoadReport{Pool: pool, Replica: replica, Running: &running})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(ctx, m); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func followLoad(nc *nats.Conn, js jetstream.JetStream, j *journal) func(context.Context) error {
	return func(ctx context.Context) error {
		return streams.FollowLoad(ctx, nc, js, "chat", func(r *pb.LoadReport) { j.add("%s:%d", r.GetReplica(), r.GetRunning()) })
	}
}

func TestFollowLoad(t *testing.T) {
	everyDeployment(t, func(t *testing.T, _ []*natsserver.Server, js jetstream.JetStream, replicas int) {
		streamstest.Apply(t, js, replicas, "chat", "code")
		p := streams.NewPublisher(js, streams.PublisherConfig{})
		report(t, p, "chat", "e0", 1)
		report(t, p, "chat", "e0", 2)
		report(t, p, "code", "e9", 9)
		report(t, p, "chat", "e1.dp1", 3)
		var j journal
		stop := until(t, followLoad(js.Conn(), js, &j))
		j.await(t, "e0:2 e1.dp1:3")
		report(t, p, "chat", "e0", 4)
		j.await(t, "e0:2 e1.dp1:3 e0:4")
		stop()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestFollowLoadAcrossKill(t *testing.T) {
	process := streamstest.StartProcess(t)
	nc, js := streamstest.Connect(t, process.URL())
	streamstest.Apply(t, js, 1, "chat")
	p := streams.NewPublisher(js, streams.PublisherConfig{})
	report(t, p, "chat", "e0", 1)
	report(t, p, "chat", "e0", 2)
	var j journal
	stop := until(t, followLoad(nc, js, &j))
	j.await(t, "e0:2")
	process.Kill()
	process.Start()
	report(t, p, "chat", "e0", 3)
	j.await(t, "e0:2 e0:3")
	stop()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
