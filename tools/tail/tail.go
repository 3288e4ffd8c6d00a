// Package tail prints events as JSON lines, as they come or as they are stored.
package tail

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"warmpath/streams"
	"warmpath/streams/eventjson"
	"warmpath/streams/source"
)

// Command is `warmpath tail`.
type Command struct {
	source.Flags
	Streams []string      `arg:"" optional:"" help:"Streams to print; default ROUTE. A pool's KV events are in KV_<pool>, load reports in LOAD."`
	From    uint64        `help:"First stream sequence to print; 0 starts with what comes next."`
	Since   time.Duration `help:"Start this long ago, such as 10m, instead of at --from."`
	All     bool          `help:"Start with the first event that is stored, and stop at the last."`
	Limit   uint64        `help:"Stop after this many events; 0 means never."`
}

// errLimit ends the command after --limit events.
var errLimit = errors.New("limit reached")

// Run prints until ctx ends, the limit is reached, or, with --all or --data,
// the end of the streams is.
func (c *Command) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *Command) run(ctx context.Context, stdout io.Writer) error {
	opened, err := c.Open("warmpath-tail")
	if err != nil {
		return err
	}
	defer opened.Close()
	if len(c.Streams) == 0 {
		c.Streams = []string{streams.RouteStream}
	}
	out := &printer{w: bufio.NewWriter(stdout), limit: c.Limit}
	group, ctx := errgroup.WithContext(ctx)
	for _, stream := range c.Streams {
		group.Go(func() error { return c.print(ctx, opened, stream, out) })
	}
	err = group.Wait()
	if errors.Is(err, errLimit) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (c *Command) print(ctx context.Context, opened *source.Streams, stream string, out *printer) error {
	stored := c.All || c.Data != ""
	from := c.From
	var err error
	switch {
	case c.Since > 0:
		from, err = opened.At(ctx, stream, time.Now().Add(-c.Since))
	case from == 0 && !stored:
		_, from, err = opened.Bounds(ctx, stream)
		from++
	}
	if err != nil {
		return err
	}
	if stored {
		return opened.Read(ctx, stream, from, 0, out.print)
	}
	return opened.Follow(ctx, stream, from, out.print)
}

// printer writes events as lines. It is safe for concurrent use.
type printer struct {
	mu      sync.Mutex
	w       *bufio.Writer
	limit   uint64
	printed uint64
}

func (p *printer) print(e streams.Event) error {
	line, err := eventjson.Encode(e)
	if err != nil {
		// One event of a newer schema must not hide the others.
		fmt.Fprintln(os.Stderr, "warmpath tail:", err)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit > 0 && p.printed == p.limit {
		return errLimit
	}
	p.printed++
	if err := p.writeLine(line); err != nil {
		return err
	}
	if p.limit > 0 && p.printed == p.limit {
		return errLimit
	}
	return nil
}

func (p *printer) writeLine(line []byte) error {
	if _, err := p.w.Write(append(line, '\n')); err != nil {
		return err
	}
	// A reader at the other end of a pipe wants each event when it comes.
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
