package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"warmpath/tokenize/chat"
)

const (
	configFile   = "tokenizer_config.json"
	specialsFile = "special_tokens_map.json"
)

// config is what of tokenizer_config.json decides prompts.
type config struct {
	specials
	AddBOS       *bool                 `json:"add_bos_token"`
	AddEOS       *bool                 `json:"add_eos_token"`
	AddedTokens  map[string]addedToken `json:"added_tokens_decoder"`
	ChatTemplate json.RawMessage       `json:"chat_template"`
}

// specials are the named special tokens, in both configuration files.
type specials struct {
	BOS        token           `json:"bos_token"`
	EOS        token           `json:"eos_token"`
	UNK        token           `json:"unk_token"`
	SEP        token           `json:"sep_token"`
	PAD        token           `json:"pad_token"`
	CLS        token           `json:"cls_token"`
	MASK       token           `json:"mask_token"`
	Additional []token         `json:"additional_special_tokens"`
	Extra      json.RawMessage `json:"extra_special_tokens"`
}

// token is a token's text: a string, or an object with it as content.
type token string

// UnmarshalJSON reads either form.
func (t *token) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*t = token(text)
		return nil
	}
	var object struct {
		Content *string `json:"content"`
	}
	if err := json.Unmarshal(data, &object); err != nil || object.Content == nil {
		return errors.New("expected a token: a string, or an object with a content")
	}
	*t = token(*object.Content)
	return nil
}

// addedToken is an entry of added_tokens in tokenizer.json, and but for its id
// one of added_tokens_decoder.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

func (m *Model) readConfig(dir fs.FS, c *config) error {
	data, err := m.read(dir, configFile)
	if err != nil {
		return err
	}
	if data != nil {
		if err := json.Unmarshal(data, c); err != nil {
			return fmt.Errorf("%s: %w", configFile, err)
		}
	}
	var old specials
	if data, err = m.read(dir, specialsFile); err != nil || data == nil {
		return err
	}
	if err := json.Unmarshal(data, &old); err != nil {
		return fmt.Errorf("%s: %w", specialsFile, err)
	}
	c.fill(&old)
	return nil
}

// fill takes what is not set from an older file.
func (s *specials) fill(old *specials) {
	for _, pair := range [][2]*token{
		{&s.BOS, &old.BOS}, {&s.EOS, &old.EOS}, {&s.UNK, &old.UNK}, {&s.SEP, &old.SEP},
		{&s.PAD, &old.PAD}, {&s.CLS, &old.CLS}, {&s.MASK, &old.MASK},
	} {
		if *pair[0] == "" {
			*pair[0] = *pair[1]
		}
	}
	if len(s.Additional) == 0 {
		s.Additional = old.Additional
	}
	if len(s.Extra) == 0 {
		s.Extra = old.Extra
	}
}

// forTemplates returns the tokens as templates see them.
func (s *specials) forTemplates() chat.Specials {
	c := chat.Specials{
		BOS: string(s.BOS), EOS: string(s.EOS), UNK: string(s.UNK), SEP: string(s.SEP),
		PAD: string(s.PAD), CLS: string(s.CLS), MASK: string(s.MASK),
	}
	for _, t := range s.Additional {
		c.Additional = append(c.Additional, string(t))
	}
	var named map[string]token
	if json.Unmarshal(s.Extra, &named) == nil { // a list of them has no names
		c.Extra = map[string]string{}
		for name, t := range named {
			c.Extra[name] = string(t)
		}
	}
	return c
}

// withAddedTokens returns a tokenizer.json with the added tokens that the
// configuration names, as transformers adds them when it loads both.
func withAddedTokens(data []byte, more map[string]addedToken) ([]byte, error) {
	from, to, err := member(data, "added_tokens")
	if err != nil {
		return nil, err
	}
	var tokens []addedToken
	if to > from {
		if err := json.Unmarshal(data[from:to], &tokens); err != nil {
			return nil, fmt.Errorf("added_tokens: %w", err)
		}
	}
	changed := false
	for id, t := range more {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: added_tokens_decoder: %q is no token id", configFile, id)
		}
		t.ID = uint32(n)
		at := slices.IndexFunc(tokens, func(have addedToken) bool { return have.Content == t.Content })
		switch {
		case at < 0:
			tokens = append(tokens, t)
			changed = true
		case tokens[at].ID != t.ID:
			return nil, fmt.Errorf("added_tokens: %q has id %d, but %d in %s; the two files are of different models", t.Content, tokens[at].ID, t.ID, configFile)
		case tokens[at] != t:
			tokens[at] = t
			changed = true
		}
	}
	if !changed {
		return data, nil
	}
	slices.SortFunc(tokens, func(a, b addedToken) int { return int(a.ID) - int(b.ID) })
	list, err := json.Marshal(tokens)
	if err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	if to == from { // there was no such member
		at := bytes.IndexByte(data, '{') + 1
		return slices.Concat(data[:at], []byte(`"added_tokens":`), list, []byte(","), data[at:]), nil
	}
	return slices.Concat(data[:from], list, data[to:]), nil
}

// member returns where a top-level member's value stands in an object.
func member(data []byte, name string) (from, to int, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0, 0, errors.New("it is not a JSON object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return 0, 0, fmt.Errorf("it is not JSON: %w", err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return 0, 0, fmt.Errorf("%v: it is not JSON: %w", key, err)
		}
		if key == name {
			to = int(d.InputOffset())
			return to - len(value), to, nil
		}
	}
	return 0, 0, nil
}

// isNull reports a member that is not given.
func isNull(raw json.RawMessage) bool {
	text := strings.TrimSpace(string(raw))
	return text == "" || text == "null"
}
