package tokenize

import (
	"encoding/binary"
	"math"
	"math/bits"
)

const (
	expectedID    = "a token id: an integer from 0 to 4294967295 without sign, point or exponent"
	expectedComma = "',' or ']' after a token id"
)

// AppendIDs appends to dst the ids of a JSON array of token ids that json
// starts with, white space before it allowed, and returns dst and the number of
// bytes up to and including the closing bracket. Text after that is not looked at.
//
// An id is an integer from 0 to 4294967295. Signs, fractions, exponents,
// leading zeros, nulls and nested values are refused with a *SyntaxError; dst
// then holds the ids before the fault. It does not allocate when dst has room,
// and json is not kept.
func AppendIDs(dst []uint32, json []byte) ([]uint32, int, error) {
	i := skipSpace(json, 0)
	if i >= len(json) || json[i] != '[' {
		return dst, i, unexpected(json, i, "'[', the start of an array of token ids")
	}
	i = skipSpace(json, i+1)
	if i < len(json) && json[i] == ']' {
		return dst, i + 1, nil
	}
	for {
		// Up to seven digits in one load. The word is read only where eight
		// bytes and the separator after them are there.
		if i+9 <= len(json) {
			word := binary.LittleEndian.Uint64(json[i:])
			if id, n := shortID(word); n > 0 {
				c := json[i+n]
				if c == ',' {
					dst = append(dst, id)
					i += n + 1
					if json[i] <= ' ' {
						i = skipSpace(json, i)
					}
					continue
				}
				if c == ']' {
					return append(dst, id), i + n + 1, nil
				}
			}
		}
		id, next, err := longID(json, i)
		if err != nil {
			return dst, i, err
		}
		dst = append(dst, id)
		i = skipSpace(json, next)
		if i >= len(json) {
			return dst, i, unexpected(json, i, expectedComma)
		}
		switch json[i] {
		case ',':
			i = skipSpace(json, i+1)
		case ']':
			return dst, i + 1, nil
		case '.', 'e', 'E':
			return dst, i, unexpected(json, i, expectedID)
		default:
			return dst, i, unexpected(json, i, expectedComma)
		}
	}
}

// shortID reads the digits that an eight-byte word starts with, all at once: a
// loop over digits would mispredict its end on every id. It returns n == 0 when
// there are none, eight or more, or a leading zero, which longID then judges.
func shortID(word uint64) (id uint32, n int) {
	x := word ^ 0x3030303030303030
	// Bytes below the first that is not a digit carry nothing into it.
	stop := (x | (x + 0x7676767676767676)) & 0x8080808080808080
	if stop == 0 {
		return 0, 0
	}
	n = bits.TrailingZeros64(stop) >> 3
	if n == 0 || (x&0xff == 0 && n > 1) {
		return 0, 0
	}
	// Right-align the digits as eight decimal places, then fold pairs, fours, all.
	x <<= uint(64 - 8*n)
	x = x*10 + x>>8
	const mask = 0x000000ff000000ff
	x = ((x&mask)*(100+1000000<<32) + ((x>>16)&mask)*(1+10000<<32)) >> 32
	return uint32(x), n
}

// longID reads one id digit by digit: any length, exact errors.
func longID(json []byte, at int) (id uint32, next int, err error) {
	i := at
	var v uint64
	for i < len(json) && json[i]-'0' <= 9 {
		v = v*10 + uint64(json[i]-'0')
		if v > math.MaxUint32 {
			return 0, at, unexpected(json, at, expectedID)
		}
		i++
	}
	if i == at || (json[at] == '0' && i > at+1) {
		return 0, at, unexpected(json, at, expectedID)
	}
	return uint32(v), i, nil
}

// skipSpace returns the first offset from i on that is not JSON white space.
func skipSpace(json []byte, i int) int {
	for i < len(json) {
		switch json[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}
