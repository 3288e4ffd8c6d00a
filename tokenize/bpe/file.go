package bpe

import (
	"bytes"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// file is a tokenizer.json, its two large parts apart.
type file struct {
	Version       string          `json:"version"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	model         modelFile
}

// modelFile is the file's model.
type modelFile struct {
	Type         string   `json:"type"`
	Dropout      *float64 `json:"dropout"`
	UnkToken     *string  `json:"unk_token"`
	Prefix       *string  `json:"continuing_subword_prefix"`
	Suffix       *string  `json:"end_of_word_suffix"`
	FuseUnk      bool     `json:"fuse_unk"`
	ByteFallback bool     `json:"byte_fallback"`
	IgnoreMerges bool     `json:"ignore_merges"`

	vocab  *vocab
	merges []mergeRule
}

// mergeRule names the two tokens that a merge joins.
type mergeRule struct{ left, right string }

// addedToken is one of the file's added_tokens. The crate ignores the id that
// the file gives it, and so does this package.
type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// read parses a tokenizer.json in one pass: the vocabulary and the merges are
// most of it and have several hundred thousand entries.
func read(data []byte) (*file, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))
	small := map[string]json.RawMessage{}
	f := &file{}
	seen := false
	err := object(d, "tokenizer.json", func(name string) error {
		if name == "model" {
			seen = true
			return f.model.read(d)
		}
		v, err := d.ReadValue()
		small[name] = bytes.Clone(v)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !seen {
		return nil, errors.New("model: missing")
	}
	for name, to := range map[string]any{
		"version": &f.Version, "added_tokens": &f.AddedTokens, "normalizer": &f.Normalizer,
		"pre_tokenizer": &f.PreTokenizer, "post_processor": &f.PostProcessor, "decoder": &f.Decoder,
	} {
		if v := small[name]; v != nil {
			if err := json.Unmarshal(v, to); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if f.Version != "" && f.Version != "1.0" {
		return nil, fmt.Errorf("version: %q is not known, want \"1.0\"", f.Version)
	}
	return f, nil
}

func (m *modelFile) read(d *jsontext.Decoder) error {
	small := map[string]json.RawMessage{}
	haveMerges := false
	err := object(d, "model", func(name string) error {
		switch name {
		case "vocab":
			return m.readVocab(d)
		case "merges":
			haveMerges = true
			return m.readMerges(d)
		}
		v, err := d.ReadValue()
		small[name] = bytes.Clone(v)
		return err
	})
	if err != nil {
		return err
	}
	rest, err := json.Marshal(small)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if err := json.Unmarshal(rest, m); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if m.Type != "" && m.Type != "BPE" {
		return fmt.Errorf("model.type: %q is not supported, only BPE is", m.Type)
	}
	if m.vocab == nil || !haveMerges {
		return errors.New("model: vocab or merges are missing, so this is not a BPE model")
	}
	return nil
}

func (m *modelFile) readVocab(d *jsontext.Decoder) error {
	var b vocabBuilder
	err := object(d, "model.vocab", func(name string) error {
		t, err := d.ReadToken()
		if err != nil {
			return err
		}
		if t.Kind() != '0' {
			return fmt.Errorf("model.vocab[%q]: want an id, found %s", name, t.Kind())
		}
		id, err := strconv.ParseUint(t.String(), 10, 32)
		if err != nil || id > math.MaxInt32 {
			return fmt.Errorf("model.vocab[%q]: %s is not an id", name, t)
		}
		b.add(name, uint32(id))
		return nil
	})
	if err == nil {
		m.vocab, err = b.build()
	}
	return err
}

// readMerges accepts both forms: ["a", "b"] and "a b".
func (m *modelFile) readMerges(d *jsontext.Decoder) error {
	if err := expect(d, '[', "model.merges"); err != nil {
		return err
	}
	for i := 0; d.PeekKind() != ']'; i++ {
		t, err := d.ReadToken()
		if err != nil {
			return fmt.Errorf("model.merges[%d]: %w", i, err)
		}
		switch t.Kind() {
		case '"':
			text := t.String()
			if strings.HasPrefix(text, "#version") {
				i--
				continue
			}
			left, right, ok := strings.Cut(text, " ")
			if !ok || strings.Contains(right, " ") {
				return fmt.Errorf("model.merges[%d]: %q is not two tokens with a space between", i, text)
			}
			m.merges = append(m.merges, mergeRule{left, right})
		case '[':
			rule, err := readPair(d)
			if err != nil {
				return fmt.Errorf("model.merges[%d]: %w", i, err)
			}
			m.merges = append(m.merges, rule)
		default:
			return fmt.Errorf("model.merges[%d]: found %s, want a pair of tokens", i, t.Kind())
		}
	}
	_, err := d.ReadToken()
	return err
}

func readPair(d *jsontext.Decoder) (mergeRule, error) {
	var pair [2]string
	for i := range pair {
		t, err := d.ReadToken()
		if err != nil {
			return mergeRule{}, err
		}
		if t.Kind() != '"' {
			return mergeRule{}, fmt.Errorf("found %s, want a token", t.Kind())
		}
		pair[i] = t.String()
	}
	return mergeRule{pair[0], pair[1]}, expect(d, ']', "a pair")
}

// object reads a JSON object and calls member after each name; member must
// read the value.
func object(d *jsontext.Decoder, what string, member func(name string) error) error {
	if err := expect(d, '{', what); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		t, err := d.ReadToken()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := member(t.String()); err != nil {
			return err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func expect(d *jsontext.Decoder, kind jsontext.Kind, what string) error {
	t, err := d.ReadToken()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if t.Kind() != kind {
		return fmt.Errorf("%s: found %s, want %s", what, t.Kind(), kind)
	}
	return nil
}

// component reads the type of a normalizer, pre-tokenizer, post-processor or
// decoder; an absent one has no type.
func component(raw json.RawMessage, path string) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var c struct {
		Type *string `json:"type"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if c.Type == nil {
		return "", fmt.Errorf("%s: has no type", path)
	}
	return *c.Type, nil
}

// fields reads the other fields of a component.
func fields(raw json.RawMessage, path string, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// patternField is the String or Regex that a Split or Replace looks for.
type patternField struct {
	String *string
	Regex  *string
}
