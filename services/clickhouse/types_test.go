package clickhouse_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	driverpkg "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"

	"warmpath/services/clickhouse/clickhousetest"
	"warmpath/services/clickhouse/tables"
)

func day(i int) time.Time { return time.Date(2026, 11, 1+i, 0, 0, 0, 0, time.UTC) }

// row has a column of every type that the tables use, and of some more.
type row struct {
	U8    uint8             `ch:"u8"`
	U32   uint32            `ch:"u32"`
	U64   uint64            `ch:"u64"`
	I64   int64             `ch:"i64"`
	F64   float64           `ch:"f64"`
	Yes   bool              `ch:"yes"`
	Text  string            `ch:"text"`
	Low   string            `ch:"low"`
	Time  time.Time         `ch:"time"`
	Sec   time.Time         `ch:"sec"`
	Day   time.Time         `ch:"day"`
	Enum  string            `ch:"enum"`
	List  []uint64          `ch:"list"`
	Names []string          `ch:"names"`
	Maybe *uint64           `ch:"maybe"`
	MayS  *string           `ch:"may_s"`
	ID    uuid.UUID         `ch:"id"`
	Map   map[string]uint64 `ch:"map"`
	Fix   string            `ch:"fix"`
}

const createRows = `CREATE TABLE rows (
	u8 UInt8, u32 UInt32 CODEC(T64, ZSTD(1)), u64 UInt64 CODEC(Delta, ZSTD(1)), i64 Int64, f64 Float64, yes Bool,
	text String, low LowCardinality(String), time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)), sec DateTime('UTC'), day Date,
	enum Enum8('unknown' = 0, 'miss' = 1, 'hit' = 2), list Array(UInt64), names Array(LowCardinality(String)),
	maybe Nullable(UInt64), may_s Nullable(String), id UUID, map Map(LowCardinality(String), UInt64), fix FixedString(4),
	doubled UInt64 MATERIALIZED u64 * 2
) ENGINE = MergeTree ORDER BY u64`

func makeRow(i int) row {
	n := uint64(i)
	r := row{
		U8: uint8(i), U32: uint32(i), U64: n, I64: -int64(i), F64: float64(i) / 8, Yes: i%2 == 0,
		Text: fmt.Sprintf("text %d \x00 ü '\\", i), Low: fmt.Sprint("low", i%7),
		Time: time.Date(2026, 11, 29, 1, 2, 3, i%1_000_000*1000, time.UTC), Sec: time.Unix(1_700_000_000+int64(i), 0).UTC(), Day: day(i % 28),
		Enum: []string{"unknown", "miss", "hit"}[i%3], List: make([]uint64, i%4), Names: make([]string, 0, 2),
		ID: uuid.UUID{byte(i), 15: byte(i >> 8)}, Map: map[string]uint64{"a": n}, Fix: fmt.Sprintf("%04d", i%10000),
	}
	for j := range r.List {
		r.List[j] = n + uint64(j)
	}
	if i%5 != 0 {
		s := fmt.Sprint("s", i)
		r.Maybe, r.MayS, r.Names = &n, &s, append(r.Names, "x", r.Low)
	}
	return r
}

// asJSON shows values, not which pointer or slice holds them.
func asJSON(t *testing.T, r row) string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every type comes back as it went, over each compression that clickhouse-go
// has for HTTP.
func TestTypesOverEachCompression(t *testing.T) {
	for name, method := range map[string]driverpkg.CompressionMethod{
		"none": driverpkg.CompressionNone, "lz4": driverpkg.CompressionLZ4, "zstd": driverpkg.CompressionZSTD, "gzip": driverpkg.CompressionGZIP,
	} {
		t.Run(name, func(t *testing.T) {
			_, dsn := clickhousetest.Open(t)
			options, err := driverpkg.ParseDSN(dsn)
			if err != nil {
				t.Fatal(err)
			}
			options.Compression = &driverpkg.Compression{Method: method, Level: 3}
			conn, err := driverpkg.Open(options)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			must(t, conn, createRows)
			const rows = 1000
			batch, err := conn.PrepareBatch(testContext(t), "INSERT INTO rows")
			if err != nil {
				t.Fatal(err)
			}
			defer batch.Close()
			for i := range rows {
				r := makeRow(i)
				if err := batch.AppendStruct(&r); err != nil {
					t.Fatal(err)
				}
			}
			if err := batch.Send(); err != nil {
				t.Fatal(err)
			}
			var got []row
			if err := conn.Select(testContext(t), &got, "SELECT * FROM rows ORDER BY u64"); err != nil {
				t.Fatal(err)
			}
			if len(got) != rows {
				t.Fatalf("%d rows, want %d", len(got), rows)
			}
			for i := range got {
				if want := makeRow(i); asJSON(t, got[i]) != asJSON(t, want) {
					t.Fatalf("row %d:\n got %+v\nwant %+v", i, got[i], want)
				}
			}
			if n := count(t, conn, "SELECT sum(doubled) FROM rows"); n != rows*(rows-1) {
				t.Errorf("the materialized column's sum is %d", n)
			}
		})
	}
}

