package chat

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// jsonStyle is how the tojson filter was asked to write: Python's json.dumps.
type jsonStyle struct {
	ascii, sorted bool
	indent        *string
	item, key     string
}

// toJSON is the tojson filter that transformers installs: json.dumps without
// ASCII escapes. Its parameters are ensure_ascii, indent, separators, sort_keys.
func toJSON(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	b := binder{filter: "tojson", args: args, kwargs: kwargs}
	x := b.next("x", jinja.Undefined())
	style := jsonStyle{item: ", ", key: ": "}
	style.ascii = b.next("ensure_ascii", jinja.NewBool(false)).IsTruthy()
	switch indent := b.next("indent", jinja.None()); {
	case indent.IsString():
		s := indent.AsString()
		style.indent = &s
	case indent.IsInt() || indent.IsBool():
		s := strings.Repeat(" ", int(min(max(intOf(indent), 0), 1000)))
		style.indent = &s
	case !indent.IsNone():
		return jinja.None(), errors.New("tojson: indent must be a number or a string")
	}
	if style.indent != nil {
		style.item = ","
	}
	if sep := b.next("separators", jinja.None()); !sep.IsNone() {
		if !sep.IsList() || sep.AsList().Len() != 2 || !sep.AsList().Get(0).IsString() || !sep.AsList().Get(1).IsString() {
			return jinja.None(), errors.New("tojson: separators must be two strings")
		}
		style.item, style.key = sep.AsList().Get(0).AsString(), sep.AsList().Get(1).AsString()
	}
	style.sorted = b.next("sort_keys", jinja.NewBool(false)).IsTruthy()
	if err := b.done(); err != nil {
		return jinja.None(), err
	}
	out, err := style.append(make([]byte, 0, 256), x, 0)
	return jinja.NewString(string(out)), err
}

func (s *jsonStyle) append(dst []byte, v jinja.Value, depth int) ([]byte, error) {
	if digits, ok := bigInt(v); ok {
		return append(dst, digits...), nil
	}
	switch {
	case v.IsNone():
		return append(dst, "null"...), nil
	case v.IsBool():
		return strconv.AppendBool(dst, v.AsBool()), nil
	case v.IsInt():
		return strconv.AppendInt(dst, v.AsInt(), 10), nil
	case v.IsFloat():
		return appendJSONFloat(dst, v), nil
	case v.IsString():
		return s.appendString(dst, v.AsString()), nil
	case depth > 2*maxJSONDepth:
		return dst, errors.New("tojson: the value is nested too deep, or contains itself")
	case v.IsList():
		return s.appendList(dst, v.AsList().Items, depth)
	case v.IsDict():
		return s.appendDict(dst, v.AsDict(), depth)
	case v.IsUndefined():
		return dst, errors.New("tojson: Object of type Undefined is not JSON serializable")
	}
	return dst, fmt.Errorf("tojson: %v is not JSON serializable", v)
}

func appendJSONFloat(dst []byte, v jinja.Value) []byte {
	switch f := v.AsFloat(); {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	return append(dst, v.String()...)
}

func (s *jsonStyle) newline(dst []byte, depth int) []byte {
	if s.indent == nil {
		return dst
	}
	dst = append(dst, '\n')
	for range depth {
		dst = append(dst, *s.indent...)
	}
	return dst
}

func (s *jsonStyle) appendList(dst []byte, items []jinja.Value, depth int) ([]byte, error) {
	dst = append(dst, '[')
	var err error
	for i, item := range items {
		if i > 0 {
			dst = append(dst, s.item...)
		}
		if dst, err = s.append(s.newline(dst, depth+1), item, depth+1); err != nil {
			return dst, err
		}
	}
	if len(items) > 0 {
		dst = s.newline(dst, depth)
	}
	return append(dst, ']'), nil
}

func (s *jsonStyle) appendDict(dst []byte, d *jinja.Dict, depth int) ([]byte, error) {
	keys := d.Keys
	if s.sorted {
		keys = slices.Sorted(slices.Values(keys))
	}
	dst = append(dst, '{')
	var err error
	for i, key := range keys {
		if i > 0 {
			dst = append(dst, s.item...)
		}
		dst = append(s.appendString(s.newline(dst, depth+1), key), s.key...)
		if dst, err = s.append(dst, d.Data[key], depth+1); err != nil {
			return dst, err
		}
	}
	if len(keys) > 0 {
		dst = s.newline(dst, depth)
	}
	return append(dst, '}'), nil
}

func (s *jsonStyle) appendString(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !s.ascii) {
			continue
		}
		dst = append(dst, text[from:i]...)
		from = i + 1
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= 0x80:
			r, size := utf8.DecodeRuneInString(text[i:])
			dst = appendASCII(dst, r)
			i += size - 1
			from = i + 1
		default:
			if at := strings.IndexByte("\b\f\n\r\t", c); at >= 0 {
				dst = append(dst, '\\', "bfnrt"[at])
			} else {
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
		}
	}
	return append(append(dst, text[from:]...), '"')
}

// appendASCII writes a character as \u escapes, two beyond 16 bits.
func appendASCII(dst []byte, r rune) []byte {
	if r > 0xffff {
		high, low := utf16.EncodeRune(r)
		return fmt.Appendf(dst, `\u%04x\u%04x`, high, low)
	}
	return fmt.Appendf(dst, `\u%04x`, r)
}
