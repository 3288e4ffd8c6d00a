package clickhouse_test

import (
	"encoding/binary"
	"strings"
	"syscall"
	"testing"

	driverpkg "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"warmpath/services/clickhouse"
	"warmpath/services/clickhouse/clickhousetest"
)

const (
	createEvents = `CREATE TABLE events (seq UInt64, day Date, n UInt32) ENGINE = MergeTree
		PARTITION BY day ORDER BY seq SETTINGS non_replicated_deduplication_window = 100`
	createSums = `CREATE TABLE sums (day Date, n SimpleAggregateFunction(sum, UInt64)) ENGINE = AggregatingMergeTree
		ORDER BY day`
	createView = `CREATE MATERIALIZED VIEW sums_view TO sums AS SELECT day, sum(n) AS n FROM events GROUP BY day`
)

// send inserts rows [from, to) of one day or two as one batch with token.
func send(t *testing.T, conn driver.Conn, token string, from, to uint64, days int) {
	t.Helper()
	ctx := driverpkg.Context(testContext(t), driverpkg.WithSettings(driverpkg.Settings{
		"insert_deduplication_token": token, "insert_deduplicate": 1, "async_insert": 0,
	}))
	batch, err := conn.PrepareBatch(ctx, "INSERT INTO events (seq, day, n)")
	if err != nil {
		t.Fatal(err)
	}
	defer batch.Close()
	for seq := from; seq < to; seq++ {
		if err := batch.Append(seq, day(int(seq)%days), uint32(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatal(err)
	}
}

func TestTokenWritesOnce(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	must(t, conn, createEvents)
	for range 3 {
		send(t, conn, "a", 0, 1000, 1)
	}
	if n := count(t, conn, "SELECT count() FROM events"); n != 1000 {
		t.Errorf("three sends of 1000 rows with one token: %d rows", n)
	}
	send(t, conn, "a", 5000, 5100, 1)
	if n := count(t, conn, "SELECT count() FROM events"); n != 1000 {
		t.Errorf("the token alone decides, not the rows: %d rows", n)
	}
	for range 2 {
		send(t, conn, "b", 1000, 2000, 2)
	}
	if n := count(t, conn, "SELECT count() FROM events"); n != 2000 {
		t.Errorf("one token across two partitions: %d rows", n)
	}
	for range 2 {
		send(t, conn, "", 1000, 2000, 2)
	}
	if n := count(t, conn, "SELECT count() FROM events"); n != 3000 {
		t.Errorf("without a token the rows' hash decides, which no batch with a token has left: %d rows", n)
	}
}

func TestTokenAndMaterializedViews(t *testing.T) {
	for name, test := range map[string]struct {
		settings string
		want     uint64
	}{
		"the target has a window of its own": {" SETTINGS non_replicated_deduplication_window = 100", 1000},
		"without one it counts every send":   {"", 3000},
	} {
		t.Run(name, func(t *testing.T) {
			conn, _ := clickhousetest.Open(t)
			must(t, conn, createEvents)
			must(t, conn, createSums+test.settings)
			must(t, conn, createView)
			for range 3 {
				send(t, conn, "a", 0, 1000, 1)
			}
			if n := count(t, conn, "SELECT sum(n) FROM sums"); n != test.want {
				t.Errorf("sum in the view's target is %d, want %d", n, test.want)
			}
		})
	}
}

// An insert that the engine writes as several blocks is still one to its token.
func TestTokenOverManyBlocks(t *testing.T) {
	w := openWeb(t)
	if status, text := w.call("POST", createEvents); status != 200 {
		t.Fatal(text)
	}
	const rows = 2_500_000 // blocks hold about a million
	var data []byte
	for seq := range uint64(rows) {
		data = binary.LittleEndian.AppendUint64(data, seq)
		data = append(data, 0, 0, 1, 0, 0, 0)
	}
	for range 2 {
		status, text := w.call("POST", string(data), "query", "INSERT INTO events (seq, day, n) FORMAT RowBinary",
			"insert_deduplication_token", "big", "async_insert", "0")
		if status != 200 {
			t.Fatal(text)
		}
	}
	if _, text := w.call("POST", "SELECT count(), uniqExact(seq) FROM events"); text != "2500000\t2500000\n" {
		t.Errorf("two sends of %d rows with one token: %s", rows, text)
	}
}

// What was acknowledged is there after a restart, and so is the memory of
// tokens: a sender that did not hear of its success may send again.
func TestRestartKeepsRowsAndTokens(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"terminated": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			cfg := clickhouse.EngineConfig{DataDir: t.TempDir()}
			first := startChild(t, cfg)
			conn := first.conn()
			must(t, conn, createEvents)
			must(t, conn, createSums+" SETTINGS non_replicated_deduplication_window = 100")
			must(t, conn, createView)
			send(t, conn, "a", 0, 1000, 1)
			send(t, conn, "b", 1000, 1500, 2)
			if err := first.stop(sig); err != nil && sig == syscall.SIGTERM {
				t.Fatalf("the server did not end well: %v", err)
			}

			conn = startChild(t, cfg).conn()
			if n := count(t, conn, "SELECT count() FROM events"); n != 1500 {
				t.Errorf("%d rows after the restart, want 1500", n)
			}
			send(t, conn, "b", 1000, 1500, 2)
			send(t, conn, "c", 1500, 1600, 1)
			if n := count(t, conn, "SELECT count() FROM events"); n != 1600 {
				t.Errorf("%d rows after the repeated and a new batch, want 1600", n)
			}
			if n := count(t, conn, "SELECT sum(n) FROM sums"); n != 1600 {
				t.Errorf("sum in the view's target is %d, want 1600", n)
			}
		})
	}
}

func TestOneProcessADirectory(t *testing.T) {
	cfg := clickhouse.EngineConfig{DataDir: t.TempDir()}
	startChild(t, cfg)
	second := childCommand(t, cfg, "")
	output, err := second.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "does another process have this directory open?") {
		t.Fatalf("a second process on the directory: %v: %s", err, output)
	}
}
