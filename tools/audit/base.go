package audit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/snapshot"
	"warmpath/streams/source"
)

// Base is where the fold of a pool's KV stream began.
type Base struct {
	Pool string `json:"pool"`
	// SnapshotSeq is where the snapshot stands; 0: from the stream's beginning.
	SnapshotSeq uint64 `json:"snapshot_seq"`
	// Whole is true when the snapshot is a function of the stream alone.
	Whole bool `json:"whole"`
}

// base is an index and the KV sequence that it stands at.
type base struct {
	index *prefix.Index
	seq   uint64
	whole bool
	lost  map[string][]byte
}

// uncertain says whether the base cannot tell what a router knew of a candidate:
// it comes from a router that had missed a part of the stream, or had forgotten
// the replica's life, and others need not have.
func (b *base) uncertain(c *pb.Candidate, m prefix.Match) bool {
	if lost, ok := b.lost[c.Replica]; ok && bytes.Equal(lost, c.Epoch) {
		return true
	}
	return !b.whole && m.Suspect
}

// beginner returns what to fold a pool's KV stream from, for decisions that stand
// at first or later; nil when there is nothing.
type beginner func(ctx context.Context, pool, kv string, first uint64) (*base, error)

// begin prefers the stream's beginning, which proves most. When that is no longer
// stored, it is the newest snapshot that is before all decisions, or else the
// oldest one from which the stream goes on.
func (c *Command) begin(opened *source.Streams) beginner {
	cfg := prefix.Config{MaxBytes: c.IndexBytes}
	return func(ctx context.Context, pool, kv string, first uint64) (*base, error) {
		begins, _, err := opened.Bounds(ctx, kv)
		if err != nil {
			return nil, err
		}
		if begins <= 1 {
			return &base{index: prefix.NewWith(cfg), whole: true}, nil
		}
		created, err := opened.Created(ctx, kv)
		if err != nil {
			return nil, err
		}
		store, err := opened.Snapshots(pool)
		if err != nil {
			return nil, err
		}
		wanted := snapshot.Wanted{Created: created, AtMost: first, AtLeast: begins - 1, Refused: func(one snapshot.Snapshot, e *snapshot.DamageError) {
			slog.Warn("a snapshot was refused", "snapshot", one.Name(), "error", e)
		}}
		if first >= begins-1 {
			if found, err := find(ctx, store, wanted, cfg); err != nil || found != nil {
				return found, err
			}
		}
		wanted.AtMost, wanted.Oldest = 0, true
		return find(ctx, store, wanted, cfg)
	}
}

func find(ctx context.Context, store *snapshot.Store, wanted snapshot.Wanted, cfg prefix.Config) (*base, error) {
	one, index, err := store.Index(ctx, wanted, cfg)
	switch {
	case errors.Is(err, streams.ErrNoStream):
		return nil, nil // as without snapshots
	case err != nil || index == nil:
		return nil, err
	}
	return &base{index: index, seq: one.Seq, whole: one.Whole, lost: one.Lost}, nil
}
