package bench

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes a goroutine when it is due: by a file that becomes readable, as a
// request from the network does. The runtime's own timers wake an idle process up
// to a millisecond late, which is more than what is measured.
type alarm struct{ file *os.File }

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	return &alarm{os.NewFile(uintptr(fd), "timer")}, nil
}

// wait returns when it is due. One goroutine at a time may wait.
func (a *alarm) wait(due time.Time) error {
	left := time.Until(due)
	if left <= 0 {
		return nil
	}
	raw, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	set := error(nil)
	if err := raw.Control(func(fd uintptr) {
		set = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(left.Nanoseconds())}, nil)
	}); err != nil {
		return err
	}
	if set != nil {
		return fmt.Errorf("set a timer: %w", set)
	}
	var expirations [8]byte
	_, err = a.file.Read(expirations[:])
	return err
}

func (a *alarm) close() { _ = a.file.Close() } // nothing was written
