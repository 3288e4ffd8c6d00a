package workload

import (
	"errors"
	"fmt"
)

// ErrForm is returned for a file whose content is no known form of trace.
var ErrForm = errors.New("not a trace of a known form; known are JSON lines with hash_ids (timestamp, input_length, output_length), JSON lines of sessions with requests, and a JSON array of trajectories with traj messages, each plain or gzip")

// FieldError says where in a trace something cannot be used.
type FieldError struct {
	// Place is "line" and the line in the file, from 1, or "element" and the index
	// in a JSON array, from 0.
	Place string
	// Field is a path such as requests[3].b.
	Field string
	// Err says what is wrong with it.
	Err error
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %v", e.Place, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Place, e.Field, e.Err)
}

// Unwrap returns what is wrong.
func (e *FieldError) Unwrap() error { return e.Err }

// lineOf is the place of a line, from 1.
func lineOf(n int) string { return fmt.Sprintf("line %d", n) }

// elementOf is the place of an array's element, from 0.
func elementOf(n int) string { return fmt.Sprintf("element %d", n) }
