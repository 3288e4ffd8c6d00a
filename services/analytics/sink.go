package analytics

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Waits between tries of an insert: short at first, because most errors are a
// server that restarts, and never longer than a person waits for a recovery.
const (
	firstRetryWait = 100 * time.Millisecond
	lastRetryWait  = 5 * time.Second
	// insertTimeout bounds one try; its outcome is unknown then and it is sent again.
	insertTimeout = time.Minute
)

// batchPreparer is what a sink needs of a ClickHouse connection.
type batchPreparer interface {
	PrepareBatch(ctx context.Context, query string, opts ...driver.PrepareBatchOption) (driver.Batch, error)
}

// sink inserts batches of rows, each once: what fails or may have failed is sent
// again as it was under the same token, until ClickHouse confirms it or ctx ends.
// Safe for concurrent use.
type sink struct {
	conn    batchPreparer
	log     *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	failing map[string]error // last error by table, of the inserts that are being retried
}

func newSink(conn batchPreparer, log *slog.Logger, m *metrics) *sink {
	return &sink{conn: conn, log: log, metrics: m, failing: make(map[string]error)}
}

// ready is nil unless some insert is being retried.
func (s *sink) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for table, err := range s.failing {
		return fmt.Errorf("insert into %s is being retried: %w", table, err)
	}
	return nil
}

// insert writes rows to table under token. It returns only when they are written,
// or with ctx's error.
func insert[R any](ctx context.Context, s *sink, table, token string, columns []column[R], rows []R) error {
	if len(rows) == 0 {
		return nil
	}
	wait := firstRetryWait
	for try := 1; ; try++ {
		started := time.Now()
		err := insertOnce(ctx, s.conn, table, token, columns, rows)
		s.metrics.insert.WithLabelValues(table).Observe(time.Since(started).Seconds())
		s.note(table, err)
		if err == nil {
			s.metrics.rows.WithLabelValues(table).Add(float64(len(rows)))
			s.metrics.batches.WithLabelValues(table).Inc()
			if try > 1 {
				s.metrics.suspected.WithLabelValues(table).Inc()
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.metrics.retries.WithLabelValues(table).Inc()
		s.log.Warn("insert is sent again", "table", table, "token", token, "rows", len(rows), "try", try, "error", err)
		if err := sleep(ctx, jitter(wait)); err != nil {
			return err
		}
		wait = min(2*wait, lastRetryWait)
	}
}

func (s *sink) note(table string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.failing, table)
		return
	}
	s.failing[table] = err
}

// insertOnce tries once, with a batch of its own: a batch that failed cannot be
// used again.
func insertOnce[R any](ctx context.Context, conn batchPreparer, table, token string, columns []column[R], rows []R) error {
	ctx, cancel := context.WithTimeout(ctx, insertTimeout)
	defer cancel()
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{
		// Asynchronous inserts do not deduplicate by default and mix batches.
		"async_insert":               0,
		"insert_deduplicate":         1,
		"insert_deduplication_token": token,
		// The default today; the roll-up is wrong without it.
		"deduplicate_blocks_in_dependent_materialized_views": 1,
	}))
	b, err := conn.PrepareBatch(ctx, insertStatement(table, columns))
	if err != nil {
		return fmt.Errorf("prepare insert into %s: %w", table, err)
	}
	defer b.Close() //nolint:errcheck // after Send there is nothing left to close, and before it the insert is void
	if err := fill(b, columns, rows); err != nil {
		return fmt.Errorf("fill insert into %s: %w", table, err)
	}
	if err := b.Send(); err != nil {
		return fmt.Errorf("insert into %s: %w", table, err)
	}
	return nil
}

// jitter spreads the tries of several services over the second half of d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sleep waits for d or for the end of ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
