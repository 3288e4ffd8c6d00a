package streams_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/streamstest"
)

func TestMain(m *testing.M) { streamstest.Main(m) }

// within bounds waits; a test that needs it has failed.
const within = 60 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

// message is the n-th message of a sequence on a subject.
func message(subject string, n int) streams.Message {
	return streams.Message{
		Subject: subject,
		ID:      fmt.Sprintf("%s/%d", subject, n),
		Schema:  "warmpath.v1.KVBatch",
		Data:    fmt.Appendf(nil, "message %d", n),
	}
}

// everyDeployment runs a test against a single server and a cluster of three.
func everyDeployment(t *testing.T, test func(t *testing.T, servers []*natsserver.Server, js jetstream.JetStream, replicas int)) {
	t.Run("single", func(t *testing.T) {
		server := streamstest.Start(t)
		_, js := streamstest.Connect(t, server.URL(""))
		test(t, []*natsserver.Server{server}, js, 1)
	})
	t.Run("cluster", func(t *testing.T) {
		servers := streamstest.Cluster(t, 3)
		urls := ""
		for i, s := range servers {
			if i > 0 {
				urls += ","
			}
			urls += s.URL("")
		}
		_, js := streamstest.Connect(t, urls)
		test(t, servers, js, 3)
	})
}

// contents reads a stream to its head and returns the ids in order.
func contents(t testing.TB, js jetstream.JetStream, stream string) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	head, err := streams.LastSeq(ctx, js, stream)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	if head == 0 {
		return nil
	}
	err = streams.Follow(ctx, js, streams.FollowConfig{Stream: stream}, func(e streams.Event) error {
		ids = append(ids, e.ID)
		if e.Seq == head {
			cancel()
		}
		return nil
	})
	if ctx.Err() != context.Canceled {
		t.Fatalf("reading %s ended with %v", stream, err)
	}
	return ids
}

// wantSequence checks that ids are messages 0 to n-1 of subject, in order.
func wantSequence(t testing.TB, ids []string, subject string, n int) {
	t.Helper()
	if len(ids) != n {
		t.Errorf("got %d messages, want %d", len(ids), n)
	}
	for i, id := range ids {
		if want := fmt.Sprintf("%s/%d", subject, i); id != want {
			t.Fatalf("message %d is %s, want %s", i, id, want)
		}
	}
}
