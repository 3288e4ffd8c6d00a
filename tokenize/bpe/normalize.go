package bpe

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"warmpath/tokenize/bpe/compose"
	"warmpath/tokenize/bpe/onig"
)

// normalizer rewrites text before it is split.
type normalizer func(string) string

// newNormalizer builds the file's normalizer, nil when it has none. inPlace
// reports whether what it writes for one character always stands where that
// was, which Metaspace's "first" depends on.
func newNormalizer(raw json.RawMessage, path string) (n normalizer, inPlace bool, err error) {
	kind, err := component(raw, path)
	if err != nil {
		return nil, false, err
	}
	switch kind {
	case "":
		return nil, true, nil
	case "Sequence":
		return newNormalizerSequence(raw, path)
	case "NFC", "NFD", "NFKC", "NFKD":
		form := map[string]compose.Form{"NFC": compose.NFC, "NFD": compose.NFD, "NFKC": compose.NFKC, "NFKD": compose.NFKD}[kind]
		return form.String, false, nil
	case "Lowercase":
		return lowercase, true, nil
	case "Nmt":
		return nmt, false, nil
	case "StripAccents":
		return func(s string) string { return dropRunes(s, compose.IsMark) }, false, nil
	case "ByteLevel":
		return func(s string) string { return string(appendMapped(nil, s)) }, false, nil
	case "Strip":
		n, err = newStrip(raw, path)
		return n, false, err
	case "Prepend":
		n, err = newPrepend(raw, path)
		return n, false, err
	case "Replace":
		return newReplace(raw, path)
	}
	return nil, false, fmt.Errorf("%s: normalizer %q is not supported", path, kind)
}

func newNormalizerSequence(raw json.RawMessage, path string) (normalizer, bool, error) {
	var f struct{ Normalizers []json.RawMessage }
	if err := fields(raw, path, &f); err != nil {
		return nil, false, err
	}
	var all []normalizer
	inPlace := true
	for i, part := range f.Normalizers {
		n, ok, err := newNormalizer(part, fmt.Sprintf("%s.normalizers[%d]", path, i))
		if err != nil {
			return nil, false, err
		}
		inPlace = inPlace && ok
		if n != nil {
			all = append(all, n)
		}
	}
	switch len(all) {
	case 0:
		return nil, true, nil
	case 1:
		return all[0], inPlace, nil
	}
	return func(s string) string {
		for _, n := range all {
			s = n(s)
		}
		return s
	}, inPlace, nil
}

// lowercase lowers one character at a time, without regard to its place in a
// word.
func lowercase(s string) string {
	if !strings.Contains(s, "\u0130") {
		return strings.Map(unicode.ToLower, s)
	}
	// The one character whose lower case is two.
	parts := strings.Split(s, "\u0130")
	for i := range parts {
		parts[i] = strings.Map(unicode.ToLower, parts[i])
	}
	return strings.Join(parts, "i\u0307")
}

func dropRunes(s string, drop func(rune) bool) string {
	return strings.Map(func(r rune) rune {
		if drop(r) {
			return -1
		}
		return r
	}, s)
}

// nmt cleans control characters and spaces as SentencePiece's nmt rules do.
func nmt(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0x1 && r <= 0x8, r == 0xb, r >= 0xe && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
			return -1
		case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, r >= 0x200b && r <= 0x200f,
			r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == utf8.RuneError:
			return ' '
		}
		return r
	}, s)
}

func newStrip(raw json.RawMessage, path string) (normalizer, error) {
	var f struct {
		Left  bool `json:"strip_left"`
		Right bool `json:"strip_right"`
	}
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	return func(s string) string {
		if f.Left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if f.Right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s
	}, nil
}

func newPrepend(raw json.RawMessage, path string) (normalizer, error) {
	var f struct{ Prepend string }
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	return func(s string) string {
		if s == "" {
			return s
		}
		return f.Prepend + s
	}, nil
}

func newReplace(raw json.RawMessage, path string) (normalizer, bool, error) {
	var f struct {
		Pattern patternField
		Content string
	}
	if err := fields(raw, path, &f); err != nil {
		return nil, false, err
	}
	switch {
	case f.Pattern.String != nil:
		old := *f.Pattern.String
		if old == "" {
			return nil, false, fmt.Errorf("%s.pattern: is empty", path)
		}
		return func(s string) string { return strings.ReplaceAll(s, old, f.Content) },
			utf8.RuneCountInString(old) == 1 && f.Content != "", nil
	case f.Pattern.Regex != nil:
		re, err := replaceable(*f.Pattern.Regex)
		if err != nil {
			return nil, false, fmt.Errorf("%s.pattern: %w", path, err)
		}
		return func(s string) string { return replaceAll(re, s, f.Content) }, false, nil
	}
	return nil, false, fmt.Errorf("%s.pattern: %w", path, errNoPattern)
}

var errNoPattern = errors.New("has neither String nor Regex")

// replaceable compiles a pattern to replace. The crate fails on matches without
// characters, so those patterns are refused.
func replaceable(pattern string) (*onig.Pattern, error) {
	re, err := onig.Compile(pattern)
	if err == nil && re.CanBeEmpty() {
		return nil, fmt.Errorf("pattern %q can match nothing, which cannot be replaced", pattern)
	}
	return re, err
}

func replaceAll(re *onig.Pattern, s, content string) string {
	var out strings.Builder
	done := 0
	re.FindAll(s, func(start, end int) bool {
		out.WriteString(s[done:start])
		out.WriteString(content)
		done = end
		return true
	})
	if done == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}
