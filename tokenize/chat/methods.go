package chat

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// method calls a method that the library lacks, or has otherwise: object, name,
// and the method's arguments.
func (r *rendering) method(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	object, name, args := args[0], args[1].AsString(), args[2:]
	var (
		v     jinja.Value
		known bool
		err   error
	)
	switch {
	case object.IsString():
		v, known, err = stringMethod(object.AsString(), name, args, kwargs)
	case object.IsList():
		v, known, err = listMethod(object.AsList(), name, args)
	case object.IsDict():
		v, known, err = r.dictMethod(object.AsDict(), name, args, kwargs)
	}
	if !known {
		return v, fmt.Errorf("%s has no method %s", typeName(object), name)
	}
	return v, err
}

func stringMethod(s, name string, args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, bool, error) {
	b := binder{filter: name, args: args, kwargs: kwargs}
	var v jinja.Value
	switch name {
	case "split", "rsplit":
		sep, limit := b.next("sep", jinja.None()), b.next("maxsplit", jinja.NewInt(-1))
		return split(s, name == "rsplit", sep, int(intOf(limit)), b.done())
	case "startswith", "endswith":
		return affix(s, name == "startswith", args)
	case "splitlines":
		v = stringList(splitLines(s, b.next("keepends", jinja.NewBool(false)).IsTruthy()))
	case "removeprefix":
		v = jinja.NewString(strings.TrimPrefix(s, text(b.next("prefix", jinja.Undefined()))))
	case "removesuffix":
		v = jinja.NewString(strings.TrimSuffix(s, text(b.next("suffix", jinja.Undefined()))))
	case "join":
		list := b.next("iterable", jinja.Undefined())
		var parts []string
		for _, item := range items(list) {
			if !item.IsString() {
				return item, true, fmt.Errorf("join: expected str, found %s", typeName(item))
			}
			parts = append(parts, item.AsString())
		}
		v = jinja.NewString(strings.Join(parts, s))
	case "count":
		v = jinja.NewInt(int64(strings.Count(s, text(b.next("sub", jinja.Undefined())))))
	case "index":
		i := strings.Index(s, text(b.next("sub", jinja.Undefined())))
		if i < 0 {
			return v, true, fmt.Errorf("index: substring not found")
		}
		v = jinja.NewInt(int64(len([]rune(s[:i]))))
	case "title":
		v = jinja.NewString(pythonTitle(s))
	case "isdigit", "isdecimal", "isnumeric":
		v = jinja.NewBool(every(s, unicode.IsDigit))
	case "isalpha":
		v = jinja.NewBool(every(s, unicode.IsLetter))
	case "isalnum":
		v = jinja.NewBool(every(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }))
	case "isspace":
		v = jinja.NewBool(every(s, isSpace))
	case "isupper":
		v = jinja.NewBool(s == strings.ToUpper(s) && strings.ContainsFunc(s, unicode.IsUpper))
	case "islower":
		v = jinja.NewBool(s == strings.ToLower(s) && strings.ContainsFunc(s, unicode.IsLower))
	default:
		return v, false, nil
	}
	return v, true, b.done()
}

// affix is startswith and endswith: of a string, or of one of a tuple, from a place
// to another.
func affix(s string, start bool, args []jinja.Value) (jinja.Value, bool, error) {
	if len(args) == 0 || len(args) > 3 {
		return jinja.None(), true, fmt.Errorf("startswith and endswith need one to three arguments")
	}
	if len(args) > 1 {
		s = between(s, args[1:])
	}
	patterns := args[:1]
	if args[0].IsList() {
		patterns = args[0].AsList().Items
	}
	for _, p := range patterns {
		if !p.IsString() {
			return p, true, fmt.Errorf("startswith and endswith need strings, not %s", typeName(p))
		}
		if start && strings.HasPrefix(s, p.AsString()) || !start && strings.HasSuffix(s, p.AsString()) {
			return jinja.NewBool(true), true, nil
		}
	}
	return jinja.NewBool(false), true, nil
}

// between is s[start:end] of characters.
func between(s string, bounds []jinja.Value) string {
	runes := []rune(s)
	at := [2]int{0, len(runes)}
	for i, b := range bounds {
		if b.IsNone() {
			continue
		}
		n := int(max(-1<<40, min(intOf(b), 1<<40)))
		if n < 0 {
			n += len(runes)
		}
		at[i] = max(0, min(n, len(runes)))
	}
	return string(runes[at[0]:max(at[0], at[1])])
}

func every(s string, is func(rune) bool) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !is(r) })
}

