package bpe

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"warmpath/tokenize/bpe/onig"
	"warmpath/tokenize/bpe/unicode16"
)

// preTokenizer is the file's pre-tokenizer as stages in order.
type preTokenizer struct {
	stages []stage
	// byteLevel says that pieces end as characters of the byte-level alphabet.
	// The stages then leave raw bytes, and whoever takes the pieces maps them.
	byteLevel bool
	// rewrites is set once a stage changes text, after which "first" can no
	// longer be told exactly.
	rewrites bool
	// inPlace is the normalizer's, see there.
	inPlace bool
}

func newPreTokenizer(raw json.RawMessage, inPlace bool) (*preTokenizer, error) {
	p := &preTokenizer{inPlace: inPlace}
	return p, p.add(raw, "pre_tokenizer")
}

func (p *preTokenizer) add(raw json.RawMessage, path string) error {
	kind, err := component(raw, path)
	if err != nil || kind == "" {
		return err
	}
	if p.byteLevel && kind != "Sequence" {
		return fmt.Errorf("%s: %s after ByteLevel is not supported", path, kind)
	}
	switch kind {
	case "Sequence":
		var f struct{ Pretokenizers []json.RawMessage }
		if err := fields(raw, path, &f); err != nil {
			return err
		}
		for i, part := range f.Pretokenizers {
			if err := p.add(part, fmt.Sprintf("%s.pretokenizers[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		return p.addByteLevel(raw, path)
	case "Split":
		return p.addSplit(raw, path)
	case "Metaspace":
		return p.addMetaspace(raw, path)
	case "Digits":
		return p.addDigits(raw, path)
	case "Punctuation":
		return p.addPunctuation(raw, path)
	case "Whitespace":
		re, err := onig.Compile(`[\w\x{200c}\x{200d}]+|[^\w\x{200c}\x{200d}\s]+`) // the regex crate's \w has the joiners
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		p.stages = append(p.stages, splitStage{find: findRegex(re), behavior: removed, invert: true})
	case "WhitespaceSplit":
		p.stages = append(p.stages, splitStage{find: findRunes(unicode.IsSpace), behavior: removed})
	case "BertPreTokenizer":
		p.stages = append(p.stages,
			splitStage{find: findRunes(unicode.IsSpace), behavior: removed},
			splitStage{find: findRunes(isPunctuation), behavior: isolated})
	case "CharDelimiterSplit":
		return p.addDelimiter(raw, path)
	case "FixedLength":
		return p.addFixedLength(raw, path)
	default:
		return fmt.Errorf("%s: pre-tokenizer %q is not supported", path, kind)
	}
	return nil
}

func (p *preTokenizer) addByteLevel(raw json.RawMessage, path string) error {
	f := struct {
		AddPrefixSpace bool  `json:"add_prefix_space"`
		UseRegex       *bool `json:"use_regex"`
	}{}
	if err := fields(raw, path, &f); err != nil {
		return err
	}
	if f.AddPrefixSpace {
		p.rewrites = true
		p.stages = append(p.stages, prefixStage{})
	}
	if f.UseRegex == nil || *f.UseRegex {
		p.stages = append(p.stages, scanStage{gpt2{chars{unicode16.Classes()}}})
	}
	p.byteLevel, p.rewrites = true, true
	return nil
}

func (p *preTokenizer) addSplit(raw json.RawMessage, path string) error {
	var f struct {
		Pattern  patternField
		Behavior string
		Invert   bool
	}
	if err := fields(raw, path, &f); err != nil {
		return err
	}
	b, err := parseBehavior(f.Behavior, path)
	if err != nil {
		return err
	}
	st := splitStage{behavior: b, invert: f.Invert}
	switch {
	case f.Pattern.String != nil:
		if *f.Pattern.String == "" {
			return fmt.Errorf("%s.pattern: is empty", path)
		}
		st.find = findString(*f.Pattern.String)
	case f.Pattern.Regex != nil:
		if scan := handWritten(*f.Pattern.Regex); scan != nil && handles(scan, b, f.Invert) {
			p.stages = append(p.stages, scanStage{scan})
			return nil
		}
		re, err := onig.Compile(*f.Pattern.Regex)
		if err != nil {
			return fmt.Errorf("%s: Split %w", path, err)
		}
		st.find = findRegex(re)
		if special := simpleMatches(*f.Pattern.Regex); special != nil {
			st.find = special
		}
	default:
		return fmt.Errorf("%s.pattern: %w", path, errNoPattern)
	}
	p.stages = append(p.stages, st)
	return nil
}

// handles says whether a scanner's pieces are the split's. Those of a pattern
// that matches everywhere are the matches, isolated, or kept when what does not
// match is removed.
func handles(s scanner, b behavior, invert bool) bool {
	if b == isolated {
		return true
	}
	_, gaps := s.(deepseek)
	return b == removed && invert && !gaps
}

func (p *preTokenizer) addMetaspace(raw json.RawMessage, path string) error {
	f := struct {
		Replacement    string
		AddPrefixSpace *bool  `json:"add_prefix_space"`
		PrependScheme  string `json:"prepend_scheme"`
		Split          *bool
	}{PrependScheme: "always"}
	if err := fields(raw, path, &f); err != nil {
		return err
	}
	if utf8.RuneCountInString(f.Replacement) != 1 {
		return fmt.Errorf("%s.replacement: want one character, found %q", path, f.Replacement)
	}
	if !slices.Contains([]string{"always", "first", "never"}, f.PrependScheme) {
		return fmt.Errorf("%s.prepend_scheme: %q is not known", path, f.PrependScheme)
	}
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace {
		if f.PrependScheme != "never" {
			return fmt.Errorf("%s.add_prefix_space: is false, which does not go with prepend_scheme %q", path, f.PrependScheme)
		}
	}
	if f.PrependScheme == "first" && (p.rewrites || !p.inPlace) {
		return fmt.Errorf("%s.prepend_scheme: \"first\" is not supported after a normalizer or pre-tokenizer that moves text", path)
	}
	p.rewrites = true
	p.stages = append(p.stages, metaspaceStage{
		mark:   f.Replacement,
		always: f.PrependScheme == "always",
		first:  f.PrependScheme == "first",
		split:  f.Split == nil || *f.Split,
	})
	return nil
}

func (p *preTokenizer) addDigits(raw json.RawMessage, path string) error {
	var f struct {
		Individual bool `json:"individual_digits"`
	}
	if err := fields(raw, path, &f); err != nil {
		return err
	}
	b := contiguous
	if f.Individual {
		b = isolated
	}
	// Rust's own tables decide here, which are as new as Go's.
	p.stages = append(p.stages, splitStage{find: findRunes(unicode.IsNumber), behavior: b})
	return nil
}

func (p *preTokenizer) addPunctuation(raw json.RawMessage, path string) error {
	var f struct{ Behavior *string }
	if err := fields(raw, path, &f); err != nil {
		return err
	}
	b := isolated
	if f.Behavior != nil {
		var err error
		if b, err = parseBehavior(*f.Behavior, path); err != nil {
			return err
		}
	}
	p.stages = append(p.stages, splitStage{find: findRunes(isPunctuation), behavior: b})
	return nil
}

func (p *preTokenizer) addDelimiter(raw json.RawMessage, path string) error {
	var f struct{ Delimiter string }
	if err := fields(raw, path, &f); err != nil {
		return err
	}
	if utf8.RuneCountInString(f.Delimiter) != 1 {
		return fmt.Errorf("%s.delimiter: want one character, found %q", path, f.Delimiter)
	}
	p.stages = append(p.stages, splitStage{find: findString(f.Delimiter), behavior: removed})
	return nil
}

func (p *preTokenizer) addFixedLength(raw json.RawMessage, path string) error {
	f := struct{ Length int }{Length: 5}
	if err := fields(raw, path, &f); err != nil {
		return err
	}
	if f.Length < 1 {
		return fmt.Errorf("%s.length: want at least 1, found %d", path, f.Length)
	}
	p.stages = append(p.stages, fixedStage{f.Length})
	return nil
}
