package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"

	"warmpath/tokenize/chat/syntax"
)

// This file follows SGLang 0.5.23: its chat serving and the validation before it.

// detectSGLang finds out the content format by SGLang's rules, which look at the
// names of variables, and take a template that mentions media for a list one.
func detectSGLang(source string, body []syntax.Stmt) Format {
	for _, word := range []string{"image", "audio", "video", "vision"} {
		if strings.Contains(source, word) {
			return List
		}
	}
	format := String
	syntax.Walk(body, func(node any) {
		loop, ok := node.(*syntax.For)
		if ok && slices.ContainsFunc([]string{"message", "msg", "m"}, func(name string) bool { return reaches(loop.Iter, name, "content") }) {
			format = List
		}
	})
	return format
}

// sglangMembers are the members of messages, in the order of SGLang's model.
var sglangMembers = []string{"role", "content", "tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix"}

var sglangRoles = []string{"user", "system", "assistant", "tool", "function", "developer", "latest_reminder", "root"}

// sglangConversation changes the messages into what the template is given.
func sglangConversation(messages []jinja.Value, format Format) error {
	for i, m := range messages {
		if err := sglangMessage(m.AsDict(), format); err != nil {
			return at(err, "messages[%d]", i)
		}
	}
	return nil
}

func sglangMessage(m *jinja.Dict, format Format) error {
	roleValue, _ := m.Get("role")
	if !roleValue.IsString() {
		return &Refused{"role: expected a string"}
	}
	role := roleValue.AsString()
	if role != "user" {
		role = strings.ToLower(role)
	}
	if !slices.Contains(sglangRoles, role) || role == "user" && role != roleValue.AsString() {
		return &Refused{"role: expected one of " + strings.Join(sglangRoles, ", ")}
	}
	m.Set("role", jinja.NewString(role))
	content, listed, err := sglangContent(m, role, format)
	if err != nil {
		return err
	}
	m.Set("content", content)
	for key, v := range m.Data {
		if v.IsNone() {
			delete(m.Data, key)
		}
	}
	if role == "assistant" {
		if err := sglangCalls(m); err != nil {
			return err
		}
	}
	if tools, ok := m.Get("tools"); ok {
		if m.Data["tools"], err = sglangTools(tools); err != nil {
			return err
		}
	}
	switch {
	case role == "user":
		keep(m, "role", "content")
	case listed && format == List: // a list is put at the end
		keep(m, append(append([]string{"role"}, sglangMembers[2:]...), "content")...)
	default:
		keep(m, sglangMembers...)
	}
	return nil
}

// sglangContent returns the content, and whether the client sent a list.
func sglangContent(m *jinja.Dict, role string, format Format) (content jinja.Value, listed bool, err error) {
	content, _ = m.Get("content")
	switch {
	case content.IsString():
		return content, false, nil
	case !content.IsList() && role == "user":
		return content, false, &Refused{"content: expected a string or an array of parts"}
	case content.IsNone() || content.IsUndefined():
		return jinja.NewString(""), false, nil
	case !content.IsList():
		return content, false, &Refused{"content: expected a string or an array of parts"}
	}
	var texts []string
	parts := []jinja.Value{}
	plain := true
	for i, part := range content.AsList().Items {
		kind, text, err := sglangPart(part)
		if err != nil {
			return content, true, at(err, "content[%d]", i)
		}
		switch kind {
		case "thinking", "reasoning": // left out
			if role != "assistant" {
				return content, true, &Refused{fmt.Sprintf("content[%d]: thinking parts are only valid in assistant messages", i)}
			}
		case "text":
			out := newDict()
			out.setString("type", "text")
			out.setString("text", text)
			parts = append(parts, out.v)
			texts = append(texts, text)
		case "tool_reference":
			plain = false
			keep(part.AsDict(), "type", "name")
			parts = append(parts, part)
		}
	}
	if format == String || role == "tool" && plain {
		return jinja.NewString(strings.Join(texts, " ")), true, nil
	}
	return jinja.NewList(parts), true, nil
}

func sglangPart(part jinja.Value) (kind, text string, err error) {
	if !part.IsDict() {
		return "", "", &Refused{"expected an object"}
	}
	d := part.AsDict()
	if slices.ContainsFunc(mediaMembers, d.Has) {
		return "", "", ErrMedia
	}
	kindValue, _ := d.Get("type")
	if !kindValue.IsString() {
		return "", "", &Refused{"type: expected a string"}
	}
	switch kind = kindValue.AsString(); kind {
	case "text":
		v, _ := d.Get("text")
		if !v.IsString() {
			return "", "", &Refused{"text: expected a string"}
		}
		return kind, v.AsString(), nil
	case "tool_reference", "thinking", "reasoning":
		return kind, "", nil
	}
	return "", "", &Refused{"type: unsupported content part type"}
}

