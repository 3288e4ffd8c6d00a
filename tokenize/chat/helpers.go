package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// pureHelpers are the helpers that keep no state. They are only read.
var pureHelpers = func() map[string]jinja.Value {
	helpers := map[string]jinja.Value{}
	for name, fn := range map[string]callable{
		"def": defined, "sliced": sliceable, "iterable": iterated, "in": contains, "compare": compare,
		"number": number, "divisor": divisor, "fail": fail,
		"length": length, "tojson": toJSON, "sort": sortFilter, "dictsort": dictsort,
		"title": title, "filtered": filtered, "modulo": modulo, "round": round,
		"is_iterable": test(func(v jinja.Value) bool { return iterable(v) == nil }),
		"is_sequence": test(func(v jinja.Value) bool { return iterable(v) == nil }),
		"is_number":   test(isNumber),
		"is_integer":  test(func(v jinja.Value) bool { _, big := bigInt(v); return v.IsInt() || big }),
	} {
		helpers[helper+name] = jinja.NewCallable(name, fn)
	}
	return helpers
}()

func test(is func(jinja.Value) bool) callable {
	return func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		return jinja.NewBool(is(args[0])), nil
	}
}

// defined passes a value of which an attribute or item is taken.
func defined(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if args[0].IsUndefined() {
		return args[0], fmt.Errorf("%s is undefined", args[1].AsString())
	}
	return args[0], nil
}

// sliceable passes what [a:b] is taken of.
func sliceable(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if v := args[0]; !v.IsList() && !v.IsString() {
		return v, fmt.Errorf("%s cannot be sliced", typeName(v))
	}
	return args[0], nil
}

// iterated passes what a filter goes over.
func iterated(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return args[0], iterable(args[0])
}

// filtered passes what select, map and the like go over. They do not look at what
// is false.
func filtered(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if !args[0].IsTruthy() {
		return jinja.NewList(nil), nil
	}
	return args[0], iterable(args[0])
}

// iterable tells what Python can loop over. An undefined value is empty.
func iterable(v jinja.Value) error {
	if v.IsList() || v.IsDict() || v.IsString() || v.IsUndefined() {
		return nil
	}
	return fmt.Errorf("%s is not iterable", typeName(v))
}

func typeName(v jinja.Value) string {
	switch {
	case v.IsUndefined():
		return "an undefined value"
	case v.IsNone():
		return "NoneType"
	case v.IsBool():
		return "bool"
	case v.IsInt():
		return "int"
	case v.IsFloat():
		return "float"
	case v.IsString():
		return "str"
	case v.IsList():
		return "list"
	case v.IsDict():
		return "dict"
	}
	if _, ok := bigInt(v); ok {
		return "int"
	}
	return "a callable"
}

// contains is a in b.
func contains(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	item, in := args[0], args[1]
	switch {
	case in.IsUndefined():
		return jinja.NewBool(false), nil
	case in.IsString() && item.IsString():
		return jinja.NewBool(strings.Contains(in.AsString(), item.AsString())), nil
	case in.IsString():
		return item, fmt.Errorf("'in <string>' requires string as left operand, not %s", typeName(item))
	case in.IsDict():
		return jinja.NewBool(item.IsString() && in.AsDict().Has(item.AsString())), nil
	case in.IsList():
		return jinja.NewBool(slices.ContainsFunc(in.AsList().Items, item.Equals)), nil
	}
	return item, fmt.Errorf("argument of type %s is not iterable", typeName(in))
}

func isNumber(v jinja.Value) bool {
	_, big := bigInt(v)
	return v.IsNumber() || v.IsBool() || big
}

func intOf(v jinja.Value) int64 {
	switch {
	case v.IsInt():
		return v.AsInt()
	case v.IsBool() && v.AsBool():
		return 1
	case v.IsFloat():
		return int64(v.AsFloat())
	}
	return 0
}

func floatOf(v jinja.Value) float64 {
	if v.IsFloat() {
		return v.AsFloat()
	}
	return float64(intOf(v))
}

// number passes an operand of arithmetic.
func number(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if v := args[0]; !v.IsNumber() && !v.IsBool() {
		return v, fmt.Errorf("arithmetic needs numbers, not %s", typeName(v))
	}
	return args[0], nil
}

func divisor(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	v, err := number(args, kwargs)
	if err == nil && floatOf(v) == 0 {
		err = errors.New("division by zero")
	}
	return v, err
}

// compare is <, <=, > and >=, given the operator's name.
func compare(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	order, err := orderOf(args[1], args[2])
	var holds bool
	switch args[0].AsString() {
	case "<":
		holds = order < 0
	case "<=":
		holds = order <= 0
	case ">":
		holds = order > 0
	default:
		holds = order >= 0
	}
	return jinja.NewBool(holds), err
}

// orderOf compares as Python does: numbers, strings, or lists of them.
func orderOf(a, b jinja.Value) (int, error) {
	switch {
	case a.IsString() && b.IsString():
		return strings.Compare(a.AsString(), b.AsString()), nil
	case (a.IsInt() || a.IsBool()) && (b.IsInt() || b.IsBool()):
		return cmpOrdered(intOf(a), intOf(b)), nil
	case (a.IsNumber() || a.IsBool()) && (b.IsNumber() || b.IsBool()):
		return cmpOrdered(floatOf(a), floatOf(b)), nil
	case a.IsList() && b.IsList():
		x, y := a.AsList().Items, b.AsList().Items
		for i := range min(len(x), len(y)) {
			if !x[i].Equals(y[i]) {
				return orderOf(x[i], y[i])
			}
		}
		return cmpOrdered(len(x), len(y)), nil
	}
	return 0, fmt.Errorf("%s and %s cannot be ordered", typeName(a), typeName(b))
}

