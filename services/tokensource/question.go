package tokensource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// question writes the body of POST /tokenize for a prompt, as the engine reads
// it: vLLM takes what a chat completion has, but documents and reasoning_effort
// as template variables; SGLang takes its own names, and has no
// add_generation_prompt.
func question(kind string, p *Prompt) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(len(p.Messages) + len(p.Tools) + len(p.Text) + 256)
	w := object{out: &b}
	model := p.Model
	if p.LoRA != "" {
		model = p.LoRA
	}
	w.text("model", model)
	t := &p.Template
	w.flag("add_special_tokens", t.AddSpecialTokens)
	if !p.Chat {
		w.text("prompt", p.Text)
		return w.end()
	}
	w.raw("messages", p.Messages)
	w.raw("tools", p.Tools)
	w.flag("continue_final_message", t.ContinueFinalMessage)
	if kind == kindSGLang {
		if t.AddGenerationPrompt != nil && !*t.AddGenerationPrompt && (t.ContinueFinalMessage == nil || !*t.ContinueFinalMessage) {
			return nil, unavailable("unsupported", "SGLang's /tokenize cannot leave out the generation prompt")
		}
		if len(t.Documents) > 0 || len(t.ChatTemplate) > 0 {
			return nil, unavailable("unsupported", "SGLang's /tokenize takes no documents or chat template")
		}
		w.raw("tool_choice", t.ToolChoice)
		w.raw("reasoning_effort", t.ReasoningEffort)
		w.raw("chat_template_kwargs", t.ChatTemplateKwargs)
		return w.end()
	}
	w.flag("add_generation_prompt", t.AddGenerationPrompt)
	w.raw("chat_template", t.ChatTemplate)
	kwargs, err := withVariables(t.ChatTemplateKwargs, t.Documents, t.ReasoningEffort)
	if err != nil {
		return nil, err
	}
	w.raw("chat_template_kwargs", kwargs)
	return w.end()
}

// withVariables puts documents and reasoning_effort among a request's template
// variables, where a chat completion puts them: last, so that they hold.
func withVariables(kwargs, documents, effort json.RawMessage) (json.RawMessage, error) {
	if len(documents) == 0 && len(effort) == 0 {
		return kwargs, nil
	}
	var b bytes.Buffer
	w := object{out: &b}
	if inner := bytes.TrimSpace(kwargs); len(inner) > 0 {
		if inner[0] != '{' || inner[len(inner)-1] != '}' {
			return nil, &PromptError{Param: "chat_template_kwargs", Err: errors.New("chat_template_kwargs: not an object; send the template's variables by name")}
		}
		if inner = bytes.TrimSpace(inner[1 : len(inner)-1]); len(inner) > 0 {
			w.open()
			b.Write(inner)
		}
	}
	w.raw("documents", documents)
	w.raw("reasoning_effort", effort)
	return w.end()
}

// object writes a JSON object member by member; absent members are left out.
type object struct {
	out  *bytes.Buffer
	some bool
}

func (o *object) open() {
	if o.some {
		o.out.WriteByte(',')
	} else {
		o.out.WriteByte('{')
	}
	o.some = true
}

func (o *object) raw(name string, value json.RawMessage) {
	if len(value) == 0 {
		return
	}
	o.open()
	o.out.WriteString(`"` + name + `":`)
	o.out.Write(value)
}

func (o *object) text(name, value string) {
	if value == "" && name != "prompt" {
		return
	}
	encoded, err := json.Marshal(value)
	if err != nil { // strings always encode
		encoded = []byte(`""`)
	}
	o.raw(name, encoded)
}

func (o *object) flag(name string, value *bool) {
	if value != nil {
		o.raw(name, fmt.Appendf(nil, "%t", *value))
	}
}

func (o *object) end() ([]byte, error) {
	if !o.some {
		o.out.WriteByte('{')
	}
	o.out.WriteByte('}')
	return o.out.Bytes(), nil
}

// maxWords bounds what of an engine's words is passed on.
const maxWords = 2000

// refusal is what an engine's error means: the prompt is at fault, the engine
// cannot say, or it failed.
func refusal(to Replica, status int, answer []byte) error {
	words := wordsOf(answer)
	switch status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return &UnavailableError{Reason: "unsupported", Err: fmt.Errorf("replica %s has no /tokenize for this model: %s", to.Name, words)}
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		// SGLang before chat support asks for the prompt that it knows only.
		if to.Kind == kindSGLang && strings.Contains(words, "prompt") && (strings.Contains(words, "required") || strings.Contains(words, "missing")) {
			return &UnavailableError{Reason: "unsupported", Err: fmt.Errorf("replica %s cannot tokenize messages: %s", to.Name, words)}
		}
		return &PromptError{Err: errors.New(words)}
	}
	return fmt.Errorf("replica %s answered %d: %s", to.Name, status, words)
}

// wordsOf finds the message in an engine's error: {"error": {"message": …}},
// {"message": …}, {"detail": …} or plain text.
func wordsOf(answer []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	words := ""
	if json.Unmarshal(answer, &e) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(e.Error, &inner) == nil && inner.Message != "":
			words = inner.Message
		case e.Message != "":
			words = e.Message
		case len(e.Detail) > 0 && json.Unmarshal(e.Detail, &words) == nil:
		case len(e.Detail) > 0:
			words = string(e.Detail)
		case len(e.Error) > 0 && json.Unmarshal(e.Error, &words) == nil:
		}
	}
	if words == "" {
		words = strings.TrimSpace(string(answer))
	}
	if words == "" {
		words = "no reason given"
	}
	if len(words) > maxWords {
		words = strings.ToValidUTF8(words[:maxWords], "") + "…"
	}
	return words
}
