package chat

import (
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"
)

// This file follows vLLM 0.33 (its renderers' chat_message module and the
// validation before it): what reaches a template is not what the client sent.

// dict builds an object in order.
type dict struct{ v jinja.Value }

func newDict() dict { return dict{jinja.NewDict()} }

func (d dict) set(key string, v jinja.Value) { d.v.AsDict().Set(key, v) }

func (d dict) setString(key, s string) { d.set(key, jinja.NewString(s)) }

// conversation changes the messages into what the template is given.
func conversation(messages []jinja.Value, format Format) error {
	for i, m := range messages {
		if err := message(m.AsDict(), format); err != nil {
			return at(err, "messages[%d]", i)
		}
	}
	return nil
}

// message changes a message, which is ours alone, into what the engine makes of it.
func message(m *jinja.Dict, format Format) error {
	role, _ := m.Get("role")
	if !role.IsString() {
		return &Refused{"role: expected a string"}
	}
	content, err := contentOf(m, role.AsString(), format)
	if err != nil {
		return err
	}
	m.Set("content", content)
	for _, key := range []string{"name", "task"} {
		if v, _ := m.Get(key); !v.IsString() {
			delete(m.Data, key)
		}
	}
	switch role.AsString() {
	case "assistant":
		err = assistant(m)
		keep(m, "role", "content", "tool_calls", "reasoning", "reasoning_content", "name", "task")
	case "tool":
		keep(m, "role", "content", "tool_call_id", "name", "task")
	case "developer":
		tools, _ := m.Get("tools")
		m.Data["tools"] = developerTools(tools)
		keep(m, "role", "content", "name", "task", "tools")
	default:
		keep(m, "role", "content", "name", "task")
	}
	return err
}

// keep leaves an object these members, in this order.
func keep(d *jinja.Dict, keys ...string) {
	for _, key := range d.Keys {
		if !slices.Contains(keys, key) {
			delete(d.Data, key)
		}
	}
	d.Keys = d.Keys[:0]
	for _, key := range keys {
		if _, ok := d.Data[key]; ok {
			d.Keys = append(d.Keys, key)
		}
	}
}

// putFirst orders the members of an object: these, then the others as they are.
func putFirst(d *jinja.Dict, keys ...string) {
	order := make([]string, 0, len(d.Keys))
	for _, key := range keys {
		if d.Has(key) {
			order = append(order, key)
		}
	}
	for _, key := range d.Keys {
		if !slices.Contains(keys, key) {
			order = append(order, key)
		}
	}
	d.Keys = order
}

func contentOf(m *jinja.Dict, role string, format Format) (jinja.Value, error) {
	content, _ := m.Get("content")
	var parts []jinja.Value
	switch {
	case content.IsString() && (format == String || role == "tool") && role != "system":
		return content, nil
	case content.IsString():
		part := newDict()
		part.setString("type", "text")
		part.set("text", content)
		parts = []jinja.Value{part.v}
	case content.IsList():
		parts = content.AsList().Items
	case !content.IsNone() && !content.IsUndefined():
		return content, &Refused{"content: expected a string or an array of parts"}
	}
	if role == "system" {
		parts = withoutBillingHeader(parts)
	}
	// The text of a tool's answer is one string for every template.
	asString := format == String
	if role == "tool" {
		asString = asString || !slices.ContainsFunc(parts, isToolReference)
	}
	return joinParts(parts, asString, role == "tool" && format == List)
}

func isToolReference(part jinja.Value) bool {
	if !part.IsDict() {
		return false
	}
	kind, _ := part.AsDict().Get("type")
	return kind.IsString() && kind.AsString() == "tool_reference"
}

// joinParts turns a message's parts into one string, or into a list of objects.
// Empty parts of a string are dropped with their newline, unless keepEmpty.
func joinParts(parts []jinja.Value, asString, keepEmpty bool) (jinja.Value, error) {
	var texts []string
	list := make([]jinja.Value, 0, len(parts))
	for i, part := range parts {
		text, object, err := contentPart(part)
		if err != nil {
			return part, at(err, "content[%d]", i)
		}
		if object.IsNone() {
			continue
		}
		list = append(list, object)
		if text != "" || keepEmpty {
			texts = append(texts, text)
		}
	}
	if asString {
		return jinja.NewString(strings.Join(texts, "\n")), nil
	}
	return jinja.NewList(list), nil
}

// textMembers are the types of parts that are text, and which member holds it.
var textMembers = map[string]string{
	"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking",
}

// partMembers are the members of parts that the engine knows. Others are handed
// on to the template.
var partMembers = []string{
	"type", "text", "refusal", "thinking", "closed", "name", "prompt_cache_breakpoint", "uuid", "data", "file",
	"image_url", "image_pil", "image_embeds", "audio_url", "audio_embeds", "input_audio", "video_url", "video_embeds",
}

// mediaMembers mark a part as media, whatever its type.
var mediaMembers = []string{
	"image_url", "image_pil", "image_embeds", "audio_url", "audio_embeds", "input_audio", "video_url", "video_embeds", "prompt_embeds",
}

