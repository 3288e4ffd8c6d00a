package bpe

import (
	"unicode/utf8"

	"warmpath/tokenize/bpe/unicode16"
)

// A scanner finds where the piece of text that begins at i ends. It stands for
// one split pattern that matches everywhere, written by hand because the
// general matcher takes several times as long. Text is valid UTF-8.
type scanner interface {
	next(s string, i int) int
}

const (
	letter  = unicode16.Letter
	number  = unicode16.Number
	mark    = unicode16.Mark
	punct   = unicode16.Punct
	white   = unicode16.White
	newline = unicode16.Newline
	upper   = unicode16.Upper
	lower   = unicode16.Lower
)

// class is a character's class.
type class = unicode16.Class

// chars gives scanners their view of text.
type chars struct{ table *unicode16.Table }

// run returns where the run of characters in any of the classes ends.
func (c chars) run(s string, i int, in class) int {
	for i < len(s) {
		b := s[i]
		if b < utf8.RuneSelf {
			if c.table[b]&in == 0 {
				return i
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if c.table.Of(r)&in == 0 {
			return i
		}
		i += n
	}
	return i
}

// runNot returns where the run of characters in none of the classes ends.
func (c chars) runNot(s string, i int, in class) int {
	for i < len(s) {
		k, n := c.table.At(s, i)
		if k&in != 0 {
			return i
		}
		i += n
	}
	return i
}

// digits matches \p{N}{1,most} at i, where the first character, n bytes long, is
// a number.
func (c chars) digits(s string, i, n, most int) int {
	i += n
	for k := 1; k < most; k++ {
		class, n := c.table.At(s, i)
		if class&number == 0 {
			break
		}
		i += n
	}
	return i
}

// spaces matches \s*[\r\n]+|\s+(?!\S)|\s+ at i, where there is white space: up
// to the run's last line break, or the whole run at the text's end, or all but
// its last character, or that one.
func (c chars) spaces(s string, i int) int {
	end, afterBreak, last := i, -1, i
	for end < len(s) {
		class, n := c.table.At(s, end)
		if class&white == 0 {
			break
		}
		last = end
		end += n
		if class&newline != 0 {
			afterBreak = end
		}
	}
	switch {
	case afterBreak >= 0:
		return afterBreak
	case end == len(s) || last == i:
		return end
	}
	return last
}

// spacesPlain matches \s+(?!\S)|\s+.
func (c chars) spacesPlain(s string, i int) int {
	end, last := i, i
	for end < len(s) {
		class, n := c.table.At(s, end)
		if class&white == 0 {
			break
		}
		last = end
		end += n
	}
	if end == len(s) || last == i {
		return end
	}
	return last
}

// contraction matches 's|'t|'re|'ve|'m|'ll|'d at i; without a match it
// returns -1. Folding case, ſ counts as an s.
func contraction(s string, i int, fold bool) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return -1
	}
	low := func(j int) byte {
		if j >= len(s) {
			return 0
		}
		if b := s[j]; fold && b >= 'A' && b <= 'Z' {
			return b + 'a' - 'A'
		}
		return s[j]
	}
	switch low(i + 1) {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		if low(i+2) == 'e' {
			return i + 3
		}
	case 'l':
		if low(i+2) == 'l' {
			return i + 3
		}
	case 0xc5: // ſ is U+017F
		if fold && low(i+2) == 0xbf {
			return i + 3
		}
	}
	return -1
}

// gpt2 is the pattern of GPT-2, built into the ByteLevel pre-tokenizer.
type gpt2 struct{ chars }

const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func (g gpt2) next(s string, i int) int {
	if end := contraction(s, i, false); end > 0 {
		return end
	}
	at := i
	if s[i] == ' ' {
		at++
	}
	c, n := g.table.At(s, at)
	switch {
	case n == 0 || c&white != 0:
		return g.spacesPlain(s, i)
	case c&letter != 0:
		return g.run(s, at+n, letter)
	case c&number != 0:
		return g.run(s, at+n, number)
	}
	return g.runNot(s, at+n, white|letter|number)
}

// cl100k is the family of GPT-4's pattern: Llama 3, Qwen and many others.
type cl100k struct {
	chars
	word      class // what words are made of: letters, or letters and marks
	maxDigits int
}

func (p cl100k) next(s string, i int) int {
	b := s[i]
	if b == ' ' && i+1 < len(s) && s[i+1] < utf8.RuneSelf && p.table[s[i+1]]&letter != 0 {
		return p.run(s, i+2, p.word) // the commonest case
	}
	c, n := p.table.At(s, i)
	if c&p.word != 0 {
		return p.run(s, i+n, p.word)
	}
	if b == '\'' {
		if end := contraction(s, i, true); end > 0 {
			return end
		}
	}
	if c&(number|newline) == 0 {
		if c, m := p.table.At(s, i+n); c&p.word != 0 {
			return p.run(s, i+n+m, p.word)
		}
	}
	if c&number != 0 {
		return p.digits(s, i, n, p.maxDigits)
	}
	if end := p.symbols(s, i, c, n); end > 0 {
		return end
	}
	return p.spaces(s, i)
}