// pythonTitle is str.title: a word is a run of cased letters.
func pythonTitle(s string) string {
	cased := false
	return strings.Map(func(r rune) rune {
		was := cased
		cased = unicode.IsLetter(r)
		if was {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, s)
}

func stringList(parts []string) jinja.Value {
	list := make([]jinja.Value, len(parts))
	for i, p := range parts {
		list[i] = jinja.NewString(p)
	}
	return jinja.NewList(list)
}

func split(s string, fromRight bool, sep jinja.Value, limit int, err error) (jinja.Value, bool, error) {
	switch {
	case err != nil:
		return sep, true, err
	case !sep.IsNone() && (!sep.IsString() || sep.AsString() == ""):
		return sep, true, fmt.Errorf("split: the separator must be a string that is not empty")
	case limit < 0:
		limit = len(s)
	}
	var parts []string
	switch {
	case sep.IsNone() && !fromRight:
		parts = fields(s, limit)
	case sep.IsNone():
		parts = fieldsRight(s, limit)
	case !fromRight:
		parts = strings.SplitN(s, sep.AsString(), limit+1)
	default:
		parts = splitRight(s, sep.AsString(), limit)
	}
	return stringList(parts), true, nil
}

// fields splits at runs of whitespace, at most limit times.
func fields(s string, limit int) []string {
	var parts []string
	for s = strings.TrimLeftFunc(s, isSpace); s != ""; limit-- {
		end := strings.IndexFunc(s, isSpace)
		if limit == 0 || end < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:end])
		s = strings.TrimLeftFunc(s[end:], isSpace)
	}
	return parts
}

func fieldsRight(s string, limit int) []string {
	var parts []string
	for s = strings.TrimRightFunc(s, isSpace); s != ""; limit-- {
		start := strings.LastIndexFunc(s, isSpace)
		if limit == 0 || start < 0 {
			parts = append(parts, s)
			break
		}
		_, size := utf8.DecodeRuneInString(s[start:])
		parts = append(parts, s[start+size:])
		s = strings.TrimRightFunc(s[:start], isSpace)
	}
	reverse(parts)
	return parts
}

func splitRight(s, sep string, limit int) []string {
	var parts []string
	for ; limit > 0; limit-- {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
	}
	parts = append(parts, s)
	reverse(parts)
	return parts
}

func reverse(parts []string) {
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
}

// splitLines is str.splitlines.
func splitLines(s string, keepEnds bool) []string {
	var lines []string
	for s != "" {
		end := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if end < 0 {
			return append(lines, s)
		}
		_, size := utf8.DecodeRuneInString(s[end:])
		if strings.HasPrefix(s[end:], "\r\n") {
			size = 2
		}
		if keepEnds {
			lines = append(lines, s[:end+size])
		} else {
			lines = append(lines, s[:end])
		}
		s = s[end+size:]
	}
	return lines
}

// listMethod knows what does not change a list: templates run in a sandbox that
// forbids the rest.
func listMethod(l *jinja.List, name string, args []jinja.Value) (jinja.Value, bool, error) {
	switch name {
	case "append", "insert", "extend", "pop", "remove", "clear", "sort", "reverse":
		return jinja.Undefined(), true, fmt.Errorf("list.%s is not allowed: templates cannot change values", name)
	case "index", "count":
		if len(args) != 1 {
			return jinja.Undefined(), true, fmt.Errorf("list.%s needs one argument", name)
		}
		n := int64(0)
		for i, item := range l.Items {
			if item.Equals(args[0]) {
				if name == "index" {
					return jinja.NewInt(int64(i)), true, nil
				}
				n++
			}
		}
		if name == "index" {
			return args[0], true, fmt.Errorf("list.index: the value is not in the list")
		}
		return jinja.NewInt(n), true, nil
	}
	return jinja.Undefined(), false, nil
}

func (r *rendering) dictMethod(d *jinja.Dict, name string, args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, bool, error) {
	switch name {
	case "update", "pop", "popitem", "clear", "setdefault":
		return jinja.Undefined(), true, fmt.Errorf("dict.%s is not allowed: templates cannot change values", name)
	case "copy":
		v := jinja.NewDict()
		for _, k := range d.Keys {
			v.AsDict().Set(k, d.Data[k])
		}
		return v, true, r.spend(d.Len())
	case "get":
		b := binder{filter: name, args: args, kwargs: kwargs}
		key, fallback := b.next("key", jinja.Undefined()), b.next("default", jinja.None())
		if v, ok := d.Get(text(key)); ok {
			fallback = v
		}
		return fallback, true, b.done()
	}
	if fn, ok := d.Get(name); ok && fn.IsCallable() && fn.AsCallable().Fn != nil {
		v, err := fn.AsCallable().Fn(args, kwargs)
		return v, true, err
	}
	return jinja.Undefined(), false, nil
}
