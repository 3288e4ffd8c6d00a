package bpe

import "unicode/utf8"

// byteRune is the byte-level alphabet of GPT-2: a printable character for each
// byte. Those of Latin-1 that can be seen stand for themselves, the others for
// U+0100 and on, in order.
var byteRune = func() (t [256]rune) {
	next := rune(0x100)
	for b := range t {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b <= 0xac, b >= 0xae:
			t[b] = rune(b)
		default:
			t[b] = next
			next++
		}
	}
	return t
}()

// runeByte is the inverse of byteRune; -1 for a character outside of it.
var runeByte = func() (t [0x200]int16) {
	for i := range t {
		t[i] = -1
	}
	for b, r := range byteRune {
		t[r] = int16(b)
	}
	return t
}()

// appendMapped appends the characters that stand for the bytes of s.
func appendMapped(dst []byte, s string) []byte {
	for i := range len(s) {
		dst = utf8.AppendRune(dst, byteRune[s[i]])
	}
	return dst
}

// appendUnmapped appends the bytes that the characters of s stand for. It
// reports false, and appends nothing, if a character is not of the alphabet.
func appendUnmapped(dst []byte, s string) ([]byte, bool) {
	before := len(dst)
	for _, r := range s {
		if int(r) >= len(runeByte) || runeByte[r] < 0 {
			return dst[:before], false
		}
		dst = append(dst, byte(runeByte[r]))
	}
	return dst, true
}
