package simengine

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/streams"
)

// Command is `warmpath simengine`: one simulated replica on the wall clock.
type Command struct {
	Pool          string  `required:"" help:"Pool that the replica belongs to."`
	Replica       string  `required:"" help:"Name of the replica, unique in the pool."`
	Listen        string  `default:"127.0.0.1:8000" help:"Address of the OpenAI API."`
	Advertise     string  `help:"Base URL under which gateways reach the API; from --listen by default."`
	Model         string  `default:"llama-3-70b" help:"Model: llama-3-8b, llama-3-70b or llama-3-405b."`
	GPU           string  `name:"gpu" default:"h100" help:"GPU: h100, h200, a100 or l40s, or several as in 4xh100."`
	Blocks        int     `help:"KV blocks; by default what fits beside the weights."`
	BlockTokens   int     `default:"16" help:"Tokens in a block; the same in a whole pool."`
	MaxBatch      int     `default:"256" help:"Largest running batch."`
	PrefillBudget int     `default:"8192" help:"Most tokens computed in one step."`
	Speed         float64 `default:"1" help:"How many times as fast as the modelled hardware to run."`
	Seed          uint64  `help:"Varies the generated text."`

	Connection streams.Connection `embed:""`
}

// Run serves the replica until ctx ends.
func (c Command) Run(ctx context.Context) error {
	if !(c.Speed > 0) {
		return fmt.Errorf("--speed %v; give a number above 0", c.Speed)
	}
	nc, js, err := c.Connection.Connect("simengine " + c.Replica)
	if err != nil {
		return err
	}
	defer nc.Close()
	server, err := New(Config{
		Pool: c.Pool, Replica: c.Replica, Listen: c.Listen, Advertise: c.Advertise,
		Model: c.Model, GPU: c.GPU, Blocks: c.Blocks, BlockTokens: c.BlockTokens,
		MaxBatch: c.MaxBatch, PrefillBudget: c.PrefillBudget,
		Clock: NewWallClock(c.Speed), Seed: c.Seed,
	}, nc, js, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	return server.Run(ctx)
}
