package chat

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// Limits of one rendering. Templates are trusted, what they are given is not.
const (
	// DefaultMaxOutput bounds the rendered text: some 16 million tokens.
	DefaultMaxOutput = 64 << 20
	// DefaultMaxWork bounds a rendering to some seconds. A step of a loop, a call
	// and 64 bytes of copied text count one each; a chat of 10,000 tokens takes
	// a few thousand.
	DefaultMaxWork = 10_000_000
	// maxMacroDepth is about where Python gives up on recursion.
	maxMacroDepth = 200
)

// rendering is the state of one rendering: what the helpers count.
type rendering struct {
	work, maxWork  int
	output, maxOut int
	depth          int
	now            func() time.Time
	// safe are the strings that are Python's Markup, by where their bytes lie.
	safe map[*byte]bool
}

type callable = func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error)

// bind puts the helpers into a template's variables.
func (r *rendering) bind(vars map[string]jinja.Value) {
	for name, fn := range map[string]callable{
		"out": r.out, "each": r.each, "pairs": r.pairs, "cat": r.cat, "add": r.add,
		"scope": r.scope, "enter": r.enter, "leave": r.leave, "apply": r.apply, "method": r.method,
		"trim": r.trim, "safe": r.safeFilter, "escape": r.escape, "string": r.stringFilter,
		"multiply": r.multiply, "join": r.join,
	} {
		vars[helper+name] = jinja.NewCallable(name, fn)
	}
	for name, v := range pureHelpers {
		vars[name] = v
	}
	vars["range"] = jinja.NewCallable("range", r.numbers)
	vars["strftime_now"] = jinja.NewCallable("strftime_now", r.strftimeNow)
	vars["raise_exception"] = jinja.NewCallable("raise_exception", raiseException)
}

func (r *rendering) spend(n int) error {
	if r.work += n; r.work > r.maxWork {
		return fmt.Errorf("%w: more than %d steps; send fewer or shorter messages", ErrTooLarge, r.maxWork)
	}
	return nil
}

func (r *rendering) spendText(n int) error { return r.spend(1 + n/64) }

// out passes what {{ }} prints.
func (r *rendering) out(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	v := args[0]
	if !v.IsString() {
		v = printed(v)
	}
	n := 0
	if v.IsString() {
		n = len(v.AsString())
	}
	if r.output += n; r.output > r.maxOut {
		return v, fmt.Errorf("%w: more than %d bytes; send fewer or shorter messages", ErrTooLarge, r.maxOut)
	}
	return v, r.spendText(n)
}

// printed returns what prints as Python's str(v) does.
func printed(v jinja.Value) jinja.Value {
	if digits, ok := bigInt(v); ok {
		return jinja.NewString(digits)
	}
	if !v.IsList() && !v.IsDict() {
		return v
	}
	repr := v.String()
	if hasBigInt(v, 0) {
		repr = string(appendRepr(nil, v))
	}
	return jinja.NewString(escapeUnprintable(repr))
}

func hasBigInt(v jinja.Value, depth int) bool {
	if v.IsDict() {
		for _, member := range v.AsDict().Data {
			if depth < maxJSONDepth && hasBigInt(member, depth+1) {
				return true
			}
		}
	}
	if v.IsList() {
		return depth < maxJSONDepth && slices.ContainsFunc(v.AsList().Items, func(item jinja.Value) bool { return hasBigInt(item, depth+1) })
	}
	_, big := bigInt(v)
	return big
}

// appendRepr is the library's repr of lists and dicts, with integers of any size.
func appendRepr(dst []byte, v jinja.Value) []byte {
	switch digits, big := bigInt(v); {
	case big:
		return append(dst, digits...)
	case v.IsList():
		dst = append(dst, '[')
		for i, item := range v.AsList().Items {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendRepr(dst, item)
		}
		return append(dst, ']')
	case v.IsDict():
		dst = append(dst, '{')
		for i, key := range v.AsDict().Keys {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = append(append(dst, jinja.NewString(key).String()...), ": "...)
			dst = appendRepr(dst, v.AsDict().Data[key])
		}
		return append(dst, '}')
	}
	return append(dst, v.String()...)
}

// escapeUnprintable completes the library's repr: Python escapes everything that
// is not printable, and ASCII is done already.
func escapeUnprintable(s string) string {
	var b []byte
	from := 0
	for i, c := range s {
		if c < 0x80 || unicode.IsPrint(c) {
			continue
		}
		b = append(b, s[from:i]...)
		switch {
		case c <= 0xff:
			b = fmt.Appendf(b, `\x%02x`, c)
		case c <= 0xffff:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = fmt.Appendf(b, `\U%08x`, c)
		}
		from = i + len(string(c))
	}
	if b == nil {
		return s
	}
	return string(append(b, s[from:]...))
}

