package snapshot

import (
	"errors"
	"fmt"
)

// Reasons of a DamageError.
const (
	// ReasonDescription: the object's description is not one of a snapshot.
	ReasonDescription = "description"
	// ReasonMissing: parts of the data are not there.
	ReasonMissing = "missing"
	// ReasonDigest: the data is not what was written.
	ReasonDigest = "digest"
	// ReasonContent: the data is what was written, and cannot be used.
	ReasonContent = "content"
	// ReasonStream: it was taken of another stream than the one there is now.
	ReasonStream = "stream"
)

// DamageError is why a snapshot was refused.
type DamageError struct {
	// Name of the object, and one of the Reason constants.
	Name, Reason string
	// Detail is what was found.
	Detail string
}

// Error names the object and what is wrong with it.
func (e *DamageError) Error() string {
	return fmt.Sprintf("snapshot %s cannot be used (%s): %s", e.Name, e.Reason, e.Detail)
}

var (
	// ErrFull is returned when the bucket has no room; the remedy is a larger
	// --index-max-bytes of "warmpath streams apply".
	ErrFull = errors.New("the bucket of snapshots is full; raise --index-max-bytes of \"warmpath streams apply\"")
	// ErrNoTTL is returned when the bucket was made by an earlier version.
	ErrNoTTL = errors.New("the bucket of snapshots does not let messages expire; run \"warmpath streams apply\"")
	// ErrHeld is returned by Acquire when another writer has the lease.
	ErrHeld = errors.New("another writer has the lease")
	// ErrLost is returned by Renew when the lease has expired and went to another.
	ErrLost = errors.New("the lease was lost")

	// errGone is an object or message that is not there any more.
	errGone = errors.New("it is gone")
)
