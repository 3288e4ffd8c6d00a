package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"warmpath/streams/natsserver"
)

// The bounds of a decision at the rate promised, in milliseconds, and of what a
// gateway adds to a streamed answer.
const (
	maxRouteMedian = 0.5
	maxRouteTail   = 3
	maxAddedTail   = 5
)

// routed is the fleet that is asked about: a million entries at 64 replicas. A
// prompt's first blocks are a system prompt that all hold, then a conversation
// that moved among eight, then what one alone holds.
var routed = shape{replicas: 64, families: 32, chain: 512, common: 128, grouped: 256, groupSize: 8, event: 64}

// The prompt that is asked about: 387 full blocks, of which its owner holds 368.
const (
	routeTokens = 6200
	routeBlock  = 16
	routeHeld   = 5900 / routeBlock
)

// roles are a server, the engines and the gateways: as processes of their own each
// would have as many threads as the machine has processors, for the kernel to share
// these among; in one process of so many a server that compresses a block of its
// stream keeps all others waiting.
const roles = 3

// Route is `warmpath bench route`.
type Route struct {
	JSON        bool          `name:"json" help:"Print a JSON object per line: the machine, then each figure."`
	Quick       bool          `help:"A small fleet and a moment at low rates: shows that everything runs and decides rightly, judges nothing."`
	Rounds      int           `default:"3" help:"Times that floor and router are measured in turns; medians are printed."`
	Length      time.Duration `name:"seconds" default:"10s" help:"How long each is measured in a round."`
	Rate        float64       `default:"1000" help:"Requests a second to the router, whether or not it answers."`
	GatewayRate float64       `default:"200" help:"Streamed requests a second through the gateway, and as many to the engine."`
	Only        []string      `placeholder:"PART" help:"Measure these parts only: decision, gateway."`
	Model       string        `type:"existingdir" placeholder:"DIR" help:"Model directory: print what its template and tokenizer take of such a prompt, too."`
}

// Run measures and prints. It returns an error when a figure misses its bound, or
// when a decision is wrong.
func (c *Route) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *Route) run(ctx context.Context, stdout io.Writer) error {
	if c.Rounds < 1 {
		return fmt.Errorf("--rounds is %d; give at least 1", c.Rounds)
	}
	if c.Rate <= 0 || c.GatewayRate <= 0 {
		return errors.New("a rate is not positive; give --rate and --gateway-rate requests a second")
	}
	b := &bench{quick: c.Quick, rounds: c.Rounds, out: newOutput(stdout, c.JSON)}
	length, rate, gatewayRate := c.Length, c.Rate, c.GatewayRate
	if c.Quick {
		b.rounds, length, rate, gatewayRate = 1, min(length, 500*time.Millisecond), min(rate, 100), min(gatewayRate, 20)
	}
	defer collectLate()()
	if !c.Quick {
		touch()
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(roles * runtime.NumCPU()))
	selected, err := choose(c.Only, []part{
		{"decision", func(b *bench, ctx context.Context) error {
			return b.onServer(func(server *natsserver.Server) error { return b.decisions(ctx, server, rate, length, c.Model) })
		}},
		{"gateway", func(b *bench, ctx context.Context) error {
			return b.onServer(func(server *natsserver.Server) error { return b.overhead(ctx, server, gatewayRate, length) })
		}},
	})
	if err != nil {
		return err
	}
	return b.run(ctx, selected)
}

// choose returns the parts named, or all.
func choose(only []string, parts []part) ([]part, error) {
	if len(only) == 0 {
		return parts, nil
	}
	var selected []part
	names := ""
	for _, p := range parts {
		names += ", " + p.name
	}
	for _, name := range only {
		found := false
		for _, p := range parts {
			if p.name == name {
				found = true
				selected = append(selected, p)
			}
		}
		if !found {
			return nil, fmt.Errorf("--only %s: no such part; there are %s", name, names[2:])
		}
	}
	return selected, nil
}

// onServer runs a server with nothing in it for as long as f takes.
func (b *bench) onServer(f func(*natsserver.Server) error) error {
	dir, err := os.MkdirTemp("", "warmpath-bench-")
	if err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // in a temporary directory
	return serve(dir, f)
}

// decisions measures a request from the moment when its gateway has it until it has
// the decision, and what share of that each step takes; beside it, how much later
// than due the machine let the gateway begin. The floor is a message of the same
// size there and one of the answer's size back, answered at once.
func (b *bench) decisions(ctx context.Context, server *natsserver.Server, rate float64, length time.Duration, model string) error {
	p, err := b.openPool(ctx, server, rate, "http://127.0.0.1:1", nil) // nothing is sent there
	if err != nil {
		return err
	}
	defer p.close()
	e, err := p.echo(ctx)
	if err != nil {
		return err
	}
	defer e.stop()
	var p50, p99, due50, due99, late pair
	var steps stepTimes
	undecided, astray := 0, 0
	for range b.rounds {
		floor, err := e.load(ctx, rate, length)
		if err != nil {
			return err
		}
		got, err := p.load(ctx, rate, length)
		if err != nil {
			return err
		}
		undecided += got.undecided
		astray += got.astray
		p50.add(median(floor.total), median(got.total))
		p99.add(quantile(floor.total, 0.99), quantile(got.total, 0.99))
		due50.add(median(floor.sinceDue), median(got.sinceDue))
		due99.add(quantile(floor.sinceDue, 0.99), quantile(got.sinceDue, 0.99))
		late.values = append(late.values, median(got.late))
		steps.add(floor, got)
	}
	name := fmt.Sprintf("request to decision at %s requests/s, %s tokens, %d replicas, %s entries", short(rate), short(routeTokens), p.replicas, short(float64(p.entries())))
	for _, one := range []struct {
		f     Figure
		limit *bound
	}{
		{p50.figure(name+", p50", "ms"), valueAtMost(maxRouteMedian)},
		{p99.figure(name+", p99", "ms"), valueAtMost(maxRouteTail)},
		{Figure{Name: "requests without a decision", Value: float64(undecided), Unit: "requests"}, valueAtMost(0)},
		{Figure{Name: "requests sent to another replica than the one that holds their prefix", Value: float64(astray), Unit: "requests"}, valueAtMost(0)},
		{late.figure("machine: began later than due, p50", "ms"), nil},
		{due50.figure("machine: the same since the request was due, p50", "ms"), nil},
		{due99.figure("machine: the same since the request was due, p99", "ms"), nil},
	} {
		if err := b.report(one.f, one.limit); err != nil {
			return err
		}
	}
	if err := steps.report(b); err != nil {
		return err
	}
	if err := p.vouch(ctx); err != nil {
		return err
	}
	if model == "" {
		return nil
	}
	return b.promptSteps(model)
}

// promptSteps are what comes before the request where prompts are text: the
// template, and the tokens and keys of a conversation's next turn.
func (b *bench) promptSteps(path string) error {
	l, err := modelSource{modelName(path), path}.load()
	if err != nil {
		return err
	}
	texts, err := ownCorpus()
	if err != nil {
		return err
	}
	v, err := b.conversation(l, texts.chat)
	if err != nil {
		return err
	}
	return b.chat(l, v)
}
