package analytics

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

//go:embed sql/route_offset.sql
var routeOffsetSQL string

//go:embed sql/route_ended.sql
var routeEndedSQL string

//go:embed sql/kv_offset.sql
var kvOffsetSQL string

//go:embed sql/rollup_repair.sql
var rollupRepairSQL string

// routeOffset is what ClickHouse holds of a ROUTE stream. Each table has its own
// end: of a batch whose writing was cut short, candidates may be there and
// requests not.
type routeOffset struct {
	requests, candidates, rollup uint64
	// floor is where the decisions begin that were open after the last row.
	floor uint64
}

// from is the first sequence that must be read.
func (o routeOffset) from() uint64 {
	if o.requests == 0 {
		return 1
	}
	return o.floor
}

func loadRouteOffset(ctx context.Context, conn driver.Conn, stream string) (routeOffset, error) {
	var o routeOffset
	row := conn.QueryRow(ctx, routeOffsetSQL, clickhouse.Named("stream", stream))
	if err := row.Scan(&o.requests, &o.floor, &o.candidates, &o.rollup); err != nil {
		return routeOffset{}, fmt.Errorf("read the offset of %s: %w", stream, err)
	}
	return o, nil
}

// loadEnded returns the requests that have rows from sequence from on.
func loadEnded(ctx context.Context, conn driver.Conn, stream string, from uint64) ([]closedRequest, error) {
	rows, err := conn.Query(ctx, routeEndedSQL, clickhouse.Named("stream", stream), clickhouse.Named("from", from))
	if err != nil {
		return nil, fmt.Errorf("read the ended requests of %s: %w", stream, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err below says what went wrong
	var ended []closedRequest
	for rows.Next() {
		var pool, id string
		var seq uint64
		if err := rows.Scan(&pool, &id, &seq); err != nil {
			return nil, fmt.Errorf("read the ended requests of %s: %w", stream, err)
		}
		ended = append(ended, closedRequest{key: keyOf(pool, id), seq: seq})
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the ended requests of %s: %w", stream, err)
	}
	return ended, nil
}

// repairPoll is how often the roll-up is looked at before it is repaired.
const repairPoll = 100 * time.Millisecond

// settleRollup waits, up to the time given, for a roll-up that is behind its
// table: the last insert of a service that was killed may still be on its way
// into the view. It returns the offset as it is then.
func settleRollup(ctx context.Context, conn driver.Conn, stream string, o routeOffset, within time.Duration) (routeOffset, error) {
	for waited := time.Duration(0); o.rollup < o.requests && waited < within; waited += repairPoll {
		if err := sleep(ctx, repairPoll); err != nil {
			return o, err
		}
		var err error
		if o, err = loadRouteOffset(ctx, conn, stream); err != nil {
			return o, err
		}
	}
	return o, nil
}

// repairRollup adds to the roll-up the rows that requests has and it has not:
// ClickHouse stopped between the two. It returns how many sequences that spans.
func repairRollup(ctx context.Context, conn driver.Conn, stream string, o routeOffset) (uint64, error) {
	if o.rollup >= o.requests {
		return 0, nil
	}
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{
		"insert_deduplicate":         1,
		"insert_deduplication_token": "repair:" + token(stream, o.rollup+1, o.requests),
	}))
	err := conn.Exec(ctx, rollupRepairSQL,
		clickhouse.Named("stream", stream), clickhouse.Named("from", o.rollup), clickhouse.Named("to", o.requests))
	if err != nil {
		return 0, fmt.Errorf("repair the roll-up of %s: %w", stream, err)
	}
	return o.requests - o.rollup, nil
}

// loadKVOffset returns the last sequence of a KV stream that is in kv_activity.
func loadKVOffset(ctx context.Context, conn driver.Conn, stream string) (uint64, error) {
	var last uint64
	if err := conn.QueryRow(ctx, kvOffsetSQL, clickhouse.Named("stream", stream)).Scan(&last); err != nil {
		return 0, fmt.Errorf("read the offset of %s: %w", stream, err)
	}
	return last, nil
}
