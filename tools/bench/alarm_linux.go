package bench

import (
	"syscall"
	"time"
)

// prSetTimerSlack is PR_SET_TIMERSLACK of prctl(2).
const prSetTimerSlack = 29

// exactTimers makes the kernel wake this thread when it is due, not within 50 us
// after.
func exactTimers() { _, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0) }

// sleepUntil sleeps in the kernel: the runtime's timers wake an idle process up to
// a millisecond late, which is more than what is measured.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		wait := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&wait, nil) // interrupted or not, the loop looks at the clock
	}
}
