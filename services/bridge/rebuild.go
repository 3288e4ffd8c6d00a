package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/feed"
	"warmpath/services/bridge/mirror"
	"warmpath/streams"
)

// rebuildPause is how long to wait before the stream is asked again.
const rebuildPause = time.Second

// errNoMemory says that no bridge has published for the replica, as far as the
// stream reaches.
var errNoMemory = errors.New("there is none")

// rebuild takes up the work of an earlier life of the bridge: the memory is
// folded from the replica's own batches in the stream. Where that cannot be
// exact, a new epoch begins in doubt, until the engine has shown what it holds.
func (r *replica) rebuild(ctx context.Context) error {
	last, err := r.ask(ctx)
	if err != nil {
		return err
	}
	if last.batch != nil && len(last.batch.GetEpoch()) == len(uuid.UUID{}) {
		r.out.Follow(uuid.UUID(last.batch.GetEpoch()))
	}
	memory, err := r.remember(ctx, &last)
	if ctx.Err() != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if errors.Is(err, errNoMemory) {
			r.log.Info("the stream has nothing of this replica yet; its first epoch begins")
		} else {
			r.log.Info("the memory of an earlier bridge cannot be used; a new epoch begins", "reason", err)
		}
		r.out.Begin(epochBridge, r.now(), r.mirror.Lost(doubtUnseen), nil)
		return nil
	}
	r.mirror, r.told = memory, last.batch.SourceSeq
	r.out.Resume(uuid.UUID(last.batch.GetEpoch()), last.batch.GetSeq())
	r.feed.Resume(last.batch.GetSourceSeq(), last.timeUS)
	r.log.Info("took up the work of an earlier bridge", "epoch", uuid.UUID(last.batch.GetEpoch()), "seq", last.batch.GetSeq(),
		"engine_seq", last.batch.GetSourceSeq(), "blocks", memory.Stats().Names)
	return nil
}

// ask asks the stream for the replica's last batch until it answers.
func (r *replica) ask(ctx context.Context) (tail, error) {
	for {
		batch, seq, err := streams.LastKV(ctx, r.engine.bridge.js, r.engine.bridge.cfg.Pool, r.name)
		switch {
		case err == nil:
			return tail{batch: batch, seq: seq}, nil
		case errors.Is(err, streams.ErrNoStream):
			return tail{}, fmt.Errorf("replica %s: %w", r.name, err)
		case ctx.Err() != nil:
			return tail{}, nil
		}
		r.log.Warn("the stream does not answer", "error", err)
		select {
		case <-ctx.Done():
			return tail{}, nil
		case <-time.After(rebuildPause):
		}
	}
}

// tail is the end of the replica's batches in the stream.
type tail struct {
	batch *pb.KVBatch // nil when there is none
	seq   uint64
	// timeUS is the time of the engine's batch that SourceSeq names, 0 when unknown.
	timeUS int64
}

// remember folds the batches of the last epoch into a memory. The error says why
// that is not possible, or not exact.
func (r *replica) remember(ctx context.Context, last *tail) (*mirror.Mirror, error) {
	switch {
	case last.batch == nil:
		return nil, errNoMemory
	case last.batch.SourceSeq == nil:
		return nil, errors.New("its last batch is of no whole batch of the engine")
	}
	memory := r.newMirror()
	var timeOf uint64
	err := streams.ReadKV(ctx, r.engine.bridge.js, r.engine.bridge.cfg.Pool, r.name, last.seq, func(b *pb.KVBatch) error {
		if !bytes.Equal(b.GetEpoch(), last.batch.GetEpoch()) {
			return nil
		}
		if b.SourceSeq != nil && told(b) {
			timeOf, last.timeUS = b.GetSourceSeq(), b.GetEventTimeUs()
		}
		return memory.Adopt(b)
	})
	if timeOf != last.batch.GetSourceSeq() {
		last.timeUS = 0
	}
	if err == nil {
		// Whether the engine is in the same life is found out anew.
		_, err = memory.Adopted(feed.DoubtDisconnected)
	}
	return memory, err
}

// told says whether a batch carries what the engine did, and so the engine's time.
func told(b *pb.KVBatch) bool {
	for _, e := range b.GetEvents() {
		// An epoch's first clear is the bridge's own.
		if e.GetStore() != nil || e.GetRemove() != nil || e.GetClear() != nil && b.GetSeq() > 1 {
			return true
		}
	}
	return false
}
