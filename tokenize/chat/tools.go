package chat

import (
	"fmt"

	"github.com/ardanlabs/jinja"
)

// toolCall changes a call into what the engine's validation leaves: members in the
// order of its schema, the arguments an object.
func toolCall(call jinja.Value) error {
	if !call.IsDict() {
		return &Refused{"expected an object"}
	}
	kind, given := call.AsDict().Get("type")
	function, _ := call.AsDict().Get("function")
	if given && (!kind.IsString() || kind.AsString() != "function") || !function.IsDict() {
		return &Refused{"expected a call of type function"}
	}
	arguments, _ := function.AsDict().Get("arguments")
	function.AsDict().Set("arguments", argumentsObject(arguments))
	putFirst(function.AsDict(), "arguments", "name")
	putFirst(call.AsDict(), "id", "function", "type")
	return nil
}

// argumentsObject reads a call's arguments, which clients send as a string of
// JSON. What is no object becomes an empty one.
func argumentsObject(v jinja.Value) jinja.Value {
	if v.IsString() {
		if parsed, err := parseJSON([]byte(v.AsString())); err == nil {
			v = parsed
		}
	}
	if v.IsDict() {
		return v
	}
	return jinja.NewDict()
}

// developerTools are the tools of a developer message, in the schema's order.
func developerTools(list jinja.Value) jinja.Value {
	if !list.IsList() {
		return jinja.None()
	}
	for _, tool := range list.AsList().Items {
		if !tool.IsDict() {
			continue
		}
		putFirst(tool.AsDict(), "function", "type")
		if f, _ := tool.AsDict().Get("function"); f.IsDict() {
			putFirst(f.AsDict(), "name", "description", "parameters", "strict")
		}
	}
	return list
}

// toolDefinitions returns the tools as the engine's validation leaves them: the
// members of its schema in its order, those that are missing null.
func toolDefinitions(tools jinja.Value) (jinja.Value, error) {
	if !tools.IsList() || tools.AsList().Len() == 0 {
		return jinja.None(), nil
	}
	out := make([]jinja.Value, tools.AsList().Len())
	for i, tool := range tools.AsList().Items {
		function, _ := tool.AsDict().Get("function")
		if !function.IsDict() {
			return tools, &Refused{fmt.Sprintf("tools[%d].function: expected an object", i)}
		}
		if name, _ := function.AsDict().Get("name"); !name.IsString() {
			return tools, &Refused{fmt.Sprintf("tools[%d].function.name: expected a string", i)}
		}
		deferred := orNone(tool.AsDict(), "defer_loading")
		f := newDict()
		for _, key := range []string{"name", "description", "parameters"} {
			f.set(key, orNone(function.AsDict(), key))
		}
		if strict := orNone(function.AsDict(), "strict"); !strict.IsNone() {
			f.set("strict", strict)
		}
		inner := orNone(function.AsDict(), "defer_loading")
		if inner.IsNone() {
			inner = deferred
		}
		if !inner.IsNone() {
			f.set("defer_loading", inner)
		}
		t := newDict()
		t.setString("type", "function")
		t.set("function", f.v)
		if !deferred.IsNone() {
			t.set("defer_loading", deferred)
		}
		out[i] = t.v
	}
	return jinja.NewList(out), nil
}

func orNone(d *jinja.Dict, key string) jinja.Value {
	if v, ok := d.Get(key); ok {
		return v
	}
	return jinja.None()
}
