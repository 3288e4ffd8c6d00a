package discovery

import (
	"context"
	"errors"
	"slices"
)

// Load is how busy one data-parallel rank is. A figure that the engine does not
// report is nil, which is not zero.
type Load struct {
	Rank int
	// Running and Waiting are requests in the running batch, and accepted before it.
	Running, Waiting *uint32
	// QueuedPrefillTokens are prompt tokens accepted and not yet computed, after
	// prefix reuse. Only SGLang's /v1/loads tells them.
	QueuedPrefillTokens *uint64
	// KVUsed is the share of KV blocks that requests hold, 0 to 1.
	KVUsed *float64
}

// The load figures, as FleetEntry.missing_load spells them.
const (
	FigureRunning = "running"
	FigureWaiting = "waiting"
	FigureKVUsed  = "kv_used"
)

// Missing is a load figure that the engine does not report.
type Missing struct {
	Figure string
	// Why says what was looked for, and what may switch it on.
	Why string
}

// Load reads the load of every rank that the engine tells apart, in the order of
// ranks. An engine of one rank may label its figures with its own rank number, or
// with none, which is rank 0. When the engine has several ranks (by Discover) and
// its figures do not say which, nothing is returned rather than a guess. The error
// is that no page with figures could be read.
func (c *Client) Load(ctx context.Context) ([]Load, error) {
	c.mu.Lock()
	kind, ranks := c.kind, c.ranks
	c.mu.Unlock()
	r := reading{ranks: ranks, kind: kind, loads: map[int]*Load{}, why: map[string]string{}}
	errs := []error{c.readPages(ctx, &r)}
	if !r.complete() || r.kind == SGLang {
		errs = append(errs, c.readLoads(ctx, &r))
	}
	if !r.read {
		return nil, errors.Join(errs...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kind = r.kind
	if !r.idle {
		c.missing = r.missing()
	}
	return r.sorted(), nil
}

// Missing names the figures that the last Load did not find.
func (c *Client) Missing() []Missing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.missing)
}