// each passes what a loop goes over.
func (r *rendering) each(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	v := args[0]
	if err := iterable(v); err != nil {
		return v, err
	}
	return v, r.spend(1 + size(v))
}

// pairs passes what a loop with two variables goes over.
func (r *rendering) pairs(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	v, err := r.each(args, kwargs)
	if err != nil || v.IsUndefined() {
		return v, err
	}
	if !v.IsList() {
		return v, fmt.Errorf("cannot unpack the items of %s", typeName(v))
	}
	for _, item := range v.AsList().Items {
		if !item.IsList() || item.AsList().Len() != 2 {
			return v, fmt.Errorf("cannot unpack %s into two variables", typeName(item))
		}
	}
	return v, nil
}

// size is the number of items to iterate over; for a string at most its bytes.
func size(v jinja.Value) int {
	switch {
	case v.IsList():
		return v.AsList().Len()
	case v.IsDict():
		return v.AsDict().Len()
	case v.IsString():
		return len(v.AsString())
	}
	return 0
}

// cat is a ~ b.
func (r *rendering) cat(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var b []byte
	for _, v := range args {
		b = append(b, text(v)...)
	}
	return jinja.NewString(string(b)), r.spendText(len(b))
}

// text is Python's str(v), and nothing for an undefined value.
func text(v jinja.Value) string {
	if v = printed(v); v.IsString() {
		return v.AsString()
	}
	if v.IsUndefined() {
		return ""
	}
	return v.String()
}

// scope prints the body of a call block.
func (r *rendering) scope(_ []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	return kwargs["caller"].AsCallable().Fn(nil, nil)
}

func (r *rendering) enter([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	if r.depth++; r.depth > maxMacroDepth {
		return jinja.Undefined(), fmt.Errorf("%w: macros call each other more than %d deep", ErrTooLarge, maxMacroDepth)
	}
	return jinja.NewString(""), r.spend(1)
}

func (r *rendering) leave([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	r.depth--
	return jinja.NewString(""), nil
}

// apply is fn(*star).
func (r *rendering) apply(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	fn, star := args[0], args[1]
	if !fn.IsCallable() || !star.IsList() {
		return fn, errors.New("*arguments need a callable and a list")
	}
	all := append(append([]jinja.Value(nil), args[2:]...), star.AsList().Items...)
	return fn.AsCallable().Fn(all, kwargs)
}

// numbers is range().
func (r *rendering) numbers(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 || len(args) > 3 || len(kwargs) > 0 {
		return jinja.Undefined(), errors.New("range: expected one to three integers")
	}
	for _, v := range args {
		if !v.IsInt() && !v.IsBool() {
			return jinja.Undefined(), fmt.Errorf("range: %s is no integer", typeName(v))
		}
	}
	start, stop, step := int64(0), intOf(args[0]), int64(1)
	if len(args) > 1 {
		start, stop = stop, intOf(args[1])
	}
	if len(args) > 2 {
		step = intOf(args[2])
	}
	if step == 0 {
		return jinja.Undefined(), errors.New("range: the step must not be zero")
	}
	const limit = 1 << 40 // keeps the arithmetic from overflowing
	if max(start, stop, step) > limit || min(start, stop, step) < -limit {
		return jinja.Undefined(), fmt.Errorf("%w: range", ErrTooLarge)
	}
	n := int(max(0, (stop-start+step-sign(step))/step))
	if err := r.spend(1 + n); err != nil {
		return jinja.Undefined(), err
	}
	items := make([]jinja.Value, n)
	for i := range items {
		items[i] = jinja.NewInt(start + int64(i)*step)
	}
	return jinja.NewList(items), nil
}

func sign(n int64) int64 {
	if n < 0 {
		return -1
	}
	return 1
}

func (r *rendering) strftimeNow(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	b := binder{filter: "strftime_now", args: args, kwargs: kwargs}
	format := b.next("format", jinja.Undefined())
	if err := b.done(); err != nil {
		return format, err
	}
	if !format.IsString() {
		return format, errors.New("strftime_now: the format must be a string")
	}
	return jinja.NewString(strftime(format.AsString(), r.now())), nil
}

// raiseException is how a template refuses its input.
func raiseException(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	b := binder{filter: "raise_exception", args: args, kwargs: kwargs}
	message := b.next("message", jinja.Undefined())
	if err := b.done(); err != nil {
		return message, err
	}
	return message, &Refused{Reason: text(message)}
}
