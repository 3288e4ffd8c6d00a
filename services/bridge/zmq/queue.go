package zmq

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// item is what travels from the sockets' goroutines to the handler's: a frame, a
// change of state, or a reason for an ignored message. One queue for all three
// keeps their order.
type item struct {
	frame  Frame
	state  *State
	reason Reason
	bytes  int64
}

// queue is bounded in items and in bytes. Its producers wait for room.
type queue struct {
	items chan item
	bytes *semaphore.Weighted
	limit int64
}

func newQueue(items int, bytes int64) *queue {
	return &queue{items: make(chan item, items), bytes: semaphore.NewWeighted(bytes), limit: bytes}
}

// put waits for room; false means that ctx ended.
func (q *queue) put(ctx context.Context, it item) bool {
	if n := len(it.frame.Payload) + len(it.frame.Topic); n > 0 {
		it.bytes = min(int64(n), q.limit) // a frame over the limit goes alone
		if q.bytes.Acquire(ctx, it.bytes) != nil {
			return false
		}
	}
	select {
	case q.items <- it:
		return true
	case <-ctx.Done():
		return false
	}
}

// drain hands items to handle, in order, until ctx ends.
func (q *queue) drain(ctx context.Context, handle func(item)) {
	for ctx.Err() == nil {
		select {
		case it := <-q.items:
			handle(it)
			if it.bytes > 0 {
				q.bytes.Release(it.bytes)
			}
		case <-ctx.Done():
		}
	}
}
