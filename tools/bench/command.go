// Package bench measures what the program promises of its speed and size, each
// figure beside a floor that was measured in the same run.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Command is `warmpath bench`.
type Command struct {
	Index    Index    `cmd:"" help:"Measure the prefix index and a router's cold start; exit 1 when a bound is missed."`
	Ingest   Ingest   `cmd:"" help:"Measure the way of KV events from an engine's socket through a bridge and NATS into an index; exit 1 when a bound is missed."`
	Tokenize Tokenize `cmd:"" help:"Measure text to tokens and keys, and compare tokens with golden ones; exit 1 when a bound is missed or a token differs."`
	Route    Route    `cmd:"" help:"Measure requests to decisions over NATS, and what a gateway adds to a stream; exit 1 when a bound is missed or a decision is wrong."`
}

// Index is `warmpath bench index`.
type Index struct {
	JSON   bool     `name:"json" help:"Print a JSON object per line: the machine, then each figure."`
	Quick  bool     `help:"Small sizes and few rounds: shows that everything runs, judges nothing."`
	Rounds int      `default:"7" help:"Times that floor and index are measured in turns; medians are printed."`
	Only   []string `placeholder:"PART" help:"Measure these parts only: apply, match, busy, memory, clear, snapshot, wide, tiers, cold."`
}

// part is a group of figures that share what they are measured on.
type part struct {
	name    string
	measure func(*bench, context.Context) error
}

// parts are in the order of the index's promises.
var parts = []part{
	{"apply", (*bench).apply},
	{"match", (*bench).match},
	{"busy", (*bench).busy},
	{"memory", (*bench).memory},
	{"clear", (*bench).clear},
	{"snapshot", (*bench).snapshot},
	{"wide", (*bench).wide},
	{"tiers", (*bench).tiers},
	{"cold", (*bench).cold},
}

// bench is one run.
type bench struct {
	quick  bool
	rounds int
	out    *output
	missed []string
}

// Run measures and prints. It returns an error when a figure misses its bound,
// or when the index answers wrongly.
func (c *Index) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *Index) run(ctx context.Context, stdout io.Writer) error {
	selected, err := c.parts()
	if err != nil {
		return err
	}
	if c.Rounds < 1 {
		return fmt.Errorf("--rounds is %d; give at least 1", c.Rounds)
	}
	b := &bench{quick: c.Quick, rounds: c.Rounds, out: newOutput(stdout, c.JSON)}
	if c.Quick {
		b.rounds = min(b.rounds, 2)
	}
	return b.run(ctx, selected)
}

// run measures the parts in order, and judges at the end.
func (b *bench) run(ctx context.Context, selected []part) error {
	m := thisMachine()
	m.Rounds, m.Quick = b.rounds, b.quick
	err := b.out.machine(m)
	for _, p := range selected {
		if err != nil {
			break
		}
		if err = ctx.Err(); err == nil {
			if err = p.measure(b, ctx); err != nil {
				err = fmt.Errorf("measure %s: %w", p.name, err)
			}
		}
	}
	if err = errors.Join(err, b.out.close()); err != nil {
		return err
	}
	if len(b.missed) > 0 {
		return fmt.Errorf("%d bounds missed: %s", len(b.missed), strings.Join(b.missed, "; "))
	}
	return nil
}

// parts are the parts asked for.
func (c *Index) parts() ([]part, error) {
	if len(c.Only) == 0 {
		return parts, nil
	}
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	for _, name := range c.Only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--only %s: no such part; there are %s", name, strings.Join(names, ", "))
		}
	}
	var selected []part
	for _, p := range parts {
		if slices.Contains(c.Only, p.name) {
			selected = append(selected, p)
		}
	}
	return selected, nil
}

// report prints a figure and judges it by its bound, if it has one.
func (b *bench) report(f Figure, limit *bound) error {
	if limit != nil {
		f.Bound = limit.String()
		if !b.quick {
			ok := limit.holds(f)
			f.OK = &ok
		}
	}
	if f.missed() {
		b.missed = append(b.missed, f.Name)
	}
	return b.out.figure(f)
}

// size is the shape to measure on.
func (b *bench) size(s shape) shape {
	if b.quick {
		return s.quick()
	}
	return s
}
