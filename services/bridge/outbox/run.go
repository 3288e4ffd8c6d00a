package outbox

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"warmpath/streams"
)

// settlePause is how long to wait before the server is asked again.
const settlePause = 100 * time.Millisecond

// Run publishes until ctx ends, and then returns nil.
func (o *Outbox) Run(ctx context.Context) error {
	publisher := streams.NewPublisher(o.js, streams.PublisherConfig{
		Name:  "bridge " + o.cfg.Replica,
		OnGap: func(_, _ streams.Message) { o.mu.Lock(); o.gapped = true; o.mu.Unlock() },
	})
	// What is in flight when ctx ends is found again by the next life.
	defer func() { _ = publisher.Close() }()
	defer func() { o.mu.Lock(); o.spool.close(); o.mu.Unlock() }()
	for ctx.Err() == nil {
		life, epoch, chunk, broken := o.next()
		switch {
		case broken != "":
			o.askWhole(ctx, broken)
		case len(chunk) > 0:
			o.publish(ctx, publisher, life, epoch, chunk)
		default:
			select {
			case <-o.wake:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// next is what to publish now; it stays queued until done.
func (o *Outbox) next() (life uint64, epoch uuid.UUID, chunk []item, broken string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		o.refill()
	}
	return o.life, o.epoch, o.queue[:min(len(o.queue), chunkLimit)], o.broken
}

// publish publishes a chunk and waits for its outcome.
func (o *Outbox) publish(ctx context.Context, publisher *streams.Publisher, life uint64, epoch uuid.UUID, chunk []item) {
	o.mu.Lock()
	o.gapped = false
	o.mu.Unlock()
	for _, it := range chunk {
		err := publisher.Publish(ctx, streams.Message{
			Subject: o.subject, ID: streams.KVID(o.cfg.Replica, epoch[:], it.seq), Schema: schema, Data: it.data,
		})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return
		default:
			o.refuse(life, err)
			return
		}
	}
	if publisher.Flush(ctx) != nil {
		return
	}
	o.mu.Lock()
	gapped := o.gapped
	o.mu.Unlock()
	last := chunk[len(chunk)-1].seq
	if gapped {
		// Some were given up, and nobody knows which of them are stored.
		stored, err := o.settle(ctx, life, epoch)
		if err != nil {
			return
		}
		last = stored
	}
	o.done(life, last)
}

// schema is the message type of every batch.
const schema = "warmpath.v1.KVBatch"

// refuse gives up the epoch for a batch that cannot be published at all.
func (o *Outbox) refuse(life uint64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.life == life {
		o.giveUp(ReasonRefused, err)
	}
}

// done takes the batches up to seq off the queue.
func (o *Outbox) done(life, seq uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.life != life {
		return
	}
	n := 0
	for n < len(o.queue) && o.queue[n].seq <= seq {
		o.bytes -= int64(len(o.queue[n].data))
		o.queue[n] = item{}
		n++
	}
	o.published += uint64(n)
	if o.queue = o.queue[n:]; len(o.queue) == 0 {
		o.queue = nil // gives the array back
	}
}

// settle asks the stream which batch of the epoch it holds last, for as long as
// it takes.
func (o *Outbox) settle(ctx context.Context, life uint64, epoch uuid.UUID) (uint64, error) {
	for {
		last, _, err := streams.LastKV(ctx, o.js, o.cfg.Pool, o.cfg.Replica)
		switch {
		case err != nil:
			o.log.Warn("the stream cannot be asked what it holds", "error", err)
		case last == nil || bytes.Compare(last.GetEpoch(), epoch[:]) < 0:
			return 0, nil
		case bytes.Equal(last.GetEpoch(), epoch[:]):
			return last.GetSeq(), nil
		default:
			o.conflict(life, last.GetEpoch())
			return 0, errors.New(ReasonConflict)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settlePause):
		}
	}
}

// conflict gives up the epoch for one later than the foreign one.
func (o *Outbox) conflict(life uint64, foreign []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var epoch uuid.UUID
	copy(epoch[:], foreign)
	if o.life == life {
		o.giveUp(ReasonConflict, errConflict{epoch})
	}
	if bytes.Compare(foreign, o.epoch[:]) > 0 {
		o.epoch = epoch
	}
}

// askWhole waits until the server answers, asks for the whole cache, and waits
// until Begin has brought it.
func (o *Outbox) askWhole(ctx context.Context, reason string) {
	if reason == ReasonConflict {
		select {
		case <-ctx.Done():
			return
		case <-time.After(conflictPause):
		}
	}
	for ctx.Err() == nil {
		last, _, err := streams.LastKV(ctx, o.js, o.cfg.Pool, o.cfg.Replica)
		if err == nil {
			if last != nil && len(last.GetEpoch()) == len(uuid.UUID{}) {
				o.Follow(uuid.UUID(last.GetEpoch()))
			}
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settlePause):
		}
	}
	o.mu.Lock()
	if o.broken != "" {
		select {
		case o.whole <- reason:
		default:
		}
	}
	o.mu.Unlock()
	for ctx.Err() == nil {
		o.mu.Lock()
		broken := o.broken
		o.mu.Unlock()
		if broken == "" {
			return
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
		}
	}
}
