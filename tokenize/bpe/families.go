package bpe

import (
	"unicode/utf8"

	"warmpath/tokenize/bpe/unicode16"
)

// The tails that patterns of the two large families share.
const (
	contractionsCI = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	cl100kTail     = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200kTail      = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	upperSet       = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lowerSet       = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	beforeWord     = `[^\r\n\p{L}\p{N}]?`
)

const (
	qwen2Pattern  = contractionsCI + `|` + beforeWord + `\p{L}+|\p{N}` + cl100kTail
	llama3Pattern = contractionsCI + `|` + beforeWord + `\p{L}+|\p{N}{1,3}` + cl100kTail
	qwen35Pattern = contractionsCI + `|` + beforeWord + `[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200kPattern  = beforeWord + upperSet + `*` + lowerSet + `+` + contractionsCI + `?|` +
		beforeWord + upperSet + `+` + lowerSet + `*` + contractionsCI + `?|\p{N}{1,3}` + o200kTail
	tekkenPattern = beforeWord + upperSet + `*` + lowerSet + `+|` +
		beforeWord + upperSet + `+` + lowerSet + `*|\p{N}` + o200kTail
	deepseekPattern = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// handWritten returns the scanner for a pattern that has one.
func handWritten(pattern string) scanner {
	t := chars{unicode16.Classes()}
	switch pattern {
	case gpt2Pattern:
		return gpt2{t}
	case qwen2Pattern:
		return cl100k{chars: t, word: letter, maxDigits: 1}
	case llama3Pattern:
		return cl100k{chars: t, word: letter, maxDigits: 3}
	case qwen35Pattern:
		return cl100k{chars: t, word: letter | mark, maxDigits: 1}
	case o200kPattern:
		return o200k{chars: t, contractions: true, maxDigits: 3}
	case tekkenPattern:
		return o200k{chars: t, maxDigits: 1}
	case deepseekPattern:
		return deepseek{t}
	}
	return nil
}

// simpleMatches returns the matches of patterns that the general matcher would
// spend most of DeepSeek's time on.
func simpleMatches(pattern string) matchFunc {
	t := chars{unicode16.Classes()}
	switch pattern {
	case `\p{N}{1,3}`:
		return t.findNumbers
	case "[一-龥\u3040-ゟ゠-ヿ]+":
		return findEastAsian
	}
	return nil
}

// findNumbers finds \p{N}{1,3}.
func (c chars) findNumbers(text string, yield func(start, end int) bool) {
	for i := 0; i < len(text); {
		k, n := c.table.At(text, i)
		if k&number == 0 {
			i += n
			continue
		}
		end := c.digits(text, i, n, 3)
		if !yield(i, end) {
			return
		}
		i = end
	}
}

// findEastAsian finds runs of Chinese characters and kana.
func findEastAsian(text string, yield func(start, end int) bool) {
	start := -1
	for i := 0; i < len(text); {
		if text[i] < 0xe3 || text[i] > 0xe9 { // the first bytes of U+3000 to U+9FFF
			if start >= 0 && !yield(start, i) {
				return
			}
			start = -1
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		in := r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff
		switch {
		case in && start < 0:
			start = i
		case !in && start >= 0:
			if !yield(start, i) {
				return
			}
			start = -1
		}
		i += n
	}
	if start >= 0 {
		yield(start, len(text))
	}
}
