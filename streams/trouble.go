package streams

import (
	"log/slog"
	"time"
)

// troubleEvery is how often a trouble that lasts is logged again.
const troubleEvery = 30 * time.Second

// trouble logs what goes wrong again and again: at once when the reason is
// another one, else now and then. It is not safe for concurrent use.
type trouble struct {
	log    *slog.Logger
	reason string
	logged time.Time
}

func (t *trouble) warn(message, reason string, args ...any) {
	if reason == t.reason && time.Since(t.logged) < troubleEvery {
		return
	}
	t.reason, t.logged = reason, time.Now()
	t.log.Warn(message, append([]any{"reason", reason}, args...)...)
}
