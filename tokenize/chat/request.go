package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/ardanlabs/jinja"
)

// Request is what of a chat request decides its prompt. Raw members are the
// JSON of the request body's members; nil and null mean not given.
type Request struct {
	Messages, Tools, Documents json.RawMessage
	// AddGenerationPrompt asks for the header of the answer; nil means true.
	AddGenerationPrompt *bool
	// ContinueFinalMessage leaves the last message open, for the model to go on
	// with. AddGenerationPrompt must then be false.
	ContinueFinalMessage bool
	// Kwargs are the request's chat_template_kwargs, an object.
	Kwargs json.RawMessage
	// ReasoningEffort is the request's reasoning_effort, or empty.
	ReasoningEffort string
	// Verbatim gives messages and tools to the template as they are, as
	// transformers' apply_chat_template does, without what engines do to them.
	Verbatim bool
}

// reserved are variables that a request cannot set by its kwargs: the engine
// fails on them.
var reserved = []string{"messages", "conversation", "tools", "chat_template", "tokenize"}

// Render returns the prompt. Errors are *Refused when the engine would refuse
// the request too, and wrap ErrMedia or ErrTooLarge when it might not.
func (t *Template) Render(r Request) (string, error) {
	vars, err := t.variables(&r)
	if err != nil {
		return "", err
	}
	switch {
	case t.options.Engine == SGLang && !r.Verbatim:
		return t.renderSGLang(vars, r.ContinueFinalMessage)
	case !r.ContinueFinalMessage:
		return t.execute(vars)
	}
	if vars["add_generation_prompt"].IsTruthy() {
		return "", &Refused{"continue_final_message and add_generation_prompt are not compatible; send add_generation_prompt: false"}
	}
	return t.renderOpen(vars)
}

func (t *Template) variables(r *Request) (map[string]jinja.Value, error) {
	vars := map[string]jinja.Value{}
	kwargs, err := parseDict(r.Kwargs, "chat_template_kwargs")
	if err != nil {
		return nil, err
	}
	maps.Copy(vars, t.defaults.Data)
	for key, v := range kwargs.Data {
		// Where the engine has defaults, it takes these two for not given.
		unset := v.IsNone() || v.IsString() && v.AsString() == "auto"
		if (!unset || t.defaults.Len() == 0 || t.options.Engine == SGLang) && !strings.HasPrefix(key, helper) {
			vars[key] = v
		}
	}
	delete(vars, "continue_final_message") // no variable of templates
	for _, name := range reserved {
		if kwargs.Has(name) {
			return nil, &Refused{fmt.Sprintf("chat_template_kwargs: %s cannot be set here", name)}
		}
	}
	t.reason(vars, kwargs, r.ReasoningEffort)
	generate := r.AddGenerationPrompt == nil || *r.AddGenerationPrompt || t.options.Engine == SGLang && !r.Verbatim
	vars["add_generation_prompt"] = jinja.NewBool(generate)

	given := []struct {
		name string
		raw  json.RawMessage
	}{{"messages", r.Messages}, {"tools", r.Tools}, {"documents", r.Documents}}
	for _, g := range given {
		v, err := parseList(g.raw, g.name)
		if err != nil {
			return nil, err
		}
		if _, set := vars[g.name]; !set || !v.IsNone() {
			vars[g.name] = v
		}
	}
	if !vars["messages"].IsList() || vars["messages"].AsList().Len() == 0 {
		return nil, &Refused{"messages: at least one is needed"}
	}
	if r.Verbatim {
		return vars, nil
	}
	return vars, t.normalize(vars)
}

// reason sets the variables that a request's reasoning effort sets.
func (t *Template) reason(vars map[string]jinja.Value, kwargs *jinja.Dict, effort string) {
	if effort == "" {
		return
	}
	names := []string{"enable_thinking"}
	if t.options.Engine == SGLang {
		names = []string{"enable_thinking", "thinking"}
	}
	if t.options.Engine != SGLang || !kwargs.Has("reasoning_effort") {
		vars["reasoning_effort"] = jinja.NewString(effort)
	}
	for _, name := range names {
		if !kwargs.Has(name) {
			vars[name] = jinja.NewBool(effort != "none")
		}
	}
}

