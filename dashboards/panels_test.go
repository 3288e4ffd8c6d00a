package dashboards_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"warmpath/services/clickhouse/clickhousetest"
	"warmpath/services/clickhouse/tables"
)

// request is a row of requests, as far as the panels look at it.
type request struct {
	at                         time.Time
	pool, replica, reason      string
	status                     string
	prompt, cached, predicted  uint64
	reported                   bool
	best, ttft, decide, waited uint64
	stolen                     bool
	moves                      uint32
}

const replicas = 4

// traffic makes an hour-independent ten minutes of two pools: conversations
// that grow, most of them back on their replica.
func traffic() []request {
	random := rand.New(rand.NewPCG(1, 2))
	start := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	var all []request
	for i := range 3000 {
		r := request{
			at: start.Add(time.Duration(i) * 200 * time.Millisecond), pool: "demo", replica: fmt.Sprint("engine-", random.IntN(replicas)+1),
			reason: "score", status: "ok", prompt: 1000 + random.Uint64N(8000), reported: true,
			decide: 40 + random.Uint64N(200), moves: 0,
		}
		if i%3 == 0 {
			r.pool, r.replica = "other", fmt.Sprint("gpu-", random.IntN(2)+1)
		}
		if random.IntN(4) > 0 {
			r.cached = (r.prompt * 9 / 10) / 16 * 16
		}
		r.predicted = r.cached
		switch i % 100 {
		case 7:
			r.predicted = 0 // a hit that nobody expected
		case 8:
			r.predicted, r.cached = r.prompt/16*16, 0 // evicted meanwhile
		case 9:
			r.reported, r.cached = false, 0
		}
		r.best = max(r.predicted, r.cached)
		r.stolen = i%50 == 10
		if r.stolen {
			r.reason, r.best = "steal", r.prompt/16*16
		}
		if i%200 == 11 {
			r.moves = 1
		}
		if i%125 == 12 {
			r.reason = "fallback"
		}
		if i%150 == 13 {
			r.status = "upstream_error"
		}
		// 140 GFLOP a token at 2 PFLOP/s is 70 µs a token.
		r.ttft = (r.prompt-r.cached)*70 + random.Uint64N(5000)
		r.waited = r.decide + 150
		all = append(all, r)
	}
	return all
}

