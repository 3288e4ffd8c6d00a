package chat

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// add is a + b, which in Python needs two numbers, two strings or two lists.
func (r *rendering) add(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	a, b := args[0], args[1]
	switch {
	case a.IsString() && b.IsString():
		s := r.concat(a.AsString(), b.AsString())
		return jinja.NewString(s), r.spendText(len(s))
	case a.IsUndefined() || b.IsUndefined():
		return a, errors.New("an operand of + is undefined")
	case isNumber(a) && isNumber(b):
		if a.IsFloat() || b.IsFloat() {
			return jinja.NewFloat(floatOf(a) + floatOf(b)), nil
		}
		return jinja.NewInt(intOf(a) + intOf(b)), nil
	case a.IsList() && b.IsList():
		items := append(append([]jinja.Value(nil), a.AsList().Items...), b.AsList().Items...)
		return jinja.NewList(items), r.spend(1 + len(items))
	case a.IsString():
		return a, fmt.Errorf("can only concatenate str (not %q) to str", typeName(b))
	}
	return a, fmt.Errorf("unsupported operands for +: %s and %s", typeName(a), typeName(b))
}

// multiply is a * b: two numbers, or a string or list and how often.
func (r *rendering) multiply(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	a, b := args[0], args[1]
	if isNumber(a) && !isNumber(b) {
		a, b = b, a
	}
	whole := !b.IsFloat() && isNumber(b)
	switch {
	case isNumber(a) && (a.IsFloat() || b.IsFloat()):
		return jinja.NewFloat(floatOf(a) * floatOf(b)), nil
	case isNumber(a):
		return jinja.NewInt(intOf(a) * intOf(b)), nil
	case a.IsString() && whole, a.IsList() && whole:
		n := int(max(0, min(intOf(b), math.MaxInt32)))
		if err := r.spend(1 + n*(1+size(a)/64)); err != nil {
			return a, err
		}
		if a.IsString() {
			return jinja.NewString(strings.Repeat(a.AsString(), n)), nil
		}
		var items []jinja.Value
		for range n {
			items = append(items, a.AsList().Items...)
		}
		return jinja.NewList(items), nil
	}
	return a, fmt.Errorf("unsupported operands for *: %s and %s", typeName(args[0]), typeName(args[1]))
}

// modulo is a % b: of numbers, where the sign is b's, or of a format.
func modulo(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if args[0].IsString() {
		s, err := percent(args[0].AsString(), args[1])
		return jinja.NewString(s), err
	}
	a, err := number(args[:1], kwargs)
	if err != nil {
		return a, err
	}
	b, err := divisor(args[1:], kwargs)
	if err != nil {
		return b, err
	}
	if a.IsFloat() || b.IsFloat() {
		m := math.Mod(floatOf(a), floatOf(b))
		if m != 0 && math.Signbit(m) != math.Signbit(floatOf(b)) {
			m += floatOf(b)
		}
		return jinja.NewFloat(m), nil
	}
	m := intOf(a) % intOf(b)
	if m != 0 && (m < 0) != (intOf(b) < 0) {
		m += intOf(b)
	}
	return jinja.NewInt(m), nil
}

// round is the round filter. Integers stay integers, halves go to even digits.
func round(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	b := binder{filter: "round", args: args, kwargs: kwargs}
	v := b.next("value", jinja.Undefined())
	precision := b.next("precision", jinja.NewInt(0))
	method := text(b.next("method", jinja.NewString("common")))
	if err := b.done(); err != nil {
		return v, err
	}
	if !v.IsNumber() && !v.IsBool() || !precision.IsInt() {
		return v, fmt.Errorf("round: needs numbers, not %s", typeName(v))
	}
	p := int(max(-300, min(precision.AsInt(), 300)))
	scale := math.Pow10(p)
	switch {
	case method == "ceil":
		return jinja.NewFloat(math.Ceil(floatOf(v)*scale) / scale), nil
	case method == "floor":
		return jinja.NewFloat(math.Floor(floatOf(v)*scale) / scale), nil
	case method != "common":
		return v, errors.New("round: the method must be common, ceil or floor")
	case !v.IsFloat() && p >= 0:
		return jinja.NewInt(intOf(v)), nil
	case !v.IsFloat():
		return jinja.NewInt(int64(math.RoundToEven(floatOf(v)*scale) / scale)), nil
	case p < 0:
		return jinja.NewFloat(math.RoundToEven(v.AsFloat()*scale) / scale), nil
	}
	f, err := strconv.ParseFloat(strconv.FormatFloat(v.AsFloat(), 'f', p, 64), 64)
	if err != nil {
		return v, fmt.Errorf("round: %w", err)
	}
	return jinja.NewFloat(f), nil
}

// join is the join filter.
func (r *rendering) join(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	b := binder{filter: "join", args: args, kwargs: kwargs}
	v := b.next("value", jinja.Undefined())
	d := text(b.next("d", jinja.NewString("")))
	attribute := b.next("attribute", jinja.None())
	if err := b.done(); err != nil {
		return v, err
	}
	if err := iterable(v); err != nil {
		return v, err
	}
	list := items(v)
	parts := make([]string, len(list))
	n := len(list) * len(d)
	for i, item := range list {
		if !attribute.IsNone() {
			item = attributeOf(item, text(attribute))
		}
		parts[i] = text(item)
		n += len(parts[i])
	}
	if err := r.spend(1 + len(list) + n/64); err != nil {
		return v, err
	}
	return jinja.NewString(strings.Join(parts, d)), nil
}
