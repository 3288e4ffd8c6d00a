// Package tokenize prints what a model directory makes of a text or a chat: the
// rendered prompt, its token ids, and the keys of its blocks.
package tokenize

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"warmpath/routing/blockkey"
	"warmpath/services/tokensource"
	"warmpath/tokenize/chat"
	"warmpath/tokenize/model"
)

// maxInput bounds what is read from a file or a pipe: the gateway takes no more.
const maxInput = 64 << 20

// Command is `warmpath tokenize`.
type Command struct {
	Model string  `required:"" type:"existingdir" placeholder:"DIR" help:"Hugging Face model directory: tokenizer.json, tokenizer_config.json and chat templates."`
	Text  *string `xor:"input" help:"Tokenize this text, as the prompt of a completion."`
	File  string  `xor:"input" placeholder:"FILE" help:"Tokenize a file's text; - or neither of these is standard input."`
	Chat  string  `xor:"input" placeholder:"FILE" help:"Tokenize a chat request, a JSON file such as is sent to /v1/chat/completions; - is standard input."`
	tokensource.Rendering
	Date        time.Time `format:"2006-01-02" placeholder:"DAY" help:"The day that templates print, such as 2026-07-26, to make again what was made then; default is today."`
	Verbatim    bool      `help:"Give a chat's messages to the template as they are, without what the engine does to them."`
	Special     *bool     `negatable:"" help:"Put the tokenizer's special tokens around it, or not; default is what engines do: for texts yes, for chats as the request says."`
	Render      bool      `help:"Print the text that is tokenized, too: a chat's rendered prompt."`
	Pieces      bool      `help:"Print each token's text beside its id."`
	Keys        bool      `help:"Print the keys of the full blocks, too."`
	BlockTokens int       `default:"16" help:"Tokens in a block, with --keys: the pool's block size."`
	ModelName   string    `help:"The pool's model name, with --keys; default is the directory's name."`
	LoRA        string    `name:"lora" help:"LoRA adapter's name, with --keys."`
	Salt        string    `help:"Cache salt, with --keys."`
	JSON        bool      `name:"json" help:"Print one JSON object."`
}

// Result is what the command prints with --json.
type Result struct {
	Model string `json:"model"`
	// Rendered is the text that was tokenized; empty unless asked for.
	Rendered string   `json:"rendered,omitempty"`
	Count    int      `json:"count"`
	IDs      []uint32 `json:"ids"`
	Pieces   []string `json:"pieces,omitempty"`
	Keys     []string `json:"keys,omitempty"`
}

// Run tokenizes the input once.
func (c *Command) Run(context.Context) error { return c.run(os.Stdin, os.Stdout) }

func (c *Command) run(stdin io.Reader, stdout io.Writer) error {
	if c.Keys && c.BlockTokens <= 0 {
		return fmt.Errorf("--block-tokens %d: give the pool's block size, such as 16", c.BlockTokens)
	}
	m, err := c.load()
	if err != nil {
		return err
	}
	text, special, err := c.input(m, stdin)
	if err != nil {
		return err
	}
	r := &Result{Model: m.Name()}
	if special {
		r.IDs = m.AppendSpecial([]uint32{}, text)
	} else {
		r.IDs = m.Append([]uint32{}, text)
	}
	r.Count = len(r.IDs)
	if c.Render {
		r.Rendered = text
	}
	if c.Pieces {
		for _, id := range r.IDs {
			r.Pieces = append(r.Pieces, m.Tokenizer().Decode([]uint32{id}, false))
		}
	}
	if c.Keys {
		r.Keys = c.keys(m.Name(), r.IDs)
	}
	if c.JSON {
		out := json.NewEncoder(stdout)
		out.SetEscapeHTML(false)
		return out.Encode(r)
	}
	return c.print(stdout, r)
}

