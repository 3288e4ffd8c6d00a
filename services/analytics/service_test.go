package analytics

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

func counterValue(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// untilRows waits until requests has n rows, and the roll-up too, which follows it
// within the same insert.
func untilRows(t testing.TB, conn driver.Conn, n uint64) {
	t.Helper()
	streamstest.Until(t, func() bool {
		return number(t, conn, "SELECT count() FROM requests") >= n && number(t, conn, "SELECT sum(requests) FROM requests_1m") >= n
	})
}

// checkOnce checks that every request and candidate is there exactly once.
func checkOnce(t testing.TB, conn driver.Conn, requests, candidates uint64) {
	t.Helper()
	for what, want := range map[string]uint64{
		"SELECT count() FROM requests":                                                                requests,
		"SELECT uniqExact(request_id) FROM requests":                                                  requests,
		"SELECT sum(requests) FROM requests_1m":                                                       requests,
		"SELECT count() FROM candidates":                                                              candidates,
		"SELECT uniqExact(stream, decided_seq, replica) FROM candidates":                              candidates,
		"SELECT sum(attempts) FROM requests":                                                          requests + requests/10,
		"SELECT sum(moves) FROM requests":                                                             requests / 10,
		"SELECT countIf(decided_seq = 0 OR status != 'ok' OR floor_seq > stream_seq+1) FROM requests": 0,
	} {
		if got := number(t, conn, what); got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
}

func kvMessages(t testing.TB, replica string, batches int) []streams.Message {
	t.Helper()
	var messages []streams.Message
	id := []byte("0123456789abcdef")
	for seq := uint64(1); seq <= uint64(batches); seq++ {
		b := &pb.KVBatch{Pool: "chat", Replica: replica, Epoch: id, Seq: seq, BlockTokens: 16, Events: []*pb.KVEvent{
			{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: pb.Tier_TIER_GPU, Keys: []uint64{seq, seq + 1, seq + 2}}}},
			{Event: &pb.KVEvent_Remove{Remove: &pb.KVRemove{Tier: pb.Tier_TIER_GPU, Keys: []uint64{seq}, Reason: pb.KVRemoveReason_KV_REMOVE_REASON_EVICTED}}},
		}}
		m, err := streams.NewMessage(streams.KVSubject("chat", replica), streams.KVID(replica, id, seq), b)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, m)
	}
	return messages
}

func TestFollowsStreams(t *testing.T) {
	conn, _ := openTables(t)
	_, js := startNATS(t)
	s := newService(js, conn, 64)
	if s.Ready() == nil {
		t.Error("ready before anything is followed")
	}
	running(t, s)
	publish(t, js, kvMessages(t, "r0", 30)...)
	publish(t, js, kvMessages(t, "r1.dp0", 5)...)
	publish(t, js, requestsOf(t, "q", 300, 8)...)
	untilRows(t, conn, 300)
	streamstest.Until(t, func() bool { return number(t, conn, "SELECT sum(batches) FROM kv_activity") >= 35 })
	checkOnce(t, conn, 300, 330*8)
	checkEqual(t, "activity", text(t, conn, `SELECT arrayStringConcat(groupArray(toString(x)), ' ') FROM (
		SELECT tuple(replica, sum(batches), sum(stored_blocks), sum(evicted_blocks), sum(offloaded_blocks), sum(epochs), max(block_tokens)) AS x
		FROM kv_activity GROUP BY pool, replica ORDER BY replica)`),
		"('r0',30,90,30,0,1,16) ('r1.dp0',5,15,5,0,1,16)")
	if err := s.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if n := counterValue(t, s.metrics.rows.WithLabelValues("requests")); n != 300 {
		t.Errorf("metric says %v rows, want 300", n)
	}
}

