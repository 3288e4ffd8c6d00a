package index

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"warmpath/routing/prefix"
)

// DumpCommand is `warmpath index dump`.
type DumpCommand struct {
	Place
	Index   string `default:"snapshot" placeholder:"INDEX" help:"Which: snapshot (the newest), snapshot:SEQ, stream, stream:SEQ, or file:PATH."`
	Replica string `help:"Print this replica's blocks only."`
	Limit   int    `help:"Stop after this many blocks; 0 means never."`
	Raw     string `placeholder:"FILE" help:"Write the snapshot's bytes to FILE instead, for file:FILE later."`
	JSON    bool   `name:"json" help:"Print a JSON object a line."`
}

// block is one line of a dump.
type block struct {
	Replica string `json:"replica"`
	Tier    string `json:"tier"`
	Key     string `json:"key"`
}

func blockOf(e prefix.Entry) block {
	return block{e.Replica, e.Tier.String(), fmt.Sprintf("%016x", e.Key)}
}

// Run prints the blocks by key, then replica, then tier.
func (c *DumpCommand) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *DumpCommand) run(ctx context.Context, stdout io.Writer) error {
	which, err := parseSpec(c.Index)
	if err != nil {
		return err
	}
	o := &opened{place: &c.Place}
	defer o.close()
	x, err := o.load(ctx, which)
	if err != nil {
		return err
	}
	if c.Raw != "" {
		return os.WriteFile(c.Raw, x.AppendSnapshot(nil), 0o600)
	}
	w := bufio.NewWriter(stdout)
	lines := json.NewEncoder(w)
	n := 0
	x.Visit(func(e prefix.Entry) bool {
		if c.Replica != "" && e.Replica != c.Replica {
			return true
		}
		if c.Limit > 0 && n == c.Limit {
			return false
		}
		n++
		b := blockOf(e)
		if c.JSON {
			err = lines.Encode(b)
		} else {
			_, err = fmt.Fprintln(w, b.Key, b.Replica, b.Tier)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	return w.Flush()
}
