package simengine

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// maxBatches bounds what waits for the publisher. Beyond it the history is given
// up for a new epoch, which costs no more than the cache's size.
const maxBatches = 8192

// Reasons for a new epoch, as KVClear.reason and in the metric.
const (
	epochStart    = "start"
	epochGap      = "publish gap"
	epochOverflow = "publish queue full"
)

// outbox numbers the batches of an epoch and queues them for the publisher. When
// one is lost, it takes no more until renew starts an epoch. It has its own lock,
// taken inside Server.mu and never around it.
type outbox struct {
	pool, replica string
	blockTokens   uint32
	wake          chan struct{}

	mu      sync.Mutex
	epoch   uuid.UUID
	seq     uint64
	queue   []*pb.KVBatch
	busy    bool   // the loop has a batch in hand
	broken  string // why the epoch is over
	waiters []chan struct{}
	dropped map[string]uint64 // batches by reason
	epochs  map[string]uint64 // epochs begun by reason
}

// newOutbox starts the first epoch, whose first batch says that the cache is
// empty: whatever the replica held in an earlier life is gone, and readers should
// know at once.
func newOutbox(pool, replica string, blockTokens uint32) *outbox {
	o := &outbox{
		pool: pool, replica: replica, blockTokens: blockTokens,
		wake:    make(chan struct{}, 1),
		dropped: map[string]uint64{}, epochs: map[string]uint64{},
	}
	o.renew(epochStart, nil)
	return o
}

// renew starts an epoch with the contents given, dropping what is queued.
func (o *outbox) renew(reason string, resident []*pb.KVEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) > 0 {
		o.dropped[reason] += uint64(len(o.queue))
	}
	o.epoch, o.seq, o.queue, o.broken = uuid.Must(uuid.NewV7()), 0, nil, ""
	o.epochs[reason]++
	start := &pb.KVEvent{Event: &pb.KVEvent_Clear{Clear: &pb.KVClear{Reason: reason}}}
	for _, events := range streams.SplitKV(append([]*pb.KVEvent{start}, resident...), streams.MaxBatchWords) {
		o.enqueue(events)
	}
	o.signal()
}

// push queues what one step did to the cache.
func (o *outbox) push(events []*pb.KVEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, part := range streams.SplitKV(events, streams.MaxBatchWords) {
		if o.broken == "" && len(o.queue) >= maxBatches {
			o.broken = epochOverflow
		}
		if o.broken != "" {
			o.dropped[o.broken]++
			continue
		}
		o.enqueue(part)
	}
	o.signal()
}

func (o *outbox) enqueue(events []*pb.KVEvent) {
	o.seq++
	o.queue = append(o.queue, &pb.KVBatch{
		Pool: o.pool, Replica: o.replica, Epoch: o.epoch[:], Seq: o.seq,
		EventTimeUs: time.Now().UnixMicro(), BlockTokens: o.blockTokens, Events: events,
	})
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// gap is told by the publisher that batches were lost. Those of an earlier epoch
// do not matter any more.
func (o *outbox) gap(_, last streams.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !strings.HasPrefix(last.ID, strings.TrimSuffix(streams.KVID(o.replica, o.epoch[:], 0), "0")) {
		return
	}
	o.broken = epochGap
	o.signal()
}

// take returns the next batch, or why the epoch is over, or neither. What was
// taken before is done with.
func (o *outbox) take() (batch *pb.KVBatch, broken string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = false
	switch {
	case o.broken != "":
		return nil, o.broken
	case len(o.queue) > 0:
		batch, o.busy = o.queue[0], true
		o.queue[0] = nil
		o.queue = o.queue[1:]
		return batch, ""
	}
	for _, w := range o.waiters {
		close(w)
	}
	o.waiters = nil
	return nil, ""
}

func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.busy && len(o.queue) == 0 && o.broken == ""
}

// wait returns once everything pushed before was handed to the publisher.
func (o *outbox) wait(ctx context.Context) error {
	o.mu.Lock()
	if !o.busy && len(o.queue) == 0 && o.broken == "" {
		o.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	o.waiters = append(o.waiters, done)
	o.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// current is the running epoch.
func (o *outbox) current() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	epoch := o.epoch
	return epoch[:]
}

// publish hands batches to the publisher in order until ctx ends.
func (s *Server) publish(ctx context.Context) error {
	subject := streams.KVSubject(s.cfg.Pool, s.cfg.Replica)
	for {
		batch, broken := s.out.take()
		switch {
		case broken != "":
			s.readvertise(broken)
		case batch != nil:
			m, err := streams.NewMessage(subject, streams.KVID(batch.GetReplica(), batch.GetEpoch(), batch.GetSeq()), batch)
			if err == nil {
				err = s.kv.Publish(ctx, m)
			}
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				s.log.Error("kv batch was not published", "seq", batch.GetSeq(), "error", err)
				s.out.gap(m, streams.Message{ID: streams.KVID(batch.GetReplica(), batch.GetEpoch(), batch.GetSeq())})
			}
		default:
			select {
			case <-s.out.wake:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// readvertise starts an epoch that begins with the whole cache, because readers
// of the last one can no longer know it.
func (s *Server) readvertise(reason string) {
	s.mu.Lock()
	var resident []*pb.KVEvent
	if s.engine != nil {
		resident = s.engine.Resident()
	}
	s.out.renew(reason, resident)
	s.mu.Unlock()
	s.log.Warn("kv history was lost; a new epoch tells the whole cache", "reason", reason)
	s.askHeartbeat()
}
