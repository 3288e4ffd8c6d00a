// Package clickhouse runs the real ClickHouse engine in this process, as the
// shared library libchdb.so, behind ClickHouse's own HTTP interface: the rest
// of the product speaks clickhouse-go, to this one or to a server.
package clickhouse

import (
	"context"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"
)

// Command is `warmpath clickhouse`.
type Command struct {
	Data     string `help:"Directory of the data; made when it does not exist." default:"warmpath-clickhouse" type:"path"`
	Listen   string `help:"Address of the HTTP interface. Who reaches it may do anything, this user's files included: keep it on loopback." default:"127.0.0.1:8123"`
	Password string `help:"Password that clients must give, under any user name; by default none is asked for." env:"WARMPATH_CHDB_PASSWORD"`
	Library  string `help:"Path of libchdb.so; by default the one that --install put into the user's cache." env:"WARMPATH_CHDB_LIB" type:"path"`
	Install  bool   `help:"Install the engine with npm into the user's cache, and exit."`
}

// Run serves until ctx ends. With --install it only installs.
func (c *Command) Run(ctx context.Context) error {
	if c.Install {
		return Install(ctx, slog.Default())
	}
	server, err := New(Config{EngineConfig: EngineConfig{Library: c.Library, DataDir: c.Data}, Listen: c.Listen, Password: c.Password}, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && !isLoopback(host) && c.Password == "" {
		slog.Warn("clickhouse listens beyond loopback, and anyone who reaches it may read and change everything", "listen", c.Listen)
	}
	slog.Info("clickhouse is ready", "address", server.Address(), "version", server.engine.version, "data", server.engine.dataDir)
	return server.Run(ctx)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
