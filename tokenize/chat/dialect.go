package chat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"warmpath/tokenize/chat/syntax"
)

// A dialect writes a template anew in the words of the jinja library, so that it
// means there what it means in Python:
//
//   - whitespace is already resolved, so every tag switches its control off;
//   - everything is in parentheses, so precedence is ours;
//   - where the library is more lenient than Python, or differs, a helper is
//     called (helpers.go), which also counts the work that a rendering does.
//
// What no chat template was seen to need stays different: the pairs of items()
// print as lists; an undefined value is not callable; integers beyond 64 bits are
// printed and passed on, not calculated with; upper and lower change letters one
// by one; a few filters and statements are refused by name.
type dialect struct {
	b   strings.Builder
	err error
	// loops are the variables of the loops around, which are always defined.
	loops []string
	// namespaces are the names that hold namespace(): their attributes win over
	// the methods of a dict, which is what the library makes of them.
	namespaces map[string]bool
	temporary  int
}

// toDialect returns the template's source for the library.
func toDialect(body []syntax.Stmt) (string, error) {
	d := &dialect{namespaces: map[string]bool{}}
	syntax.Walk(body, func(node any) {
		set, ok := node.(*syntax.Set)
		if !ok {
			return
		}
		name, ok := set.Target.(*syntax.Name)
		if ok && isCallOf(set.Value, "namespace") {
			d.namespaces[name.Name] = true
		}
	})
	d.body(body)
	return d.b.String(), d.err
}

func isCallOf(x syntax.Expr, name string) bool {
	call, ok := x.(*syntax.Call)
	if !ok {
		return false
	}
	fn, ok := call.Fn.(*syntax.Name)
	return ok && fn.Name == name
}

func (d *dialect) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

func (d *dialect) write(parts ...string) {
	for _, p := range parts {
		d.b.WriteString(p)
	}
}

// open and close frame a block tag that leaves the text around it alone.
func (d *dialect) open(parts ...string) {
	d.write("{%+ ")
	d.write(parts...)
}

func (d *dialect) close() { d.write(" +%}") }

func (d *dialect) tag(parts ...string) {
	d.open(parts...)
	d.close()
}

func (d *dialect) temp() string {
	d.temporary++
	return helper + "tmp" + strconv.Itoa(d.temporary)
}

func (d *dialect) body(body []syntax.Stmt) {
	for _, s := range body {
		d.stmt(s)
	}
}

func (d *dialect) stmt(s syntax.Stmt) {
	switch s := s.(type) {
	case *syntax.Data:
		d.data(s.Text)
	case *syntax.Output:
		d.output(s.X)
	case *syntax.If:
		d.ifStmt(s)
	case *syntax.For:
		d.forStmt(s)
	case *syntax.Set:
		d.set(s)
	case *syntax.SetBlock:
		d.setBlock(s)
	case *syntax.Macro:
		d.macro(s)
	case *syntax.CallBlock:
		d.callBlock(s)
	case *syntax.FilterBlock:
		name := d.temp()
		d.tag("set ", name)
		d.body(s.Body)
		d.tag("endset")
		d.output(onto(s.Filter, name))
	case *syntax.Scope:
		d.tag("call ", helper, "scope()")
		for _, v := range s.Vars {
			d.set(v)
		}
		d.body(s.Body)
		d.tag("endcall")
	case *syntax.Break:
		d.tag("break")
	case *syntax.Continue:
		d.tag("continue")
	}
}

// data writes text. Text that could be taken for a tag becomes a string.
func (d *dialect) data(text string) {
	if strings.Contains(text, "{{") || strings.Contains(text, "{%") || strings.Contains(text, "{#") || strings.HasSuffix(text, "{") {
		d.write("{{ ", quote(text), " }}")
		return
	}
	d.write(text)
}

func (d *dialect) output(x syntax.Expr) {
	if c, ok := x.(*syntax.Const); ok {
		if s, ok := c.Value.(string); ok {
			d.data(s)
			return
		}
	}
	d.write("{{ ", helper, "out(")
	d.expr(x)
	d.write(") }}")
}

func (d *dialect) ifStmt(s *syntax.If) {
	for i, b := range s.Branches {
		word := "elif "
		if i == 0 {
			word = "if "
		}
		d.open(word)
		d.expr(b.Test)
		d.close()
		d.body(b.Body)
	}
	if s.Else != nil {
		d.tag("else")
		d.body(s.Else)
	}
	d.tag("endif")
}