func fill(t *testing.T, conn driver.Conn, all []request) {
	t.Helper()
	ctx := context.Background()
	if _, err := tables.Apply(ctx, conn); err != nil {
		t.Fatal(err)
	}
	batch, err := conn.PrepareBatch(ctx, `INSERT INTO requests (ts, stream_time, decided_at, pool, gateway, replica, model, request_id, policy, reason, stolen,
		attempts, moves, status, clock, prompt_tokens, prompt_tokens_decided, completion_tokens, cached_tokens, computed_tokens, predicted_cached_tokens,
		best_cached_tokens, regret_tokens, ttft_us, tpot_us, decide_us, wait_us, index_age_us, stream, stream_seq)`)
	if err != nil {
		t.Fatal(err)
	}
	defer batch.Close()
	for i, r := range all {
		var cached, computed *uint64
		if r.reported {
			left := r.prompt - r.cached
			cached, computed = &r.cached, &left
		}
		if err := batch.Append(r.at, r.at.Add(time.Millisecond), r.at.Add(-time.Second), r.pool, "gateway-1", r.replica, "llama-3-70b", fmt.Sprint("request-", i),
			"ttft", r.reason, r.stolen, uint32(1)+r.moves, r.moves, r.status, "model", r.prompt, r.prompt, uint64(100), cached, computed, r.predicted,
			r.best, r.best-min(r.best, r.predicted), r.ttft, uint64(15000), r.decide, r.waited, int64(1200), "ROUTE", uint64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatal(err)
	}
	kv, err := conn.PrepareBatch(ctx, "INSERT INTO kv_activity (pool, replica, bucket, batches, stored_blocks, evicted_blocks, block_tokens, stream, first_seq, last_seq)")
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	for second := range 600 {
		for replica := range replicas {
			if err := kv.Append("demo", fmt.Sprint("engine-", replica+1), all[0].at.Add(time.Duration(second)*time.Second), uint64(3), uint64(40), uint64(10*replica),
				uint32(16), "KV_demo", uint64(second*3+1), uint64(second*3+3)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := kv.Send(); err != nil {
		t.Fatal(err)
	}
}

// result is a query's answer: names and rows of numbers, text and times.
type result struct {
	columns []string
	rows    [][]any
}

func run(t *testing.T, conn driver.Conn, sql string) result {
	t.Helper()
	rows, err := conn.Query(context.Background(), sql)
	if err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	defer rows.Close()
	r := result{columns: rows.Columns()}
	for rows.Next() {
		values := make([]any, len(r.columns))
		for i, column := range rows.ColumnTypes() {
			values[i] = newValue(t, column)
		}
		if err := rows.Scan(values...); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
		for i := range values {
			values[i] = deref(values[i])
		}
		r.rows = append(r.rows, values)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	return r
}

// number returns a figure by row and column; NaN when it is null.
func (r result) number(t *testing.T, row int, column string) float64 {
	t.Helper()
	i := slices.Index(r.columns, column)
	if i < 0 || row >= len(r.rows) {
		t.Fatalf("no row %d with a column %s: %v, %d rows", row, column, r.columns, len(r.rows))
	}
	if r.rows[row][i] == nil {
		return math.NaN()
	}
	v, ok := r.rows[row][i].(float64)
	if !ok {
		t.Fatalf("column %s holds %T", column, r.rows[row][i])
	}
	return v
}

func (r result) sum(t *testing.T, column string) float64 {
	total := 0.0
	for i := range r.rows {
		if v := r.number(t, i, column); !math.IsNaN(v) {
			total += v
		}
	}
	return total
}

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9+1e-6*math.Abs(want) }

func newValue(t *testing.T, column driver.ColumnType) any {
	t.Helper()
	return reflect.New(column.ScanType()).Interface()
}

// deref makes numbers float64 and null nil, and leaves text and times.
func deref(value any) any {
	v := reflect.ValueOf(value)
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return v.Interface()
}

// figures are what the panels must show, computed from the rows themselves.
type figures struct {
	requests, failed, steals, moves, fallbacks float64
	prompt, reported, cached, predicted        float64
	computed, regret                           float64
	promisedNotFound, foundNotPromised, silent float64
	replicas                                   map[string]bool
}

func figuresOf(all []request, s scope) figures {
	f := figures{replicas: map[string]bool{}}
	one := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	for _, r := range all {
		if len(s.pools) > 0 && !slices.Contains(s.pools, r.pool) || r.at.Before(s.from) || r.at.After(s.to) {
			continue
		}
		f.requests++
		f.failed += one(r.status != "ok")
		f.steals += one(r.stolen)
		f.moves += float64(r.moves)
		f.fallbacks += one(r.reason == "fallback")
		f.prompt += float64(r.prompt)
		f.predicted += float64(r.predicted)
		f.regret += float64(r.best - min(r.best, r.predicted))
		f.replicas[r.replica] = true
		if r.reported {
			f.reported += float64(r.prompt)
			f.cached += float64(r.cached)
			f.computed += float64(r.prompt - r.cached)
		}
		if r.status == "ok" {
			f.promisedNotFound += one(r.reported && r.predicted > 0 && r.cached == 0)
			f.foundNotPromised += one(r.reported && r.predicted == 0 && r.cached > 0)
			f.silent += one(!r.reported)
		}
	}
	return f
}

// expect is a check of one query's answer.
type expect func(t *testing.T, r result, f figures)

func single(column string, want func(f figures) float64) expect {
	return func(t *testing.T, r result, f figures) {
		t.Helper()
		if got := r.number(t, 0, column); len(r.rows) != 1 || len(r.columns) != 1 || !near(got, want(f)) {
			t.Errorf("%s is %v in %d rows of %v, want %v", column, got, len(r.rows), r.columns, want(f))
		}
	}
}

// shares checks that a column holds shares, around want where that is given.
func shares(t *testing.T, r result, column string, want float64) {
	t.Helper()
	var total float64
	for i := range r.rows {
		v := r.number(t, i, column)
		if !(v >= 0 && v <= 1) {
			t.Fatalf("%s is %v in row %d", column, v, i)
		}
		total += v
	}
	if mean := total / float64(len(r.rows)); math.Abs(mean-want) > 0.05 {
		t.Errorf("%s is %v on average, want about %v", column, mean, want)
	}
}

func sums(want map[string]func(f figures) float64) expect {
	return func(t *testing.T, r result, f figures) {
		t.Helper()
		for column, want := range want {
			if got := r.sum(t, column); !near(got, want(f)) {
				t.Errorf("the sum of %s is %v, want %v", column, got, want(f))
			}
		}
	}
}

// percentiles checks that each row's columns ascend, within bounds.
func percentiles(least, most float64, columns ...string) expect {
	return func(t *testing.T, r result, _ figures) {
		t.Helper()
		for i := range r.rows {
			last := least
			for _, column := range columns {
				v := r.number(t, i, column)
				if !(v >= last && v <= most) {
					t.Fatalf("row %d: %s is %v, want between %v and %v", i, column, v, last, most)
				}
				last = v
			}
		}
	}
}

var expects = map[string]expect{
	"hit_rate_total":       single("hit_rate", func(f figures) float64 { return f.cached / f.reported }),
	"predicted_rate_total": single("predicted", func(f figures) float64 { return f.predicted / f.prompt }),
	"requests_total":       single("requests", func(f figures) float64 { return f.requests }),
	"failed_total":         single("failed", func(f figures) float64 { return f.failed / f.requests }),
	"steals_total":         single("stolen", func(f figures) float64 { return f.steals / f.requests }),
	"ttft_gain_total": func(t *testing.T, r result, _ figures) {
		if times := r.number(t, 0, "times"); times < 5 || times > 15 {
			t.Errorf("misses take %v times as long as hits, want about 10", times)
		}
	},
	"hit_rate": func(t *testing.T, r result, f figures) {
		shares(t, r, "actual", f.cached/f.reported)
		shares(t, r, "predicted", f.predicted/f.prompt)
	},
	"hit_rate_by_replica": func(t *testing.T, r result, f figures) {
		shares(t, r, "hit_rate", f.cached/f.reported)
		hasReplicas(t, r, f)
	},
	// A hit computes a tenth of 1,000 to 9,000 tokens at 70 µs, a miss all of them.
	"ttft_hit":         percentiles(3, 75, "p50", "p95", "p99"),
	"ttft_miss":        percentiles(70, 650, "p50", "p95", "p99"),
	"decision_latency": percentiles(40, 400, "p50", "p95", "p99", "waited_p99"),
	"reroutes": sums(map[string]func(f figures) float64{
		"steals": func(f figures) float64 { return f.steals }, "moved": func(f figures) float64 { return f.moves },
		"fallbacks": func(f figures) float64 { return f.fallbacks },
	}),
	"evictions": func(t *testing.T, r result, _ figures) {
		whole := 0
		for i := range r.rows {
			replica, _ := r.rows[i][1].(string)
			got, want := r.number(t, i, "evicted"), 10*float64(replica[len(replica)-1]-'1')
			if near(got, want) {
				whole++
			} else if got > want { // less is an interval that the range cuts
				t.Fatalf("%s evicts %v blocks a second, want %v", replica, got, want)
			}
		}
		if whole < len(r.rows)-replicas {
			t.Errorf("%d of %d intervals have the right rate", whole, len(r.rows))
		}
	},
	"eviction_share": func(t *testing.T, r result, _ figures) {
		for i := range r.rows {
			if got, want := r.number(t, i, "evicted_per_stored"), 0.25*float64(i); !near(got, want) || len(r.rows) != replicas {
				t.Errorf("row %d of %d: %v evicted per stored, want %v", i, len(r.rows), got, want)
			}
		}
	},
	"computed_by_replica": func(t *testing.T, r result, f figures) {
		sums(map[string]func(f figures) float64{"computed": func(f figures) float64 { return f.computed }})(t, r, f)
		hasReplicas(t, r, f)
	},
	"prediction_error": func(t *testing.T, r result, _ figures) {
		shares(t, r, "promised_too_much", 0.01)
		shares(t, r, "promised_too_little", 0.01)
	},
	"mismatch": sums(map[string]func(f figures) float64{
		"promised_not_found": func(f figures) float64 { return f.promisedNotFound },
		"found_not_promised": func(f figures) float64 { return f.foundNotPromised },
		"not_reported":       func(f figures) float64 { return f.silent },
	}),
	"regret": func(t *testing.T, r result, f figures) { shares(t, r, "regret", f.regret/f.prompt) },
	"reasons": func(t *testing.T, r result, f figures) {
		sums(map[string]func(f figures) float64{"decisions": func(f figures) float64 { return f.requests }})(t, r, f)
	},
	"latest_requests": func(t *testing.T, r result, f figures) {
		if len(r.rows) != 200 {
			t.Errorf("%d rows, want 200", len(r.rows))
		}
		for i := 1; i < len(r.rows); i++ {
			if r.rows[i][0].(time.Time).After(r.rows[i-1][0].(time.Time)) {
				t.Fatalf("row %d is later than the one before", i)
			}
		}
		percentiles(0, 700, "ttft_ms")(t, r, f)
	},
}

func hasReplicas(t *testing.T, r result, f figures) {
	t.Helper()
	found := map[string]bool{}
	for _, row := range r.rows {
		found[row[1].(string)] = true
	}
	for replica := range f.replicas {
		if !found[replica] {
			t.Errorf("replica %s is missing", replica)
		}
	}
}

// Every panel's query runs on the real engine, over rows whose figures are
// known, for all pools, for one, and for a part of the time.
func TestPanelsShowWhatIsThere(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	all := traffic()
	fill(t, conn, all)
	start, end := all[0].at, all[0].at.Add(10*time.Minute)
	for name, s := range map[string]scope{
		"all pools":     {from: start, to: end, interval: 30 * time.Second},
		"one pool":      {from: start, to: end, interval: 10 * time.Second, pools: []string{"demo"}},
		"several pools": {from: start, to: end, interval: time.Minute, pools: []string{"demo", "other"}},
		"a part":        {from: start.Add(3 * time.Minute), to: start.Add(8 * time.Minute), interval: 20 * time.Second, pools: []string{"demo"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := figuresOf(all, s)
			for file, sql := range queries(t) {
				check, ok := expects[file]
				if !ok {
					if file != "pools" {
						t.Errorf("%s.sql has no expectation", file)
					}
					continue
				}
				t.Run(file, func(t *testing.T) {
					r := run(t, conn, s.expand(t, sql))
					if len(r.rows) == 0 {
						t.Fatal("no rows")
					}
					plottable(t, file, r, s)
					check(t, r, f)
				})
			}
		})
	}
}

// plottable: a time series has a time in each row, ascending and in range, and
// Grafana can draw no arrays.
func plottable(t *testing.T, file string, r result, s scope) {
	t.Helper()
	for _, row := range r.rows {
		for i, v := range row {
			if k := reflect.ValueOf(v).Kind(); k == reflect.Slice || k == reflect.Map {
				t.Fatalf("column %s of %s is a %T", r.columns[i], file, v)
			}
		}
	}
	if r.columns[0] != "time" {
		return
	}
	last := s.from.Add(-s.interval)
	for i, row := range r.rows {
		at, ok := row[0].(time.Time)
		if !ok || at.Before(last) || at.After(s.to) {
			t.Fatalf("row %d of %s is of %v, after %v", i, file, row[0], last)
		}
		last = at
	}
}

// Before anything has happened, panels are empty or without a value, and no
// query fails.
func TestPanelsOfAnEmptyDatabase(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	if _, err := tables.Apply(context.Background(), conn); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s := scope{from: now.Add(-time.Hour), to: now, interval: time.Minute}
	for file, sql := range queries(t) {
		r := run(t, conn, s.expand(t, sql))
		for i := range r.rows {
			for j, v := range r.rows[i] {
				if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
					t.Errorf("%s: %s is %v", file, r.columns[j], f)
				}
			}
		}
	}
}

func TestPoolVariable(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	all := traffic()
	for i := range all {
		all[i].at = time.Now().Add(-time.Minute)
	}
	fill(t, conn, all)
	r := run(t, conn, queries(t)["pools"])
	if len(r.rows) != 2 || r.rows[0][0] != "demo" || r.rows[1][0] != "other" {
		t.Errorf("pools: %v", r.rows)
	}
}
