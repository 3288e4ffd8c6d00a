package tokensource

import (
	"encoding/json"
	"fmt"
	"os"

	"warmpath/tokenize/chat"
	"warmpath/tokenize/model"
)

// Rendering is how a pool's engines make a prompt of a chat, where they were told
// otherwise than by the model: their options of the same names. Embed it in a
// command's flags. The zero value is the model's way, by vLLM's rules.
type Rendering struct {
	// ChatTemplate is a file that replaces the model's template.
	ChatTemplate string `type:"existingfile" placeholder:"FILE" help:"Chat template that the engines were given in place of the model's own."`
	// ContentFormat is how a template gets messages: string, openai (a list of parts),
	// or what the engine finds out from the template, auto or empty.
	ContentFormat string `name:"chat-template-content-format" enum:"auto,string,openai" default:"auto" help:"How the engines give messages to the template: auto (found out from the template), string or openai (a list of parts)."`
	// TemplateArgs are template variables for requests that do not set them, a JSON
	// object.
	TemplateArgs string `name:"default-chat-template-kwargs" placeholder:"JSON" help:"Template variables that the engines set where a request does not, a JSON object such as {\"enable_thinking\": false}."`
	// EngineKind is the kind of the engines, as the fleet says it. In process, sglang
	// leaves tools out where tool_choice is none; others do not.
	EngineKind string `enum:"vllm,sglang,trtllm" default:"vllm" help:"Whose rules a chat template is rendered by: vllm (trtllm is the same) or sglang."`
}

// Options are the model's options that say the same. Errors name the flag.
func (r Rendering) Options() (model.Options, error) {
	options := model.Options{Chat: chat.Options{Defaults: []byte(r.TemplateArgs)}}
	var args map[string]json.RawMessage
	if r.TemplateArgs != "" && (json.Unmarshal(options.Chat.Defaults, &args) != nil || args == nil) {
		return options, fmt.Errorf("--default-chat-template-kwargs %.64q: give a JSON object", r.TemplateArgs)
	}
	if r.EngineKind == "sglang" {
		options.Chat.Engine = chat.SGLang
	}
	switch r.ContentFormat {
	case "", "auto":
	case chat.String.String():
		options.Chat.ContentFormat = new(chat.String)
	case chat.List.String():
		options.Chat.ContentFormat = new(chat.List)
	default:
		return options, fmt.Errorf("--chat-template-content-format %q: give auto, %s or %s", r.ContentFormat, chat.String, chat.List)
	}
	if r.ChatTemplate != "" {
		text, err := os.ReadFile(r.ChatTemplate)
		if err != nil {
			return options, fmt.Errorf("--chat-template: %w", err)
		}
		options.ChatTemplate = string(text)
	}
	return options, nil
}