func TestAggregateStates(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	must(t, conn, `CREATE TABLE raw (minute DateTime('UTC'), us UInt64) ENGINE = MergeTree ORDER BY minute`)
	must(t, conn, `CREATE TABLE rolled (minute DateTime('UTC'), n AggregateFunction(count), q AggregateFunction(quantilesTDigest(0.5, 0.99), UInt64),
		u AggregateFunction(uniq, UInt64)) ENGINE = AggregatingMergeTree ORDER BY minute`)
	must(t, conn, `CREATE MATERIALIZED VIEW roll TO rolled AS SELECT minute, countState() AS n, quantilesTDigestState(0.5, 0.99)(us) AS q, uniqState(us) AS u
		FROM raw GROUP BY minute`)
	for range 2 {
		must(t, conn, "INSERT INTO raw SELECT toDateTime('2026-11-29 00:00:00', 'UTC'), number FROM numbers(1000)")
	}
	var n, distinct uint64
	var quantiles []float32
	err := conn.QueryRow(testContext(t), "SELECT countMerge(n), quantilesTDigestMerge(0.5, 0.99)(q), uniqMerge(u) FROM rolled").Scan(&n, &quantiles, &distinct)
	if err != nil {
		t.Fatal(err)
	}
	if n != 2000 || distinct < 990 || distinct > 1010 || quantiles[0] < 490 || quantiles[0] > 510 || quantiles[1] < 980 {
		t.Errorf("merged states: count %d, distinct %d, quantiles %v", n, distinct, quantiles)
	}
	// A state itself has no form that clickhouse-go can decode: the answer must say so, not break.
	var state string
	err = conn.QueryRow(testContext(t), "SELECT q FROM rolled").Scan(&state)
	if code := exceptionCode(err); code != 50 {
		t.Errorf("a state as a column: %v, want exception 50", err)
	}
}

// A result of many blocks arrives whole and in order.
func TestLargeSelect(t *testing.T) {
	_, dsn := clickhousetest.Open(t)
	conn, err := tables.Connection{Clickhouse: dsn}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const rows = 400_000
	result, err := conn.Query(testContext(t), "SELECT number, toString(number), toLowCardinality(toString(number % 3)), if(number % 2 = 0, number, NULL) FROM numbers(400000)")
	if err != nil {
		t.Fatal(err)
	}
	defer result.Close()
	var want, n uint64
	var text, low string
	var maybe *uint64
	for result.Next() {
		if err := result.Scan(&n, &text, &low, &maybe); err != nil {
			t.Fatal(err)
		}
		if n != want || len(text) == 0 || low[0] != byte('0'+n%3) || (maybe == nil) != (n%2 == 1) {
			t.Fatalf("row %d: %d %q %q %v", want, n, text, low, maybe)
		}
		want++
	}
	if err := result.Err(); err != nil || want != rows {
		t.Fatalf("%d rows, want %d: %v", want, rows, err)
	}
}

// What the server makes of each type for a client of the native protocol is
// what that client decodes, the values checked by the engine itself.
func TestKindsArriveWhole(t *testing.T) {
	conn, _ := clickhousetest.Open(t)
	for _, expression := range []string{
		"toString(number)", "if(number % 3 = 0, NULL, number)", "toLowCardinality(if(number % 3 = 0, NULL, toString(number % 50)))",
		"[toLowCardinality(toString(number % 300)), 'x']", "arrayMap(i -> range(i), range(number % 4))", "map(toLowCardinality(toString(number)), range(number % 5))",
		"toFixedString('abc', 3)", "toDateTime64('2026-01-01 00:00:00', 6, 'UTC') + number", "CAST(number % 2, $$Enum8('a' = 0, 'b' = 1)$$)",
		"tuple(number, toString(number))", "toDecimal64(number, 3)", "[tuple(number, 'x')]", "emptyArrayString()", "toUUID('00000000-0000-0000-0000-000000000001')",
		"toIPv4('127.0.0.1')", "toLowCardinality(number)", "CAST(if(number % 2 = 0, NULL, [1]) IS NULL, 'Bool')",
	} {
		rows, err := conn.Query(testContext(t), "SELECT "+expression+" AS a, number, "+expression+" AS c, toUInt8(7) AS seven FROM numbers(3000) SETTINGS max_block_size = 1000")
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		columns := rows.ColumnTypes()
		a, c := reflect.New(columns[0].ScanType()), reflect.New(columns[2].ScanType())
		var want, number uint64
		var seven uint8
		for rows.Next() {
			if err := rows.Scan(a.Interface(), &number, c.Interface(), &seven); err != nil {
				t.Fatalf("%s: %v", expression, err)
			}
			if number != want || seven != 7 || !reflect.DeepEqual(a.Elem().Interface(), c.Elem().Interface()) {
				t.Fatalf("%s: row %d arrived as %d, %v and %v, %d", expression, want, number, a.Elem(), c.Elem(), seven)
			}
			want++
		}
		if err := rows.Err(); err != nil || want != 3000 {
			t.Errorf("%s: %d rows: %v", expression, want, err)
		}
		rows.Close()
	}
}