// sglangCalls changes an assistant's tool calls into what the engine's validation
// leaves: all members of its schema, the arguments an object.
func sglangCalls(m *jinja.Dict) error {
	calls, _ := m.Get("tool_calls")
	if calls.IsUndefined() {
		return nil
	}
	if !calls.IsList() {
		return &Refused{"tool_calls: expected an array"}
	}
	for i, call := range calls.AsList().Items {
		v, err := sglangCall(call)
		if err != nil {
			return at(err, "tool_calls[%d]", i)
		}
		calls.AsList().Items[i] = v
	}
	return nil
}

func sglangCall(call jinja.Value) (jinja.Value, error) {
	var function jinja.Value
	if call.IsDict() {
		function, _ = call.AsDict().Get("function")
	}
	if !function.IsDict() {
		return call, &Refused{"expected a call of type function"}
	}
	arguments := orNone(function.AsDict(), "arguments")
	if arguments.IsString() {
		parsed, err := parseJSON([]byte(arguments.AsString()))
		if err != nil || !parsed.IsDict() {
			return call, &Refused{"function.arguments: expected a JSON object"}
		}
		arguments = parsed
	}
	f := newDict()
	f.set("name", orNone(function.AsDict(), "name"))
	f.set("arguments", arguments)
	out := newDict()
	out.set("id", orNone(call.AsDict(), "id"))
	out.set("index", orNone(call.AsDict(), "index"))
	out.setString("type", "function")
	out.set("function", f.v)
	return out.v, nil
}

// sglangTools returns the tools as the template is given them: a function's
// members as the client ordered them, then those that are missing.
func sglangTools(tools jinja.Value) (jinja.Value, error) {
	if !tools.IsList() || tools.AsList().Len() == 0 {
		return jinja.None(), nil
	}
	out := make([]jinja.Value, tools.AsList().Len())
	for i, tool := range tools.AsList().Items {
		f, _ := tool.AsDict().Get("function")
		if !f.IsDict() {
			return tools, &Refused{fmt.Sprintf("tools[%d].function: expected an object", i)}
		}
		function := f.AsDict()
		if name, _ := function.Get("name"); !name.IsString() {
			return tools, &Refused{fmt.Sprintf("tools[%d].function.name: expected a string", i)}
		}
		for _, key := range []string{"description", "parameters"} {
			if !function.Has(key) {
				function.Set(key, jinja.None())
			}
		}
		deferred := orNone(tool.AsDict(), "defer_loading")
		if orNone(function, "defer_loading").IsNone() && !deferred.IsNone() {
			function.Set("defer_loading", deferred)
		}
		for _, key := range []string{"strict", "defer_loading"} {
			if orNone(function, key).IsNone() {
				delete(function.Data, key)
			}
		}
		keep(function, slices.DeleteFunc(slices.Clone(function.Keys), func(key string) bool {
			return !slices.Contains([]string{"description", "name", "parameters", "strict", "defer_loading"}, key)
		})...)
		t := newDict()
		t.setString("type", "function")
		t.set("function", f)
		t.set("defer_loading", deferred)
		out[i] = t.v
	}
	return jinja.NewList(out), nil
}

// renderSGLang renders as SGLang does: a last message of the assistant is either
// appended as it is, to go on with, or taken for one of the user; and a template
// that fails is tried with the bare functions for tools.
func (t *Template) renderSGLang(vars map[string]jinja.Value, goOn bool) (string, error) {
	messages := vars["messages"].AsList().Items
	last := messages[len(messages)-1].AsDict()
	prefix := ""
	if content := last.Data["content"]; last.Data["role"].AsString() == "assistant" && content.IsString() {
		if goOn {
			prefix = content.AsString()
			messages = messages[:len(messages)-1]
		} else {
			turned := newDict()
			turned.setString("role", "user")
			turned.set("content", content)
			messages = append(slices.Clone(messages[:len(messages)-1]), turned.v)
		}
		vars["messages"] = jinja.NewList(messages)
	}
	out, err := t.execute(vars)
	var refused *Refused
	if errors.As(err, &refused) {
		vars["tools"] = bareFunctions(vars["tools"])
		out, err = t.execute(vars)
	}
	return out + prefix, err
}

func bareFunctions(tools jinja.Value) jinja.Value {
	if !tools.IsList() {
		return tools
	}
	var functions []jinja.Value
	for _, tool := range tools.AsList().Items {
		functions = append(functions, tool.AsDict().Data["function"])
	}
	return jinja.NewList(functions)
}
