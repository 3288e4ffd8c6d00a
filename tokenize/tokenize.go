// Package tokenize turns what a client sends into token ids, the way the pool's
// engines do, so that block keys computed here name the blocks that the engines
// hold. It reads request bodies without decoding a prompt twice: prompts reach
// 900,000 ids.
package tokenize

import (
	"fmt"
	"unicode/utf8"
)

// SyntaxError says where JSON text is not what was expected there. Offset
// counts bytes from the start of the text that was parsed. The message never
// quotes more than one character of the text, because that text is a prompt.
type SyntaxError struct {
	Offset   int
	Found    string
	Expected string
}

// Error implements error.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("byte %d: found %s, expected %s", e.Offset, e.Found, e.Expected)
}

// found describes the text at an offset for a SyntaxError.
func found(text []byte, at int) string {
	if at >= len(text) {
		return "the end"
	}
	if c := text[at]; c < utf8.RuneSelf {
		return fmt.Sprintf("%q", rune(c))
	}
	r, _ := utf8.DecodeRune(text[at:])
	return fmt.Sprintf("%q", r)
}

func unexpected(text []byte, at int, expected string) error {
	return &SyntaxError{Offset: at, Found: found(text, at), Expected: expected}
}
