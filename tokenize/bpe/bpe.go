// Package bpe encodes text with the byte pair tokenizers of large language
// models, read from a Hugging Face tokenizer.json: byte-level ones (GPT-2,
// Llama 3, Qwen, DeepSeek, gpt-oss, Mistral's Tekken) and those converted from
// SentencePiece (Llama 2, Mistral, Gemma). The ids are those of the Rust
// tokenizers crate, which engines use, down to its quirks: block keys hold only
// if every id agrees. What a file asks for and this package does not do exactly
// is refused when the file is loaded, by name.
//
// Files' truncation and padding settings have no effect, as in engines.
package bpe

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// Tokenizer encodes and decodes text. It is safe for concurrent use; its memory
// is bounded whatever the texts are.
type Tokenizer struct {
	model     *model
	added     *addedVocab
	normalize normalizer // nil: text stays as it is
	stages    []stage
	template  []templatePart
	decoder   decoder
	scratch   sync.Pool // *encoding
}

// Load reads a tokenizer.json. An error names the part of the file that it is
// about.
func Load(data []byte) (*Tokenizer, error) {
	f, err := read(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t, err := build(f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

func build(f *file) (*Tokenizer, error) {
	t := &Tokenizer{}
	t.scratch.New = func() any { return &encoding{t: t} }
	var err error
	var inPlace bool
	if t.normalize, inPlace, err = newNormalizer(f.Normalizer, "normalizer"); err != nil {
		return nil, err
	}
	pre, err := newPreTokenizer(f.PreTokenizer, inPlace)
	if err != nil {
		return nil, err
	}
	if t.model, err = newModel(&f.model, pre.byteLevel); err != nil {
		return nil, err
	}
	t.stages = pre.stages
	if pre.byteLevel && t.model.byteID == nil {
		t.stages = append(t.stages, mapStage{})
	}
	if t.added, err = newAddedVocab(f.AddedTokens, f.model.vocab, t.normalized); err != nil {
		return nil, err
	}
	if t.template, err = newTemplate(f.PostProcessor, "post_processor"); err != nil {
		return nil, err
	}
	t.decoder, err = newDecoder(f.Decoder, "decoder")
	return t, err
}

func (t *Tokenizer) normalized(s string) string {
	if t.normalize == nil {
		return s
	}
	return t.normalize(s)
}

// Append appends the ids of text to dst. Added and special tokens that stand in
// the text are recognised; none is put around it. Bytes that are not UTF-8
// count as U+FFFD each.
func (t *Tokenizer) Append(dst []uint32, text string) []uint32 {
	e := t.scratch.Get().(*encoding)
	e.dst = dst
	e.text(text)
	dst = e.dst
	e.dst = nil
	t.scratch.Put(e)
	return dst
}

// AppendSpecial is Append with the special tokens around the text that the
// file's post-processor asks for, such as a beginning-of-sequence token.
func (t *Tokenizer) AppendSpecial(dst []uint32, text string) []uint32 {
	for _, p := range t.template {
		if p.sequence {
			dst = t.Append(dst, text)
			continue
		}
		dst = append(dst, p.ids...)
	}
	return dst
}

// ID returns the id of a token, written as in the file: with the characters
// that stand for bytes or spaces.
func (t *Tokenizer) ID(token string) (uint32, bool) {
	if id, ok := t.added.byContent[token]; ok {
		return id, true
	}
	id := t.model.vocab.id(token)
	return id, id != none
}

// Token returns the token with an id, written as in the file, but for added
// tokens that the normalizer changes: those are as changed.
func (t *Tokenizer) Token(id uint32) (string, bool) {
	if i, ok := t.added.byID[id]; ok {
		return t.added.tokens[i].form, true
	}
	return t.model.vocab.token(id)
}

// VocabSize returns the number of tokens, added ones included.
func (t *Tokenizer) VocabSize() int {
	n := t.model.vocab.size()
	for content := range t.added.byContent {
		if t.model.vocab.id(content) == none {
			n++
		}
	}
	return n
}

// encoding is the state of one Append.
type encoding struct {
	t      *Tokenizer
	dst    []uint32
	merger merger
}

func (e *encoding) text(s string) {
	if s == "" {
		return
	}
	if !utf8.ValidString(s) {
		s = replaceInvalid(s)
	}
	if e.t.added.raw == nil {
		e.segment(s, true)
		return
	}
	e.t.added.split(e.t.added.raw, s,
		func(start, end int) { e.segment(s[start:end], start == 0) },
		func(id uint32) { e.dst = append(e.dst, id) })
}

func replaceInvalid(s string) string {
	var b strings.Builder
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}

// segment encodes text between tokens that are not normalized.
func (e *encoding) segment(s string, first bool) {
	s = e.t.normalized(s)
	if s == "" {
		return
	}
	if e.t.added.normalized == nil {
		e.piece(0, s, first)
		return
	}
	e.t.added.split(e.t.added.normalized, s,
		func(start, end int) { e.piece(0, s[start:end], first && start == 0) },
		func(id uint32) { e.dst = append(e.dst, id) })
}

// piece passes text on to a stage, or after the last to the model.
func (e *encoding) piece(stage int, s string, first bool) {
	if stage < len(e.t.stages) {
		e.t.stages[stage].apply(e, stage+1, s, first)
		return
	}
	e.dst = e.t.model.encode(&e.merger, e.dst, s)
}
