package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"go.uber.org/goleak"

	"warmpath/services/clickhouse/clickhousetest"
	"warmpath/services/clickhouse/tables"
)

var update = flag.Bool("update", false, "rewrite the expected files of testdata")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) driver.Conn {
	t.Helper()
	conn, _ := clickhousetest.Open(t)
	if _, err := tables.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

func exec(t *testing.T, conn driver.Conn, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// insertKnown inserts 100 requests of pool chat: the i-th, from 0, has a prompt of
// 100 tokens, 60 of them from cache when i is even and 10 when it is odd, and a
// TTFT of i+1 ms. r0 got the first 75, r1 the others, r2 none. Beside them: one
// that failed without saying anything, one of another pool, one of yesterday.
func insertKnown(t *testing.T, conn driver.Conn) {
	t.Helper()
	row := func(pool, id, replica, when, prompt, cached, ttft, status, seq, from string) string {
		return `INSERT INTO requests (ts, stream_time, pool, request_id, replica, policy, clock, status, reason, stolen, moves,
			prompt_tokens, cached_tokens, computed_tokens, completion_tokens, prompt_tokens_decided, predicted_cached_tokens, best_cached_tokens, regret_tokens,
			ttft_us, tpot_us, e2e_us, decide_us, wait_us, stream, stream_seq)
			SELECT ` + when + ` AS at, at, '` + pool + `', ` + id + `, ` + replica + `, 'ttft', 'model', '` + status + `',
			if(number % 50 = 0, 'fallback', 'score'), number % 25 = 0, number % 10 = 0,
			` + prompt + `, ` + cached + `, ` + prompt + ` - ` + cached + `, 7, ` + prompt + `, 48, 64, 16,
			` + ttft + `, ` + ttft + ` / 10, ` + ttft + ` * 2, number + 1, number + 101, 'ROUTE@test', ` + seq + ` FROM ` + from
	}
	now, even := "now64(6, 'UTC')", "if(number % 2 = 0, 60, 10)"
	exec(t, conn,
		row("chat", "'q' || toString(number)", "if(number < 75, 'r0', 'r1')", now, "100", even, "(number + 1) * 1000", "ok", "number + 1", "numbers(100)"),
		row("chat", "'failed'", "'r1'", now, "1000", "NULL", "NULL", "upstream_error", "200", "numbers(1, 1)"),
		row("other", "'q0'", "'r9'", now, "100", "100", "5", "ok", "201", "numbers(1, 1)"),
		row("chat", "'yesterday'", "'r9'", "now64(6, 'UTC') - INTERVAL 1 DAY", "100", "100", "5", "ok", "202", "numbers(1, 1)"),
		`INSERT INTO candidates (ts, stream_time, pool, request_id, replica, stream, stream_seq)
			SELECT now64(6, 'UTC') AS at, at, 'chat', 'q0', 'r' || toString(number), 'ROUTE@test', 1 FROM numbers(3)`,
		`INSERT INTO kv_activity (pool, replica, bucket, batches, evicted_blocks, stream, first_seq, last_seq)
			SELECT 'chat', 'r' || toString(number), now('UTC'), 3, 10 * (number + 1), 'KV_chat@test', 1 + 3 * number, 3 + 3 * number FROM numbers(2)`,
		`INSERT INTO kv_activity (pool, replica, bucket, batches, evicted_blocks, stream, first_seq, last_seq)
			SELECT 'other', 'r9', now('UTC'), 3, 1000, 'KV_other@test', 1, 3`)
}

func compute(t *testing.T, conn driver.Conn, scope Scope) *Report {
	t.Helper()
	r, err := Compute(t.Context(), conn, scope)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// golden compares got with a file of testdata.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	file = "testdata/" + file
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs\n--- got\n%s\n--- want\n%s", file, got, want)
	}
}

func asJSON(t *testing.T, r *Report) []byte {
	t.Helper()
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// TestEmpty: nothing is known, and counts are counts.
func TestEmpty(t *testing.T) {
	golden(t, "empty.json", asJSON(t, compute(t, open(t), Scope{})))
}

func TestKnownRows(t *testing.T) {
	conn := open(t)
	insertKnown(t, conn)
	r := compute(t, conn, Scope{Pool: "chat", Since: time.Now().Add(-time.Hour)})
	for _, figure := range []struct {
		name string
		got  *float64
		want float64
	}{
		{"hit rate", r.HitRate, 3500.0 / 10000}, // the failed one said nothing
		{"predicted", r.PredictedHitRate, 101 * 48.0 / 11000},
		{"best", r.BestHitRate, 101 * 64.0 / 11000},
		{"ttft hit p50", r.TTFT.Hit.P50, 51}, {"ttft hit p95", r.TTFT.Hit.P95, 95}, {"ttft hit p99", r.TTFT.Hit.P99, 99},
		{"ttft miss p50", r.TTFT.Miss.P50, 52}, {"ttft miss p95", r.TTFT.Miss.P95, 96}, {"ttft miss p99", r.TTFT.Miss.P99, 100},
		{"tpot p50", r.TPOT.P50, 5.1}, {"e2e p99", r.E2E.P99, 200},
		{"imbalance", r.Imbalance, 4850 / (6500.0 / 3)},
	} {
		if figure.got == nil || *figure.got < figure.want-1e-9 || *figure.got > figure.want+1e-9 {
			t.Errorf("%s is %v, want %v", figure.name, fixed(figure.got, 9), figure.want)
		}
	}
	if r.TTFT.Unknown.P50 != nil {
		t.Error("a class without a first token has a quantile")
	}
	golden(t, "known.json", asJSON(t, r))

	all := compute(t, conn, Scope{})
	if all.Requests != 103 || all.Rows != 103 || *all.Evictions != 1030 || len(all.PerReplica) != 5 {
		t.Errorf("all pools: %d requests, %d evictions, %d replicas; want 103, 1030, 5", all.Requests, *all.Evictions, len(all.PerReplica))
	}
}

// TestDoubleRow: a request written twice is seen, since that is what the figure is for.
func TestDoubleRow(t *testing.T) {
	conn := open(t)
	for range 2 {
		insertKnown(t, conn)
	}
	if r := compute(t, conn, Scope{}); r.Rows != 206 || r.RowsDistinct != 103 || r.Requests != 103 {
		t.Errorf("rows %d, distinct %d, requests %d; want 206, 103, 103", r.Rows, r.RowsDistinct, r.Requests)
	}
}

func TestTable(t *testing.T) {
	conn := open(t)
	insertKnown(t, conn)
	r := compute(t, conn, Scope{Pool: "chat", Since: time.Now().Add(-time.Hour)})
	r.PublishedDecisions, r.PublishedOutcomes = new(uint64(102)), new(uint64(101))
	baseline := *r
	baseline.Policies, baseline.HitRate, baseline.CachedTokens = []string{"random"}, new(0.1), new(uint64(1000))
	baseline.TTFT.Hit, baseline.Evictions = Quantiles{}, nil
	var both, one, empty bytes.Buffer
	if err := Table(&both, r, &baseline); err != nil {
		t.Fatal(err)
	}
	golden(t, "table_baseline.txt", both.Bytes())
	if err := Table(&one, r, nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", one.Bytes())
	if err := Table(&empty, &Report{}, nil); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(empty.String(), "NaN") || !strings.Contains(empty.String(), "nobody named") {
		t.Errorf("empty report reads\n%s", &empty)
	}
}

// TestStatementsAreSelects: one SELECT a file, with no character that the driver
// would take for a placeholder.
func TestStatementsAreSelects(t *testing.T) {
	files, err := fs.Glob(statements, "sql/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no statements: %v", err)
	}
	for _, file := range files {
		text, err := statements.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(string(text), ";?$") || !strings.Contains(string(text), "\nSELECT") {
			t.Errorf("%s must be one SELECT without ; ? or $", file)
		}
	}
}
