package chat

import (
	"slices"

	"warmpath/tokenize/chat/syntax"
)

// helper starts the name of everything that is put into a template's scope.
const helper = "__wp_"

func (d *dialect) list(items []syntax.Expr) {
	for i, x := range items {
		if i > 0 {
			d.write(", ")
		}
		d.expr(x)
	}
}

// help writes the call of a helper.
func (d *dialect) help(name string, args ...syntax.Expr) {
	d.write(helper, name, "(")
	d.list(args)
	d.write(")")
}

// expr writes an expression as one operand: a word, a call, or in brackets.
func (d *dialect) expr(x syntax.Expr) {
	switch x := x.(type) {
	case *syntax.Name:
		d.name(x.Name)
	case *syntax.Const:
		d.write(constant(x.Value))
	case *syntax.List:
		d.write("[")
		d.list(x.Items)
		d.write("]")
	case *syntax.Tuple:
		d.write("(")
		d.list(x.Items)
		if len(x.Items) == 1 {
			d.write(",")
		}
		d.write(")")
	case *syntax.Dict:
		d.dict(x)
	case *syntax.Attr:
		d.attr(x)
	case *syntax.Item:
		d.item(x)
	case *syntax.Call:
		d.call(x)
	case *syntax.Filter:
		d.filter(x)
	case *syntax.Test:
		d.test(x)
	case *syntax.Unary:
		d.unary(x)
	case *syntax.Binary:
		d.binary(x)
	case *syntax.Concat:
		d.help("cat", x.Items...)
	case *syntax.Compare:
		d.compare(x)
	case *syntax.Cond:
		d.write("(")
		d.expr(x.Then)
		d.write(" if ")
		d.expr(x.Test)
		if x.Else != nil {
			d.write(" else ")
			d.expr(x.Else)
		}
		d.write(")")
	default:
		d.fail("expression %T is not supported here", x)
	}
}

func (d *dialect) name(name string) {
	if name == "null" { // a constant for the library, a variable in Jinja
		name = helper + "null"
	}
	d.write(name)
}

func (d *dialect) dict(x *syntax.Dict) {
	d.write("{")
	for i, p := range x.Pairs {
		if i > 0 {
			d.write(", ")
		}
		d.expr(p.Key)
		d.write(": ")
		d.expr(p.Value)
	}
	d.write("}")
}

// object writes what an attribute or item is taken of. In Python an undefined
// value has none; the library would answer undefined.
func (d *dialect) object(x syntax.Expr) {
	switch x := x.(type) {
	case *syntax.Name:
		if slices.Contains(d.loops, x.Name) || d.namespaces[x.Name] {
			d.name(x.Name)
			return
		}
	case *syntax.Const, *syntax.List, *syntax.Tuple, *syntax.Dict, *syntax.Concat:
		d.write("(")
		d.expr(x)
		d.write(")")
		return
	}
	d.write(helper, "def(")
	d.expr(x)
	d.write(", ", quote(describe(x)), ")")
}

// describe names an expression in errors.
func describe(x syntax.Expr) string {
	switch x := x.(type) {
	case *syntax.Name:
		return x.Name
	case *syntax.Attr:
		return describe(x.X) + "." + x.Name
	case *syntax.Item:
		if c, ok := x.Key.(*syntax.Const); ok {
			return describe(x.X) + "[" + constant(c.Value) + "]"
		}
		return describe(x.X) + "[…]"
	case *syntax.Call:
		return describe(x.Fn) + "(…)"
	}
	return "(…)"
}

func (d *dialect) attr(x *syntax.Attr) {
	if n, ok := x.X.(*syntax.Name); ok && d.namespaces[n.Name] {
		d.write(n.Name, "[", quote(x.Name), "]")
		return
	}
	d.object(x.X)
	d.write(".", x.Name)
}

func (d *dialect) item(x *syntax.Item) {
	s, ok := x.Key.(*syntax.Slice)
	if !ok {
		d.object(x.X)
		d.write("[")
		d.expr(x.Key)
		d.write("]")
		return
	}
	d.help("sliced", x.X)
	d.write("[")
	if s.Start != nil {
		d.expr(s.Start)
	}
	d.write(":")
	if s.Stop != nil {
		d.expr(s.Stop)
	}
	if s.Step != nil {
		d.write(":")
		d.expr(s.Step)
	}
	d.write("]")
}

func (d *dialect) unary(x *syntax.Unary) {
	switch {
	case x.Op == "not":
		d.write("(not ")
		d.expr(x.X)
		d.write(")")
	case isNumeral(x.X):
		d.write("(", x.Op)
		d.expr(x.X)
		d.write(")")
	default:
		d.write("(", x.Op)
		d.help("number", x.X)
		d.write(")")
	}
}

func isNumeral(x syntax.Expr) bool {
	c, ok := x.(*syntax.Const)
	if !ok {
		return false
	}
	switch c.Value.(type) {
	case int64, float64:
		return true
	}
	return false
}

func (d *dialect) binary(x *syntax.Binary) {
	switch x.Op {
	case "+":
		d.help("add", x.L, x.R)
		return
	case "-", "/", "//", "**":
		d.write("(")
		d.help("number", x.L)
		d.write(" ", x.Op, " ")
		if x.Op == "/" || x.Op == "//" {
			d.help("divisor", x.R)
		} else {
			d.help("number", x.R)
		}
		d.write(")")
		return
	case "*":
		d.help("multiply", x.L, x.R)
		return
	case "%":
		d.help("modulo", x.L, x.R)
		return
	}
	d.write("(")
	d.expr(x.L)
	d.write(" ", x.Op, " ")
	d.expr(x.R)
	d.write(")")
}

func (d *dialect) compare(x *syntax.Compare) {
	if len(x.Ops) == 1 {
		switch op := x.Ops[0]; op.Op {
		case "in":
			d.help("in", x.X, op.X)
			return
		case "not in":
			d.write("(not ")
			d.help("in", x.X, op.X)
			d.write(")")
			return
		case "<", "<=", ">", ">=":
			d.help("compare", &syntax.Const{Value: op.Op}, x.X, op.X)
			return
		}
	}
	d.write("(")
	d.expr(x.X)
	for _, op := range x.Ops {
		d.write(" ", op.Op, " ")
		d.expr(op.X)
	}
	d.write(")")
}
