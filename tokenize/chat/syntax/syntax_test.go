package syntax

import (
	"fmt"
	"strings"
	"testing"
)

// text prints a tree in one line.
func text(node any) string {
	switch n := node.(type) {
	case nil:
		return "-"
	case *Name:
		return n.Name
	case *Const:
		return fmt.Sprintf("%#v", n.Value)
	case *List:
		return "[" + join(n.Items) + "]"
	case *Tuple:
		return "(tuple " + join(n.Items) + ")"
	case *Dict:
		var parts []string
		for _, p := range n.Pairs {
			parts = append(parts, text(p.Key)+":"+text(p.Value))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case *Attr:
		return "(. " + text(n.X) + " " + n.Name + ")"
	case *Item:
		return "(item " + text(n.X) + " " + text(n.Key) + ")"
	case *Slice:
		return "(slice " + join([]Expr{n.Start, n.Stop, n.Step}) + ")"
	case *Call:
		return "(call " + text(n.Fn) + arguments(&n.Arguments) + ")"
	case *Filter:
		return "(| " + text(n.X) + " " + n.Name + arguments(&n.Arguments) + ")"
	case *Test:
		return "(is " + text(n.X) + " " + n.Name + arguments(&n.Arguments) + ")"
	case *Unary:
		return "(" + n.Op + " " + text(n.X) + ")"
	case *Binary:
		return "(" + n.Op + " " + text(n.L) + " " + text(n.R) + ")"
	case *Concat:
		return "(~ " + join(n.Items) + ")"
	case *Compare:
		s := "(" + text(n.X)
		for _, o := range n.Ops {
			s += " " + o.Op + " " + text(o.X)
		}
		return s + ")"
	case *Cond:
		return "(if " + text(n.Test) + " " + text(n.Then) + " " + text(n.Else) + ")"
	}
	return fmt.Sprintf("%T", node)
}

func join(list []Expr) string {
	parts := make([]string, len(list))
	for i, x := range list {
		parts[i] = text(x)
	}
	return strings.Join(parts, " ")
}

func arguments(a *Arguments) string {
	var s string
	for _, x := range a.Args {
		s += " " + text(x)
	}
	for _, k := range a.Keywords {
		s += " " + k.Name + "=" + text(k.Value)
	}
	if a.Star != nil {
		s += " *" + text(a.Star)
	}
	if a.StarStar != nil {
		s += " **" + text(a.StarStar)
	}
	return s
}

// The trees are those of Python's jinja2.
func TestExpressions(t *testing.T) {
	for source, want := range map[string]string{
		"a + b * c":                      "(+ a (* b c))",
		"a ~ b + c":                      "(+ (~ a b) c)",
		"a + b ~ c ~ d":                  "(+ a (~ b c d))",
		"-a ** b":                        "(** (- a) b)",
		"-a|abs":                         "(| (- a) abs)",
		"a|f|g(1, x=2)":                  `(| (| a f) g 1 x=2)`,
		"not a in b and c or d":          "(or (and (not (a in b)) c) d)",
		"a not in b":                     "(a not in b)",
		"a < b <= c":                     "(a < b <= c)",
		"a + 1 is none":                  "(+ a (is 1 none))",
		"a is not eq b":                  "(not (is a eq b))",
		"a is divisibleby(3)":            "(is a divisibleby 3)",
		"a is defined and b":             "(and (is a defined) b)",
		"a if b else c if d":             "(if b a (if d c -))",
		"a if b":                         "(if b a -)",
		"a.b[0].c('d').e":                `(. (call (. (item (. a b) 0) c) "d") e)`,
		"a.0":                            "(item a 0)",
		"a[1:]":                          "(item a (slice 1 - -))",
		"a[:b:-1]":                       "(item a (slice - b (- 1)))",
		"a[1, 2]":                        "(item a (tuple 1 2))",
		"(a)":                            "a",
		"(a,)":                           "(tuple a)",
		"()":                             "(tuple )",
		"a, b":                           "(tuple a b)",
		"[a, b,]":                        "[a b]",
		"{'a': 1, b: {}}":                `{"a":1 b:{}}`,
		"f(*a, **b)":                     "(call f *a **b)",
		"a(b)(c)":                        "(call (call a b) c)",
		`'a' "b\n\x41\u00e9\101\'\q"`:    `"ab\nAéA'\\q"`,
		"1_000 // 0x1f % 2":              "(% (// 1000 31) 2)",
		"1.5e3":                          "1500",
		"true and None or none":          "(or (and true -) -)",
		"a == b if c is string else [d]": "(if (is c string) (a == b) [d])",
	} {
		body, err := Parse("{{ " + source + " }}")
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := strings.ReplaceAll(text(body[0].(*Output).X), "<nil>", "-"); got != want {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
	}
}

func TestWhitespace(t *testing.T) {
	for source, want := range map[string]string{
		"a\n":                                    "a",
		"a\n\n":                                  "a\n",
		"a\r\nb\rc":                              "a\nb\nc",
		"  {% if a %}  \n  b{% endif %}":         "  \n  b",
		"x {% if a %}\n b {%- endif -%} \n c":    "x | b|c",
		"a\n \t{# c #}\nb":                       "a\n|b",
		"a\n  {#- c -#}\n b":                     "a|b",
		"a  {%+ if a +%}\nb{% endif %}":          "a  |\nb",
		"{{- 1 -}} a \n{{- 1 }} \n":              "a| ",
		"{% raw %} {{ a }} {% endraw %}b":        " {{ a }} |b",
		"a {%- raw -%} {% x %} {%- endraw -%} b": "a|{% x %}|b",
	} {
		tokens, err := lex(source)
		if err != nil {
			t.Errorf("%q: %v", source, err)
			continue
		}
		var data []string
		for _, tok := range tokens {
			if tok.kind == tokData {
				data = append(data, tok.text)
			}
		}
		if got := strings.Join(data, "|"); got != want {
			t.Errorf("%q: %q, want %q", source, got, want)
		}
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	_, err := Parse("a\n\n{{ b\n + }}")
	e, ok := err.(*Error) //nolint:errorlint // Parse promises the type itself
	if !ok || e.Line != 4 {
		t.Errorf("%v, want an error on line 4", err)
	}
}

// TestWalk: every kind of node is reached once, each before its parts.
func TestWalk(t *testing.T) {
	body, err := Parse(`{% macro m(p=q1) %}{{ q2 }}{% endmacro %}{% for x in q3 if q4 %}{{ q5 }}{% else %}{{ q6 }}{% endfor %}
{% if q7 %}{% set y = q8 %}{% elif q9 %}{% set z|f(q10) %}{{ q11 }}{% endset %}{% else %}{{ q12 }}{% endif %}
{% call m(q13) %}{{ q14 }}{% endcall %}{% filter f(q15) %}{{ q16 }}{% endfilter %}{% with w = q17 %}{{ q18 }}{% endwith %}{% generation %}{{ q19 }}{% endgeneration %}
{{ [q20, (q21,), {q22: q23}, q24.a, q25[q26:q27:q28], f(q29, k=q30, *q31, **q32), q33|f(q34), q35 is f(q36), -q37, q38 + q39, q40 ~ q41, q42 < q43, q44 if q45 else q46] }}`)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	Walk(body, func(node any) {
		if n, ok := node.(*Name); ok && strings.HasPrefix(n.Name, "q") {
			seen[n.Name]++
		}
	})
	for i := 1; i <= 46; i++ {
		if name := fmt.Sprintf("q%d", i); seen[name] != 1 {
			t.Errorf("%s is visited %d times", name, seen[name])
		}
	}
}
