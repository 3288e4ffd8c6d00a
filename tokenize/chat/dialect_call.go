package chat

import (
	"slices"

	"warmpath/tokenize/chat/syntax"
)

// libraryMethods do in the library what they do in Python.
var libraryMethods = []string{
	"strip", "lstrip", "rstrip", "upper", "lower",
	"get", "items", "keys", "values", "find", "replace", "split", "capitalize",
}

func (d *dialect) call(x *syntax.Call) {
	attr, method := x.Fn.(*syntax.Attr)
	name, named := x.Fn.(*syntax.Name)
	switch {
	case x.Star != nil:
		d.write(helper, "apply(")
		d.expr(x.Fn)
		d.write(", ")
		d.expr(x.Star)
		d.write(", ")
		d.arguments(&x.Arguments)
		d.write(")")
	case method && (!slices.Contains(libraryMethods, attr.Name) || len(x.Keywords) > 0 || x.StarStar != nil):
		d.write(helper, "method(")
		d.object(attr.X)
		d.write(", ", quote(attr.Name), ", ")
		d.arguments(&x.Arguments)
		d.write(")")
	case named && name.Name == "loop" && len(x.Args) == 1:
		d.write("loop(")
		d.help("each", x.Args[0])
		d.write(")")
	case method && d.isNamespace(attr.X):
		d.object(attr.X)
		d.write("[", quote(attr.Name), "](")
		d.arguments(&x.Arguments)
		d.write(")")
	case method:
		d.object(attr.X)
		d.write(".", attr.Name, "(")
		d.arguments(&x.Arguments)
		d.write(")")
	default:
		d.expr(x.Fn)
		d.write("(")
		d.arguments(&x.Arguments)
		d.write(")")
	}
}

func (d *dialect) isNamespace(x syntax.Expr) bool {
	n, ok := x.(*syntax.Name)
	return ok && d.namespaces[n.Name]
}

// arguments writes all but *args.
func (d *dialect) arguments(a *syntax.Arguments) {
	d.list(a.Args)
	comma := len(a.Args) > 0
	for _, k := range a.Keywords {
		if comma {
			d.write(", ")
		}
		comma = true
		d.write(k.Name, "=")
		d.expr(k.Value)
	}
	if a.StarStar != nil {
		if comma {
			d.write(", ")
		}
		d.write("**")
		d.expr(a.StarStar)
	}
}

// after writes arguments that follow a first one.
func (d *dialect) after(a *syntax.Arguments) {
	if len(a.Args)+len(a.Keywords) > 0 || a.StarStar != nil {
		d.write(", ")
		d.arguments(a)
	}
}

// ownFilters are filters of helpers.go.
var ownFilters = map[string]string{
	"length": "length", "count": "length", "trim": "trim", "tojson": "tojson",
	"sort": "sort", "dictsort": "dictsort", "title": "title", "string": "string",
	"safe": "safe", "escape": "escape", "e": "escape", "join": "join", "round": "round",
}

// libraryFilters are the library's own, with the helper that checks their operand.
var libraryFilters = map[string]string{
	"items": "", "default": "", "d": "", "lower": "", "upper": "", "capitalize": "",
	"int": "", "float": "", "replace": "", "abs": "number", "indent": "", "wordcount": "",
	"first": "iterable", "last": "iterable", "reverse": "iterable",
	"unique": "iterable", "list": "iterable", "max": "iterable", "min": "iterable",
	"sum": "iterable", "batch": "iterable",
	"map": "filtered", "select": "filtered", "reject": "filtered",
	"selectattr": "filtered", "rejectattr": "filtered",
}

func (d *dialect) filter(x *syntax.Filter) {
	if x.Star != nil {
		d.fail("filter %s: *arguments are not supported", x.Name)
		return
	}
	if own, ok := ownFilters[x.Name]; ok {
		d.write(helper, own, "(")
		d.expr(x.X)
		d.after(&x.Arguments)
		d.write(")")
		return
	}
	if x.Name == "format" && len(x.Keywords) == 0 && x.StarStar == nil {
		d.write(helper, "modulo(")
		d.help("string", x.X)
		d.write(", ")
		d.expr(&syntax.Tuple{Items: x.Args})
		d.write(")")
		return
	}
	check, ok := libraryFilters[x.Name]
	if !ok {
		// Jinja looks for a filter when it comes to it, at least inside of if.
		d.help("fail", &syntax.Const{Value: "No filter named '" + x.Name + "' found."})
		return
	}
	d.write("(")
	if check != "" {
		d.help(check, x.X)
	} else {
		d.expr(x.X)
	}
	d.write("|", x.Name)
	if len(x.Args)+len(x.Keywords) > 0 || x.StarStar != nil {
		d.write("(")
		d.arguments(&x.Arguments)
		d.write(")")
	}
	d.write(")")
}

var ownTests = map[string]string{
	"iterable": "is_iterable", "sequence": "is_sequence", "number": "is_number", "integer": "is_integer",
}

var libraryTests = []string{
	"defined", "undefined", "none", "boolean", "float", "string", "mapping", "callable",
	"true", "false", "odd", "even", "divisibleby", "upper", "lower", "sameas",
	"eq", "equalto", "ne", "gt", "greaterthan", "ge", "lt", "lessthan", "le",
}

func (d *dialect) test(x *syntax.Test) {
	own, isOwn := ownTests[x.Name]
	switch {
	case isOwn:
		d.help(own, x.X)
	case x.Name == "in" && len(x.Args) == 1:
		d.help("in", x.X, x.Args[0])
	case slices.Contains(libraryTests, x.Name):
		d.write("(")
		d.expr(x.X)
		d.write(" is ", x.Name)
		if len(x.Args) > 0 {
			d.write("(")
			d.list(x.Args)
			d.write(")")
		}
		d.write(")")
	default:
		d.help("fail", &syntax.Const{Value: "No test named '" + x.Name + "' found."})
	}
}
