package kvevents

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
)

// What can be wrong with a value. The errors are made once, as a decoder may
// meet many of them and must not allocate for each.
var (
	errTruncated = errors.New("ends in the middle of a value")
	errShape     = errors.New("a value has an unexpected type")
	errLimit     = errors.New("a length is over its limit")
	errHash      = errors.New("a block hash cannot be read")
	errToken     = errors.New("a token id cannot be read")
)

// family is the kind of a msgpack value, without its width.
type family uint8

const (
	famNone family = iota // nothing left, or a byte that begins no value
	famNil
	famBool
	famInt
	famFloat
	famText // str or bin
	famArray
	famMap
	famExt
)

// cursor reads msgpack values, https://github.com/msgpack/msgpack/blob/master/spec.md,
// from b at i. After an error its position is unspecified.
type cursor struct {
	b []byte
	i int
}

func (c *cursor) left() int { return len(c.b) - c.i }

// peek is the family of the next value.
func (c *cursor) peek() family {
	if c.i >= len(c.b) {
		return famNone
	}
	switch m := c.b[c.i]; {
	case m <= 0x7f || m >= 0xe0:
		return famInt
	case m <= 0x8f:
		return famMap
	case m <= 0x9f:
		return famArray
	case m <= 0xbf:
		return famText
	}
	switch c.b[c.i] {
	case 0xc0:
		return famNil
	case 0xc2, 0xc3:
		return famBool
	case 0xc4, 0xc5, 0xc6, 0xd9, 0xda, 0xdb:
		return famText
	case 0xc7, 0xc8, 0xc9, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return famExt
	case 0xca, 0xcb:
		return famFloat
	case 0xdc, 0xdd:
		return famArray
	case 0xde, 0xdf:
		return famMap
	case 0xc1:
		return famNone
	}
	return famInt
}

// null consumes a nil, if that is next.
func (c *cursor) null() bool {
	if c.i < len(c.b) && c.b[c.i] == 0xc0 {
		c.i++
		return true
	}
	return false
}

// uint reads a big-endian number of n bytes.
func (c *cursor) uint(n int) (uint64, error) {
	if c.left() < n {
		return 0, errTruncated
	}
	b := c.b[c.i : c.i+n]
	c.i += n
	switch n {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), nil
	default:
		return binary.BigEndian.Uint64(b), nil
	}
}

// length reads a value's header: its family, and for a container its elements
// (a map's pairs), for a text its bytes. It consumes the header only.
func (c *cursor) length() (family, uint64, error) {
	f := c.peek()
	if f == famNone {
		if c.left() == 0 {
			return f, 0, errTruncated
		}
		return f, 0, errShape
	}
	m := c.b[c.i]
	c.i++
	var width int
	switch {
	case f == famMap && m <= 0x8f, f == famArray && m <= 0x9f:
		return f, uint64(m & 0x0f), nil
	case f == famText && m <= 0xbf:
		return f, uint64(m & 0x1f), nil
	case m == 0xc4 || m == 0xd9:
		width = 1
	case m == 0xc5 || m == 0xda || m == 0xdc || m == 0xde:
		width = 2
	case m == 0xc6 || m == 0xdb || m == 0xdd || m == 0xdf:
		width = 4
	default:
		return f, 0, errShape
	}
	n, err := c.uint(width)
	return f, n, err
}

// container reads the header of an array or map of at most limit elements. It
// refuses one that has more elements than bytes are left, as each takes one.
func (c *cursor) container(want family, limit int) (int, error) {
	f, n, err := c.length()
	switch {
	case err != nil:
		return 0, err
	case f != want:
		return 0, errShape
	case n > uint64(limit):
		return 0, errLimit
	case n > uint64(c.left()):
		return 0, errTruncated
	}
	return int(n), nil
}

// text reads a str or bin of at most limit bytes. The result lies in c.b.
func (c *cursor) text(limit int) ([]byte, error) {
	f, n, err := c.length()
	switch {
	case err != nil:
		return nil, err
	case f != famText:
		return nil, errShape
	case n > uint64(limit):
		return nil, errLimit
	case n > uint64(c.left()):
		return nil, errTruncated
	}
	b := c.b[c.i : c.i+int(n) : c.i+int(n)]
	c.i += int(n)
	return b, nil
}

// skip consumes the next value, whatever it is. It counts values that are still
// to come rather than descend, so that no nesting can exhaust the stack, and its
// time is bounded by the bytes left.
func (c *cursor) skip() error {
	for pending := uint64(1); pending > 0; pending-- {
		f := c.peek()
		switch f {
		case famNone:
			_, _, err := c.length()
			return err
		case famText, famArray, famMap:
			_, n, err := c.length()
			if err != nil {
				return err
			}
			if f == famMap {
				n *= 2
			}
			if n > uint64(c.left()) {
				return errTruncated
			}
			if f == famText {
				c.i += int(n)
			} else {
				pending += n
			}
		default:
			n, err := c.scalarSize()
			if err != nil {
				return err
			}
			if n > uint64(c.left()) {
				return errTruncated
			}
			c.i += int(n)
		}
	}
	return nil
}

