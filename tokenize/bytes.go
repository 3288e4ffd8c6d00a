package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Bytes is a tokenizer with one token per byte of UTF-8 text, ids 0 to 255, and
// one fixed chat rendering. The simulated engine and a gateway with
// --tokenizer bytes both use it, so their block keys agree. The zero value is
// ready, and safe for concurrent use.
type Bytes struct{}

// Text returns the ids of a text: its bytes.
func (Bytes) Text(s string) []uint32 { return AppendText(nil, s) }

// AppendText appends the ids of a text to dst.
func AppendText(dst []uint32, s string) []uint32 {
	if need := len(dst) + len(s); need > cap(dst) {
		dst = append(make([]uint32, 0, need), dst...)
	}
	for i := range len(s) {
		dst = append(dst, uint32(s[i]))
	}
	return dst
}

// Chat returns the ids of a chat prompt: those of Render.
func (b Bytes) Chat(messages, tools json.RawMessage) ([]uint32, error) {
	text, err := b.Render(messages, tools)
	if err != nil {
		return nil, err
	}
	return b.Text(text), nil
}

// message is what Render reads of a chat message.
type message struct {
	Role       string          `json:"role"`
	Name       string          `json:"name"`
	Content    json.RawMessage `json:"content"`
	ToolCalls  []toolCall      `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

type toolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// Render writes a chat prompt as one text: the tools, then each message in
// order between a line with its role and an end mark, then the line that opens
// the assistant's answer. A conversation that goes on with that answer and more
// messages renders to a text that starts with this one, which is what makes its
// blocks reusable. Messages must be an array of objects with a role; tools may
// be empty or null. Errors name the message and the field.
func (Bytes) Render(messages, tools json.RawMessage) (string, error) {
	var list []message
	if err := json.Unmarshal(messages, &list); err != nil {
		return "", fmt.Errorf("messages: %w; send an array of objects with role and content", err)
	}
	if len(list) == 0 {
		return "", fmt.Errorf("messages: empty; send at least one message")
	}
	var out strings.Builder
	out.Grow(len(messages) + len(tools) + 64)
	if len(tools) > 0 && string(tools) != "null" {
		var compact bytes.Buffer
		if err := json.Compact(&compact, tools); err != nil {
			return "", fmt.Errorf("tools: %w; send an array of tool definitions", err)
		}
		if compact.Len() > len("[]") {
			out.WriteString("<|tools|>\n")
			out.Write(compact.Bytes())
			out.WriteString("<|end|>\n")
		}
	}
	for i := range list {
		if err := renderMessage(&out, &list[i]); err != nil {
			return "", fmt.Errorf("messages[%d].%w", i, err)
		}
	}
	out.WriteString("<|assistant|>\n")
	return out.String(), nil
}

func renderMessage(out *strings.Builder, m *message) error {
	if m.Role == "" {
		return fmt.Errorf("role: missing; send system, user, assistant or tool")
	}
	out.WriteString("<|")
	out.WriteString(m.Role)
	if m.Name != "" {
		out.WriteString(" name=")
		out.WriteString(m.Name)
	}
	if m.ToolCallID != "" {
		out.WriteString(" call=")
		out.WriteString(m.ToolCallID)
	}
	out.WriteString("|>\n")
	if err := renderContent(out, m.Content); err != nil {
		return err
	}
	for _, call := range m.ToolCalls {
		out.WriteString("<|call ")
		out.WriteString(call.ID)
		out.WriteByte(' ')
		out.WriteString(call.Function.Name)
		out.WriteString("|>")
		arguments, err := textOrJSON(call.Function.Arguments)
		if err != nil {
			return fmt.Errorf("tool_calls.function.arguments: %w", err)
		}
		out.WriteString(arguments)
	}
	out.WriteString("<|end|>\n")
	return nil
}

// renderContent writes a message's content: a text, or parts. A part that is
// not text is written as its JSON, so that two images never look the same.
func renderContent(out *strings.Builder, content json.RawMessage) error {
	if len(content) == 0 || string(content) == "null" {
		return nil
	}
	switch content[0] {
	case '"':
		text, err := unquote(content)
		if err != nil {
			return fmt.Errorf("content: %w", err)
		}
		out.WriteString(text)
		return nil
	case '[':
		var parts []json.RawMessage
		if err := json.Unmarshal(content, &parts); err != nil {
			return fmt.Errorf("content: %w", err)
		}
		for i, raw := range parts {
			var part struct {
				Type string  `json:"type"`
				Text *string `json:"text"`
			}
			if err := json.Unmarshal(raw, &part); err != nil {
				return fmt.Errorf("content[%d]: %w; send an object with type and text", i, err)
			}
			if part.Text != nil {
				out.WriteString(*part.Text)
				continue
			}
			text, err := textOrJSON(raw)
			if err != nil {
				return fmt.Errorf("content[%d]: %w", i, err)
			}
			out.WriteString("<|")
			out.WriteString(part.Type)
			out.WriteString("|>")
			out.WriteString(text)
		}
		return nil
	default:
		return fmt.Errorf("content: found %s, expected a string, null or an array of parts", found(content, 0))
	}
}

// textOrJSON returns a JSON string's text, or any other value without white space.
func textOrJSON(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	if raw[0] == '"' {
		return unquote(raw)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return "", err
	}
	return compact.String(), nil
}

// unquote decodes a JSON string, which must be valid JSON already scanned.
func unquote(raw []byte) (string, error) {
	if len(raw) >= 2 && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", err
	}
	return s, nil
}
