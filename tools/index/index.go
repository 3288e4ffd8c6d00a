// Package index looks into prefix indexes: those of stored snapshots, of files,
// and of what the KV stream gives when it is folded again. It compares two.
package index

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"warmpath/routing/prefix"
	"warmpath/streams"
	"warmpath/streams/snapshot"
	"warmpath/streams/source"
)

// Command is `warmpath index`.
type Command struct {
	Dump  DumpCommand  `cmd:"" help:"Print every block of an index, or write its snapshot to a file."`
	Diff  DiffCommand  `cmd:"" help:"Compare two indexes; exit 1 when they differ."`
	Stats StatsCommand `cmd:"" help:"Print what an index holds, replica by replica, and which snapshots there are."`
}

// Place is where indexes are.
type Place struct {
	source.Flags
	Pool       string `env:"WARMPATH_POOL" help:"Pool whose index it is; needed for all but files."`
	KVStream   string `name:"kv-stream" help:"Stream with the KV events; default KV_<pool>."`
	IndexBytes int64  `name:"index-bytes" default:"0" help:"Limit of the index's memory, as the router's --index-bytes."`
}

// The kinds of index that can be named, as in "snapshot:1000".
const (
	kindSnapshot = "snapshot"
	kindStream   = "stream"
	kindFile     = "file"
)

const specHelp = "snapshot (the newest), snapshot:SEQ, stream (folded to its end), stream:SEQ, or file:PATH"

// spec names an index.
type spec struct {
	kind string
	seq  uint64 // 0: the newest, the end
	path string
}

func parseSpec(text string) (spec, error) {
	kind, rest, given := strings.Cut(text, ":")
	switch kind {
	case kindFile:
		if rest != "" {
			return spec{kind: kindFile, path: rest}, nil
		}
	case kindSnapshot, kindStream:
		if !given {
			return spec{kind: kind}, nil
		}
		if seq, err := strconv.ParseUint(rest, 10, 64); err == nil && seq > 0 {
			return spec{kind: kind, seq: seq}, nil
		}
	}
	return spec{}, fmt.Errorf("%q names no index; give %s", text, specHelp)
}

// loaded is an index and where it came from.
type loaded struct {
	*prefix.Index
	// From is how it was come by, for people.
	From string
	// Snapshot is what was restored, at first; zero for none.
	Snapshot snapshot.Snapshot
}

// opened is a place that is opened when it is first needed.
type opened struct {
	place   *Place
	streams *source.Streams
}

func (o *opened) close() {
	if o.streams != nil {
		o.streams.Close()
	}
}

func (o *opened) open() error {
	if o.streams != nil {
		return nil
	}
	if err := streams.ValidName(o.place.Pool); err != nil {
		return fmt.Errorf("pool: %w; give --pool", err)
	}
	var err error
	o.streams, err = o.place.Open("warmpath index")
	return err
}

func (o *opened) config() prefix.Config { return prefix.Config{MaxBytes: o.place.IndexBytes} }

func (o *opened) kvStream() string {
	if o.place.KVStream != "" {
		return o.place.KVStream
	}
	return streams.KVStream(o.place.Pool)
}

// load builds the index that a spec names.
func (o *opened) load(ctx context.Context, s spec) (*loaded, error) {
	if s.kind == kindFile {
		data, err := os.ReadFile(s.path)
		if err != nil {
			return nil, err
		}
		index, err := prefix.Restore(data, o.config())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.path, err)
		}
		return &loaded{Index: index, From: "file " + s.path}, nil
	}
	if err := o.open(); err != nil {
		return nil, err
	}
	if s.kind == kindSnapshot {
		return o.stored(ctx, s.seq)
	}
	return o.folded(ctx, s.seq)
}

// stored restores a snapshot of the store; seq 0 is the newest that can be used.
func (o *opened) stored(ctx context.Context, seq uint64) (*loaded, error) {
	created, err := o.streams.Created(ctx, o.kvStream())
	if err != nil {
		return nil, err
	}
	found, err := o.find(ctx, snapshot.Wanted{Created: created, AtLeast: seq, AtMost: seq})
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("pool %s has no such snapshot that can be used; `warmpath index stats --index stream` lists those there are", o.place.Pool)
	}
	return found, nil
}

// find returns nil when nothing that is wanted can be used.
func (o *opened) find(ctx context.Context, w snapshot.Wanted) (*loaded, error) {
	store, err := o.streams.Snapshots(o.place.Pool)
	if err != nil {
		return nil, err
	}
	w.Refused = func(_ snapshot.Snapshot, e *snapshot.DamageError) { fmt.Fprintln(os.Stderr, "warmpath index:", e) }
	one, index, err := store.Index(ctx, w, o.config())
	if errors.Is(err, streams.ErrNoStream) || err == nil && index == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &loaded{Index: index, From: "snapshot " + one.Name(), Snapshot: one}, nil
}

// folded folds the KV stream up to a sequence, 0 for its end: from its beginning,
// or, when that is no longer stored, from the oldest snapshot that it continues.
func (o *opened) folded(ctx context.Context, seq uint64) (*loaded, error) {
	kv := o.kvStream()
	first, last, err := o.streams.Bounds(ctx, kv)
	if err != nil {
		return nil, err
	}
	if seq > last {
		return nil, fmt.Errorf("stream %s ends at %d, before %d", kv, last, seq)
	}
	if seq == 0 {
		seq = last
	}
	out := &loaded{Index: prefix.NewWith(o.config())}
	at := uint64(0)
	if first > 1 {
		created, err := o.streams.Created(ctx, kv)
		if err != nil {
			return nil, err
		}
		base, err := o.find(ctx, snapshot.Wanted{Created: created, AtLeast: first - 1, AtMost: seq, Oldest: true})
		if err != nil {
			return nil, err
		}
		if base == nil {
			return nil, fmt.Errorf("stream %s begins at %d, and no snapshot of before can be used: the index at %d cannot be had", kv, first, seq)
		}
		out, at = base, base.Snapshot.Seq
	}
	if at < seq {
		err = o.streams.Read(ctx, kv, at+1, seq, func(e streams.Event) error {
			if e.Seq > at+1 {
				out.SuspectAll()
			}
			at = e.Seq
			if _, step, err := streams.KVBatch(e); err == nil { // else a router skipped it too
				out.Apply(step)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	out.From = fmt.Sprintf("stream %s folded to %d", kv, seq)
	if out.Snapshot.Seq > 0 {
		out.From += " after snapshot " + out.Snapshot.Name()
	}
	return out, nil
}