// TestLeastPrivilege: the analytics role may do what the service does, with its
// pools named.
func TestLeastPrivilege(t *testing.T) {
	conn, _ := openTables(t)
	server := streamstest.StartRoles(t, streams.Roles([]string{"chat"}))
	_, operator := streamstest.Connect(t, server.URL(streams.RoleOperator))
	streamstest.Apply(t, operator, 1, "chat")
	publish(t, operator, requestsOf(t, "q", 20, 2)...)
	publish(t, operator, kvMessages(t, "r0", 3)...)
	_, js := streamstest.Connect(t, server.URL(streams.RoleAnalytics))
	s := newService(js, conn, 64)
	s.cfg.Pools = []string{"chat"}
	running(t, s)
	untilRows(t, conn, 20)
	streamstest.Until(t, func() bool { return number(t, conn, "SELECT sum(batches) FROM kv_activity") >= 3 })
	checkOnce(t, conn, 20, 44)
}

// TestStreamMadeAnew: a stream that is deleted and made again counts from 1; its
// rows are rows of their own.
func TestStreamMadeAnew(t *testing.T) {
	conn, _ := openTables(t)
	_, js := startNATS(t)
	stop := running(t, newService(js, conn, 64))
	publish(t, js, requestsOf(t, "old", 20, 1)...)
	untilRows(t, conn, 20)
	stop()
	if err := js.DeleteStream(t.Context(), streams.RouteStream); err != nil {
		t.Fatal(err)
	}
	streamstest.Apply(t, js, 1, "chat")
	publish(t, js, requestsOf(t, "new", 10, 1)...)
	running(t, newService(js, conn, 64))
	untilRows(t, conn, 30)
	checkOnce(t, conn, 30, 33)
}

// TestNATSRestart: the server going away and coming back changes nothing.
func TestNATSRestart(t *testing.T) {
	conn, _ := openTables(t)
	server := streamstest.Start(t)
	_, js := streamstest.Connect(t, server.URL(""))
	streamstest.Apply(t, js, 1, "chat")
	running(t, newService(js, conn, 16))
	publish(t, js, requestsOf(t, "a", 100, 2)...)
	untilRows(t, conn, 60)
	streamstest.Restart(t, server)
	publish(t, js, requestsOf(t, "b", 100, 2)...)
	untilRows(t, conn, 200)
	checkOnce(t, conn, 200, 440)
}

// TestCrashes: services that stop at random inserts, before or after ClickHouse
// took them, each followed by another, leave the rows that one without a crash
// leaves.
func TestCrashes(t *testing.T) {
	_, js := startNATS(t)
	const requests, candidates = 600, 4
	// Spread over seconds of stream time, so that both rules of the cutter cut.
	messages := requestsOf(t, "q", requests, candidates)
	kv := kvMessages(t, "r0", 60)
	for i := range 3 {
		n, k := len(messages)/3, len(kv)/3
		publish(t, js, append(messages[i*n:(i+1)*n:(i+1)*n], kv[i*k:(i+1)*k]...)...)
		if i < 2 {
			nextBucket(t)
		}
	}

	calm, _ := openTables(t)
	running(t, newService(js, calm, 40))
	untilRows(t, calm, requests)
	streamstest.Until(t, func() bool { return number(t, calm, "SELECT sum(batches) FROM kv_activity") >= 60 })
	checkOnce(t, calm, requests, (requests+requests/10)*candidates)
	want := rowsDigest(t, calm)

	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(round), 7))
			conn, _ := openTables(t)
			crashes := 0
			for crashes < 12 && number(t, conn, "SELECT count() FROM requests") < requests {
				crashes++
				crashOnce(t, js, conn, random)
			}
			running(t, newService(js, conn, 40))
			untilRows(t, conn, requests)
			streamstest.Until(t, func() bool { return number(t, conn, "SELECT sum(batches) FROM kv_activity") >= 60 })
			checkEqual(t, fmt.Sprintf("content after %d crashes", crashes), rowsDigest(t, conn), want)
		})
	}
}

