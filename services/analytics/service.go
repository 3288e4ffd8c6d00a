// Package analytics folds the streams into ClickHouse rows, effectively once: a
// row per request out of ROUTE, a row per candidate of each decision, and the
// activity of each replica's cache out of the KV streams.
//
// Rows are written once because batches are cut by stream content only, each is
// inserted under a token of its content, and ClickHouse itself is the offset
// store: a start reads what the tables hold and goes on from there, with the
// joins that were open. One instance writes at a time; a second one that
// overlaps with it cuts the same batches under the same tokens.
package analytics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"warmpath/streams"
)

const (
	// idleAfter is how long no message comes before the end of a bucket is looked
	// for by the clock. Short: it adds to the age of the newest row.
	idleAfter = 200 * time.Millisecond
	// discoverEvery is how often new pools are looked for.
	discoverEvery = 5 * time.Second
	// watchEvery is how often lag and identity of a stream are read.
	watchEvery = 2 * time.Second
	// askTimeout bounds one question to JetStream.
	askTimeout = 5 * time.Second
	// followRetry is the pause before a stream is taken up again after an error.
	followRetry = time.Second
)

// errRecreated ends the following of a stream that was made anew.
var errRecreated = errors.New("stream was made anew")

// Config of a Service. The zero value works.
type Config struct {
	// Pools whose KV streams are followed; empty: all that exist, and new ones.
	Pools []string
	Join  JoinConfig
	Cut   CutConfig
	// Grace is how long after the end of a bucket the last batch of a quiet stream
	// is closed. It must cover the difference between this clock and the server's.
	// Default 1 s.
	Grace time.Duration
	// Log defaults to slog.Default.
	Log *slog.Logger
}

// Service is the analytics service. Make it with New.
type Service struct {
	cfg     Config
	js      jetstream.JetStream
	conn    driver.Conn
	log     *slog.Logger
	metrics *metrics
	sink    *sink
	// repairAfter is how long a roll-up may be behind its table at a start until it
	// is repaired: longer than an insert that is on its way takes.
	repairAfter time.Duration

	mu        sync.Mutex
	following map[string]bool
}

// New returns a service that reads from js and writes to conn, whose database has
// the tables of schemas. Its metrics are registered in reg.
func New(cfg Config, js jetstream.JetStream, conn driver.Conn, reg prometheus.Registerer) *Service {
	if cfg.Grace <= 0 {
		cfg.Grace = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	m := newMetrics(reg)
	return &Service{
		cfg: cfg, js: js, conn: conn, log: cfg.Log, metrics: m,
		sink: newSink(conn, cfg.Log, m), following: make(map[string]bool),
		repairAfter: 5 * time.Second,
	}
}

// Ready is nil while ROUTE is followed and no insert is being retried. Safe for
// concurrent use.
func (s *Service) Ready() error {
	s.mu.Lock()
	following := s.following[streams.RouteStream]
	s.mu.Unlock()
	if !following {
		return fmt.Errorf("stream %s is not followed yet", streams.RouteStream)
	}
	return s.sink.ready()
}

// Run follows the streams until ctx ends, and returns nil then. A batch that is
// open at that time is not written: the next start cuts it as it would have been.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return s.keepFollowing(ctx, streams.RouteStream, func(ctx context.Context, identity string) (fold, uint64, error) {
			return newRouteFold(ctx, s, s.conn, identity)
		})
	})
	kv := func(stream string) {
		group.Go(func() error {
			return s.keepFollowing(ctx, stream, func(ctx context.Context, identity string) (fold, uint64, error) {
				return newKVFold(ctx, s, s.conn, identity)
			})
		})
	}
	if len(s.cfg.Pools) == 0 {
		group.Go(func() error { return s.discover(ctx, kv) })
	}
	for _, pool := range s.cfg.Pools {
		kv(streams.KVStream(pool))
	}
	return group.Wait()
}

// discover calls found once for every stream of KV batches, as they appear.
func (s *Service) discover(ctx context.Context, found func(stream string)) error {
	known := make(map[string]bool)
	for ctx.Err() == nil {
		names, err := s.kvStreams(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("pools cannot be listed; name them by --pools if this user may not list streams", "error", err)
		}
		for _, name := range names {
			if !known[name] {
				known[name] = true
				found(name)
			}
		}
		_ = sleep(ctx, discoverEvery) // the loop's condition sees the end of ctx
	}
	return nil
}

