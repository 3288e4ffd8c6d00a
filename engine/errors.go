package engine

import "errors"

var (
	// ErrTooLarge says that a request can never fit: it needs more blocks than
	// the whole cache has.
	ErrTooLarge = errors.New("request is larger than the kv cache")
	// ErrOverloaded says that too many requests wait already.
	ErrOverloaded = errors.New("too many requests wait")
	// ErrDuplicate says that a request with this id is in the engine.
	ErrDuplicate = errors.New("request id is in use")
	// ErrInvalid says that a request is malformed.
	ErrInvalid = errors.New("invalid request")
)