// crashOnce runs a service that is gone at a random insert: cancelled before the
// insert is sent, or after ClickHouse took it and before anybody knew. On the way
// there it meets errors of both kinds that it must get over.
func crashOnce(t *testing.T, js jetstream.JetStream, conn driver.Conn, random *rand.Rand) {
	t.Helper()
	ctx, crash := context.WithCancel(context.Background())
	defer crash()
	left := random.IntN(8)
	broken := &faultyConn{Conn: conn, fault: func(string) int {
		left--
		if left < 0 {
			crash()
			return 1 + random.IntN(2)
		}
		if random.IntN(5) == 0 {
			return 1 + random.IntN(2)
		}
		return 0
	}}
	done := make(chan error, 1)
	s := newService(js, &afterCancel{broken}, 40)
	go func() { done <- s.Run(ctx) }()
	streamstest.Until(t, func() bool {
		return ctx.Err() != nil || number(t, conn, "SELECT count() FROM requests") >= 600
	})
	crash()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// afterCancel lets an insert go through although its context is over: what a
// killed process has sent is on its way.
type afterCancel struct{ *faultyConn }

func (c *afterCancel) PrepareBatch(ctx context.Context, query string, opts ...driver.PrepareBatchOption) (driver.Batch, error) {
	return c.faultyConn.PrepareBatch(context.WithoutCancel(ctx), query, opts...)
}

// nextBucket waits until the stream's clock is in another second.
func nextBucket(t *testing.T) {
	t.Helper()
	now := bucketOf(time.Now()) // the embedded server's clock is this one
	streamstest.Until(t, func() bool { return !bucketOf(time.Now()).Equal(now) })
}

// TestKill: analytics as a process of its own, killed again and again while
// requests come in.
func TestKill(t *testing.T) {
	conn, dsn := openTables(t)
	url, js := startNATS(t)
	const requests = 900
	messages := requestsOf(t, "q", requests, 8)
	var published atomic.Bool
	go func() {
		defer published.Store(true)
		for i := 0; i < len(messages); i += 60 {
			publish(t, js, messages[i:min(i+60, len(messages))]...)
			time.Sleep(100 * time.Millisecond) // so that kills fall into every part of it
		}
	}()
	random := rand.New(rand.NewPCG(1, 2))
	for kills := 0; kills < 8 || !published.Load(); kills++ {
		run := startChild(t, url, dsn)
		before := number(t, conn, "SELECT count() FROM requests")
		if random.IntN(2) == 0 { // after it wrote something, or at any time
			streamstest.Until(t, func() bool {
				n := number(t, conn, "SELECT count() FROM requests")
				return n > before || n >= requests
			})
		} else {
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		}
		if err := run.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = run.Wait() // killed
	}
	last := startChild(t, url, dsn)
	untilRows(t, conn, requests)
	if err := last.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = last.Wait()
	checkOnce(t, conn, requests, (requests+requests/10)*8)
}

func startChild(t *testing.T, nats, clickhouse string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childVariable+"="+nats+" "+clickhouse)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // no more than a guard: it is over by then
	return cmd
}

// TestManyRequests takes the size of a whole trace at once.
func TestManyRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("12,000 requests are too many for -short")
	}
	conn, _ := openTables(t)
	_, js := startNATS(t)
	const requests = 12_000
	publish(t, js, requestsOf(t, "q", requests, 8)...)
	started := time.Now()
	running(t, newService(js, conn, 20_000))
	untilRows(t, conn, requests)
	t.Logf("%d requests with 8 candidates each in %v", requests, time.Since(started).Round(time.Millisecond))
	checkOnce(t, conn, requests, (requests+requests/10)*8)
	if n := number(t, conn, "SELECT count() FROM (SELECT DISTINCT stream FROM requests WHERE startsWith(stream, @name))", named("name", "ROUTE@")); n != 1 {
		t.Errorf("%d streams, want 1", n)
	}
}
