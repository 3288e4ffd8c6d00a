//go:build !linux

package bench

import "time"

// alarm is the runtime's timers where they are exact.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

func (*alarm) wait(due time.Time) error {
	time.Sleep(time.Until(due))
	return nil
}

func (*alarm) close() {}
