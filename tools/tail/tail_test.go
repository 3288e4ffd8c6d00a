package tail

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/eventjson"
	"warmpath/streams/source"
	"warmpath/streams/streamstest"
)

func publish(t *testing.T, js jetstream.JetStream, ids ...string) {
	t.Helper()
	publisher := streams.NewPublisher(js, streams.PublisherConfig{})
	defer publisher.Close()
	for _, id := range ids {
		m, err := streams.NewMessage(streams.RouteSubject("demo", "gw"), id, &pb.Finished{Pool: "demo", RequestId: id})
		if err != nil {
			t.Fatal(err)
		}
		if err := publisher.Publish(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := publisher.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// printed runs a command and returns the request ids it printed.
func printed(t *testing.T, url string, c Command) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c.Flags = source.Flags{Connection: streams.Connection{NATS: url}}
	var out bytes.Buffer
	if err := c.run(ctx, &out); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for line := range strings.Lines(out.String()) {
		e, err := eventjson.Decode([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		m, err := streams.Decode(e.Schema, e.Data)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.(*pb.Finished).RequestId)
	}
	return fmt.Sprint(ids)
}

func TestTail(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "demo")
	publish(t, js, "a", "b", "c")
	for name, test := range map[string]struct {
		command Command
		want    string
	}{
		"all":            {Command{All: true}, "[a b c]"},
		"limit":          {Command{All: true, Limit: 2}, "[a b]"},
		"from":           {Command{All: true, From: 2}, "[b c]"},
		"from, live":     {Command{From: 3, Limit: 1}, "[c]"},
		"since":          {Command{Since: time.Hour, Limit: 3}, "[a b c]"},
		"stored since":   {Command{All: true, Since: time.Nanosecond}, "[]"},
		"another stream": {Command{All: true, Streams: []string{streams.KVStream("demo")}}, "[]"},
	} {
		if got := printed(t, server.URL(""), test.command); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

func TestTailPrintsWhatComes(t *testing.T) {
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "demo")
	publish(t, js, "old")
	got := make(chan string)
	go func() { got <- printed(t, server.URL(""), Command{Limit: 1}) }()
	// The command may start after any one of these, but not after all of them.
	for i := 0; ; i++ {
		publish(t, js, fmt.Sprint("new-", i))
		select {
		case ids := <-got:
			if !strings.HasPrefix(ids, "[new-") {
				t.Errorf("got %s", ids)
			}
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}
