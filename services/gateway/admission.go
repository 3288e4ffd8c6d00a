package gateway

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// admission bounds how many requests are served at once, and how many wait for
// that in the order they came. What waits has no body in memory yet.
type admission struct {
	slots   chan struct{}
	queue   int64 // most that wait
	timeout time.Duration
	waiting atomic.Int64
}

func newAdmission(cfg Config) *admission {
	return &admission{slots: make(chan struct{}, cfg.MaxConcurrent), queue: int64(max(0, cfg.Queue)), timeout: cfg.QueueTimeout}
}

// Why a request is not served, as metrics name it.
const (
	rejectedQueueFull    = "queue_full"
	rejectedQueueTimeout = "queue_timeout"
	rejectedBodies       = "bodies"
	rejectedLeft         = "client_left"
	rejectedInvalid      = "invalid"
)

// enter waits for a place. Each nil must be followed by leave.
func (a *admission) enter(ctx context.Context) *apiError {
	select {
	case a.slots <- struct{}{}:
		return nil
	default:
	}
	if a.waiting.Add(1) > a.queue {
		a.waiting.Add(-1)
		return overloaded(rejectedQueueFull, fmt.Sprintf("the gateway serves %d requests and %d wait already; try again, or raise --max-concurrent or --queue", cap(a.slots), a.queue), time.Second)
	}
	defer a.waiting.Add(-1)
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	select {
	case a.slots <- struct{}{}: // those that wait on a channel are served in order
		return nil
	case <-timer.C:
		return overloaded(rejectedQueueTimeout, fmt.Sprintf("no place became free in %v; try again, or raise --max-concurrent or --queue-timeout", a.timeout), a.timeout/2)
	case <-ctx.Done():
		return overloaded(rejectedLeft, "the client left while the request waited", 0)
	}
}

// leave gives the place back.
func (a *admission) leave() { <-a.slots }

// inUse is how many places are taken.
func (a *admission) inUse() int { return len(a.slots) }

// overloaded is a fault of too many requests at once.
func overloaded(reason, message string, retryAfter time.Duration) *apiError {
	return &apiError{
		status: http.StatusServiceUnavailable, kind: "overloaded_error", code: "overloaded", message: message,
		retryAfter: max(retryAfter, time.Second), reason: reason,
	}
}
