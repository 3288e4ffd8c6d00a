package tokenize

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// maxDepth bounds nesting, as encoding/json does: deeper text is an attack.
const maxDepth = 10000

// skipValue returns the offset after the JSON value at i, checking its grammar.
func skipValue(json []byte, i, depth int) (int, error) {
	if depth > maxDepth {
		return i, unexpected(json, i, "less than 10000 levels of nesting")
	}
	if i >= len(json) {
		return i, unexpected(json, i, "a value")
	}
	switch c := json[i]; {
	case c == '"':
		end, _, err := skipString(json, i)
		return end, err
	case c == '{':
		return skipObject(json, i, depth)
	case c == '[':
		return skipArray(json, i, depth)
	case c == 't':
		return skipWord(json, i, "true")
	case c == 'f':
		return skipWord(json, i, "false")
	case c == 'n':
		return skipWord(json, i, "null")
	case c == '-' || c-'0' <= 9:
		return skipNumber(json, i)
	}
	return i, unexpected(json, i, "a value")
}

func skipObject(json []byte, i, depth int) (int, error) {
	i = skipSpace(json, i+1)
	if i < len(json) && json[i] == '}' {
		return i + 1, nil
	}
	for {
		_, next, err := key(json, i)
		if err != nil {
			return next, err
		}
		if i, err = skipValue(json, next, depth+1); err != nil {
			return i, err
		}
		if i = skipSpace(json, i); i < len(json) && json[i] == ',' {
			i = skipSpace(json, i+1)
			continue
		}
		if i < len(json) && json[i] == '}' {
			return i + 1, nil
		}
		return i, unexpected(json, i, "',' or '}' after a member")
	}
}

func skipArray(json []byte, i, depth int) (int, error) {
	i = skipSpace(json, i+1)
	if i < len(json) && json[i] == ']' {
		return i + 1, nil
	}
	for {
		var err error
		if i, err = skipValue(json, i, depth+1); err != nil {
			return i, err
		}
		if i = skipSpace(json, i); i < len(json) && json[i] == ',' {
			i = skipSpace(json, i+1)
			continue
		}
		if i < len(json) && json[i] == ']' {
			return i + 1, nil
		}
		return i, unexpected(json, i, "',' or ']' after an element")
	}
}

// key reads a member's name, unescaped, and returns the offset of its value.
func key(json []byte, i int) (name []byte, value int, err error) {
	if i >= len(json) || json[i] != '"' {
		return nil, i, unexpected(json, i, "'\"', the start of a member name")
	}
	end, escaped, err := skipString(json, i)
	if err != nil {
		return nil, end, err
	}
	name = json[i+1 : end-1]
	if escaped {
		text, err := unquote(json[i:end])
		if err != nil {
			return nil, i, unexpected(json, i, "a valid string")
		}
		name = []byte(text)
	}
	if i = skipSpace(json, end); i >= len(json) || json[i] != ':' {
		return nil, i, unexpected(json, i, "':' after a member name")
	}
	return name, skipSpace(json, i+1), nil
}

func skipWord(json []byte, i int, word string) (int, error) {
	if len(json)-i >= len(word) && string(json[i:i+len(word)]) == word {
		return i + len(word), nil
	}
	return i, unexpected(json, i, word)
}

func skipNumber(json []byte, i int) (int, error) {
	if json[i] == '-' {
		i++
	}
	switch {
	case i < len(json) && json[i] == '0':
		i++
	case i < len(json) && json[i]-'0' <= 9:
		i = skipDigits(json, i)
	default:
		return i, unexpected(json, i, "a digit")
	}
	if i < len(json) && json[i] == '.' {
		after := skipDigits(json, i+1)
		if after == i+1 {
			return after, unexpected(json, after, "a digit after the point")
		}
		i = after
	}
	if i < len(json) && (json[i] == 'e' || json[i] == 'E') {
		i++
		if i < len(json) && (json[i] == '+' || json[i] == '-') {
			i++
		}
		after := skipDigits(json, i)
		if after == i {
			return after, unexpected(json, after, "a digit of the exponent")
		}
		i = after
	}
	return i, nil
}

func skipDigits(json []byte, i int) int {
	for i < len(json) && json[i]-'0' <= 9 {
		i++
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// zeroBytes marks, with its high bit, at least the lowest byte of x that is zero.
func zeroBytes(x uint64) uint64 { return (x - ones) &^ x & highs }

// skipString returns the offset after the string at i, and whether it has escapes.
func skipString(json []byte, i int) (end int, escaped bool, err error) {
	i++
	for {
		// Eight bytes at once while none is a quote, a backslash or below a space.
		for i+8 <= len(json) {
			w := binary.LittleEndian.Uint64(json[i:])
			special := zeroBytes(w^(ones*'"')) | zeroBytes(w^(ones*'\\')) | zeroBytes(w&(ones*0xe0))
			if special != 0 {
				i += bits.TrailingZeros64(special) >> 3 // the lowest mark is exact
				break
			}
			i += 8
		}
		if i >= len(json) {
			return i, escaped, unexpected(json, i, "'\"', the end of a string")
		}
		switch c := json[i]; {
		case c == '"':
			return i + 1, escaped, nil
		case c == '\\':
			escaped = true
			if i, err = skipEscape(json, i); err != nil {
				return i, escaped, err
			}
		case c < ' ':
			return i, escaped, unexpected(json, i, "no control character in a string; escape it")
		default:
			i++
		}
	}
}

func skipEscape(json []byte, i int) (int, error) {
	const expected = "a valid escape: one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX"
	if i+1 >= len(json) {
		return i + 1, unexpected(json, i+1, expected)
	}
	switch json[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, nil
	case 'u':
		for at := i + 2; at < i+6; at++ {
			if at >= len(json) || !isHex(json[at]) {
				return at, unexpected(json, at, "a hexadecimal digit")
			}
		}
		return i + 6, nil
	}
	return i + 1, unexpected(json, i+1, expected)
}

func isHex(c byte) bool {
	return c-'0' <= 9 || (c|0x20)-'a' <= 5
}

// checkUTF8 refuses text that is not UTF-8: engines refuse it too, or repair it
// in ways that change the prompt.
func checkUTF8(text []byte) error {
	if utf8.Valid(text) {
		return nil
	}
	i := 0
	for i < len(text) {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		i += size
	}
	return &SyntaxError{Offset: i, Found: "a byte that is not UTF-8", Expected: "UTF-8 text"}
}
