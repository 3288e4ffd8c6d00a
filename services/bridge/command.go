package bridge

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/streams"
)

// Command is `warmpath bridge`.
type Command struct {
	Pool        string        `required:"" help:"Pool that the engine belongs to."`
	Replica     string        `required:"" help:"Name of the replica, unique in the pool."`
	Engine      string        `required:"" placeholder:"URL" help:"Base URL at which the bridge reaches the engine's OpenAI API and /metrics."`
	Advertise   string        `placeholder:"URL" help:"Base URL at which gateways reach it; --engine by default."`
	Model       string        `help:"Model as the engine serves it; by default the only one it lists."`
	BlockTokens int           `default:"16" help:"Tokens in a block; the same in a whole pool."`
	Blocks      uint64        `help:"KV blocks of the engine, if known."`
	LoadEvery   time.Duration `default:"200ms" help:"How often the load is looked at; it is published when it changed."`
	Listen      string        `default:"127.0.0.1:7030" help:"Address of /health and /metrics."`

	Connection streams.Connection `embed:""`
}

// Run bridges the engine until ctx ends.
func (c *Command) Run(ctx context.Context) error {
	nc, js, err := c.Connection.Connect("warmpath-bridge-" + c.Replica)
	if err != nil {
		return err
	}
	defer nc.Close()
	bridge, err := New(Config{
		Pool: c.Pool, Replica: c.Replica, Engine: c.Engine, Advertise: c.Advertise, Model: c.Model,
		BlockTokens: c.BlockTokens, Blocks: c.Blocks, LoadEvery: c.LoadEvery, Listen: c.Listen,
	}, js, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	return bridge.Run(ctx)
}
