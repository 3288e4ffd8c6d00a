package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/analytics/report"
	"warmpath/services/simengine"
	"warmpath/streams"
)

const (
	// progressEvery is how often the progress line is written.
	progressEvery = 2 * time.Second
	// outcomesWithin is how long the last outcomes may take into the stream.
	outcomesWithin = 30 * time.Second
	// rowsWithin is how long the last rows may take into ClickHouse.
	rowsWithin = 90 * time.Second
	// quiet is how long the end of the stream must stand still to be the end.
	quiet = 100 * time.Millisecond
)

// run is a replay and its baseline.
type run struct {
	plan           *plan
	house          *house
	main, baseline *outcome // nil until they have run
}

// outcome is what one replay came to.
type outcome struct {
	pool, policy string
	totals       totals
	restarts     int
	expired      int // holds of the model clock
	seconds      float64
	report       *report.Report
	missing      error // what ClickHouse does not hold, or nil
}

// replay replays the trace on a pool and computes its report.
func (r *run) replay(ctx context.Context, p *pool) (*outcome, error) {
	since := time.Now().Truncate(time.Microsecond)
	from, err := streams.LastSeq(ctx, r.house.js, streams.RouteStream)
	if err != nil {
		return nil, err
	}
	d := newDriver(r.plan.trace, p.clock)
	d.client, d.settle, d.prefix = newClient(p.gateway.url, r.plan.Model), p.settle, p.name
	if !r.house.temporary {
		// The streams may hold an earlier run's ids.
		d.prefix += "-" + strconv.FormatInt(since.Unix(), 36)
	}
	p.hooks.set(d.hooks())
	err = r.drive(ctx, d, p)
	p.hooks.set(simengine.Hooks{})
	if err != nil {
		return nil, err
	}
	o := &outcome{
		pool: p.name, policy: p.policy, totals: d.result(), seconds: time.Since(since).Seconds(),
		restarts: p.router.restarted() + p.gateway.restarted() + r.house.analytics.restarted() + r.house.clickhouse.restarted(),
	}
	if d.model != nil {
		o.expired = d.model.Expired()
	}
	return o, r.compute(ctx, o, since, from+1)
}

// drive runs the driver with a line of progress now and then.
func (r *run) drive(ctx context.Context, d *driver, p *pool) error {
	done := make(chan error, 1)
	go func() { done <- d.run(ctx) }()
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			fmt.Fprintf(os.Stderr, "%s: %s\n", p.policy, d.progress())
			return err
		case <-ticker.C:
			fmt.Fprintf(os.Stderr, "%s: %s\n", p.policy, d.progress())
		}
	}
}

// compute counts what was published, waits for ClickHouse to hold it, and
// computes the report.
func (r *run) compute(ctx context.Context, o *outcome, since time.Time, from uint64) error {
	decisions, outcomes, err := r.published(ctx, o, from)
	if err != nil {
		return err
	}
	kv, err := streams.LastSeq(ctx, r.house.js, streams.KVStream(o.pool))
	if err != nil {
		return err
	}
	held, err := r.awaitRows(ctx, o.pool, since, outcomes, kv)
	if err != nil {
		return err
	}
	if held.rows < outcomes || held.kv < kv {
		o.missing = fmt.Errorf("after %v ClickHouse holds %d rows of %d outcomes, and cache activity up to %d of %d; analytics' log ends: %s",
			rowsWithin, held.rows, outcomes, held.kv, kv, tail(r.house.analytics.log))
	}
	if o.report, err = r.house.tables.report(ctx, report.Scope{Pool: o.pool, Since: since}); err != nil {
		return fmt.Errorf("report of %s: %w", o.pool, err)
	}
	o.report.PublishedDecisions, o.report.PublishedOutcomes = &decisions, &outcomes
	return nil
}

// held is how far ClickHouse is: rows of requests, and the cache activity's
// sequence.
type held struct{ rows, kv uint64 }

// awaitRows waits until ClickHouse holds as much as was published, for at most
// rowsWithin, and returns what it holds.
func (r *run) awaitRows(ctx context.Context, pool string, since time.Time, rows, kv uint64) (held, error) {
	deadline := time.Now().Add(rowsWithin)
	for {
		var now held
		err := errors.Join(
			r.house.tables.value(ctx, &now.rows, `SELECT count() FROM requests WHERE pool = ? AND ts >= fromUnixTimestamp64Micro(?)`, pool, since.UnixMicro()),
			r.house.tables.value(ctx, &now.kv, `SELECT max(last_seq) FROM kv_activity WHERE pool = ?`, pool))
		// An error may be a ClickHouse that is being started again.
		if err == nil && now.rows >= rows && now.kv >= kv {
			return now, nil
		}
		if time.Now().After(deadline) {
			return now, err
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return now, err
		}
	}
}

var errEnough = errors.New("read to the end")

// published counts the pool's decisions and outcomes in the stream.
func (r *run) published(ctx context.Context, o *outcome, from uint64) (decisions, outcomes uint64, err error) {
	subject := streams.RouteSubject(o.pool, "gateway")
	deadline := time.Now().Add(outcomesWithin)
	err = streams.Follow(ctx, r.house.js, streams.FollowConfig{
		Stream: streams.RouteStream, From: from, Idle: quiet,
		OnIdle: func() error {
			if outcomes >= uint64(o.totals.Requests) || time.Now().After(deadline) {
				return errEnough
			}
			return nil
		},
	}, func(e streams.Event) error {
		if e.Subject != subject {
			return nil
		}
		m, err := streams.Decode(e.Schema, e.Data)
		if err != nil {
			return fmt.Errorf("decode %s at %d: %w", e.Schema, e.Seq, err)
		}
		switch m.(type) {
		case *pb.Decided:
			decisions++
		case *pb.Finished:
			outcomes++
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		return 0, 0, fmt.Errorf("count published events: %w", err)
	}
	return decisions, outcomes, nil
}

// verify is nil when every request of every replay succeeded and has exactly one
// outcome and one row.
func (r *run) verify() error {
	var wrong []string
	for _, o := range []*outcome{r.main, r.baseline} {
		if o == nil {
			continue
		}
		requests, report := uint64(o.totals.Requests), o.report
		note := func(format string, args ...any) {
			wrong = append(wrong, o.pool+": "+fmt.Sprintf(format, args...))
		}
		if o.missing != nil {
			note("%v", o.missing)
		}
		if o.totals.Failed > 0 || report.Failed > 0 {
			note("%d requests failed for the client, %d by their rows", o.totals.Failed, report.Failed)
		}
		if outcomes := *report.PublishedOutcomes; outcomes != requests || report.Rows != requests || report.RowsDistinct != requests {
			note("%d requests, %d published outcomes, %d rows, %d distinct; all must be equal", requests, outcomes, report.Rows, report.RowsDistinct)
		}
		if o.expired > 0 {
			slog.Warn("the model clock gave up holds", "pool", o.pool, "holds", o.expired)
		}
		if o.totals.UnsettledArrivals > 0 {
			slog.Warn("engines were not settled at some arrivals", "pool", o.pool, "arrivals", o.totals.UnsettledArrivals)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
