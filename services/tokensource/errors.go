package tokensource

import "errors"

// PromptError is a prompt that the engine would refuse, too: the answer to the
// client is a 400 with these words.
type PromptError struct {
	// Param names the field at fault; empty when that is not known.
	Param string
	Err   error
}

// Error implements error.
func (e *PromptError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PromptError) Unwrap() error { return e.Err }

// UnavailableError says that the tokens of a prompt cannot be known now; the
// prompt itself may be fine.
type UnavailableError struct {
	// Reason is a short stable word: client, media, template, too_large, engine,
	// no_engine, unsupported, waiting, canceled.
	Reason string
	Err    error
}

// Error implements error.
func (e *UnavailableError) Error() string { return "tokens: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

func unavailable(reason, text string) error {
	return &UnavailableError{Reason: reason, Err: errors.New(text)}
}
