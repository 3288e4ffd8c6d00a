package streams

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrClosed is returned by a publisher that was closed, and by one whose
	// connection was.
	ErrClosed = errors.New("publisher is closed")
	// ErrNoStream is returned where a stream is not there; the remedy is
	// "warmpath streams apply".
	ErrNoStream = errors.New("stream does not exist; run \"warmpath streams apply\"")
)

// LossError is why Apply refused: the change would lose what a stream holds, or
// a guarantee that it has.
type LossError struct {
	Refusals []Refusal
}

// Refusal is one change that was refused.
type Refusal struct {
	Change
	// Hint says what would be lost, and what to do.
	Hint string
}

// Error lists every refusal.
func (e *LossError) Error() string {
	lines := make([]string, 0, len(e.Refusals))
	for _, r := range e.Refusals {
		lines = append(lines, fmt.Sprintf("%s: %s", r.Change, r.Hint))
	}
	return "the change would lose data, nothing was changed: " + strings.Join(lines, "; ")
}

// ResetError is returned by followers when a stream is not the one they have
// read: it ends before the position reached, or was made later. It was deleted
// and made anew, or restored from an older copy. What was folded from it no longer has a source: start again from 1.
type ResetError struct {
	Stream string
	// Position is the last sequence handled, Last the stream's last.
	Position, Last uint64
}

// Error names the stream, both positions and the remedy.
func (e *ResetError) Error() string {
	return fmt.Sprintf("stream %s was made anew or restored: it ends at %d, position is %d; start again from its beginning",
		e.Stream, e.Last, e.Position)
}
