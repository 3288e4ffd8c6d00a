package analytics

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"warmpath/services/clickhouse/tables"
	"warmpath/services/httpserver"
	"warmpath/streams"
)

// Command is `warmpath analytics`.
type Command struct {
	NATS       streams.Connection `embed:""`
	ClickHouse tables.Connection  `embed:""`

	Pools           []string      `help:"Pools whose cache activity is written; all that exist when none is named." env:"WARMPATH_POOLS"`
	Listen          string        `help:"Address of /health and /metrics." default:"127.0.0.1:7020" env:"WARMPATH_ANALYTICS_LISTEN"`
	NoMigrate       bool          `help:"Do not apply the table migrations at the start."`
	BatchRows       int           `help:"Requests that close a batch before its second is over." default:"20000"`
	BatchCandidates int           `help:"Candidates that close a batch before its second is over." default:"400000"`
	Grace           time.Duration `help:"How long after a second of stream time a quiet stream's batch is written." default:"1s"`
	LostAfter       time.Duration `help:"Stream time without an outcome after which a request is written as lost." default:"1h"`
	MaxOpen         int           `help:"Requests that may wait for an outcome; over it the oldest is written as lost." default:"50000"`
}

// Run writes rows until ctx ends. It waits for ClickHouse and NATS to be there.
func (c *Command) Run(ctx context.Context) error {
	conn, err := c.ClickHouse.Open()
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is pending: inserts are synchronous
	nc, js, err := c.NATS.Connect("warmpath analytics")
	if err != nil {
		return err
	}
	defer nc.Close()

	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	service := New(Config{
		Pools: c.Pools,
		Join:  JoinConfig{LostAfter: c.LostAfter, MaxOpen: c.MaxOpen},
		Cut:   CutConfig{Rows: c.BatchRows, Candidates: c.BatchCandidates},
		Grace: c.Grace,
	}, js, conn, reg)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return httpserver.Run(ctx, c.Listen, httpserver.Mux(reg, service.Ready)) })
	group.Go(func() error {
		if err := c.migrate(ctx, conn); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		return service.Run(ctx)
	})
	return group.Wait()
}

// migrate waits until ClickHouse answers, and applies the migrations that its
// database lacks.
func (c *Command) migrate(ctx context.Context, conn driver.Conn) error {
	for wait := firstRetryWait; ; wait = min(2*wait, lastRetryWait) {
		err := conn.Ping(ctx)
		if err == nil {
			break
		}
		slog.Info("waiting for ClickHouse", "error", err)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	if c.NoMigrate {
		return nil
	}
	applied, err := tables.Apply(ctx, conn)
	if err != nil {
		return fmt.Errorf("apply table migrations: %w", err)
	}
	for _, m := range applied {
		slog.Info("migration was applied", "version", m.Version, "name", m.Name)
	}
	return nil
}
