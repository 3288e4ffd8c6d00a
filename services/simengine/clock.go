package simengine

import (
	"time"
)

// Clock is the time that a simulated engine lives in: durations since some
// start, which never run backwards. Both methods are safe for concurrent use.
type Clock interface {
	// Now is the current instant.
	Now() time.Duration
	// At calls f once the clock has reached t, never before At has returned, and at
	// once when t is past. During f, Now is at least t. After cancel f may still run
	// when it had been started already.
	At(t time.Duration, f func()) (cancel func())
}

// NewWallClock returns a clock that starts now and runs speed times as fast as
// the wall clock; a speed that is not positive means 1.
func NewWallClock(speed float64) Clock {
	if !(speed > 0) {
		speed = 1
	}
	return &wallClock{start: time.Now(), speed: speed}
}

type wallClock struct {
	start time.Time
	speed float64
}

func (c *wallClock) Now() time.Duration {
	return time.Duration(float64(time.Since(c.start)) * c.speed)
}

func (c *wallClock) At(t time.Duration, f func()) func() {
	// Rounded up, so that Now has reached t when f runs.
	wait := time.Duration(float64(t-c.Now())/c.speed) + 1
	timer := time.AfterFunc(max(wait, 0), func() {
		if left := t - c.Now(); left > 0 {
			time.Sleep(time.Duration(float64(left)/c.speed) + 1)
		}
		f()
	})
	return func() { timer.Stop() }
}
