package router

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"warmpath/routing/policy"
	"warmpath/streams"
)

// Command is the router command: one instance of one pool's router.
type Command struct {
	streams.Connection

	Pool   string             `required:"" env:"WARMPATH_POOL" help:"Pool whose requests are routed."`
	Name   string             `env:"WARMPATH_NAME" help:"This instance, as decisions record it. Default: router-<host>."`
	Listen string             `default:"127.0.0.1:7010" help:"HTTP address: /v1/route, /v1/state, /health, /metrics."`
	Policy string             `default:"ttft" help:"Policy that decides."`
	Param  map[string]float64 `placeholder:"NAME=VALUE" help:"Policy parameter in place of its default. May be repeated."`
	Seed   uint64             `default:"1" help:"Seed of the decisions' randomness."`

	Lease         time.Duration `default:"10m" help:"How long a decision without an outcome counts as in flight."`
	ReportMaxAge  time.Duration `default:"10s" help:"How old a load report may be and still be believed."`
	DispatchGrace time.Duration `default:"50ms" help:"How long after a decision a load report may still not know of its request."`
	PrefillRate   float64       `default:"8000" placeholder:"TOKENS" help:"Prefill tokens a second to assume of a replica of which nothing is known."`
	PredictionTTL time.Duration `name:"prediction-ttl" default:"2m" help:"How long blocks that a decision is about to create count as present when nothing confirms them."`
	RouteTail     uint64        `default:"20000" help:"Newest ROUTE messages read at the start, to learn what is in flight."`
	DeadAfter     time.Duration `default:"15s" help:"Age of its heartbeat above which a replica takes nothing new."`
	ForgetAfter   time.Duration `default:"10m" help:"How long a replica must be gone before its blocks leave the index."`

	IndexBytes     int64         `name:"index-bytes" default:"0" help:"Hard limit of the index's memory, in bytes; 0: none. Over it the deepest blocks go, and audits need the same limit."`
	Snapshots      bool          `default:"true" negatable:"" help:"Write snapshots of the index, in turn with the pool's other routers."`
	SnapshotEvery  time.Duration `default:"5m" help:"Age at which the newest snapshot is replaced."`
	SnapshotEvents uint64        `default:"100000" help:"KV messages after which the newest snapshot is replaced."`
	SnapshotKeep   int           `default:"3" help:"Snapshots to keep."`
}

// Run routes until ctx ends, then answers what it has and returns nil.
func (c *Command) Run(ctx context.Context) error {
	name := c.Name
	if name == "" {
		name = defaultName()
	}
	nc, js, err := c.Connect("warmpath router " + name)
	if err != nil {
		return err
	}
	defer drain(nc)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r, err := New(Config{
		Pool: c.Pool, Name: name, Policy: c.Policy, Params: c.Param, Seed: c.Seed, Listen: c.Listen,
		Ledger: policy.LedgerConfig{
			Lease: c.Lease, ReportMaxAge: c.ReportMaxAge, DispatchGrace: c.DispatchGrace, DefaultPrefillRate: c.PrefillRate,
		},
		PredictionTTL: c.PredictionTTL, RouteTail: c.RouteTail, DeadAfter: c.DeadAfter, ForgetAfter: c.ForgetAfter,
		IndexBytes: c.IndexBytes, NoSnapshots: !c.Snapshots,
		SnapshotEvery: c.SnapshotEvery, SnapshotEvents: c.SnapshotEvents, SnapshotKeep: c.SnapshotKeep,
	}, nc, js, reg)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// defaultName is router-<host>, with what a name may not have replaced.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		return fmt.Sprintf("router-%d", os.Getpid())
	}
	name := []byte("router-" + host)
	for i, b := range name {
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '-', b == '_':
		default:
			name[i] = '-'
		}
	}
	return string(name[:min(len(name), 64)])
}

// drain closes a connection after what is on its way was answered.
func drain(nc *nats.Conn) {
	gone := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(gone) })
	if err := nc.Drain(); err != nil { // not connected: there is nothing to wait for
		nc.Close()
		return
	}
	select {
	case <-gone:
	case <-time.After(stopGrace):
		slog.Warn("nats connection did not drain in time", "grace", stopGrace)
		nc.Close()
	}
}