// contentPart returns a part's text and the object for templates that take
// lists. A part that the engine skips is none.
func contentPart(part jinja.Value) (string, jinja.Value, error) {
	out := newDict()
	if part.IsString() {
		out.setString("type", "text")
		out.set("text", part)
		return part.AsString(), out.v, nil
	}
	if !part.IsDict() {
		return "", part, &Refused{"expected an object"}
	}
	d := part.AsDict()
	kindValue, _ := d.Get("type")
	if slices.ContainsFunc(mediaMembers, d.Has) {
		return "", part, ErrMedia
	}
	if !kindValue.IsString() {
		return "", part, &Refused{"type: expected a string"}
	}
	kind := kindValue.AsString()
	if kind == "tool_reference" {
		name, _ := d.Get("name")
		out.set("type", kindValue)
		out.set("name", name)
		return text(name), out.v, nil
	}
	member, ok := textMembers[kind]
	if !ok {
		if slices.Contains(mediaMembers, kind) || kind == "input_image" || kind == "file" {
			return "", part, ErrMedia
		}
		return "", part, &Refused{"type: unsupported content part type"}
	}
	value, _ := d.Get(member)
	if !value.IsString() {
		if (value.IsNone() || value.IsUndefined()) && kind == member && kind != "thinking" {
			return "", jinja.None(), nil
		}
		return "", part, &Refused{member + ": expected a string"}
	}
	out.setString("type", "text")
	out.set("text", value)
	for _, key := range d.Keys {
		if !slices.Contains(partMembers, key) {
			out.set(key, d.Data[key])
		}
	}
	return value.AsString(), out.v, nil
}

// billingHeader starts a line that one coding client puts before its system
// prompt, with a value that changes at each request. The engine drops it.
const billingHeader = "x-anthropic-billing-header"

func withoutBillingHeader(parts []jinja.Value) []jinja.Value {
	out := make([]jinja.Value, 0, len(parts))
	for _, part := range parts {
		text := part
		if part.IsDict() {
			text = jinja.None()
			if kind, _ := part.AsDict().Get("type"); kind.IsString() && kind.AsString() == "text" {
				text, _ = part.AsDict().Get("text")
			}
		}
		if !text.IsString() || !strings.HasPrefix(text.AsString(), billingHeader) {
			out = append(out, part)
			continue
		}
		_, rest, _ := strings.Cut(text.AsString(), "\n")
		switch {
		case rest == "":
		case part.IsString():
			out = append(out, jinja.NewString(rest))
		default:
			changed := copyDict(part.AsDict())
			changed.AsDict().Set("text", jinja.NewString(rest))
			out = append(out, changed)
		}
	}
	return out
}

// assistant changes an assistant message's tool calls and reasoning.
func assistant(m *jinja.Dict) error {
	calls, _ := m.Get("tool_calls")
	switch {
	case calls.IsList() && calls.AsList().Len() > 0:
		for i, call := range calls.AsList().Items {
			if err := toolCall(call); err != nil {
				return at(err, "tool_calls[%d]", i)
			}
		}
	case calls.IsList() || calls.IsNone():
		delete(m.Data, "tool_calls")
	case !calls.IsUndefined():
		return &Refused{"tool_calls: expected an array"}
	}
	reasoning, _ := m.Get("reasoning")
	if reasoning.IsNone() || reasoning.IsUndefined() {
		reasoning, _ = m.Get("reasoning_content")
	}
	switch {
	case reasoning.IsString():
		m.Data["reasoning"], m.Data["reasoning_content"] = reasoning, reasoning
	case reasoning.IsNone() || reasoning.IsUndefined():
		delete(m.Data, "reasoning")
		delete(m.Data, "reasoning_content")
	case reasoning.IsDict():
		return ErrMedia
	default:
		return &Refused{"reasoning: expected a string"}
	}
	return nil
}

// withoutDeveloper makes developer messages system messages, and all of these
// one at the front, for templates that do not know the role.
func withoutDeveloper(messages []jinja.Value) []jinja.Value {
	role := func(m jinja.Value) string { return m.AsDict().Data["role"].AsString() }
	if !slices.ContainsFunc(messages, func(m jinja.Value) bool { return role(m) == "developer" }) {
		return messages
	}
	var texts []string
	var others, converted []jinja.Value
	moved := false
	for i, m := range messages {
		if role(m) == "developer" {
			c := newDict()
			for _, key := range m.AsDict().Keys {
				if key != "tools" {
					c.set(key, m.AsDict().Data[key])
				}
			}
			c.setString("role", "system")
			m = c.v
		}
		converted = append(converted, m)
		if role(m) != "system" {
			others = append(others, m)
			continue
		}
		moved = moved || i > 0
		if s := systemText(m.AsDict().Data["content"]); s != "" {
			texts = append(texts, s)
		}
	}
	if !moved {
		return converted
	}
	merged := newDict()
	merged.setString("role", "system")
	merged.setString("content", strings.Join(texts, "\n\n"))
	return append([]jinja.Value{merged.v}, others...)
}

func systemText(content jinja.Value) string {
	if content.IsString() {
		return content.AsString()
	}
	var texts []string
	for _, part := range items(content) {
		if part.IsDict() && part.AsDict().Has("text") {
			texts = append(texts, text(part.AsDict().Data["text"]))
		}
	}
	return strings.Join(texts, "\n")
}
