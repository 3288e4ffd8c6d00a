package analytics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/clickhouse/clickhousetest"
	"warmpath/services/clickhouse/tables"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

// openTables returns a fresh database that has the tables.
func openTables(t testing.TB) (driver.Conn, string) {
	t.Helper()
	conn, dsn := clickhousetest.Open(t)
	if _, err := tables.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return conn, dsn
}

// number is the answer of a query that gives one UInt64.
func number(t testing.TB, conn driver.Conn, query string, args ...any) uint64 {
	t.Helper()
	var n uint64
	// Not t.Context(): cleanups ask too.
	if err := conn.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// text is the answer of a query that gives one String.
func text(t testing.TB, conn driver.Conn, query string, args ...any) string {
	t.Helper()
	var s string
	if err := conn.QueryRow(t.Context(), query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

// rowsDigest stands for the content of the tables, without what differs between
// two runs over the same stream: nothing.
func rowsDigest(t testing.TB, conn driver.Conn) string {
	t.Helper()
	digest := ""
	for _, table := range []string{"requests", "candidates", "kv_activity"} {
		digest += fmt.Sprintf("%s rows=%d content=%d\n", table,
			number(t, conn, "SELECT count() FROM "+table),
			number(t, conn, "SELECT groupBitXor(cityHash64(tuple(*))) FROM "+table))
	}
	return digest + fmt.Sprintf("requests_1m requests=%d prompt_tokens=%d max_seq=%d\n",
		number(t, conn, "SELECT sum(requests) FROM requests_1m"),
		number(t, conn, "SELECT sum(prompt_tokens) FROM requests_1m"),
		number(t, conn, "SELECT max(max_seq) FROM requests_1m"))
}

// nats is an embedded server with the topology of pool chat.
func startNATS(t testing.TB) (string, jetstream.JetStream) {
	t.Helper()
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	return server.URL(""), js
}

// publish stores events in order and waits for the stream to have them.
func publish(t testing.TB, js jetstream.JetStream, messages ...streams.Message) {
	t.Helper()
	p := streams.NewPublisher(js, streams.PublisherConfig{Name: t.Name()})
	for _, m := range messages {
		if err := p.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func routeMessage(t testing.TB, event proto.Message) streams.Message {
	t.Helper()
	var id string
	switch e := event.(type) {
	case *pb.Decided:
		id = streams.RouteID(e.GetRequestId(), e.GetAttempt(), "decided")
	case *pb.Moved:
		id = streams.RouteID(e.GetRequestId(), e.GetAttempt(), "moved")
	case *pb.Finished:
		id = streams.RouteID(e.GetRequestId(), e.GetAttempt(), "finished")
	}
	m, err := streams.NewMessage(streams.RouteSubject("chat", "gw"), id, event)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// requestsOf are the messages of n requests, a few in flight at a time, some of
// them moved to another replica.
func requestsOf(t testing.TB, prefix string, n, candidates int) []streams.Message {
	t.Helper()
	var messages []streams.Message
	now := time.Now().UnixMicro()
	finish := func(i int) {
		f := finishedEvent(fmt.Sprintf("%s%d", prefix, i), uint32(i%10/9))
		f.FinishedAtUs = now + int64(i)
		messages = append(messages, routeMessage(t, f))
	}
	for i := range n {
		id := fmt.Sprintf("%s%d", prefix, i)
		d := decidedEvent(id, 0, candidates)
		d.DecidedAtUs = now + int64(i)
		messages = append(messages, routeMessage(t, d))
		if i%10 == 9 {
			second := decidedEvent(id, 1, candidates)
			second.DecidedAtUs = now + int64(i)
			messages = append(messages, routeMessage(t, movedEvent(id, 0)), routeMessage(t, second))
		}
		if i >= 5 {
			finish(i - 5)
		}
	}
	for i := max(0, n-5); i < n; i++ {
		finish(i)
	}
	return messages
}

// newService makes a service on a connection of its own registry.
func newService(js jetstream.JetStream, conn driver.Conn, rows int) *Service {
	return New(Config{
		Cut: CutConfig{Rows: rows}, Grace: time.Millisecond, Log: slog.New(slog.DiscardHandler),
	}, js, conn, prometheus.NewRegistry())
}

// running runs a service until stop is called, which waits for its end.
func running(t testing.TB, s *Service) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// faultyConn is a real connection that fails inserts as its plan says: before they
// are sent, or after ClickHouse confirmed them, which the sender cannot tell apart.
type faultyConn struct {
	driver.Conn
	// fault is asked for each insert, one at a time: 0 none, 1 before, 2 after.
	fault func(query string) int
	mu    sync.Mutex
}

var errFault = errors.New("injected fault")

func (c *faultyConn) PrepareBatch(ctx context.Context, query string, opts ...driver.PrepareBatchOption) (driver.Batch, error) {
	c.mu.Lock()
	fault := c.fault(query)
	c.mu.Unlock()
	if fault == 1 {
		return nil, errFault
	}
	b, err := c.Conn.PrepareBatch(ctx, query, opts...)
	if err != nil || fault == 0 {
		return b, err
	}
	return &faultyBatch{Batch: b}, nil
}

type faultyBatch struct{ driver.Batch }

func (b *faultyBatch) Send() error {
	if err := b.Batch.Send(); err != nil {
		return err
	}
	return errFault
}

func named(name string, value any) driver.NamedValue { return clickhouse.Named(name, value) }
