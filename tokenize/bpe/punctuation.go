package bpe

import "unicode"

// isPunctuation says what the crate's Punctuation pre-tokenizer, which has
// tables from 2016, takes for punctuation.
func isPunctuation(r rune) bool {
	switch {
	case r < 0x80:
		return r >= '!' && r <= '~' && asciiPunct(byte(r))
	case r == 0x166d || r == 0x111c9: // punctuation then, not any more
		return true
	}
	return unicode.Is(unicode.P, r) && !unicode.Is(laterPunctuation, r)
}

// laterPunctuation lists the punctuation that those tables lack, as measured
// code point by code point.
var laterPunctuation = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x061d, Hi: 0x061d, Stride: 1},
		{Lo: 0x09fd, Hi: 0x09fd, Stride: 1},
		{Lo: 0x0a76, Hi: 0x0a76, Stride: 1},
		{Lo: 0x0c77, Hi: 0x0c77, Stride: 1},
		{Lo: 0x0c84, Hi: 0x0c84, Stride: 1},
		{Lo: 0x1b4e, Hi: 0x1b4f, Stride: 1},
		{Lo: 0x1b7d, Hi: 0x1b7f, Stride: 1},
		{Lo: 0x2e43, Hi: 0x2e4f, Stride: 1},
		{Lo: 0x2e52, Hi: 0x2e5d, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x10d6e, Hi: 0x10d6e, Stride: 1},
		{Lo: 0x10ead, Hi: 0x10ead, Stride: 1},
		{Lo: 0x10ed0, Hi: 0x10ed0, Stride: 1},
		{Lo: 0x10f55, Hi: 0x10f59, Stride: 1},
		{Lo: 0x10f86, Hi: 0x10f89, Stride: 1},
		{Lo: 0x113d4, Hi: 0x113d5, Stride: 1},
		{Lo: 0x113d7, Hi: 0x113d8, Stride: 1},
		{Lo: 0x1144b, Hi: 0x1144f, Stride: 1},
		{Lo: 0x1145a, Hi: 0x1145b, Stride: 1},
		{Lo: 0x1145d, Hi: 0x1145d, Stride: 1},
		{Lo: 0x11660, Hi: 0x1166c, Stride: 1},
		{Lo: 0x116b9, Hi: 0x116b9, Stride: 1},
		{Lo: 0x1183b, Hi: 0x1183b, Stride: 1},
		{Lo: 0x11944, Hi: 0x11946, Stride: 1},
		{Lo: 0x119e2, Hi: 0x119e2, Stride: 1},
		{Lo: 0x11a3f, Hi: 0x11a46, Stride: 1},
		{Lo: 0x11a9a, Hi: 0x11a9c, Stride: 1},
		{Lo: 0x11a9e, Hi: 0x11aa2, Stride: 1},
		{Lo: 0x11b00, Hi: 0x11b09, Stride: 1},
		{Lo: 0x11be1, Hi: 0x11be1, Stride: 1},
		{Lo: 0x11c41, Hi: 0x11c45, Stride: 1},
		{Lo: 0x11c70, Hi: 0x11c71, Stride: 1},
		{Lo: 0x11ef7, Hi: 0x11ef8, Stride: 1},
		{Lo: 0x11f43, Hi: 0x11f4f, Stride: 1},
		{Lo: 0x11fff, Hi: 0x11fff, Stride: 1},
		{Lo: 0x12ff1, Hi: 0x12ff2, Stride: 1},
		{Lo: 0x16d6d, Hi: 0x16d6f, Stride: 1},
		{Lo: 0x16e97, Hi: 0x16e9a, Stride: 1},
		{Lo: 0x16fe2, Hi: 0x16fe2, Stride: 1},
		{Lo: 0x1e5ff, Hi: 0x1e5ff, Stride: 1},
		{Lo: 0x1e95e, Hi: 0x1e95f, Stride: 1},
	},
}