// scalarSize is the size in bytes, marker included, of the value at c, which is
// neither a text nor a container.
func (c *cursor) scalarSize() (uint64, error) {
	switch c.b[c.i] {
	case 0xcc, 0xd0:
		return 2, nil
	case 0xcd, 0xd1, 0xd4:
		return 3, nil
	case 0xd5:
		return 4, nil
	case 0xca, 0xce, 0xd2:
		return 5, nil
	case 0xd6:
		return 6, nil
	case 0xcb, 0xcf, 0xd3:
		return 9, nil
	case 0xd7:
		return 10, nil
	case 0xd8:
		return 18, nil
	case 0xc7, 0xc8, 0xc9: // ext: marker, length, type, bytes
		width := 1 << (c.b[c.i] - 0xc7)
		after := cursor{b: c.b, i: c.i + 1}
		n, err := after.uint(width)
		return uint64(2+width) + n, err
	}
	return 1, nil
}

// number reads an integer as its two's complement and whether it is negative.
// A float without fraction is taken for the integer that it is.
func (c *cursor) number() (v uint64, negative bool, err error) {
	if c.left() == 0 {
		return 0, false, errTruncated
	}
	m := c.b[c.i]
	c.i++
	switch {
	case m <= 0x7f:
		return uint64(m), false, nil
	case m >= 0xe0:
		return uint64(int64(int8(m))), true, nil
	case m == 0xca || m == 0xcb:
		c.i--
		f, err := c.float()
		switch {
		case err != nil:
			return 0, false, err
		case f != math.Trunc(f) || math.Abs(f) > 1<<53: // NaN differs from itself
			return 0, false, errShape
		}
		return uint64(int64(f)), f < 0, nil
	case m >= 0xcc && m <= 0xcf:
		v, err = c.uint(1 << (m - 0xcc))
		return v, false, err
	case m >= 0xd0 && m <= 0xd3:
		width := 1 << (m - 0xd0)
		v, err = c.uint(width)
		shift := uint(64 - 8*width)
		signed := int64(v<<shift) >> shift
		return uint64(signed), signed < 0, err
	}
	return 0, false, errShape
}

// integer reads a number that fits an int64.
func (c *cursor) integer() (int64, error) {
	v, negative, err := c.number()
	if err == nil && !negative && v > math.MaxInt64 {
		return 0, errShape
	}
	return int64(v), err
}

// float reads any number.
func (c *cursor) float() (float64, error) {
	switch c.peek() {
	case famFloat:
		m := c.b[c.i]
		c.i++
		if m == 0xca {
			v, err := c.uint(4)
			return float64(math.Float32frombits(uint32(v))), err
		}
		v, err := c.uint(8)
		return math.Float64frombits(v), err
	case famInt:
		v, negative, err := c.number()
		if negative {
			return float64(int64(v)), err
		}
		return float64(v), err
	case famNone:
		return 0, errTruncated
	}
	return 0, errShape
}

// hash reads a block hash in any of its forms. empty says that it was a text
// without a byte.
func (c *cursor) hash() (h uint64, empty bool, err error) {
	switch c.peek() {
	case famInt:
		v, _, err := c.number()
		return v, false, err
	case famText:
		isBin := c.b[c.i] >= 0xc4 && c.b[c.i] <= 0xc6
		b, err := c.text(maxHashBytes)
		if err != nil {
			return 0, false, err
		}
		if len(b) == 0 {
			return 0, true, nil
		}
		if !isBin {
			h, ok := textHash(b)
			if !ok {
				return 0, false, errHash
			}
			return h, false, nil
		}
		return bytesHash(b), false, nil
	case famNone:
		return 0, false, errTruncated
	}
	return 0, false, errHash
}

// maxHashBytes is more than any digest in use, in hex.
const maxHashBytes = 256

// bytesHash is the last 8 bytes of a digest as a number.
func bytesHash(b []byte) uint64 {
	var h uint64
	for _, x := range b[max(0, len(b)-8):] {
		h = h<<8 | uint64(x)
	}
	return h
}

// textHash is the hash that a text spells: the hex of a digest of at least 8
// bytes, or a decimal number.
func textHash(b []byte) (uint64, bool) {
	if len(b) >= 16 && len(b)%2 == 0 && len(b) <= maxHashBytes {
		var digest [maxHashBytes / 2]byte
		// 16 to 20 digits could also be a decimal number: a digest has 8, 16 or
		// more bytes, so only 16 digits are ambiguous, and no engine is known that
		// writes decimal texts of that length in place of integers.
		if n, err := hex.Decode(digest[:], b); err == nil && (n == 8 || n >= 16) {
			return bytesHash(digest[:n]), true
		}
	}
	if v, err := strconv.ParseUint(string(b), 10, 64); err == nil {
		return v, true
	}
	if v, err := strconv.ParseInt(string(b), 10, 64); err == nil {
		return uint64(v), true
	}
	return 0, false
}
