package analytics

import (
	"fmt"
	"time"
)

// bucketWidth is the width of the buckets of stream time that no batch crosses.
// One second gives about one insert a second and table, which is what ClickHouse
// asks for, and bounds how old the newest row is.
const bucketWidth = time.Second

// rowSchema is the version of what a row is made of. It is part of every
// deduplication token, because ClickHouse drops other rows under the same token
// without a word: change it with any change to the content of rows.
const rowSchema = 1

// bucketOf returns the start of the bucket that t lies in.
func bucketOf(t time.Time) time.Time { return t.UTC().Truncate(bucketWidth) }

// token names the rows of a stream from first to last, for deduplication.
func token(stream string, first, last uint64) string {
	return fmt.Sprintf("%s:%d-%d:%d", stream, first, last, rowSchema)
}

// CutConfig bounds a batch.
type CutConfig struct {
	// Rows closes a batch of requests. Default 20,000, of the 10,000 to 100,000
	// that ClickHouse likes.
	Rows int
	// Candidates closes a batch by its rows of candidates. Default 400,000: well
	// under the 1,048,449 rows at which ClickHouse may split an insert.
	Candidates int
}

func (c CutConfig) withDefaults() CutConfig {
	if c.Rows <= 0 {
		c.Rows = 20_000
	}
	if c.Candidates <= 0 {
		c.Candidates = 400_000
	}
	return c
}

// batch is the outcomes of one insert: consecutive, of one bucket of stream time.
type batch struct {
	outcomes   []*outcome
	candidates int
}

func (b *batch) first() uint64 { return b.outcomes[0].seq }
func (b *batch) last() uint64  { return b.outcomes[len(b.outcomes)-1].seq }

// cutter cuts outcomes into batches, by stream content only: a batch ends when it
// is full or when the stream's time enters another bucket, and outcomes of one
// message are never parted. So the cuts after a batch do not depend on anything
// before it, and a restart there cuts the same. Not safe for concurrent use.
type cutter struct {
	cfg     CutConfig
	bucket  time.Time
	pending batch
}

func newCutter(cfg CutConfig) *cutter { return &cutter{cfg: cfg.withDefaults()} }

// apply takes what one message brought about, at its stream time, and returns the
// batch that is closed by it, or nil. It must be called for every message in turn.
func (c *cutter) apply(at time.Time, outcomes []*outcome) *batch {
	var closed *batch
	if bucket := bucketOf(at); !bucket.Equal(c.bucket) {
		closed = c.flush()
		c.bucket = bucket
	}
	if len(outcomes) == 0 {
		return closed
	}
	if closed == nil && (len(c.pending.outcomes) >= c.cfg.Rows || c.pending.candidates >= c.cfg.Candidates) {
		closed = c.flush()
	}
	for _, o := range outcomes {
		c.pending.outcomes = append(c.pending.outcomes, o)
		c.pending.candidates += o.candidateRows()
	}
	return closed
}

// flush closes the pending batch, or returns nil when there is none.
func (c *cutter) flush() *batch {
	if len(c.pending.outcomes) == 0 {
		return nil
	}
	b := c.pending
	c.pending = batch{}
	return &b
}

// due says whether the pending batch may be closed at now although no later
// message came: its bucket is over by more than grace.
func (c *cutter) due(now time.Time, grace time.Duration) bool {
	return len(c.pending.outcomes) > 0 && now.After(c.bucket.Add(bucketWidth+grace))
}
