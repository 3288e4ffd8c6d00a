// Package dev runs the whole pipeline in one process tree on loopback: embedded
// NATS and simulated engines in this process, and ClickHouse, router, gateway
// and analytics as children by their real command lines. It replays a trace
// through them and reports, from ClickHouse, what came of it.
package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"warmpath/engine"
	"warmpath/engine/workload"
	"warmpath/routing/policy"
	"warmpath/streams"
)

const (
	// speedModel is the --speed of the model clock.
	speedModel = "model"
	// baselineNone is the --baseline that runs none.
	baselineNone = "none"
	// baselineDefault is what a router without any knowledge does.
	baselineDefault = "random"
	// cacheTokens is the default size of a replica's cache under a recorded trace:
	// the million tokens at which published comparisons of these traces stand.
	cacheTokens = 1 << 20
	// generatedBlocks is the default under generated traffic: the live conversations
	// fit the fleet when each is in one place, as on the recorded ones.
	generatedBlocks = 2048
	// defaultBlockTokens is for a fleet without a trace: vLLM's default.
	defaultBlockTokens = 16
)

// Command is `warmpath dev`.
type Command struct {
	Trace    string `help:"Trace to replay: Mooncake's form, run-length sessions, or chat messages; plain or gzip. With --exit and no trace, traffic is generated." type:"path" placeholder:"FILE"`
	Sessions int    `help:"Take this many sessions of the trace, and run them all at a time (see --users); 0 for all. Of recorded agent sessions those closest to the mean size, so that a few giants do not decide the figures; else the first ones."`
	Requests int    `help:"Take this many requests of the trace; 0 for all."`
	Users    int    `help:"Sessions at a time, where the trace has no arrival times; 0 for all of --sessions, or else 32."`

	Policy   string             `help:"Policy of the router." default:"ttft"`
	Param    map[string]float64 `help:"Policy parameter in place of its default. May be repeated." placeholder:"NAME=VALUE"`
	Baseline string             `help:"Policy to replay the same trace under afterwards, on a fleet of its own; none for none. Default: random with --exit, else none." placeholder:"POLICY"`
	Exit     bool               `help:"Stop when the trace is done: exit 0 if every request succeeded and has exactly one row."`
	JSON     bool               `help:"Print the report as one JSON object." name:"json"`
	Seed     uint64             `help:"Seed of generated traffic, of token ids and of the decisions." default:"1"`

	Pool        string `help:"Name of the pool." default:"demo"`
	Replicas    int    `help:"Simulated engines." default:"8"`
	Blocks      int    `help:"Blocks of KV cache of each engine; 0 for a million tokens, or 2048 blocks under generated traffic."`
	BlockTokens int    `help:"Tokens in a block; 0 for the trace's."`
	Model       string `help:"Model that the engines are modelled after." default:"llama-3-70b"`
	GPU         string `help:"GPU that the engines are modelled after; 4xh100 for several." default:"h100" name:"gpu"`
	Speed       string `help:"Clock of engines and arrivals: model (durations are true to the modelled engines, and a run is as fast as this machine), or a number of times the wall clock." default:"model"`

	Data   string `help:"Directory of streams, tables and logs, kept; by default a temporary one that is removed at the end." type:"path" placeholder:"DIR"`
	Listen listen `embed:"" prefix:"listen-"`
}

// listen are fixed addresses; empty ones are free ports.
type listen struct {
	Gateway    string `help:"Address of the gateway; by default a free port, as for the others." placeholder:"HOST:PORT"`
	Router     string `help:"Address of the router." placeholder:"HOST:PORT"`
	Analytics  string `help:"Address of analytics." placeholder:"HOST:PORT"`
	Clickhouse string `help:"Address of ClickHouse." placeholder:"HOST:PORT"`
	NATS       string `help:"Address of NATS." placeholder:"HOST:PORT" name:"nats"`
}

// Run runs the pipeline until the trace is done or ctx ends.
func (c *Command) Run(ctx context.Context) error {
	plan, err := c.plan()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	house, err := openHouse(ctx, c, plan, cancel)
	if err != nil {
		return causeOf(ctx, err)
	}
	err = causeOf(ctx, c.work(ctx, plan, house))
	house.close(err != nil && !errors.Is(err, context.Canceled))
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted before the trace was done")
	}
	return err
}