func (d *dialect) forStmt(s *syntax.For) {
	names := targetNames(s.Target)
	if names == nil {
		d.fail("a loop over nested targets is not supported")
		return
	}
	each, vars := "each", names
	switch {
	case len(names) == 2:
		each = "pairs"
	case len(names) > 2:
		vars = []string{d.temp()}
		if s.Test != nil {
			d.fail("a loop over %d variables with a condition is not supported", len(names))
		}
	}
	ran := ""
	if s.Else != nil && leaves(s.Body) {
		ran = d.temp()
		d.tag("set ", ran, " = namespace(ran=false)")
	}
	d.open("for ", strings.Join(vars, ", "), " in ", helper, each, "(")
	d.expr(s.Iter)
	d.write(")")
	outer := d.loops
	d.loops = append(slices.Clone(outer), names...)
	if s.Test != nil {
		d.write(" if (")
		d.expr(s.Test)
		d.write(")")
	}
	if s.Recursive {
		d.write(" recursive")
	}
	d.close()
	if len(names) > 2 {
		d.tag("set ", strings.Join(names, ", "), " = (", vars[0], ")")
	}
	d.loops = append(d.loops, "loop")
	d.body(s.Body)
	d.loops = outer
	switch {
	case ran != "":
		d.tag("set ", ran, ".ran = true")
		d.tag("endfor")
		d.tag("if not ", ran, ".ran")
		d.body(s.Else)
		d.tag("endif")
	case s.Else != nil:
		d.tag("else")
		d.body(s.Else)
		d.tag("endfor")
	default:
		d.tag("endfor")
	}
}

// leaves reports a body with break or continue. Jinja then goes to a loop's else
// when no round came to its end, the library when there was no round.
func leaves(body []syntax.Stmt) bool {
	found := false
	syntax.Walk(body, func(node any) {
		switch node.(type) {
		case *syntax.Break, *syntax.Continue:
			found = true
		}
	})
	return found
}

// targetNames returns the names that are assigned to; nil when one is no name.
func targetNames(x syntax.Expr) []string {
	switch x := x.(type) {
	case *syntax.Name:
		return []string{x.Name}
	case *syntax.Tuple:
		var names []string
		for _, item := range x.Items {
			name, ok := item.(*syntax.Name)
			if !ok {
				return nil
			}
			names = append(names, name.Name)
		}
		return names
	}
	return nil
}

func (d *dialect) set(s *syntax.Set) {
	if ref, ok := s.Target.(*syntax.NSRef); ok {
		d.open("set ", ref.Name, ".", ref.Attr, " = ")
	} else if names := targetNames(s.Target); names != nil {
		d.forget(names)
		d.open("set ", strings.Join(names, ", "), " = ")
	} else {
		d.fail("an assignment to nested targets is not supported")
		return
	}
	d.expr(s.Value)
	d.close()
}

// forget: a loop variable that is assigned to may be undefined from here on.
func (d *dialect) forget(names []string) {
	d.loops = slices.DeleteFunc(slices.Clone(d.loops), func(n string) bool { return slices.Contains(names, n) })
}

func (d *dialect) setBlock(s *syntax.SetBlock) {
	name, plain := s.Target.(*syntax.Name)
	if plain && s.Filter == nil {
		d.forget([]string{name.Name})
		d.tag("set ", name.Name)
		d.body(s.Body)
		d.tag("endset")
		return
	}
	temp := d.temp()
	d.tag("set ", temp)
	d.body(s.Body)
	d.tag("endset")
	var value syntax.Expr = &syntax.Name{Name: temp}
	if s.Filter != nil {
		value = onto(s.Filter, temp)
	}
	d.set(&syntax.Set{Target: s.Target, Value: value})
}

// onto returns the filters of a block applied to a variable.
func onto(f *syntax.Filter, name string) *syntax.Filter {
	applied := *f
	if inner, ok := f.X.(*syntax.Filter); ok {
		applied.X = onto(inner, name)
	} else {
		applied.X = &syntax.Name{Name: name}
	}
	return &applied
}

func (d *dialect) macro(s *syntax.Macro) {
	outer := d.loops
	d.loops = nil
	d.open("macro ", s.Name, "(")
	for i, p := range s.Params {
		if i > 0 {
			d.write(", ")
		}
		d.write(p.Name)
		if p.Default != nil {
			d.write("=")
			d.expr(p.Default)
		}
	}
	d.write(")")
	d.close()
	d.write("{{ ", helper, "enter() }}")
	d.body(s.Body)
	d.write("{{ ", helper, "leave() }}")
	d.tag("endmacro")
	d.loops = outer
}

func (d *dialect) callBlock(s *syntax.CallBlock) {
	if _, ok := s.Call.Fn.(*syntax.Name); !ok || s.Call.Star != nil || s.Call.StarStar != nil {
		d.fail("a call block of something else than a macro's name is not supported")
		return
	}
	d.open("call")
	if len(s.Params) > 0 {
		names := make([]string, len(s.Params))
		for i, p := range s.Params {
			if names[i] = p.Name; p.Default != nil {
				d.fail("a call block with default values is not supported")
			}
		}
		d.write("(", strings.Join(names, ", "), ")")
	}
	d.write(" ")
	d.call(s.Call)
	d.close()
	outer := d.loops
	d.loops = nil
	d.body(s.Body)
	d.loops = outer
	d.tag("endcall")
}