func cmpOrdered[T int | int64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func fail(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return args[0], errors.New(args[0].AsString())
}

// binder reads the arguments of a filter written in Go, by place or by name.
type binder struct {
	filter string
	args   []jinja.Value
	kwargs map[string]jinja.Value
	at     int
	named  int
	err    error
}

// next returns the next parameter.
func (b *binder) next(name string, fallback jinja.Value) jinja.Value {
	v, named := b.kwargs[name]
	place := b.at < len(b.args)
	b.at++
	switch {
	case named && place:
		b.err = fmt.Errorf("%s: %s is given twice", b.filter, name)
	case named:
		b.named++
		return v
	case place:
		return b.args[b.at-1]
	}
	return fallback
}

// done reports arguments that nothing asked for.
func (b *binder) done() error {
	if b.err == nil && (b.named < len(b.kwargs) || b.at < len(b.args)) {
		b.err = fmt.Errorf("%s: too many or unknown arguments", b.filter)
	}
	return b.err
}

func length(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	v := args[0]
	if err := iterable(v); err != nil {
		return v, fmt.Errorf("object of type %s has no len()", typeName(v))
	}
	if v.IsString() {
		n := 0
		for range v.AsString() {
			n++
		}
		return jinja.NewInt(int64(n)), nil
	}
	return jinja.NewInt(int64(size(v))), nil
}

func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// title is the title filter, whose words start after whitespace, - and brackets.
func title(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	start := true
	s := strings.Map(func(r rune) rune {
		first := start
		start = isSpace(r) || strings.ContainsRune("-({[<", r)
		if first && !start {
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, text(args[0]))
	return jinja.NewString(s), nil
}

// sortFilter is the sort filter: strings compare without case unless told.
func sortFilter(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	b := binder{filter: "sort", args: args, kwargs: kwargs}
	v := b.next("value", jinja.Undefined())
	reverse := b.next("reverse", jinja.NewBool(false)).IsTruthy()
	cased := b.next("case_sensitive", jinja.NewBool(false)).IsTruthy()
	attribute := b.next("attribute", jinja.None())
	if err := b.done(); err != nil {
		return v, err
	}
	if err := iterable(v); err != nil {
		return v, err
	}
	var paths []string
	if !attribute.IsNone() {
		paths = strings.Split(text(attribute), ",")
	}
	type keyed struct {
		item jinja.Value
		keys []jinja.Value
	}
	var list []keyed
	for _, item := range items(v) {
		k := keyed{item: item}
		if paths == nil {
			k.keys = append(k.keys, folded(item, cased))
		}
		for _, path := range paths {
			k.keys = append(k.keys, folded(attributeOf(item, path), cased))
		}
		list = append(list, k)
	}
	sorted, err := stableSort(list, func(k keyed) []jinja.Value { return k.keys }, reverse)
	out := make([]jinja.Value, len(sorted))
	for i, k := range sorted {
		out[i] = k.item
	}
	return jinja.NewList(out), err
}

func stableSort[T any](list []T, keys func(T) []jinja.Value, reverse bool) ([]T, error) {
	var failed error
	slices.SortStableFunc(list, func(a, b T) int {
		order, err := orderOf(jinja.NewList(keys(a)), jinja.NewList(keys(b)))
		if err != nil {
			failed = err
		}
		if reverse {
			return -order
		}
		return order
	})
	return list, failed
}

func folded(v jinja.Value, cased bool) jinja.Value {
	if !cased && v.IsString() {
		return jinja.NewString(strings.ToLower(v.AsString()))
	}
	return v
}

func items(v jinja.Value) []jinja.Value {
	switch {
	case v.IsList():
		return v.AsList().Items
	case v.IsDict():
		keys := v.AsDict().Keys
		out := make([]jinja.Value, len(keys))
		for i, k := range keys {
			out[i] = jinja.NewString(k)
		}
		return out
	case v.IsString():
		var out []jinja.Value
		for _, r := range v.AsString() {
			out = append(out, jinja.NewString(string(r)))
		}
		return out
	}
	return nil
}

// attributeOf follows a path of dict members, as filters' attribute= does.
func attributeOf(v jinja.Value, path string) jinja.Value {
	for part := range strings.SplitSeq(path, ".") {
		if !v.IsDict() {
			return jinja.Undefined()
		}
		v, _ = v.AsDict().Get(part)
	}
	return v
}

func dictsort(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	b := binder{filter: "dictsort", args: args, kwargs: kwargs}
	v := b.next("value", jinja.Undefined())
	cased := b.next("case_sensitive", jinja.NewBool(false)).IsTruthy()
	by := text(b.next("by", jinja.NewString("key")))
	reverse := b.next("reverse", jinja.NewBool(false)).IsTruthy()
	if err := b.done(); err != nil {
		return v, err
	}
	at := slices.Index([]string{"key", "value"}, by)
	if !v.IsDict() || at < 0 {
		return v, errors.New("dictsort: needs a dict, by key or value")
	}
	d := v.AsDict()
	pairs := make([]jinja.Value, d.Len())
	for i, k := range d.Keys {
		pairs[i] = jinja.NewList([]jinja.Value{jinja.NewString(k), d.Data[k]})
	}
	sorted, err := stableSort(pairs, func(p jinja.Value) []jinja.Value {
		return []jinja.Value{folded(p.AsList().Get(at), cased)}
	}, reverse)
	return jinja.NewList(sorted), err
}
