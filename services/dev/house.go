package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"warmpath/services/analytics/report"
	"warmpath/services/clickhouse"
	"warmpath/services/clickhouse/tables"
	"warmpath/streams"
	"warmpath/streams/natsserver"
)

// house is what all pools of a run share: data directory, NATS, ClickHouse,
// analytics.
type house struct {
	dir       string
	temporary bool
	nats      *natsserver.Server
	nc        *nats.Conn // as operator
	js        jetstream.JetStream
	children  *supervisor

	restoreLog func()
	natsLog    *os.File
	tables     database

	clickhouse, analytics *component
}

// openHouse starts what is shared. broken is told when a child keeps dying.
func openHouse(ctx context.Context, c *Command, p *plan, broken func(error)) (_ *house, err error) {
	h := &house{}
	defer func() {
		if err != nil {
			h.close(!errors.Is(err, context.Canceled))
		}
	}()
	if _, err := clickhouse.Locate(); errors.Is(err, clickhouse.ErrNotInstalled) {
		err = clickhouse.Install(ctx, slog.Default())
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	if err := h.makeDirectory(c.Data); err != nil {
		return nil, err
	}
	if h.restoreLog, err = splitLog(filepath.Join(h.dir, "log")); err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	h.children = &supervisor{executable: executable, logs: filepath.Join(h.dir, "log"), broken: broken}
	if err := h.startNATS(ctx, c.Listen.NATS, p.pools()); err != nil {
		return nil, err
	}
	return h, h.startServices(ctx, c, p.pools())
}

// makeDirectory makes the data directory, temporary unless dir is given.
func (h *house) makeDirectory(dir string) error {
	var err error
	if h.dir = dir; dir == "" {
		h.temporary = true
		h.dir, err = os.MkdirTemp("", "warmpath-dev-")
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(h.dir, "log"), 0o700)
	}
	if err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	return nil
}

// startNATS starts the server with a user for each role, and applies the topology.
func (h *house) startNATS(ctx context.Context, listen string, pools []string) error {
	var err error
	if h.natsLog, err = os.OpenFile(filepath.Join(h.dir, "log", "nats.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	cfg := natsserver.Config{
		StoreDir: filepath.Join(h.dir, "nats"), Roles: streams.Roles(pools), Log: slog.New(slog.NewTextHandler(h.natsLog, nil)),
	}
	if listen != "" {
		host, port, err := net.SplitHostPort(listen)
		if err == nil {
			cfg.Host = host
			cfg.Port, err = strconv.Atoi(port)
		}
		if err != nil {
			return fmt.Errorf("--listen-nats: %w; give host:port", err)
		}
	}
	if h.nats, err = natsserver.Start(cfg); err != nil {
		return err
	}
	if h.nc, err = h.nats.ClientConn(); err != nil {
		return err
	}
	if h.js, err = jetstream.New(h.nc); err != nil {
		return err
	}
	if _, err := (streams.Topology{Pools: pools}).Apply(ctx, h.js); err != nil {
		return err
	}
	return nil
}

// startServices starts ClickHouse and analytics, and waits for both.
func (h *house) startServices(ctx context.Context, c *Command, pools []string) error {
	table, err := address(c.Listen.Clickhouse)
	if err != nil {
		return err
	}
	writer, err := address(c.Listen.Analytics)
	if err != nil {
		return err
	}
	h.clickhouse = &component{
		name: "clickhouse", url: "http://" + table,
		args: []string{"clickhouse", "--listen=" + table, "--data=" + filepath.Join(h.dir, "clickhouse")},
	}
	tablesURL := "http://" + table + "/default"
	h.analytics = &component{
		name: "analytics", url: "http://" + writer,
		args: []string{"analytics", "--listen=" + writer, "--pools=" + strings.Join(pools, ",")},
		env:  []string{h.natsEnv(streams.RoleAnalytics), "WARMPATH_CLICKHOUSE_URL=" + tablesURL},
	}
	if h.tables, err = openDatabase(tablesURL); err != nil {
		return err
	}
	// Analytics waits for ClickHouse itself, as it does in production.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.children.start(ctx, h.clickhouse) })
	group.Go(func() error { return h.children.start(ctx, h.analytics) })
	return group.Wait()
}

// database is what is asked of ClickHouse here.
type database struct {
	report func(context.Context, report.Scope) (*report.Report, error)
	// value reads the first column of a query's first row.
	value func(ctx context.Context, into any, query string, args ...any) error
	close func() error
}

func openDatabase(url string) (database, error) {
	conn, err := tables.Connection{Clickhouse: url}.Open()
	if err != nil {
		return database{}, err
	}
	return database{
		report: func(ctx context.Context, scope report.Scope) (*report.Report, error) {
			return report.Compute(ctx, conn, scope)
		},
		value: func(ctx context.Context, into any, query string, args ...any) error {
			return conn.QueryRow(ctx, query, args...).Scan(into)
		},
		close: conn.Close,
	}, nil
}

// natsEnv gives a child its user's URL; the environment keeps the password off
// the list of processes.
func (h *house) natsEnv(role string) string { return "WARMPATH_NATS_URL=" + h.nats.URL(role) }

// print says where everything is.
func (h *house) print(w io.Writer, p *plan, pool *pool) {
	clock := "model clock"
	if p.speed > 0 {
		clock = fmt.Sprintf("%g times the wall clock", p.speed)
	}
	fmt.Fprintf(w, "pool %s: %d × %s on %s, %d blocks of %d tokens, policy %s, %s\n",
		pool.name, p.Replicas, p.Model, p.GPU, p.Blocks, p.BlockTokens, pool.policy, clock)
	if p.trace != nil {
		fmt.Fprintf(w, "trace %s\n", p.trace)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range []struct {
		*component
		what string
	}{
		{pool.gateway, "OpenAI API, /metrics"}, {pool.router, "/v1/route, /v1/state, /metrics"},
		{h.analytics, "/metrics"}, {h.clickhouse, "SQL over HTTP"},
	} {
		fmt.Fprintf(t, "  %s\tpid %d\t%s\t%s\n", c.name, c.pid(), c.url, c.what)
	}
	fmt.Fprintf(t, "  nats\tpid %d\t%s\tthis process, with the engines\n", os.Getpid(), h.nats.URL(streams.RoleAuditor))
	fmt.Fprintf(t, "  data\t\t%s\tthe logs are in log/\n", h.dir)
	_ = t.Flush() // a terminal that is gone has no remedy
}

// close stops everything in reverse order and removes a temporary directory,
// all but its logs where something failed.
func (h *house) close(failed bool) {
	if h.children != nil {
		h.children.stop()
	}
	if h.tables.close != nil {
		_ = h.tables.close() // only reads
	}
	if h.nc != nil {
		h.nc.Close()
	}
	if h.nats != nil {
		h.nats.Shutdown()
	}
	if h.natsLog != nil {
		h.natsLog.Close()
	}
	if h.restoreLog != nil {
		h.restoreLog()
	}
	if h.temporary && h.dir != "" {
		h.remove(failed)
	}
}

// remove removes the temporary directory, or all but the logs.
func (h *house) remove(keepLogs bool) {
	remove := []string{h.dir}
	if keepLogs {
		remove = []string{filepath.Join(h.dir, "nats"), filepath.Join(h.dir, "clickhouse")}
		fmt.Fprintln(os.Stderr, "logs are kept in", filepath.Join(h.dir, "log"))
	}
	for _, dir := range remove {
		if err := os.RemoveAll(dir); err != nil {
			slog.Warn("temporary directory was not removed", "error", err)
		}
	}
}
