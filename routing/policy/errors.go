package policy

import "errors"

// ErrNoReplica says that a decision has no eligible candidate.
var ErrNoReplica = errors.New("no replica is eligible")
