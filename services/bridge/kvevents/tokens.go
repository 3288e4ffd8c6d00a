package kvevents

import (
	"encoding/binary"
	"math"
)

// textToken is a token that was given as a string: the digest of multimodal
// content that begins at pos of the run.
type textToken struct {
	pos int
	id  []byte
}

// tokens reads an array of token ids into the decoder's arena.
func (d *Decoder) tokens(c *cursor) ([]uint32, error) {
	if c.null() {
		return nil, nil
	}
	n, err := c.container(famArray, d.limits.MaxTokens)
	if err != nil || n == 0 {
		return nil, err
	}
	from := len(d.tokenArena)
	d.tokenArena = grow(d.tokenArena, n)
	out := d.tokenArena[from : from+n : from+n]
	for k := plainTokens(c, out); k < n; k++ {
		t, err := d.token(c, k)
		if err != nil {
			return nil, err
		}
		out[k] = t
		// The rest is read fast again: one odd token is mostly alone.
		k += plainTokens(c, out[k+1:])
	}
	return out, nil
}

// plainTokens reads unsigned integers into out until it meets anything else or
// comes near the end of the bytes, and returns how many it read.
func plainTokens(c *cursor, out []uint32) int {
	b, i := c.b, c.i
	for k := range out {
		if len(b)-i < 5 {
			c.i = i
			return k
		}
		// One slice, checked once: the compiler then needs no check for each byte.
		v := b[i : i+5 : i+5]
		switch m := v[0]; {
		case m == 0xcd:
			out[k] = uint32(binary.BigEndian.Uint16(v[1:]))
			i += 3
		case m == 0xce:
			out[k] = binary.BigEndian.Uint32(v[1:])
			i += 5
		case m <= 0x7f:
			out[k] = uint32(m)
			i++
		case m == 0xcc:
			out[k] = uint32(v[1])
			i += 2
		default:
			c.i = i
			return k
		}
	}
	c.i = i
	return len(out)
}

// token reads one token in any form.
func (d *Decoder) token(c *cursor, pos int) (uint32, error) {
	switch c.peek() {
	case famInt, famFloat:
		v, negative, err := c.number()
		switch {
		case err != nil:
			return 0, err
		case negative && int64(v) < math.MinInt32, !negative && v > math.MaxUint32:
			return 0, errToken
		}
		return uint32(v), nil
	case famText:
		id, err := c.text(d.limits.MaxString)
		if err != nil {
			return 0, err
		}
		d.texts = append(d.texts, textToken{pos: pos, id: id})
		return 0, nil
	case famArray:
		return d.pair(c)
	case famNone:
		return 0, errTruncated
	}
	return 0, errToken
}

// pair reads (token, next token): with EAGLE, SGLang names a position by both.
func (d *Decoder) pair(c *cursor) (uint32, error) {
	n, err := c.container(famArray, 2)
	if err != nil {
		return 0, err
	}
	if n != 2 || c.peek() != famInt {
		return 0, errToken
	}
	v, negative, err := c.number()
	if err != nil {
		return 0, err
	}
	if negative || v > math.MaxUint32 {
		return 0, errToken
	}
	d.counts.TokenPairs++
	return uint32(v), c.skip()
}

// grow makes room for n more elements and returns s with them, their contents
// unspecified. Slices of the old memory stay valid.
func grow[T any](s []T, n int) []T {
	if need := len(s) + n; need > cap(s) {
		bigger := make([]T, len(s), max(need, 2*cap(s)))
		copy(bigger, s)
		s = bigger
	}
	return s[:len(s)+n]
}
