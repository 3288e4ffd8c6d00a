package tables_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"warmpath/schemas"
	"warmpath/services/clickhouse/clickhousetest"
	"warmpath/services/clickhouse/tables"
)

func open(t *testing.T) driver.Conn {
	t.Helper()
	conn, _ := clickhousetest.Open(t)
	return conn
}

func files(list ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 0; i < len(list); i += 2 {
		fsys["tables/"+list[i]] = &fstest.MapFile{Data: []byte(list[i+1])}
	}
	return fsys
}

func mustLoad(t *testing.T, list ...string) []tables.Migration {
	t.Helper()
	migrations, err := tables.Load(files(list...), "tables")
	if err != nil {
		t.Fatal(err)
	}
	return migrations
}

var three = []string{
	"0001_a.sql", "-- The first.\nCREATE TABLE a (x UInt64) ENGINE = MergeTree ORDER BY x;\n",
	"0002_b.sql", "CREATE TABLE b (x UInt64) ENGINE = MergeTree ORDER BY x",
	"0003_more.sql", "ALTER TABLE a ADD COLUMN IF NOT EXISTS y String",
}

func TestLoadRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		files []string
		gap   bool
	}{
		"a gap":           {[]string{"0001_a.sql", "x", "0003_c.sql", "x"}, true},
		"no first":        {[]string{"0002_a.sql", "x"}, true},
		"a number twice":  {[]string{"0001_a.sql", "x", "0001_b.sql", "x"}, true},
		"another name":    {[]string{"1_a.sql", "x"}, false},
		"another ending":  {[]string{"0001_a.txt", "x"}, false},
		"a name in Upper": {[]string{"0001_A.sql", "x"}, false},
	} {
		if _, err := tables.Load(files(test.files...), "tables"); err == nil || errors.Is(err, tables.ErrGap) != test.gap {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func names(list []tables.Applied) string {
	var out []string
	for _, a := range list {
		out = append(out, fmt.Sprintf("%04d_%s", a.Version, a.Name))
	}
	return strings.Join(out, " ")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestApplyAndCheck(t *testing.T) {
	conn := open(t)
	ctx := testContext(t)
	all := mustLoad(t, three...)

	lacks, err := tables.CheckList(ctx, conn, all)
	if err != nil || names(lacks) != "0001_a 0002_b 0003_more" {
		t.Fatalf("check of an empty database: %s, %v", names(lacks), err)
	}
	if done, err := tables.ApplyList(ctx, conn, all[:2]); err != nil || names(done) != "0001_a 0002_b" {
		t.Fatalf("the first two: %s, %v", names(done), err)
	}
	if lacks, err = tables.CheckList(ctx, conn, all); err != nil || names(lacks) != "0003_more" {
		t.Errorf("check: %s, %v", names(lacks), err)
	}
	if done, err := tables.ApplyList(ctx, conn, all); err != nil || names(done) != "0003_more" {
		t.Errorf("the rest: %s, %v", names(done), err)
	}
	for range 2 {
		if done, err := tables.ApplyList(ctx, conn, all); err != nil || len(done) != 0 {
			t.Errorf("again: %s, %v", names(done), err)
		}
	}
	// A database ahead of the program serves it still.
	if done, err := tables.ApplyList(ctx, conn, all[:1]); err != nil || len(done) != 0 {
		t.Errorf("by an older program: %s, %v", names(done), err)
	}
}

func TestChangedFileIsRefused(t *testing.T) {
	conn := open(t)
	ctx := testContext(t)
	if _, err := tables.ApplyList(ctx, conn, mustLoad(t, three...)); err != nil {
		t.Fatal(err)
	}
	changed := append([]string{}, three...)
	changed[3] += " -- a note"
	if _, err := tables.ApplyList(ctx, conn, mustLoad(t, changed...)); !errors.Is(err, tables.ErrChanged) || !strings.Contains(err.Error(), "0002_b") {
		t.Errorf("apply: %v", err)
	}
	if _, err := tables.CheckList(ctx, conn, mustLoad(t, changed...)); !errors.Is(err, tables.ErrChanged) {
		t.Errorf("check: %v", err)
	}
}

func TestGapInTheDatabaseIsRefused(t *testing.T) {
	conn := open(t)
	ctx := testContext(t)
	all := mustLoad(t, three...)
	if _, err := tables.ApplyList(ctx, conn, all); err != nil {
		t.Fatal(err)
	}
	if err := conn.Exec(ctx, "ALTER TABLE schema_migrations DELETE WHERE version = 2 SETTINGS mutations_sync = 2"); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.ApplyList(ctx, conn, all); !errors.Is(err, tables.ErrGap) {
		t.Errorf("apply: %v", err)
	}
}

// A statement that fails stops the run; what came before stays, and the next
// run goes on from there.
func TestFailedStatement(t *testing.T) {
	conn := open(t)
	ctx := testContext(t)
	broken := mustLoad(t, three[0], three[1], "0002_b.sql", "CREATE TABLE b (x Nonsense) ENGINE = MergeTree ORDER BY x")
	done, err := tables.ApplyList(ctx, conn, broken)
	if err == nil || names(done) != "0001_a" || !strings.Contains(err.Error(), "0002_b") {
		t.Fatalf("%s, %v", names(done), err)
	}
	if done, err := tables.ApplyList(ctx, conn, mustLoad(t, three...)); err != nil || names(done) != "0002_b 0003_more" {
		t.Errorf("after the repair: %s, %v", names(done), err)
	}
}

// A process that dies between a statement and its record leaves the next one
// something that exists already.
func TestUnrecordedStatement(t *testing.T) {
	conn := open(t)
	ctx := testContext(t)
	all := mustLoad(t, three...)
	if err := conn.Exec(ctx, all[0].Statement()); err != nil {
		t.Fatal(err)
	}
	if done, err := tables.ApplyList(ctx, conn, all); err != nil || len(done) != 3 {
		t.Errorf("%s, %v", names(done), err)
	}
}

func TestApplyByManyAtOnce(t *testing.T) {
	conn := open(t)
	var group errgroup.Group
	for range 6 {
		group.Go(func() error {
			_, err := tables.Apply(testContext(t), conn)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if lacks, err := tables.Check(testContext(t), conn); err != nil || len(lacks) > 0 {
		t.Errorf("check: %s, %v", names(lacks), err)
	}
}

// Every table that is fed by inserts keeps a window of tokens: without it a
// repeated insert counts twice there, a materialized view's target included.
func TestEveryTableHasADeduplicationWindow(t *testing.T) {
	conn := open(t)
	ctx := testContext(t)
	done, err := tables.Apply(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := schemas.Tables.ReadDir("tables")
	if err != nil || len(done) != len(entries) {
		t.Errorf("%d migrations of %d files: %v", len(done), len(entries), err)
	}
	for _, table := range query(t, conn, `SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'
		AND name != 'schema_migrations' AND engine_full NOT LIKE '%non_replicated_deduplication_window%'`) {
		t.Errorf("table %s has no non_replicated_deduplication_window", table)
	}
}

func query(t *testing.T, conn driver.Conn, sql string) []string {
	t.Helper()
	rows, err := conn.Query(testContext(t), sql)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestConnection(t *testing.T) {
	for _, bad := range []string{"", "localhost:8123", "ftp://h/d", "http://user:secret@h:port:9/%zz"} {
		if _, err := (tables.Connection{Clickhouse: bad}).Options(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for url, want := range map[string]string{
		"http://127.0.0.1:8123/default":       "http 127.0.0.1:8123 default ",
		"https://u:p@ch.example:8443/fleet":   "http ch.example:8443 fleet u",
		"clickhouse://u:p@ch.example:9000/db": "native ch.example:9000 db u",
	} {
		options, err := (tables.Connection{Clickhouse: url}).Options()
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		got := fmt.Sprint(options.Protocol, " ", options.Addr[0], " ", options.Auth.Database, " ", options.Auth.Username)
		if got != want || options.Settings["async_insert"] != 0 || strings.HasPrefix(url, "https") != (options.TLS != nil) {
			t.Errorf("%s: %s, %v, TLS %v", url, got, options.Settings, options.TLS != nil)
		}
	}
}