// normalize does to messages and tools what the engine does.
func (t *Template) normalize(vars map[string]jinja.Value) (err error) {
	messages := vars["messages"].AsList().Items
	if t.options.Engine == SGLang {
		if err := sglangConversation(messages, t.format); err != nil {
			return err
		}
		vars["tools"], err = sglangTools(vars["tools"])
		return err
	}
	if err := conversation(messages, t.format); err != nil {
		return err
	}
	if !t.developer {
		vars["messages"] = jinja.NewList(withoutDeveloper(messages))
	}
	vars["tools"], err = toolDefinitions(vars["tools"])
	return err
}

func parse(raw []byte, name string) (jinja.Value, error) {
	if len(raw) == 0 {
		return jinja.None(), nil
	}
	v, err := parseJSON(raw)
	if err != nil {
		return v, &Refused{name + ": " + err.Error()}
	}
	return v, nil
}

func parseDict(raw []byte, name string) (*jinja.Dict, error) {
	v, err := parse(raw, name)
	switch {
	case err != nil:
		return nil, err
	case v.IsNone():
		return jinja.NewDict().AsDict(), nil
	case !v.IsDict():
		return nil, &Refused{name + ": expected an object"}
	}
	return v.AsDict(), nil
}

func parseList(raw []byte, name string) (jinja.Value, error) {
	v, err := parse(raw, name)
	if err != nil || v.IsNone() {
		return v, err
	}
	if !v.IsList() {
		return v, &Refused{name + ": expected an array"}
	}
	for i, item := range v.AsList().Items {
		if !item.IsDict() {
			return v, &Refused{fmt.Sprintf("%s[%d]: expected an object", name, i)}
		}
	}
	return v, nil
}

// continuation marks the end of the final message, as transformers does it. Its
// space at the end tells whether the template trims the message.
const continuation = "CONTINUE_FINAL_MESSAGE_TAG "

// renderOpen renders a conversation whose last message stays open.
func (t *Template) renderOpen(vars map[string]jinja.Value) (string, error) {
	marked, final, err := markFinal(vars["messages"].AsList().Items)
	if err != nil {
		return "", err
	}
	vars = maps.Clone(vars)
	vars["messages"] = jinja.NewList(marked)
	out, err := t.execute(vars)
	if err != nil {
		return "", err
	}
	at := strings.LastIndex(out, strings.TrimSpace(continuation))
	if at < 0 || !strings.Contains(out, strings.TrimFunc(final, isSpace)) {
		return "", &Refused{"continue_final_message is set but the final message does not appear in the chat after applying the chat template"}
	}
	if strings.HasPrefix(out[at:], continuation) {
		return out[:at], nil
	}
	return strings.TrimRightFunc(out[:at], isSpace), nil
}

// markFinal returns the messages with the last one marked, and its text.
func markFinal(messages []jinja.Value) ([]jinja.Value, string, error) {
	last := copyDict(messages[len(messages)-1].AsDict())
	marked := append([]jinja.Value(nil), messages...)
	marked[len(marked)-1] = last
	content, _ := last.AsDict().Get("content")
	if content.IsString() {
		last.AsDict().Set("content", jinja.NewString(content.AsString()+continuation))
		return marked, content.AsString(), nil
	}
	if !content.IsList() {
		return nil, "", &Refused{"continue_final_message is set but the final message has no content"}
	}
	parts := append([]jinja.Value(nil), content.AsList().Items...)
	last.AsDict().Set("content", jinja.NewList(parts))
	for i := len(parts) - 1; i >= 0; i-- {
		if !parts[i].IsDict() {
			continue
		}
		text, ok := parts[i].AsDict().Get("text")
		if !ok || !text.IsString() {
			continue
		}
		parts[i] = copyDict(parts[i].AsDict())
		parts[i].AsDict().Set("text", jinja.NewString(text.AsString()+continuation))
		return marked, text.AsString(), nil
	}
	return nil, "", &Refused{"continue_final_message is set but we could not find any text to continue in the final message"}
}

func copyDict(d *jinja.Dict) jinja.Value {
	v := jinja.NewDict()
	for _, k := range d.Keys {
		v.AsDict().Set(k, d.Data[k])
	}
	return v
}

// at names the part of the request that an error is about.
func at(err error, format string, args ...any) error {
	where := fmt.Sprintf(format, args...)
	var refused *Refused
	if errors.As(err, &refused) {
		return &Refused{where + ": " + refused.Reason}
	}
	return fmt.Errorf("%s: %w", where, err)
}
