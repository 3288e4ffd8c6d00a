// Package audit derives recorded decisions again: each choice from its own
// Decided event, and its matches by folding the KV stream up to the position
// that the decision names.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"warmpath/streams"
	"warmpath/streams/source"
)

// Command is `warmpath audit`.
type Command struct {
	source.Flags
	Pool            string `help:"Audit this pool only; default every pool that decided."`
	RouteStream     string `default:"ROUTE" help:"Stream with the decisions, such as a copy of ROUTE."`
	KVStream        string `name:"kv-stream" help:"Stream with the KV events; default KV_<pool>."`
	From            uint64 `help:"First sequence of the route stream to audit."`
	To              uint64 `help:"Last sequence of the route stream to audit; 0 means the newest."`
	Decisions       string `help:"Read the decisions from a file that warmpath tail printed (- for standard input) instead of a stream."`
	AllowUndigested bool   `help:"Pass events that carry no digest, such as those of a publisher that is not Warmpath's."`
	IndexBytes      int64  `name:"index-bytes" default:"0" help:"Limit of the routers' indexes, as their --index-bytes."`
	JSON            bool   `name:"json" help:"Print the result as one JSON object."`
}

// Run audits and prints. It returns an error when any decision differs, or
// cannot be verified.
func (c *Command) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *Command) run(ctx context.Context, stdout io.Writer) error {
	opened, err := c.Open("warmpath-audit")
	if err != nil {
		return err
	}
	defer opened.Close()
	auditor := newAuditor(c.Pool)
	auditor.allowUndigested = c.AllowUndigested
	if err := c.readDecisions(ctx, opened, auditor); err != nil {
		return err
	}
	result, err := auditor.finish(ctx, opened, c.kvStream, c.begin(opened))
	if err != nil {
		return err
	}
	if err := c.print(stdout, result); err != nil {
		return err
	}
	switch {
	case result.Decisions == 0:
		return fmt.Errorf("no decision to audit in %s; check --pool, --from and --to", c.RouteStream)
	case result.Differing > 0:
		return fmt.Errorf("%d recorded events differ from what the streams say", result.Differing)
	case result.Unverifiable > 0:
		return fmt.Errorf("%d decisions cannot be verified: neither the KV events before them nor a snapshot of that time is stored; keep KV_<pool> longer (streams apply)", result.Unverifiable)
	}
	return nil
}

func (c *Command) readDecisions(ctx context.Context, opened *source.Streams, a *auditor) error {
	if c.Decisions != "" {
		return readFile(ctx, c.Decisions, a.add)
	}
	return opened.Read(ctx, c.RouteStream, max(c.From, 1), c.To, a.add)
}

func (c *Command) kvStream(pool string) string {
	if c.KVStream != "" {
		return c.KVStream
	}
	return streams.KVStream(pool)
}

func (c *Command) print(w io.Writer, r *Result) error {
	if c.JSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	for _, d := range r.Differences {
		fmt.Fprintln(w, d)
	}
	if len(r.Differences) == maxDifferences {
		fmt.Fprintln(w, "… and possibly more")
	}
	for _, b := range r.Bases {
		if b.SnapshotSeq > 0 {
			fmt.Fprintf(w, "pool %s: the KV stream's beginning is no longer stored; folded from the snapshot at %d\n", b.Pool, b.SnapshotSeq)
		}
	}
	_, err := fmt.Fprintf(w, "%d decisions: %d recomputed (%d fallbacks), %d matches derived from the KV stream, %d moved, %d finished, %d open, %d decided before the range, %d without digest, %d unverifiable, %d differ\n",
		r.Decisions, r.Recomputed, r.Fallbacks, r.MatchesChecked, r.Moved, r.Finished, r.Open, r.BeforeRange, r.Undigested, r.Unverifiable, r.Differing)
	return err
}
