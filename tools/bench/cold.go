package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"warmpath/routing/prefix"
	"warmpath/streams"
	"warmpath/streams/natsserver"
	"warmpath/streams/snapshot"
)

const (
	// maxColdStart is how soon, in seconds, a router must be ready.
	maxColdStart = 5
	// tailEvents is how many batches follow the snapshot in the stream.
	tailEvents = 200_000
	// coldWithin bounds one start, and the making of the stream: far above what
	// either takes, so that a hang is an error.
	coldWithin = 3 * time.Minute
)

// cold measures a router's start from a snapshot and the events after it: the real
// program as a process of its own, the real server, from the start of the process
// until it says that it is ready. The floor only reads those events.
func (b *bench) cold(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "warmpath-bench-")
	if err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // in a temporary directory
	kept := filepath.Join(dir, "kept")
	var past history
	err = serve(kept, func(server *natsserver.Server) error {
		past, err = b.history(ctx, server)
		return err
	})
	if err != nil {
		return err
	}
	var p pair
	for round := range min(b.rounds, 3) {
		// A router that is ready may write a snapshot, from which the next one would
		// start: each round has streams of its own.
		used := filepath.Join(dir, strconv.Itoa(round))
		if err := os.CopyFS(used, os.DirFS(kept)); err != nil {
			return fmt.Errorf("copy the streams: %w", err)
		}
		debug.FreeOSMemory()
		err := serve(used, func(server *natsserver.Server) error {
			read, err := past.read(ctx, server)
			if err != nil {
				return err
			}
			started, err := past.start(ctx, server)
			p.add(read, started)
			return err
		})
		if err := errors.Join(err, os.RemoveAll(used)); err != nil {
			return err
		}
	}
	return b.report(p.figure(fmt.Sprintf("cold start, snapshot and %s events", short(float64(past.last-past.snapshot))), "s"), valueAtMost(maxColdStart))
}

// serve runs a server on a directory for as long as f takes.
func serve(dir string, f func(*natsserver.Server) error) error {
	server, err := natsserver.Start(natsserver.Config{StoreDir: dir})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	return f(server)
}

// history is what a pool's stream holds: last messages, of which the snapshot
// covers the first.
type history struct {
	snapshot, last uint64
	entries        int
}

// history publishes a fleet's events and a tail of changes after them, and stores
// a snapshot of what was before the tail.
func (b *bench) history(ctx context.Context, server *natsserver.Server) (history, error) {
	ctx, cancel := context.WithTimeout(ctx, coldWithin)
	defer cancel()
	nc, js, err := streams.Connection{NATS: server.URL("")}.Connect("warmpath bench")
	if err != nil {
		return history{}, err
	}
	defer nc.Close()
	if _, err := (streams.Topology{Pools: []string{pool}}).Apply(ctx, js); err != nil {
		return history{}, err
	}
	publisher := streams.NewPublisher(js, streams.PublisherConfig{Name: "warmpath bench"})
	defer func() { _ = publisher.Close() }() // what was not flushed is an error already

	f := newFleet(b.size(base))
	a, x := f.author(), prefix.New()
	publish := func(t turn) error {
		message := a.message(t.replica, t.event)
		batch, err := prefix.FromProto(message, a.position)
		if err != nil {
			return err
		}
		x.Apply(batch)
		m, err := streams.NewMessage(streams.KVSubject(pool, message.Replica), streams.KVID(message.Replica, message.Epoch, message.Seq), message)
		if err != nil {
			return err
		}
		return publisher.Publish(ctx, m)
	}
	for s := range f.steps() {
		if err := publish(turn{replica: s.replica, event: storeEvent(s)}); err != nil {
			return history{}, err
		}
	}
	h := history{snapshot: a.position}
	stream, err := js.Stream(ctx, streams.KVStream(pool))
	if err != nil {
		return history{}, err
	}
	snapshots, err := snapshot.NewStore(js, pool)
	if err != nil {
		return history{}, err
	}
	about := snapshot.About{Seq: h.snapshot, Created: stream.CachedInfo().Created, Writer: "bench", Whole: true}
	if _, err := snapshots.Save(ctx, about, x.AppendSnapshot(nil)); err != nil {
		return history{}, err
	}
	events := tailEvents
	if b.quick {
		events /= 100
	}
	work := f.churn(0)
	for range events {
		if err := publish(*work.turn()); err != nil {
			return history{}, err
		}
	}
	if err := publisher.Flush(ctx); err != nil {
		return history{}, err
	}
	h.last, h.entries = a.position, x.Stats().Entries
	stored, err := streams.LastSeq(ctx, js, streams.KVStream(pool))
	if err == nil && stored != h.last {
		err = fmt.Errorf("the stream holds %d messages, not the %d published", stored, h.last)
	}
	return h, err
}

// errRead ends a read at the last message.
var errRead = errors.New("read to the end")

// read is the floor: the seconds it takes to be given the tail's messages.
func (h history) read(ctx context.Context, server *natsserver.Server) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, coldWithin)
	defer cancel()
	began := time.Now()
	nc, js, err := streams.Connection{NATS: server.URL("")}.Connect("warmpath bench floor")
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	size := 0
	err = streams.Follow(ctx, js, streams.FollowConfig{Stream: streams.KVStream(pool), From: h.snapshot + 1}, func(e streams.Event) error {
		size += len(e.Data)
		if e.Seq >= h.last {
			return errRead
		}
		return nil
	})
	if !errors.Is(err, errRead) {
		return 0, fmt.Errorf("read the tail: %w", err)
	}
	runtime.KeepAlive(size)
	return time.Since(began).Seconds(), nil
}

// start starts a router, waits until it is ready and returns how many seconds that
// took. It checks that the router holds what the stream says before it stops it.
func (h history) start(ctx context.Context, server *natsserver.Server) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, coldWithin)
	defer cancel()
	listen, err := freeAddress()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	router, err := startProcess(ctx, server.URL(""), "router", "--pool="+pool, "--name=bench", "--listen="+listen)
	if err != nil {
		return 0, err
	}
	defer router.stop()
	if err := router.await(ctx, listen); err != nil {
		return 0, err
	}
	took := time.Since(began).Seconds()
	return took, h.check(ctx, listen)
}

// check asks the router where it stands and what it holds.
func (h history) check(ctx context.Context, listen string) error {
	body, err := get(ctx, listen, "/v1/state")
	if err != nil {
		return fmt.Errorf("ask the router for its state: %w", err)
	}
	var state struct {
		KV struct {
			Position uint64 `json:"position"`
		} `json:"kv"`
		Index struct {
			Entries  int `json:"entries"`
			Suspects int `json:"suspects"`
		} `json:"index"`
		Start struct {
			From string `json:"from"`
			Seq  uint64 `json:"seq"`
		} `json:"start"`
	}
	if err := json.Unmarshal(body, &state); err != nil {
		return fmt.Errorf("read the router's state: %w", err)
	}
	if state.Start.From != "snapshot" || state.Start.Seq != h.snapshot {
		return fmt.Errorf("the router began with a %s at %d; the snapshot stands at %d", state.Start.From, state.Start.Seq, h.snapshot)
	}
	if state.KV.Position != h.last || state.Index.Entries != h.entries || state.Index.Suspects != 0 {
		return fmt.Errorf("the router is ready at %d with %d entries, %d replicas suspect; the stream ends at %d with %d", state.KV.Position, state.Index.Entries, state.Index.Suspects, h.last, h.entries)
	}
	return nil
}
