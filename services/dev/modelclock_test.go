package dev

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"warmpath/services/simengine"
)

var _ simengine.Clock = (*ModelClock)(nil)

// running runs a clock until the test's bubble ends.
func running(t *testing.T, patience time.Duration) *ModelClock {
	c := NewModelClock(patience)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func TestModelClockRunsEventsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := running(t, time.Minute)
		hold := c.Hold("setup")
		var got []string
		note := func(name string) func() {
			return func() { got = append(got, fmt.Sprint(name, " ", c.Now())) }
		}
		c.At(2*time.Hour, note("late"))
		c.At(time.Second, note("first"))
		c.At(time.Second, note("second"))
		c.At(time.Second, func() {
			note("third")()
			c.At(0, note("past")) // at once is now, after what is due already
			c.At(time.Second, note("same"))
		})
		c.At(time.Second, note("fourth"))
		c.At(time.Minute, note("cancelled"))()
		if c.Now() != 0 {
			t.Error("the clock goes while it is held")
		}
		hold.Release()
		synctest.Wait()
		want := []string{"first 1s", "second 1s", "third 1s", "fourth 1s", "past 1s", "same 1s", "late 2h0m0s"}
		if !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
	})
}

func TestModelClockStandsWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := running(t, time.Hour)
		var second *Hold
		c.At(time.Second, func() { second = c.Hold("a request") })
		var reached atomic.Bool
		c.At(2*time.Second, func() { reached.Store(true) })
		synctest.Wait()
		time.Sleep(time.Minute) // of the bubble
		if reached.Load() || c.Now() != time.Second {
			t.Fatalf("the clock is at %v", c.Now())
		}
		third := c.Hold("another")
		second.Release()
		second.Release()
		synctest.Wait()
		if reached.Load() {
			t.Fatal("released twice, and another one's hold is gone")
		}
		third.Release()
		synctest.Wait()
		if !reached.Load() || c.Expired() != 0 {
			t.Errorf("at %v, %d expired", c.Now(), c.Expired())
		}
		(*Hold)(nil).Release()
	})
}

func TestModelClockGivesUpAForgottenHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := running(t, time.Minute)
		hold := c.Hold("a killed component")
		var reached atomic.Bool
		c.At(time.Second, func() { reached.Store(true) })
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if reached.Load() {
			t.Fatal("too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !reached.Load() || c.Expired() != 1 {
			t.Errorf("reached %v, %d expired", reached.Load(), c.Expired())
		}
		hold.Release()
		if c.Expired() != 1 {
			t.Error("a release after the watchdog counts")
		}
	})
}

// Many goroutines that hold, ask for events and release must not let time pass
// an event or run two at once.
func TestModelClockConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := running(t, time.Hour)
		var events, inside int
		var last time.Duration
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 200 {
					hold := c.Hold("work")
					at := c.Now() + time.Duration(i%7)
					cancel := c.At(at, func() {
						inside++
						if inside != 1 || c.Now() < at || c.Now() < last {
							t.Errorf("%d at once, at %v, asked for %v, before %v", inside, c.Now(), at, last)
						}
						last = c.Now()
						events++
						inside--
					})
					if i%10 == 9 {
						cancel()
					}
					hold.Release()
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if events != 8*180 {
			t.Errorf("%d events ran", events)
		}
	})
}
