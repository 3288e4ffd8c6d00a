package bpe

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder rewrites a list of tokens on its way to text.
type decoder func([]string) []string

// Decode returns the text of ids. Ids that no token has are left out, and
// special tokens too if skipSpecial is set. Bytes that do not make up a
// character become U+FFFD.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		token, ok := t.Token(id)
		if !ok || skipSpecial && t.added.special[token] {
			continue
		}
		tokens = append(tokens, token)
	}
	if t.decoder == nil {
		return strings.Join(tokens, " ")
	}
	return strings.Join(t.decoder(tokens), "")
}

// newDecoder builds the file's decoder, nil when it has none.
func newDecoder(raw json.RawMessage, path string) (decoder, error) {
	kind, err := component(raw, path)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "":
		return nil, nil
	case "ByteLevel":
		return decodeByteLevel, nil
	case "ByteFallback":
		return decodeFallback, nil
	case "Fuse":
		return func(tokens []string) []string { return []string{strings.Join(tokens, "")} }, nil
	case "Sequence":
		return newDecoderSequence(raw, path)
	case "Replace":
		return newDecoderReplace(raw, path)
	case "Strip":
		return newDecoderStrip(raw, path)
	case "Metaspace":
		return newDecoderMetaspace(raw, path)
	case "BPEDecoder":
		return newDecoderSuffix(raw, path)
	}
	return nil, fmt.Errorf("%s: decoder %q is not supported", path, kind)
}

func newDecoderSequence(raw json.RawMessage, path string) (decoder, error) {
	var f struct{ Decoders []json.RawMessage }
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	var all []decoder
	for i, part := range f.Decoders {
		d, err := newDecoder(part, fmt.Sprintf("%s.decoders[%d]", path, i))
		if err != nil {
			return nil, err
		}
		if d != nil {
			all = append(all, d)
		}
	}
	return func(tokens []string) []string {
		for _, d := range all {
			tokens = d(tokens)
		}
		return tokens
	}, nil
}

// decodeByteLevel maps characters back to bytes; a token with any other
// character stands for itself.
func decodeByteLevel(tokens []string) []string {
	var out []byte
	for _, t := range tokens {
		var ok bool
		if out, ok = appendUnmapped(out, t); !ok {
			out = append(out, t...)
		}
	}
	return []string{validText(out)}
}

// validText replaces what is not UTF-8 as Rust does: one U+FFFD for each
// longest beginning of a character.
func validText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = partial(b)
		}
		out.WriteRune(r)
		b = b[n:]
	}
	return out.String()
}

// partial returns the length of the incomplete or invalid character that b
// begins with: the bytes that could still have become one.
func partial(b []byte) int {
	lo, hi, need := byte(0x80), byte(0xbf), 0 // what may follow, and how much
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		need = 1
	case c >= 0xe0 && c <= 0xef:
		need = 2
	case c >= 0xf0 && c <= 0xf4:
		need = 3
	}
	switch b[0] {
	case 0xe0:
		lo = 0xa0
	case 0xed:
		hi = 0x9f
	case 0xf0:
		lo = 0x90
	case 0xf4:
		hi = 0x8f
	}
	n := 1
	for n <= need && n < len(b) && b[n] >= lo && b[n] <= hi {
		lo, hi = 0x80, 0xbf
		n++
	}
	return n
}

// decodeFallback turns runs of tokens such as <0xE4> into the text that their
// bytes are, or one U+FFFD a byte.
func decodeFallback(tokens []string) []string {
	var out []string
	var run []byte
	flush := func() {
		if utf8.Valid(run) {
			if len(run) > 0 {
				out = append(out, string(run))
			}
		} else {
			for range run {
				out = append(out, string(utf8.RuneError))
			}
		}
		run = run[:0]
	}
	for _, t := range tokens {
		if b, ok := fallbackByte(t); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, t)
	}
	flush()
	return out
}

func fallbackByte(token string) (byte, bool) {
	if len(token) != 6 || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return 0, false
	}
	v, err := strconv.ParseUint(strings.TrimPrefix(token[3:5], "+"), 16, 8) // Rust reads "+F"
	return byte(v), err == nil
}

func eachToken(f func(string) string) decoder {
	return func(tokens []string) []string {
		out := make([]string, len(tokens))
		for i, t := range tokens {
			out[i] = f(t)
		}
		return out
	}
}

func newDecoderReplace(raw json.RawMessage, path string) (decoder, error) {
	var f struct {
		Pattern patternField
		Content string
	}
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	switch {
	case f.Pattern.String != nil && *f.Pattern.String != "":
		return eachToken(func(t string) string { return strings.ReplaceAll(t, *f.Pattern.String, f.Content) }), nil
	case f.Pattern.Regex != nil:
		re, err := replaceable(*f.Pattern.Regex)
		if err != nil {
			return nil, fmt.Errorf("%s.pattern: %w", path, err)
		}
		return eachToken(func(t string) string { return replaceAll(re, t, f.Content) }), nil
	}
	return nil, fmt.Errorf("%s.pattern: %w", path, errNoPattern)
}

func newDecoderStrip(raw json.RawMessage, path string) (decoder, error) {
	var f struct {
		Content     string
		Start, Stop int
	}
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	if utf8.RuneCountInString(f.Content) != 1 {
		return nil, fmt.Errorf("%s.content: want one character, found %q", path, f.Content)
	}
	return eachToken(func(t string) string {
		for i := 0; i < f.Start && strings.HasPrefix(t, f.Content); i++ {
			t = t[len(f.Content):]
		}
		for i := 0; i < f.Stop && strings.HasSuffix(t, f.Content); i++ {
			t = t[:len(t)-len(f.Content)]
		}
		return t
	}), nil
}

func newDecoderMetaspace(raw json.RawMessage, path string) (decoder, error) {
	f := struct {
		Replacement    string
		AddPrefixSpace *bool  `json:"add_prefix_space"`
		PrependScheme  string `json:"prepend_scheme"`
	}{PrependScheme: "always"}
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	if f.Replacement == "" {
		return nil, fmt.Errorf("%s.replacement: is empty", path)
	}
	strip := f.PrependScheme != "never" && (f.AddPrefixSpace == nil || *f.AddPrefixSpace)
	return func(tokens []string) []string {
		out := make([]string, len(tokens))
		for i, t := range tokens {
			space := " "
			if i == 0 && strip {
				space = ""
			}
			out[i] = strings.ReplaceAll(t, f.Replacement, space)
		}
		return out
	}, nil
}

func newDecoderSuffix(raw json.RawMessage, path string) (decoder, error) {
	var f struct{ Suffix string }
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	if f.Suffix == "" {
		return nil, fmt.Errorf("%s.suffix: is empty", path)
	}
	return func(tokens []string) []string {
		out := make([]string, len(tokens))
		for i, t := range tokens {
			space := " "
			if i == len(tokens)-1 {
				space = ""
			}
			out[i] = strings.ReplaceAll(t, f.Suffix, space)
		}
		return out
	}, nil
}