func (s *Service) kvStreams(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	lister := s.js.StreamNames(ctx, jetstream.WithStreamListSubject("kv.>"))
	var names []string
	for name := range lister.Name() {
		if strings.HasPrefix(name, streams.KVStream("")) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if err := lister.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return names, fmt.Errorf("list streams: %w", err)
	}
	return names, nil
}

// startFold takes up a stream by its identity and says where to read from.
type startFold func(ctx context.Context, identity string) (fold, uint64, error)

// keepFollowing follows a stream until ctx ends. After any error it starts again
// from what ClickHouse holds, which is always right.
func (s *Service) keepFollowing(ctx context.Context, stream string, start startFold) error {
	for {
		err := s.follow(ctx, stream, start)
		s.setFollowing(stream, false)
		if ctx.Err() != nil {
			return nil
		}
		s.metrics.restarts.WithLabelValues(stream).Inc()
		s.log.Warn("stream is taken up again", "stream", stream, "error", err)
		if sleep(ctx, followRetry) != nil {
			return nil
		}
	}
}

// follow takes up a stream and folds it until an error or the end of ctx.
func (s *Service) follow(ctx context.Context, stream string, start startFold) error {
	created, _, err := s.look(ctx, stream)
	if err != nil {
		return err
	}
	f, from, err := start(ctx, identity(stream, created))
	if err != nil {
		return err
	}
	// At the head only once every message before from counts as read.
	var position atomic.Uint64
	position.Store(from - 1)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		s.watch(ctx, stream, created, &position, cancel)
	}()
	defer func() {
		cancel(nil)
		<-watching
	}()

	s.setFollowing(stream, true)
	err = streams.Follow(ctx, s.js, streams.FollowConfig{
		Stream: stream,
		From:   from,
		OnHole: func(from, to uint64) {
			s.metrics.holes.WithLabelValues(stream).Add(float64(to - from + 1))
			position.Store(max(position.Load(), to))
		},
		Idle: idleAfter,
		OnIdle: func() error {
			if !f.due(time.Now(), s.cfg.Grace) {
				return nil
			}
			// What is in the stream and not here yet may belong into the batch.
			_, last, err := s.look(ctx, stream)
			if err != nil || last > position.Load() {
				return nil //nolint:nilerr // without an answer the batch stays open until there is one
			}
			return f.flush(ctx)
		},
	}, func(e streams.Event) error {
		if err := f.apply(ctx, e); err != nil {
			return err
		}
		position.Store(e.Seq)
		return nil
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// watch keeps the lag of a stream in the metrics, and calls stop when the stream
// was made anew. It returns at the end of ctx.
func (s *Service) watch(ctx context.Context, stream string, created time.Time, position *atomic.Uint64, stop context.CancelCauseFunc) {
	for {
		now, last, err := s.look(ctx, stream)
		switch {
		case err != nil:
			s.log.Debug("stream could not be looked at", "stream", stream, "error", err)
		case !now.Equal(created):
			stop(errRecreated)
			return
		default:
			at := position.Load()
			s.metrics.position.WithLabelValues(stream).Set(float64(at))
			s.metrics.lag.WithLabelValues(stream).Set(float64(last - min(last, at)))
		}
		if sleep(ctx, watchEvery) != nil {
			return
		}
	}
}

// look returns when a stream was made and its last sequence.
func (s *Service) look(ctx context.Context, stream string) (created time.Time, last uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	handle, err := s.js.Stream(ctx, stream)
	if err != nil {
		return time.Time{}, 0, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	info := handle.CachedInfo() // as of the call before
	return info.Created, info.State.LastSeq, nil
}

// identity names one life of a stream: a stream that is deleted and made anew
// counts from 1 again, and its rows are not those of the old one.
func identity(stream string, created time.Time) string {
	return stream + "@" + created.UTC().Format("20060102T150405.000000Z")
}

func (s *Service) setFollowing(stream string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.following[stream] = on
}
