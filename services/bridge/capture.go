package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"warmpath/services/bridge/discovery"
	"warmpath/services/bridge/feed"
	"warmpath/services/bridge/zmq"
)

// Replayed is what a capture held and became.
type Replayed struct {
	// Records read, Cut the bytes of a last one that was cut short.
	Records  int      `json:"records"`
	Cut      int64    `json:"cut_bytes"`
	Replicas []Status `json:"replicas"`
}

// ReplayCapture reads a capture in place of the engines: in the order in which
// the recording bridge took things in, so that it ends where that one did. What
// comes of it is published. Every engine needs its model configured. It is called
// in place of Run.
func (b *Bridge) ReplayCapture(ctx context.Context, path string) (Replayed, error) {
	f, err := os.Open(path)
	if err != nil {
		return Replayed{}, err
	}
	defer f.Close()
	reader, err := zmq.NewCaptureReader(f)
	if err != nil {
		return Replayed{}, fmt.Errorf("%s: %w", path, err)
	}
	tape := &tape{reader: reader}
	work, stop := context.WithCancel(ctx)
	defer stop()
	group, work := errgroup.WithContext(work)
	for _, e := range b.engines {
		if e.cfg.Model == "" {
			return Replayed{}, fmt.Errorf("replica %s: a record does not say which model it is of; give --model", e.cfg.Replica)
		}
		e.rewind(tape)
		for _, r := range e.all() {
			group.Go(func() error { return r.out.Run(work) })
		}
	}
	err = tape.play(ctx, b)
	for err == nil && ctx.Err() == nil && !b.published() {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	_, cut := reader.Cut()
	return Replayed{Records: tape.records, Cut: cut, Replicas: b.State()}, errors.Join(err, group.Wait(), ctx.Err())
}

// published says whether nothing waits for the stream.
func (b *Bridge) published() bool {
	for _, s := range b.State() {
		if s.Outbox.Waiting > 0 || s.Outbox.Broken != "" {
			return false
		}
	}
	return true
}

// rewind makes the engine's replicas read a tape.
func (e *engine) rewind(t *tape) {
	e.facts = discovery.Engine{Model: e.cfg.Model, Kind: discovery.OpenAI, GPUBlocks: e.cfg.Blocks}
	e.replicas = e.makeReplicas(e.facts)
	for _, r := range e.replicas {
		r.source.dial = "record"
		if e.cfg.KVPull {
			r.source = source{pull: true}
		}
		r.feed = feed.New(feed.Config{First: e.cfg.first(), Replay: t.replayer(r.name)}, sink{r}, r.log)
		r.out.Begin(epochBridge, r.now(), r.mirror.Lost(doubtUnseen), nil)
	}
	close(e.ready)
}

// tape is a capture being played.
type tape struct {
	reader  *zmq.CaptureReader
	records int
	held    *zmq.Record // read and given back
}

func (t *tape) next() (zmq.Record, error) {
	if t.held != nil {
		r := *t.held
		t.held = nil
		return r, nil
	}
	r, err := t.reader.Next()
	if err == nil {
		t.records++
	}
	return r, err
}

// play hands every record to its replica.
func (t *tape) play(ctx context.Context, b *Bridge) error {
	strangers := map[string]bool{}
	for ctx.Err() == nil {
		record, err := t.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r := b.replicaNamed(record.Source)
		if r == nil {
			if !strangers[record.Source] {
				strangers[record.Source] = true
				slog.Warn("the record has a replica that is not configured; it is left out", "replica", record.Source)
			}
			continue
		}
		t.hand(ctx, r, record)
	}
	return ctx.Err()
}

func (t *tape) hand(ctx context.Context, r *replica, record zmq.Record) {
	switch record.Kind {
	case zmq.RecordFrame:
		r.frame(ctx, record.Frame)
	case zmq.RecordPull:
		r.engine.takePull(ctx, record.Frame.Payload, record.Frame.AtUS)
	case zmq.RecordConnected:
		r.connected(ctx, r.conn)
	case zmq.RecordDisconnected:
		r.disconnected(r.conn, string(record.Frame.Payload))
	case zmq.RecordReplay, zmq.RecordReplayed:
		// Nothing came, and the recording bridge asked whether it had missed something.
		t.held = &record
		r.mu.Lock()
		r.feed.Idle(ctx)
		r.mu.Unlock()
		t.held = nil // also when nothing was asked this time
	case zmq.RecordBegan, zmq.RecordLost:
	}
}

// replayer answers a replica's questions with what the recording bridge was
// answered.
func (t *tape) replayer(name string) feed.Replay {
	return func(_ context.Context, _ uint64, handle func(feed.Batch) error) error {
		var handled error
		for {
			record, err := t.next()
			if err != nil {
				return fmt.Errorf("the record ends within a replay: %w", err)
			}
			switch {
			case record.Source != name || record.Kind != zmq.RecordReplay && record.Kind != zmq.RecordReplayed:
				t.held = &record
				return errors.New("the recording bridge asked for nothing here")
			case record.Kind == zmq.RecordReplayed:
				if len(record.Frame.Payload) > 0 && handled == nil {
					return errors.New(string(record.Frame.Payload))
				}
				return handled
			case handled == nil:
				handled = handle(feed.Batch{Seq: record.Frame.Seq, Payload: record.Frame.Payload, AtUS: record.Frame.AtUS})
			}
		}
	}
}

// replicaNamed finds a replica by its name.
func (b *Bridge) replicaNamed(name string) *replica {
	for _, e := range b.engines {
		if name != e.cfg.Replica && !strings.HasPrefix(name, e.cfg.Replica+".dp") {
			continue
		}
		for _, r := range e.all() {
			if r.name == name {
				return r
			}
		}
	}
	return nil
}
