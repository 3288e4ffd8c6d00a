package keycache

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Cuts says where a text may be cut so that its parts, tokenized one by one,
// give the tokens of the whole. The zero value never cuts.
type Cuts struct {
	// Tokens are strings that become one token wherever they stand, whatever is
	// beside them. They are matched leftmost first, the longest first; a text may
	// be cut before each.
	Tokens []string
	// Lines says that a text may also be cut after a line feed that a visible
	// ASCII character other than a slash follows.
	Lines bool
}

// file is what ReadCuts needs of a tokenizer.json.
type file struct {
	Added        []added         `json:"added_tokens"`
	Normalizer   json.RawMessage `json:"normalizer"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
}

// added is an added token. Engines find those with normalized false in the text
// as it is, before anything else looks at it, and the others after the
// normalizer, in what is left.
type added struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// plain reports whether the token is found by its text alone.
func (a added) plain() bool { return !a.SingleWord && !a.LStrip && !a.RStrip }

// ReadCuts finds the exact cuts of a Hugging Face tokenizer.json: only such that
// follow from the file, so a file of an unknown kind has fewer or none. DESIGN.md
// beside this file has the argument.
func ReadCuts(tokenizerJSON []byte) (Cuts, error) {
	var f file
	if err := json.Unmarshal(tokenizerJSON, &f); err != nil {
		return Cuts{}, fmt.Errorf("tokenizer.json: %w", err)
	}
	var normalizer step
	if err := optional(f.Normalizer, &normalizer); err != nil {
		return Cuts{}, fmt.Errorf("tokenizer.json: normalizer: %w", err)
	}
	var split step
	if err := optional(f.PreTokenizer, &split); err != nil {
		return Cuts{}, fmt.Errorf("tokenizer.json: pre_tokenizer: %w", err)
	}
	return Cuts{
		Tokens: cutTokens(f.Added, normalizer.nothing()),
		Lines:  lineTokens(f.Added) && (normalizer.nothing() || normalizer.Type == "NFC") && linePreTokenizer(split),
	}, nil
}

func optional(raw json.RawMessage, into *step) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, into)
}

// cutTokens are the added tokens that nothing else can take a part of.
func cutTokens(all []added, identity bool) []string {
	// Without a normalizer both rounds see the same text; with one, a token of the
	// second round may be made or unmade by what stands beside it.
	var rivals []string
	for _, a := range all {
		if a.Content != "" && (identity || !a.Normalized) {
			rivals = append(rivals, a.Content)
		}
	}
	slices.Sort(rivals)
	rivals = slices.Compact(rivals)
	var cuts []string
	for _, a := range all {
		if a.Content == "" || !a.plain() || (a.Normalized && !identity) || !closed(a.Content) {
			continue
		}
		if !slices.ContainsFunc(rivals, func(other string) bool { return other != a.Content && overlap(a.Content, other) }) {
			cuts = append(cuts, a.Content)
		}
	}
	slices.Sort(cuts)
	return slices.Compact(cuts)
}

// closed reports whether a token's ends are neither white space, which a
// neighbour with lstrip or rstrip takes, nor part of a word, which decides about
// a neighbour with single_word.
func closed(token string) bool {
	first, _ := utf8.DecodeRuneInString(token)
	last, _ := utf8.DecodeLastRuneInString(token)
	for _, r := range []rune{first, last} {
		if r == utf8.RuneError || !unicode.In(r, unicode.P, unicode.S) || r == '_' {
			return false
		}
	}
	return true
}

// overlap reports whether some text can hold both so that they share a byte.
func overlap(a, b string) bool {
	return reaches(a, b) || reaches(b, a)
}

// reaches reports whether b can begin inside an occurrence of a.
func reaches(a, b string) bool {
	for i := range len(a) {
		if n := min(len(b), len(a)-i); a[i] == b[0] && a[i:i+n] == b[:n] {
			return true
		}
	}
	return false
}

// lineTokens reports whether no added token reaches over the end of a line.
func lineTokens(all []added) bool {
	return !slices.ContainsFunc(all, func(a added) bool {
		return !a.plain() || strings.ContainsAny(a.Content, "\r\n")
	})
}

// step is a normalizer or a pre-tokenizer, as far as cuts depend on it.
type step struct {
	Type        string `json:"type"`
	Normalizers []step `json:"normalizers"`

	PreTokenizers []step `json:"pretokenizers"`
	Pattern       struct {
		Regex string `json:"Regex"`
	} `json:"pattern"`
	Behavior       string `json:"behavior"`
	Invert         bool   `json:"invert"`
	AddPrefixSpace *bool  `json:"add_prefix_space"`
	UseRegex       *bool  `json:"use_regex"`
}

// nothing reports whether a normalizer leaves every text as it is.
func (s step) nothing() bool {
	if s.Type == "Sequence" {
		return !slices.ContainsFunc(s.Normalizers, func(n step) bool { return !n.nothing() })
	}
	return s.Type == ""
}

const (
	// newlines takes a run of white space up to its last line feed. Where it comes
	// before trailing, no later alternative sees a line feed.
	newlines = `\s*[\r\n]+`
	trailing = `\s+(?!\S)`
)

// lineAlternatives are alternatives of split patterns that never match a line
// feed together with a visible ASCII character after it, other than a slash, and
// whose match before such a place does not depend on what comes after it, once
// newlines comes first.
var lineAlternatives = []string{
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)`,
	`[^\r\n\p{L}\p{N}]?\p{L}+`,
	`[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
	`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`,
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+",
	`[一-龥` + "\u3040" + `-ゟ゠-ヿ]+`,
	`\p{N}`,
	`\p{N}{1,3}`,
	` ?[^\s\p{L}\p{N}]+[\r\n]*`,
	` ?[^\s\p{L}\p{N}]+[\r\n/]*`,
	` ?[\p{P}\p{S}]+[\r\n]*`,
	newlines,
	trailing,
	`\s+`,
}

// linePreTokenizer reports whether a pre-tokenizer never joins the end of a line
// with the start of the next, and treats a part of a text like the whole.
func linePreTokenizer(s step) bool {
	if s.Type != "Sequence" || len(s.PreTokenizers) < 2 {
		return false
	}
	last := len(s.PreTokenizers) - 1
	bytes := s.PreTokenizers[last]
	if bytes.Type != "ByteLevel" || bytes.AddPrefixSpace == nil || *bytes.AddPrefixSpace || bytes.UseRegex == nil || *bytes.UseRegex {
		return false
	}
	for i, split := range s.PreTokenizers[:last] {
		// The patterns are written with the characters themselves or with escapes.
		pattern := strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(split.Pattern.Regex)
		if split.Type != "Split" || split.Behavior != "Isolated" || split.Invert || pattern == "" {
			return false
		}
		alternatives := alternativesOf(pattern)
		for _, a := range alternatives {
			if !slices.Contains(lineAlternatives, a) {
				return false
			}
		}
		if i == last-1 {
			first := slices.Index(alternatives, newlines)
			if first < 0 || first > slices.Index(alternatives, trailing) || first > slices.Index(alternatives, `\s+`) {
				return false
			}
		}
	}
	return true
}

// alternativesOf cuts a pattern at its outermost bars.
func alternativesOf(pattern string) []string {
	var out []string
	depth, class, start := 0, false, 0
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			out = append(out, pattern[start:i])
			start = i + 1
		}
	}
	return append(out, pattern[start:])
}