// causeOf says why ctx ended, where that is why err is there.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(err, context.Canceled) && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// work replays and reports.
func (c *Command) work(ctx context.Context, plan *plan, house *house) error {
	main, err := house.openPool(ctx, plan, poolPlan{
		name: c.Pool, policy: c.Policy, params: c.Param, gateway: c.Listen.Gateway, router: c.Listen.Router,
	})
	if err != nil {
		return err
	}
	defer func() { main.close() }()
	house.print(os.Stderr, plan, main)
	if plan.trace == nil {
		return stay(ctx)
	}
	began := time.Now()
	run := &run{plan: plan, house: house}
	if run.main, err = run.replay(ctx, main); err != nil {
		return err
	}
	if plan.baseline != "" {
		if c.Exit {
			main.close() // its processes would take this machine's cores
		}
		baseline, err := house.openPool(ctx, plan, poolPlan{name: plan.baselinePool(), policy: plan.baseline})
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		defer func() { baseline.close() }()
		if run.baseline, err = run.replay(ctx, baseline); err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		baseline.close()
	}
	verdict := run.verify()
	if err := run.print(os.Stdout, time.Since(began)); err != nil {
		return err
	}
	if c.Exit {
		return verdict
	}
	if verdict != nil {
		slog.Error("the run does not hold what it should", "reason", verdict)
	}
	house.print(os.Stderr, plan, main)
	return stay(ctx)
}

// stay serves until ctx ends, which is no failure.
func stay(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "serving until interrupted")
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// plan is a command line that was checked, and the trace it is about.
type plan struct {
	*Command
	trace    *workload.Trace // nil without one
	baseline string          // policy; empty for none
	speed    float64         // of the wall clock; 0 for the model clock
}

// baselinePool is the pool of the baseline's fleet.
func (p *plan) baselinePool() string { return p.Pool + "-" + p.baseline }

// pools are the pools of the run.
func (p *plan) pools() []string {
	if p.baseline == "" {
		return []string{p.Pool}
	}
	return []string{p.Pool, p.baselinePool()}
}

// plan checks the command line and reads the trace.
func (c *Command) plan() (*plan, error) {
	p := &plan{Command: c}
	if err := streams.ValidName(c.Pool); err != nil {
		return nil, fmt.Errorf("--pool: %w", err)
	}
	for _, f := range []struct {
		flag     string
		n, least int
	}{{"--replicas", c.Replicas, 1}, {"--blocks", c.Blocks, 0}, {"--block-tokens", c.BlockTokens, 0}, {"--sessions", c.Sessions, 0}, {"--requests", c.Requests, 0}, {"--users", c.Users, 0}} {
		if f.n < f.least {
			return nil, fmt.Errorf("%s is %d; give at least %d", f.flag, f.n, f.least)
		}
	}
	if c.Speed != speedModel {
		speed, err := strconv.ParseFloat(c.Speed, 64)
		if err != nil || !(speed > 0 && speed <= 1000) {
			return nil, fmt.Errorf("--speed is %q; give model, or how many times the wall clock, such as 1 or 10", c.Speed)
		}
		p.speed = speed
	}
	if _, err := policy.Ref(c.Policy, c.Param); err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	if p.baseline = c.Baseline; c.Baseline == "" && c.Exit {
		p.baseline = baselineDefault
	}
	if p.baseline == baselineNone {
		p.baseline = ""
	}
	if p.baseline != "" {
		if _, err := policy.Ref(p.baseline, nil); err != nil {
			return nil, fmt.Errorf("--baseline: %w", err)
		}
	}
	if _, err := engine.Lookup(c.Model, c.GPU); err != nil {
		return nil, err
	}
	return p, p.readTrace()
}

// readTrace reads or makes the trace, and chooses the cache's size by it.
func (p *plan) readTrace() error {
	var err error
	blocks := 0
	switch {
	case p.Trace != "":
		p.trace, err = workload.Open(p.Trace, workload.Options{
			Sessions: p.Sessions, Limit: p.Requests, Seed: p.Seed, BlockTokens: p.BlockTokens, Users: p.Users,
		})
		if err != nil {
			return err
		}
	case p.Exit:
		p.trace = workload.Generator{Seed: p.Seed, Sessions: p.Sessions, BlockTokens: p.BlockTokens}.Generate()
		p.trace.Limit(p.Requests)
		blocks = generatedBlocks
	}
	if p.trace != nil && p.BlockTokens == 0 {
		p.BlockTokens = p.trace.BlockTokens
	}
	p.BlockTokens = cmp.Or(p.BlockTokens, defaultBlockTokens)
	if p.Blocks == 0 {
		p.Blocks = cmp.Or(blocks, cacheTokens/p.BlockTokens)
	}
	return nil
}

// paramFlags are policy parameters as flags, sorted.
func paramFlags(params map[string]float64) []string {
	var flags []string
	for _, name := range slices.Sorted(maps.Keys(params)) {
		flags = append(flags, fmt.Sprintf("--param=%s=%s", name, strconv.FormatFloat(params[name], 'g', -1, 64)))
	}
	return flags
}