// symbols matches " ?[^\s\p{L}\p{N}]+[\r\n]*".
func (p cl100k) symbols(s string, i int, c class, n int) int {
	if s[i] == ' ' {
		i++
		c, n = p.table.At(s, i)
	}
	if n == 0 || c&(white|number|p.word) != 0 {
		return -1
	}
	i = p.runNot(s, i+n, white|number|p.word)
	for i < len(s) && (s[i] == '\r' || s[i] == '\n') {
		i++
	}
	return i
}

// o200k is the family of GPT-4o's pattern: gpt-oss, Llama 4, Mistral's Tekken.
type o200k struct {
	chars
	contractions bool
	maxDigits    int
}

func (p o200k) next(s string, i int) int {
	c, n := p.table.At(s, i)
	if end := p.word(s, i, c, n); end > 0 {
		if p.contractions {
			if more := contraction(s, end, true); more > 0 {
				return more
			}
		}
		return end
	}
	if c&number != 0 {
		return p.digits(s, i, n, p.maxDigits)
	}
	if end := p.symbols(s, i, c, n); end > 0 {
		return end
	}
	return p.spaces(s, i)
}

// word tries the two forms of a word, each with a character before it first.
func (p o200k) word(s string, i int, c class, n int) int {
	prefixed := c&(letter|number|newline) == 0
	if prefixed {
		next, _ := p.table.At(s, i+n)
		if next&(upper|lower) == 0 && c&mark == 0 {
			return -1
		}
		if end := p.endingLower(s, i+n); end > 0 {
			return end
		}
	}
	if end := p.endingLower(s, i); end > 0 {
		return end
	}
	if prefixed {
		if end := p.startingUpper(s, i+n); end > 0 {
			return end
		}
	}
	return p.startingUpper(s, i)
}

// endingLower matches [upper]*[lower]+: when no lower character follows the
// run of upper ones, the last that is both is given back.
func (p o200k) endingLower(s string, i int) int {
	end := p.run(s, i, upper)
	if c, _ := p.table.At(s, end); c&lower != 0 {
		return p.run(s, end, lower)
	}
	for end > i {
		_, n := utf8.DecodeLastRuneInString(s[i:end])
		if c, _ := p.table.At(s, end-n); c&lower != 0 {
			return end
		}
		end -= n
	}
	return -1
}

// startingUpper matches [upper]+[lower]*.
func (p o200k) startingUpper(s string, i int) int {
	end := p.run(s, i, upper)
	if end == i {
		return -1
	}
	return p.run(s, end, lower)
}

// symbols matches " ?[^\s\p{L}\p{N}]+[\r\n/]*".
func (p o200k) symbols(s string, i int, c class, n int) int {
	if s[i] == ' ' {
		i++
		c, n = p.table.At(s, i)
	}
	if n == 0 || c&(white|letter|number) != 0 {
		return -1
	}
	i = p.runNot(s, i+n, white|letter|number)
	for i < len(s) && (s[i] == '\r' || s[i] == '\n' || s[i] == '/') {
		i++
	}
	return i
}

// deepseek is the third of DeepSeek-V3's patterns. Text that none of its
// alternatives matches (controls, unassigned characters) stays together up to
// the next match.
type deepseek struct{ chars }

func (p deepseek) next(s string, i int) int {
	if end := p.match(s, i); end > 0 {
		return end
	}
	for i < len(s) {
		_, n := p.table.At(s, i)
		i += n
		if i < len(s) && p.match(s, i) > 0 {
			break
		}
	}
	return i
}

// match returns where the match at i ends, -1 without one.
func (p deepseek) match(s string, i int) int {
	b := s[i]
	c, n := p.table.At(s, i)
	if asciiPunct(b) && i+1 < len(s) && asciiLetter(s[i+1]) {
		for i++; i < len(s) && asciiLetter(s[i]); i++ {
		}
		return i
	}
	if c&(letter|mark) != 0 {
		return p.run(s, i+n, letter|mark)
	}
	if c&(letter|punct|newline) == 0 {
		if c, m := p.table.At(s, i+n); c&(letter|mark) != 0 {
			return p.run(s, i+n+m, letter|mark)
		}
	}
	at, c2, n2 := i, c, n
	if b == ' ' {
		at++
		c2, n2 = p.table.At(s, at)
	}
	if c2&punct != 0 {
		at = p.run(s, at+n2, punct)
		return p.run(s, at, newline)
	}
	if c&white != 0 {
		return p.spaces(s, i)
	}
	return -1
}

func asciiPunct(b byte) bool {
	return b >= '!' && b <= '/' || b >= ':' && b <= '@' || b >= '[' && b <= '`' || b >= '{' && b <= '~'
}

func asciiLetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }
