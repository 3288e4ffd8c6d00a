package chat

import (
	"slices"
	"strings"

	"warmpath/tokenize/chat/syntax"
)

// Format is the form in which a template wants the content of messages.
type Format uint8

const (
	// String content: one string.
	String Format = iota
	// List content: OpenAI's list of parts, [{"type": "text", "text": …}].
	List
)

// String returns vLLM's name of the format.
func (f Format) String() string {
	if f == List {
		return "openai"
	}
	return "string"
}

// detectFormat finds out whether a template loops over the parts of messages'
// content, by the rules of vLLM 0.33: messages may be reached through variables
// and namespaces, and content through the parameters of macros.
func detectFormat(body []syntax.Stmt) Format {
	d := newDetector(body)
	messages := d.aliases("messages")
	var items []string
	for _, loop := range d.loops {
		if !slices.ContainsFunc(messages, func(name string) bool { return reaches(loop.Iter, name, "") }) {
			continue
		}
		name, ok := loop.Target.(*syntax.Name)
		if !ok {
			return String // the engine's detection fails here, and falls back
		}
		items = append(items, name.Name)
	}
	isContent := func(x syntax.Expr) bool {
		return slices.ContainsFunc(items, func(name string) bool { return reaches(x, name, "content") })
	}
	params := d.contentParams(isContent)
	for _, loop := range d.loops {
		over, named := loop.Iter.(*syntax.Name)
		macro := d.within[loop]
		switch {
		case isContent(loop.Iter):
		case named && macro != nil && slices.Contains(params[macro], over.Name):
		case named && macro == nil && over.Name == "content":
		default:
			continue
		}
		if _, ok := loop.Target.(*syntax.Name); !ok {
			return String
		}
		return List
	}
	return String
}

// detector is a template's nodes, by kind, in the order of the text.
type detector struct {
	loops  []*syntax.For
	sets   []*syntax.Set
	macros []*syntax.Macro
	calls  []*syntax.Call
	// within is the last macro that has parameters with content around a loop.
	within map[*syntax.For]*syntax.Macro
}

func newDetector(body []syntax.Stmt) *detector {
	d := &detector{within: map[*syntax.For]*syntax.Macro{}}
	syntax.Walk(body, func(node any) {
		switch node := node.(type) {
		case *syntax.For:
			d.loops = append(d.loops, node)
		case *syntax.Set:
			d.sets = append(d.sets, node)
		case *syntax.Macro:
			d.macros = append(d.macros, node)
		case *syntax.Call:
			d.calls = append(d.calls, node)
		}
	})
	for _, m := range d.macros {
		syntax.Walk(m.Body, func(node any) {
			if loop, ok := node.(*syntax.For); ok {
				d.within[loop] = m
			}
		})
	}
	return d
}

// aliases returns the variables that hold a name's value or a part of it. An
// attribute of a namespace is written with a dot.
func (d *detector) aliases(name string) []string {
	found := []string{name}
	for at := 0; at < len(found); at++ {
		for _, s := range d.sets {
			for _, alias := range aliasesIn(s, found[at]) {
				if !slices.Contains(found, alias) {
					found = append(found, alias)
				}
			}
		}
	}
	return found
}

func aliasesIn(s *syntax.Set, name string) []string {
	switch target := s.Target.(type) {
	case *syntax.Name:
		if isCallOf(s.Value, "namespace") {
			var aliases []string
			for _, k := range s.Value.(*syntax.Call).Keywords {
				if reaches(k.Value, name, "") {
					aliases = append(aliases, target.Name+"."+k.Name)
				}
			}
			return aliases
		}
		if reaches(s.Value, name, "") {
			return []string{target.Name}
		}
	case *syntax.NSRef:
		if reaches(s.Value, name, "") {
			return []string{target.Name + "." + target.Attr}
		}
	}
	return nil
}

// contentParams finds, for each macro, the parameters that are given content.
func (d *detector) contentParams(isContent func(syntax.Expr) bool) map[*syntax.Macro][]string {
	params := map[*syntax.Macro][]string{}
	for _, m := range d.macros {
		for _, call := range d.calls {
			if !isCallOf(call, m.Name) {
				continue
			}
			for i, arg := range call.Args {
				if i < len(m.Params) && isContent(arg) {
					params[m] = append(params[m], m.Params[i].Name)
				}
			}
			for _, k := range call.Keywords {
				known := slices.ContainsFunc(m.Params, func(p syntax.Param) bool { return p.Name == k.Name })
				if known && isContent(k.Value) {
					params[m] = append(params[m], k.Name)
				}
			}
		}
	}
	return params
}

// reaches reports that x is the variable, or with a key its member, looked at
// through filters, tests and slices.
func reaches(x syntax.Expr, variable, key string) bool {
	switch x := x.(type) {
	case *syntax.Filter:
		return x.X != nil && reaches(x.X, variable, key)
	case *syntax.Test:
		return reaches(x.X, variable, key)
	case *syntax.Item:
		if _, ok := x.Key.(*syntax.Slice); ok {
			return reaches(x.X, variable, key)
		}
		c, ok := x.Key.(*syntax.Const)
		return ok && key != "" && c.Value == key && isVariable(x.X, variable)
	case *syntax.Attr:
		if key != "" {
			return x.Name == key && isVariable(x.X, variable)
		}
	}
	return key == "" && isVariable(x, variable)
}

func isVariable(x syntax.Expr, variable string) bool {
	switch x := x.(type) {
	case *syntax.Name:
		return x.Name == variable
	case *syntax.Attr:
		at := strings.LastIndexByte(variable, '.')
		return at >= 0 && x.Name == variable[at+1:] && isVariable(x.X, variable[:at])
	}
	return false
}
