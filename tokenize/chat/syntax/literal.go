package syntax

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func (l *lexer) string(rest string) error {
	quote := rest[0]
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case quote:
			text, err := unescape(rest[1:i])
			if err != nil {
				return failAt(l.line, "string: %v", err)
			}
			l.emit(tokString, text)
			l.skip(i + 1)
			return nil
		}
	}
	return failAt(l.line, "a string is not closed; add %c", quote)
}

// number reads an integer or a float as Python writes them.
func (l *lexer) number(rest string) error {
	digits := func(i int, hex bool) int {
		for i < len(rest) && (isDigit(rest[i]) || rest[i] == '_' || hex && isHex(rest[i])) {
			i++
		}
		return i
	}
	if rest[0] == '0' && len(rest) > 2 && strings.ContainsRune("xXoObB", rune(rest[1])) {
		return l.integer(rest[:digits(2, true)], 0)
	}
	n := digits(0, false)
	// After a dot, as in a.0.5, digits are an index.
	afterDot := len(l.tokens) > 0 && l.tokens[len(l.tokens)-1].text == "." && l.tokens[len(l.tokens)-1].kind == tokOp
	float := false
	if !afterDot && n+1 < len(rest) && rest[n] == '.' && isDigit(rest[n+1]) {
		n = digits(n+1, false)
		float = true
	}
	if !afterDot && n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
		i := n + 1
		if i < len(rest) && (rest[i] == '+' || rest[i] == '-') {
			i++
		}
		if i < len(rest) && isDigit(rest[i]) {
			n = digits(i, false)
			float = true
		}
	}
	if !float {
		return l.integer(rest[:n], 10)
	}
	l.emit(tokFloat, strings.ReplaceAll(rest[:n], "_", ""))
	l.skip(n)
	return nil
}

func (l *lexer) integer(text string, base int) error {
	plain := text
	if base == 10 {
		plain = strings.ReplaceAll(text, "_", "")
	}
	v, err := strconv.ParseInt(plain, base, 64)
	if err != nil {
		return failAt(l.line, "number %s: not a 64-bit integer", text)
	}
	l.emit(tokInt, strconv.FormatInt(v, 10))
	l.skip(len(text))
	return nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

// isSpace is Python's str.isspace, which is also what \s matches.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}

// unescape resolves the escapes of a Python string literal.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if simple := strings.IndexByte(`\'"abfnrtv`, s[i]); simple >= 0 {
			b.WriteByte("\\'\"\a\b\f\n\r\t\v"[simple])
			continue
		}
		n, base := 0, 16
		switch c := s[i]; {
		case c == '\n':
			continue
		case c == 'x':
			n = 2
		case c == 'u':
			n = 4
		case c == 'U':
			n = 8
		case c >= '0' && c <= '7':
			base = 8
			i--
			for n < 3 && i+1+n < len(s) && s[i+1+n] >= '0' && s[i+1+n] <= '7' {
				n++
			}
		case c == 'N':
			return "", fmt.Errorf(`\N{…} is not supported; write the character`)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
			continue
		}
		if i+1+n > len(s) {
			return "", fmt.Errorf("escape %q is cut off", s[i-1:])
		}
		r, err := strconv.ParseUint(s[i+1:i+1+n], base, 32)
		if err != nil || !utf8.ValidRune(rune(r)) {
			return "", fmt.Errorf("escape %q is no character", s[i:i+1+n])
		}
		b.WriteRune(rune(r))
		i += n
	}
	return b.String(), nil
}