func (c *Command) load() (*model.Model, error) {
	options, err := c.Options()
	if err != nil {
		return nil, err
	}
	if !c.Date.IsZero() {
		options.Chat.Now = func() time.Time { return c.Date }
	}
	return model.Load(c.Model, options)
}

// input returns the text to tokenize, and whether special tokens go around it.
func (c *Command) input(m *model.Model, stdin io.Reader) (text string, special bool, err error) {
	if c.Chat != "" {
		return c.chat(m, stdin)
	}
	if c.Text != nil {
		text = *c.Text
	} else {
		data, err := readInput("--file", c.File, stdin)
		if err != nil {
			return "", false, err
		}
		text = string(data)
	}
	return text, c.Special == nil || *c.Special, nil
}

func readInput(flag, file string, stdin io.Reader) ([]byte, error) {
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		defer f.Close()
		stdin = f
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if len(data) > maxInput {
		return nil, fmt.Errorf("%s: more than %d bytes", flag, maxInput)
	}
	return data, nil
}

// chatRequest is what of a request body decides its prompt.
type chatRequest struct {
	Messages             json.RawMessage `json:"messages"`
	Tools                json.RawMessage `json:"tools"`
	Documents            json.RawMessage `json:"documents"`
	Kwargs               json.RawMessage `json:"chat_template_kwargs"`
	AddGenerationPrompt  *bool           `json:"add_generation_prompt"`
	ContinueFinalMessage bool            `json:"continue_final_message"`
	AddSpecialTokens     bool            `json:"add_special_tokens"`
	ReasoningEffort      string          `json:"reasoning_effort"`
}

func (c *Command) chat(m *model.Model, stdin io.Reader) (string, bool, error) {
	data, err := readInput("--chat", c.Chat, stdin)
	if err != nil {
		return "", false, err
	}
	var body chatRequest
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		body.Messages = data
	} else if err := json.Unmarshal(data, &body); err != nil {
		return "", false, fmt.Errorf("--chat: %w", err)
	}
	if len(body.Messages) == 0 {
		return "", false, errors.New("--chat: the request has no messages; give a body of /v1/chat/completions, or an array of messages")
	}
	text, err := m.Chat(chat.Request{
		Messages: body.Messages, Tools: body.Tools, Documents: body.Documents, Kwargs: body.Kwargs,
		AddGenerationPrompt: body.AddGenerationPrompt, ContinueFinalMessage: body.ContinueFinalMessage,
		ReasoningEffort: body.ReasoningEffort, Verbatim: c.Verbatim,
	})
	if err != nil {
		return "", false, fmt.Errorf("--chat: %w", err)
	}
	if c.Special != nil {
		return text, *c.Special, nil
	}
	return text, body.AddSpecialTokens, nil
}

func (c *Command) keys(name string, ids []uint32) []string {
	if c.ModelName != "" {
		name = c.ModelName
	}
	chain := blockkey.Chain(nil, blockkey.Root(name, c.LoRA, c.Salt), ids, c.BlockTokens)
	keys := make([]string, len(chain))
	for i, k := range chain {
		keys[i] = fmt.Sprintf("%016x", k)
	}
	return keys
}

// print writes the rendered text, the ids and the keys, in this order.
func (c *Command) print(stdout io.Writer, r *Result) error {
	w := bufio.NewWriter(stdout)
	if c.Render {
		fmt.Fprintln(w, strings.TrimSuffix(r.Rendered, "\n"))
	}
	for i, id := range r.IDs {
		switch {
		case c.Pieces:
			fmt.Fprintf(w, "%d\t%q\n", id, r.Pieces[i])
		case i > 0:
			fmt.Fprintf(w, " %d", id)
		default:
			fmt.Fprintf(w, "%d", id)
		}
	}
	if !c.Pieces && len(r.IDs) > 0 {
		fmt.Fprintln(w)
	}
	for _, k := range r.Keys {
		fmt.Fprintln(w, k)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
