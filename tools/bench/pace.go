package bench

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// pacer makes calls at the moments when they are due, so many a second however long
// they take. Each is made by the goroutine that the alarm wakes for it, as a server
// handles a request in the goroutine that its arrival wakes; as there, goroutines
// are used again.
type pacer struct {
	bell   *alarm
	rate   float64
	length time.Duration
	began  time.Time
	// prepare makes call n, in good time before it is due.
	prepare func(n int) func(due time.Time)
	// turns takes which call comes next to a goroutine that has made its own; the
	// one that holds the turn closes it when there is none.
	turns chan int
	calls sync.WaitGroup
	fault error
}

// pace calls what prepare returns at each moment that is due until length is over,
// and returns when all calls have ended, with an error when the alarm failed. Garbage
// is collected before, not meanwhile.
func pace(ctx context.Context, rate float64, length time.Duration, prepare func(n int) func(due time.Time)) error {
	bell, err := newAlarm()
	if err != nil {
		return err
	}
	defer bell.close()
	runtime.GC()
	p := &pacer{bell: bell, rate: rate, length: length, began: time.Now(), prepare: prepare, turns: make(chan int)}
	p.calls.Go(func() { p.run(ctx, 0) })
	p.calls.Wait()
	return p.fault
}

// run makes call n, and others after it.
func (p *pacer) run(ctx context.Context, n int) {
	for more := true; more; n, more = <-p.turns {
		f, due := p.await(ctx, n)
		if f == nil {
			close(p.turns)
			return
		}
		select {
		case p.turns <- n + 1:
		default: // all are busy
			p.calls.Go(func() { p.run(ctx, n+1) })
		}
		f(due)
	}
}

// await returns call n when it is due, nil when there is none.
func (p *pacer) await(ctx context.Context, n int) (f func(due time.Time), due time.Time) {
	at := time.Duration(float64(n) / p.rate * 1e9)
	if at >= p.length || ctx.Err() != nil {
		return nil, due
	}
	f, due = p.prepare(n), p.began.Add(at)
	if p.fault = p.bell.wait(due); p.fault != nil {
		return nil, due
	}
	return f, due
}
