package clickhouse_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	driverpkg "github.com/ClickHouse/clickhouse-go/v2"
	"golang.org/x/sync/errgroup"

	"warmpath/services/clickhouse"
	"warmpath/services/clickhouse/clickhousetest"
	"warmpath/services/clickhouse/tables"
)

func exceptionCode(err error) int {
	var e *driverpkg.Exception
	if errors.As(err, &e) {
		return int(e.Code)
	}
	return 0
}

// web is a plain HTTP client, as curl is, of the test's database.
type web struct {
	t      *testing.T
	base   *url.URL
	client *http.Client
}

func openWeb(t *testing.T) *web {
	_, dsn := clickhousetest.Open(t)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return webTo(t, u.Host, strings.TrimPrefix(u.Path, "/"))
}

func webTo(t *testing.T, address, database string) *web {
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &web{t: t, client: &http.Client{Transport: transport},
		base: &url.URL{Scheme: "http", Host: address, Path: "/", RawQuery: url.Values{"database": {database}}.Encode()}}
}

// call sends body with the URL parameters pairs, and returns status and answer.
func (w *web) call(method, body string, pairs ...string) (int, string) {
	w.t.Helper()
	response := w.do(method, strings.NewReader(body), pairs...)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func (w *web) do(method string, body io.Reader, pairs ...string) *http.Response {
	w.t.Helper()
	request, err := http.NewRequest(method, w.url(pairs...), body)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := w.client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	return response
}

func (w *web) url(pairs ...string) string {
	u, values := *w.base, w.base.Query()
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	u.RawQuery = values.Encode()
	return u.String()
}

func TestPlainHTTP(t *testing.T) {
	w := openWeb(t)
	for _, step := range []struct {
		name, method, body string
		pairs              []string
		status             int
		want               string
	}{
		{"query in the body", "POST", "SELECT 1, 'a'", nil, 200, "1\ta\n"},
		{"query in the URL", "GET", "", []string{"query", "SELECT 2"}, 200, "2\n"},
		{"query in both", "POST", "FROM numbers(2)", []string{"query", "SELECT number"}, 200, "0\n1\n"},
		{"a format in the query", "POST", "SELECT 1 AS x FORMAT JSONEachRow", nil, 200, "{\"x\":1}\n"},
		{"a default format", "POST", "SELECT 1 AS x", []string{"default_format", "CSVWithNames"}, 200, "\"x\"\n1\n"},
		{"a header for more than a block", "POST", "SELECT count() FROM (SELECT * FROM numbers(200000)) FORMAT TSVWithNames", nil, 200, "count()\n200000\n"},
		{"a table", "POST", "CREATE TABLE t (a UInt64, b String DEFAULT 'd') ENGINE = MergeTree ORDER BY a", nil, 200, ""},
		{"values with expressions", "POST", "INSERT INTO t VALUES (1, 'x'), (1 + 1, concat('y', 'z'))", nil, 200, ""},
		{"values in the body", "POST", "(3, 'q')", []string{"query", "INSERT INTO t VALUES"}, 200, ""},
		{"lines in the body", "POST", "{\"a\":4}\n{\"a\":5,\"b\":\"FORMAT CSV\"}\n", []string{"query", "INSERT INTO t (a, b) FORMAT JSONEachRow"}, 200, ""},
		{"query and lines in the body", "POST", "INSERT INTO t FORMAT TSV\n6\tw\n7\tv\n", nil, 200, ""},
		{"insert from select", "POST", "INSERT INTO t SELECT number + 8, 'n' FROM numbers(2)", nil, 200, ""},
		{"settings before the format", "POST", "{\"a\":10}", []string{"query", "INSERT INTO t SETTINGS async_insert = 0 FORMAT JSONEachRow"}, 200, ""},
		{"what they wrote", "POST", "SELECT groupArray((a, b)) FROM (SELECT * FROM t ORDER BY a)", nil, 200,
			"[(1,'x'),(2,'yz'),(3,'q'),(4,'d'),(5,'FORMAT CSV'),(6,'w'),(7,'v'),(8,'n'),(9,'n'),(10,'d')]\n"},
		{"a parameter", "POST", "SELECT {x:UInt8} + 1, {s:String}", []string{"param_x", "4", "param_s", "it's"}, 200, "5\tit\\'s\n"},
		{"a setting", "POST", "SELECT getSetting('max_threads')", []string{"max_threads", "3"}, 200, "3\n"},
		{"a setting is the request's own", "POST", "SELECT getSetting('max_threads') != 3", nil, 200, "1\n"},
		{"SET does not last", "POST", "SET max_threads = 3", nil, 200, ""},
		{"so that", "POST", "SELECT getSetting('max_threads') != 3", nil, 200, "1\n"},
		{"SHOW", "POST", "SHOW TABLES", nil, 200, "t\n"},
		{"EXISTS", "POST", "EXISTS TABLE t", nil, 200, "1\n"},
		{"nothing found", "POST", "SELECT * FROM t WHERE a > 100", nil, 200, ""},

		{"unknown table", "POST", "SELECT * FROM nowhere", nil, 404, "(UNKNOWN_TABLE)"},
		{"unknown database", "POST", "SELECT 1", []string{"database", "nowhere"}, 404, "(UNKNOWN_DATABASE)"},
		{"unknown setting", "POST", "SELECT 1", []string{"no_such_setting", "1"}, 404, "(UNKNOWN_SETTING)"},
		{"a setting's name is a name", "POST", "SELECT 1", []string{"a = 1, b", "1"}, 404, "Unknown setting"},
		{"syntax", "POST", "SELEC 1", nil, 400, "(SYNTAX_ERROR)"},
		{"two statements", "POST", "SELECT 1; SELECT 2", nil, 400, "Multi-statements are not allowed"},
		{"no statement", "POST", " \n", nil, 400, "(SYNTAX_ERROR)"},
		{"GET changes nothing", "GET", "", []string{"query", "DROP TABLE t"}, 403, "(READONLY)"},
		{"GET inserts nothing", "GET", "", []string{"query", "INSERT INTO t VALUES (99, '')"}, 403, "(READONLY)"},
		{"no files are written", "POST", "SELECT 1 INTO OUTFILE '/tmp/x'", nil, 501, "(NOT_IMPLEMENTED)"},
		{"bad data", "POST", "{\"a\":\"x\"}", []string{"query", "INSERT INTO t FORMAT JSONEachRow"}, 400, "Code: "},
		{"unknown column", "POST", "{}", []string{"query", "INSERT INTO t (nope) FORMAT JSONEachRow"}, 500, "(NO_SUCH_COLUMN_IN_TABLE)"},
		{"still as it was", "POST", "SELECT count() FROM t", nil, 200, "10\n"},
	} {
		status, text := w.call(step.method, step.body, step.pairs...)
		if step.status == 200 && (status != 200 || text != step.want) {
			t.Errorf("%s: %d %q, want 200 %q", step.name, status, text, step.want)
		}
		if step.status != 200 && (status != step.status || !strings.Contains(text, step.want) || !strings.Contains(text, "(version ")) {
			t.Errorf("%s: %d %q, want %d with %q", step.name, status, text, step.status, step.want)
		}
	}
}

func TestPingAndHealth(t *testing.T) {
	w := openWeb(t)
	for path, want := range map[string]string{"/ping": "Ok.\n", "/": "Ok.\n", "/health": "ok\n"} {
		response, err := w.client.Get("http://" + w.base.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusOK || string(text) != want {
			t.Errorf("GET %s: %d %q", path, response.StatusCode, text)
		}
	}
	w.call("POST", "SELECT 1")
	response, err := w.client.Get("http://" + w.base.Host + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	for _, name := range []string{"warmpath_clickhouse_query_seconds_count{kind=\"select\"}", "warmpath_clickhouse_running", "warmpath_clickhouse_waiting", "warmpath_clickhouse_inserted_rows_total"} {
		if !strings.Contains(string(text), name) {
			t.Errorf("/metrics lacks %s", name)
		}
	}
}

func TestGzip(t *testing.T) {
	w := openWeb(t)
	request, err := http.NewRequest(http.MethodPost, w.url("enable_http_compression", "1"), strings.NewReader("SELECT number FROM numbers(100000) FORMAT RowBinary"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := w.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	unzipped, err := gzip.NewReader(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(unzipped); err != nil || len(data) != 800000 {
		t.Errorf("%d bytes: %v", len(data), err)
	}
}

// An insert whose sender goes away in the middle leaves nothing behind.
func TestBrokenInsertWritesNothing(t *testing.T) {
	w := openWeb(t)
	if status, text := w.call("POST", "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a"); status != 200 {
		t.Fatal(text)
	}
	for _, size := range []int{1000, 20 << 20} { // within what is gathered first, and beyond
		reader, writer := io.Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url("query", "INSERT INTO t FORMAT TSV"), reader)
		if err != nil {
			t.Fatal(err)
		}
		var sent sync.WaitGroup
		sent.Go(func() {
			_, _ = writer.Write(bytes.Repeat([]byte("1\n"), size/2))
			cancel()
			writer.CloseWithError(errors.New("gone"))
		})
		if response, err := w.client.Do(request); err == nil {
			response.Body.Close()
			t.Error("the broken insert had an answer")
		}
		sent.Wait()
		cancel()
	}
	// The engine is done with it when the next insert, in turn, is.
	if _, text := w.call("POST", "SELECT count() FROM t"); text != "0\n" {
		t.Errorf("rows of a broken insert: %s", text)
	}
}

func TestExceptionsReachTheClient(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	ctx := testContext(t)
	if code := exceptionCode(conn.Exec(ctx, "DROP TABLE nowhere")); code != 60 {
		t.Errorf("an unknown table has code %d", code)
	}
	var n uint64
	if code := exceptionCode(conn.QueryRow(ctx, "SELECT toUInt64(nope)").Scan(&n)); code != 47 {
		t.Errorf("an unknown column has code %d", code)
	}
	bad := driverpkg.Context(ctx, driverpkg.WithSettings(driverpkg.Settings{"no_such_setting": 1}))
	if code := exceptionCode(conn.Exec(bad, "SELECT 1")); code != 115 {
		t.Errorf("an unknown setting has code %d", code)
	}
	if _, err := conn.PrepareBatch(ctx, "INSERT INTO nowhere"); exceptionCode(err) != 60 {
		t.Errorf("a batch for an unknown table: %v", err)
	}
	// One that comes after the answer has begun.
	rows, err := conn.Query(ctx, "SELECT throwIf(number = 3000000) FROM numbers(10000000)")
	for err == nil && rows.Next() {
	}
	if err == nil {
		err = rows.Err()
	}
	if exceptionCode(err) != 395 {
		t.Errorf("an exception in the middle: %v", err)
	}
	if err := conn.Ping(ctx); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	version, err := conn.ServerVersion()
	if err != nil || version.Version.Major < 26 {
		t.Errorf("server version %v: %v", version, err)
	}
}

func TestParametersAndNamedArguments(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	var n uint64
	var s string
	ctx := driverpkg.Context(testContext(t), driverpkg.WithParameters(driverpkg.Parameters{"n": "7", "s": "it's"}))
	if err := conn.QueryRow(ctx, "SELECT {n:UInt64}, {s:String}").Scan(&n, &s); err != nil || n != 7 || s != "it's" {
		t.Errorf("server parameters: %d %q %v", n, s, err)
	}
	if err := conn.QueryRow(testContext(t), "SELECT toUInt64(@n), @s", driverpkg.Named("n", 8), driverpkg.Named("s", "a\\b")).Scan(&n, &s); err != nil || n != 8 || s != "a\\b" {
		t.Errorf("bound arguments: %d %q %v", n, s, err)
	}
}

// A reader that leaves in the middle gives its place back.
func TestAbandonedSelect(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	for range 12 {
		ctx, cancel := context.WithCancel(testContext(t))
		rows, err := conn.Query(ctx, "SELECT number, toString(number) FROM numbers(50000000)")
		if err != nil {
			t.Fatal(err)
		}
		rows.Next()
		cancel()
		rows.Close()
	}
	if err := conn.Ping(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestConcurrentClients(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	must(t, conn, "CREATE TABLE t (worker UInt32, i UInt32) ENGINE = MergeTree ORDER BY (worker, i)")
	const workers, batches, rows = 24, 4, 100
	group, ctx := errgroup.WithContext(testContext(t))
	for worker := range uint32(workers) {
		group.Go(func() error {
			for b := range uint32(batches) {
				batch, err := conn.PrepareBatch(ctx, "INSERT INTO t")
				if err != nil {
					return err
				}
				for i := range uint32(rows) {
					if err := batch.Append(worker, b*rows+i); err != nil {
						return err
					}
				}
				if err := batch.Send(); err != nil {
					return err
				}
				var n uint64
				if err := conn.QueryRow(ctx, "SELECT count() FROM t WHERE worker = ?", worker).Scan(&n); err != nil {
					return err
				}
				if n != uint64(b+1)*rows {
					return fmt.Errorf("worker %d sees %d rows after batch %d", worker, n, b)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := count(t, conn, "SELECT count() FROM t"); n != workers*batches*rows {
		t.Errorf("%d rows", n)
	}
}

// Beyond the places and the queue a query is refused at once, in a form that
// clients understand; those in the queue run.
func TestQueueIsBounded(t *testing.T) {
	server := startChild(t, clickhouse.EngineConfig{DataDir: t.TempDir(), Running: 1, Waiting: 2, Wait: time.Minute})
	w := webTo(t, server.address, "default")
	const calls = 12
	results := make(chan string, calls)
	for range calls {
		go func() {
			response, err := w.client.Post(w.url(), "text/plain", strings.NewReader("SELECT sleep(0.3)"))
			if err != nil {
				results <- err.Error()
				return
			}
			defer response.Body.Close()
			text, _ := io.ReadAll(response.Body)
			results <- fmt.Sprint(response.StatusCode, " ", string(text))
		}()
	}
	ran, refused := 0, 0
	for range calls {
		switch text := <-results; {
		case text == "200 0\n":
			ran++
		case strings.HasPrefix(text, "503 Code: 202. DB::Exception: too many simultaneous queries"):
			refused++
		default:
			t.Error(text)
		}
	}
	if ran < 3 || refused == 0 || ran+refused != calls {
		t.Errorf("%d ran and %d were refused of %d", ran, refused, calls)
	}
}

func TestGuard(t *testing.T) {
	server := startLocked(t, clickhouse.EngineConfig{DataDir: t.TempDir()}, "se:cret")
	conn, err := tables.Connection{Clickhouse: "http://anyone:se%3Acret@" + server.address + "/default"}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Ping(testContext(t)); err != nil {
		t.Errorf("with the password: %v", err)
	}
	if err := server.conn().Ping(testContext(t)); exceptionCode(err) != 516 {
		t.Errorf("without: %v", err)
	}
	w := webTo(t, server.address, "default")
	for name, test := range map[string]struct {
		set    func(r *http.Request)
		status int
	}{
		"the key header":          {func(r *http.Request) { r.Header.Set("X-ClickHouse-Key", "se:cret") }, 200},
		"a wrong key":             {func(r *http.Request) { r.Header.Set("X-ClickHouse-Key", "x") }, 403},
		"no key":                  {func(*http.Request) {}, 403},
		"a page of another site":  {func(r *http.Request) { r.Header.Set("Origin", "http://evil.example"); r.SetBasicAuth("u", "se:cret") }, 403},
		"a name that was rebound": {func(r *http.Request) { r.Host = "evil.example:8123"; r.SetBasicAuth("u", "se:cret") }, 403},
		"localhost":               {func(r *http.Request) { r.Host = "localhost:8123"; r.SetBasicAuth("u", "se:cret") }, 200},
	} {
		request, err := http.NewRequest(http.MethodPost, w.url(), strings.NewReader("SELECT 1"))
		if err != nil {
			t.Fatal(err)
		}
		test.set(request)
		response, err := w.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != test.status {
			t.Errorf("%s: %d, want %d", name, response.StatusCode, test.status)
		}
	}
}
