// Package source opens recorded streams for the tools that read them: of a
// running server, or of the data folder that a stopped one left.
package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/snapshot"
)

// Flags say where the streams are: embed them in a command's flags.
type Flags struct {
	streams.Connection
	Data string `type:"existingdir" help:"Read the streams that dev left in this data folder, instead of connecting to --nats. No dev may be running on it."`
}

// Streams are opened streams. Close them after use.
type Streams struct {
	js    jetstream.JetStream
	close func()
}

// Open connects, or starts a private server on the data folder. name is how the
// connection is called in the server's lists.
func (f Flags) Open(name string) (*Streams, error) {
	if f.Data == "" {
		nc, js, err := f.Connect(name)
		if err != nil {
			return nil, err
		}
		return &Streams{js: js, close: nc.Close}, nil
	}
	dir := filepath.Join(f.Data, "nats")
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("--data %s: no streams there; give the folder that dev had as --data: %w", f.Data, err)
	}
	// dev runs its server with roles, and so with their account.
	server, err := natsserver.Start(natsserver.Config{StoreDir: dir, Roles: streams.Roles(nil)})
	if err != nil {
		return nil, fmt.Errorf("--data %s: %w", f.Data, err)
	}
	nc, err := server.ClientConn()
	if err != nil {
		server.Shutdown()
		return nil, fmt.Errorf("--data %s: %w", f.Data, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		server.Shutdown()
		return nil, err
	}
	return &Streams{js: js, close: func() { nc.Close(); server.Shutdown() }}, nil
}

// Close ends the connection, and the private server if there is one.
func (s *Streams) Close() { s.close() }

// Bounds returns the first and last sequence a stream holds; last < first when
// it is empty.
func (s *Streams) Bounds(ctx context.Context, stream string) (first, last uint64, err error) {
	info, err := s.js.Stream(ctx, stream)
	if err != nil {
		return 0, 0, fmt.Errorf("stream %s: %w", stream, err)
	}
	first, last = bounds(info.CachedInfo().State)
	return first, last, nil
}

func bounds(state jetstream.StreamState) (first, last uint64) {
	if state.Msgs == 0 {
		return state.LastSeq + 1, state.LastSeq
	}
	return state.FirstSeq, state.LastSeq
}

// Created returns when a stream was made.
func (s *Streams) Created(ctx context.Context, stream string) (time.Time, error) {
	info, err := s.js.Stream(ctx, stream)
	if err != nil {
		return time.Time{}, fmt.Errorf("stream %s: %w", stream, err)
	}
	return info.CachedInfo().Created, nil
}

// Snapshots returns the store of a pool's index snapshots.
func (s *Streams) Snapshots(pool string) (*snapshot.Store, error) {
	return snapshot.NewStore(s.js, pool)
}

// At returns the first sequence stored at or after a time, or last+1 when there
// is none.
func (s *Streams) At(ctx context.Context, stream string, when time.Time) (uint64, error) {
	info, err := s.js.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("stream %s: %w", stream, err)
	}
	first, last := bounds(info.CachedInfo().State)
	var fault error
	n := sort.Search(int(last+1-first), func(i int) bool {
		msg, err := info.GetMsg(ctx, first+uint64(i))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return false // deleted meanwhile, so it was older
		}
		if err != nil {
			fault = err
			return true
		}
		return !msg.Time.Before(when)
	})
	return first + uint64(n), fault
}

// errRead ends Read at its last sequence.
var errRead = errors.New("read to the end")

// Read hands over every event of a stream from one sequence to another,
// inclusive, in order. to = 0 means up to the last there is now.
func (s *Streams) Read(ctx context.Context, stream string, from, to uint64, handle func(streams.Event) error) error {
	first, last, err := s.Bounds(ctx, stream)
	if err != nil {
		return err
	}
	from = max(from, first)
	if to == 0 || to > last {
		to = last
	}
	if from > to {
		return nil
	}
	err = streams.Follow(ctx, s.js, streams.FollowConfig{Stream: stream, From: from}, func(e streams.Event) error {
		if e.Seq <= to {
			if err := handle(e); err != nil {
				return err
			}
		}
		if e.Seq >= to {
			return errRead
		}
		return nil
	})
	if errors.Is(err, errRead) {
		return nil
	}
	return err
}

// Follow hands over every event of a stream from a sequence on, until ctx ends.
func (s *Streams) Follow(ctx context.Context, stream string, from uint64, handle func(streams.Event) error) error {
	return streams.Follow(ctx, s.js, streams.FollowConfig{Stream: stream, From: from}, handle)
}
