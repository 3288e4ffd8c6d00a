//go:build !linux

package bench

import "time"

// exactTimers is not needed where timers are exact, and not there elsewhere.
func exactTimers() {}

// sleepUntil sleeps as exactly as the runtime does.
func sleepUntil(due time.Time) { time.Sleep(time.Until(due)) }
