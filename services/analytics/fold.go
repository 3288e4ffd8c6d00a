package analytics

import (
	"context"
	"log/slog"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// fold is what one stream is folded into: rows of some tables. One goroutine uses it.
type fold interface {
	// apply takes the next event, and writes the batch that it closes.
	apply(ctx context.Context, e streams.Event) error
	// due says whether a batch is open whose bucket was over, by grace, at now.
	due(now time.Time, grace time.Duration) bool
	// flush writes the open batch.
	flush(ctx context.Context) error
}

// routeFold folds ROUTE into requests and candidates.
type routeFold struct {
	sink    *sink
	metrics *metrics
	log     *slog.Logger
	stream  string
	join    *joiner
	cut     *cutter
	counted joinCounts
	// candidatesSeq is the last sequence that candidates held at the start. It can
	// be ahead of requests, whose rows are written after them.
	candidatesSeq    uint64
	outcomes         []*outcome
	requestColumns   []column[requestRow]
	candidateColumns []column[candidateRow]
}

// newRouteFold takes up what ClickHouse holds of the stream, and returns the
// sequence to read from.
func newRouteFold(ctx context.Context, s *Service, conn driver.Conn, stream string) (*routeFold, uint64, error) {
	offset, err := loadRouteOffset(ctx, conn, stream)
	if err != nil {
		return nil, 0, err
	}
	if offset, err = settleRollup(ctx, conn, stream, offset, s.repairAfter); err != nil {
		return nil, 0, err
	}
	repaired, err := repairRollup(ctx, conn, stream, offset)
	if err != nil {
		return nil, 0, err
	}
	if repaired > 0 {
		s.metrics.repaired.Add(float64(repaired))
		s.log.Warn("roll-up was repaired", "stream", stream, "from", offset.rollup+1, "to", offset.requests)
	}
	cfg := s.cfg.Join.withDefaults()
	from := offset.from()
	ended, err := loadEnded(ctx, conn, stream, from-min(from, cfg.Remember))
	if err != nil {
		return nil, 0, err
	}
	s.log.Info("taking up decisions and outcomes", "stream", stream, "from", from,
		"written", offset.requests, "candidates_written", offset.candidates, "ended_known", len(ended))
	return &routeFold{
		sink: s.sink, metrics: s.metrics, log: s.log, stream: stream,
		join: newJoiner(cfg, offset.requests, ended), cut: newCutter(s.cfg.Cut), candidatesSeq: offset.candidates,
		requestColumns: requestColumns(stream), candidateColumns: candidateColumns(stream),
	}, from, nil
}

func (f *routeFold) apply(ctx context.Context, e streams.Event) error {
	event, err := streams.Decode(e.Schema, e.Data)
	if err != nil {
		f.metrics.unreadable.WithLabelValues(e.Stream).Inc()
		f.log.Warn("message was skipped", "stream", e.Stream, "seq", e.Seq, "error", err)
		event = nil
	}
	f.outcomes = f.join.apply(f.outcomes[:0], e.Seq, e.Time, event)
	f.count()
	if b := f.cut.apply(e.Time, f.outcomes); b != nil {
		return f.write(ctx, b)
	}
	return nil
}

func (f *routeFold) due(now time.Time, grace time.Duration) bool { return f.cut.due(now, grace) }

func (f *routeFold) flush(ctx context.Context) error {
	if b := f.cut.flush(); b != nil {
		return f.write(ctx, b)
	}
	return nil
}

// write inserts a batch: candidates, then requests. The order matters: the end of
// requests is the offset, so nothing that it covers can be missing. After a crash
// in between, candidates are ahead by one batch; it is cut again, and candidates
// of sequences that are there are left out. Each insert is one block of one
// partition, so a table never holds a part of one.
func (f *routeFold) write(ctx context.Context, b *batch) error {
	var candidates []candidateRow
	var first, last uint64
	for _, o := range b.outcomes {
		if o.seq <= f.candidatesSeq {
			continue
		}
		if first == 0 {
			first = o.seq
			candidates = make([]candidateRow, 0, b.candidates)
		}
		last = o.seq
		candidates = newCandidateRows(candidates, o)
	}
	if err := insert(ctx, f.sink, "candidates", token(f.stream, first, last), f.candidateColumns, candidates); err != nil {
		return err
	}
	requests := make([]requestRow, len(b.outcomes))
	for i, o := range b.outcomes {
		requests[i] = newRequestRow(o)
	}
	return insert(ctx, f.sink, "requests", token(f.stream, b.first(), b.last()), f.requestColumns, requests)
}

// count moves the join's counts into the metrics.
func (f *routeFold) count() {
	f.metrics.open.Set(float64(len(f.join.open)))
	now := f.join.counts
	if now == f.counted {
		return
	}
	f.metrics.lost.Add(float64(now.lost - f.counted.lost))
	f.metrics.irregular.WithLabelValues("unmatched").Add(float64(now.unmatched - f.counted.unmatched))
	f.metrics.irregular.WithLabelValues("duplicate").Add(float64(now.duplicates - f.counted.duplicates))
	f.metrics.irregular.WithLabelValues("late").Add(float64(now.late - f.counted.late))
	f.counted = now
}

// kvFold folds a pool's KV stream into kv_activity.
type kvFold struct {
	sink     *sink
	metrics  *metrics
	log      *slog.Logger
	stream   string
	activity *activity
	columns  []column[*activityRow]
}

func newKVFold(ctx context.Context, s *Service, conn driver.Conn, stream string) (*kvFold, uint64, error) {
	last, err := loadKVOffset(ctx, conn, stream)
	if err != nil {
		return nil, 0, err
	}
	s.log.Info("taking up cache activity", "stream", stream, "from", last+1)
	return &kvFold{
		sink: s.sink, metrics: s.metrics, log: s.log, stream: stream,
		activity: newActivity(), columns: activityColumns(stream),
	}, last + 1, nil
}

func (f *kvFold) apply(ctx context.Context, e streams.Event) error {
	event, err := streams.Decode(e.Schema, e.Data)
	batch, ok := event.(*pb.KVBatch)
	if err != nil || !ok {
		f.metrics.unreadable.WithLabelValues(e.Stream).Inc()
		f.log.Warn("message was skipped", "stream", e.Stream, "seq", e.Seq, "schema", e.Schema, "error", err)
		batch = nil
	}
	if b := f.activity.apply(e.Seq, e.Time, batch); b != nil {
		return f.write(ctx, b)
	}
	return nil
}

func (f *kvFold) due(now time.Time, grace time.Duration) bool { return f.activity.due(now, grace) }

func (f *kvFold) flush(ctx context.Context) error {
	if b := f.activity.flush(); b != nil {
		return f.write(ctx, b)
	}
	return nil
}

func (f *kvFold) write(ctx context.Context, b *activityBatch) error {
	return insert(ctx, f.sink, "kv_activity", token(f.stream, b.first, b.last), f.columns, b.rows)
}
