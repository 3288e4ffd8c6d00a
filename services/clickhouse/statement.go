package clickhouse

import "strings"

// statement is what has to be known of a query's text before it is run. The
// engine's parser decides all else.
type statement struct {
	// text is the query, for an insert with data the part before FORMAT or VALUES.
	text string
	// insert says that data follows: an INSERT that is not INSERT … SELECT.
	insert bool
	// format is the one that the text names; empty when it names none.
	format string
	// data is what the text holds of an insert's data.
	data string
	// outfile says that the answer is to be written to a file of the server.
	outfile bool
}

// parseStatement scans text once. Of an INSERT it reads no further than to
// where the data begins.
func parseStatement(text string) statement {
	s := statement{text: text}
	scan := scanner{text: text}
	first, _ := scan.word()
	if !strings.EqualFold(first, "INSERT") {
		s.format, s.outfile = scan.answer()
		return s
	}
	for {
		word, start := scan.word()
		switch {
		case word == "":
			s.insert = true // no FORMAT at all: the caller's default
			s.text, s.format = trimEnd(text), ""
			return s
		case strings.EqualFold(word, "SELECT"), strings.EqualFold(word, "WITH"):
			return s
		case strings.EqualFold(word, "VALUES"):
			s.insert, s.text, s.format, s.data = true, text[:start], "Values", text[scan.at:]
			return s
		case strings.EqualFold(word, "FORMAT"):
			name, _ := scan.word()
			if name == "" {
				return s // the engine's parser says what is wrong
			}
			s.insert, s.text, s.format = true, text[:start], name
			s.data = afterFormat(text[scan.at:])
			return s
		}
	}
}

func trimEnd(text string) string { return strings.TrimRight(text, " \t\r\n;") }

// afterFormat drops what separates a format's name from the data: blanks, and
// the line's end.
func afterFormat(data string) string {
	data = strings.TrimLeft(data, " \t\r;")
	return strings.TrimPrefix(data, "\n")
}

// scanner finds words at the outermost level of a statement: outside brackets,
// quotes and comments.
type scanner struct {
	text string
	at   int
}

// word returns the next word and where it starts, "" at the end.
func (s *scanner) word() (string, int) {
	depth := 0
	for s.at < len(s.text) {
		c := s.text[s.at]
		switch {
		case c == '\'' || c == '"' || c == '`':
			s.quoted(c)
		case c == '(' || c == '[' || c == '{':
			depth++
			s.at++
		case c == ')' || c == ']' || c == '}':
			depth--
			s.at++
		case s.comment():
		case c == '$' && s.heredoc():
		case isWord(c):
			start := s.at
			for s.at < len(s.text) && isWord(s.text[s.at]) {
				s.at++
			}
			if depth <= 0 {
				return s.text[start:s.at], start
			}
		default:
			s.at++
		}
	}
	return "", len(s.text)
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func (s *scanner) quoted(quote byte) {
	for s.at++; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '\\':
			s.at++
		case quote: // a doubled quote just begins the next part of the same
			s.at++
			return
		}
	}
	s.at = min(s.at, len(s.text))
}

// comment skips a comment that starts here.
func (s *scanner) comment() bool {
	rest, end := s.text[s.at:], "\n"
	switch {
	case strings.HasPrefix(rest, "/*"):
		end = "*/"
	case strings.HasPrefix(rest, "--"), strings.HasPrefix(rest, "#!"), strings.HasPrefix(rest, "# "):
	default:
		return false
	}
	if i := strings.Index(rest[2:], end); i >= 0 {
		s.at += 2 + i + len(end)
	} else {
		s.at = len(s.text)
	}
	return true
}

// heredoc skips $tag$ … $tag$ that starts here.
func (s *scanner) heredoc() bool {
	rest := s.text[s.at:]
	n := 1
	for n < len(rest) && isWord(rest[n]) {
		n++
	}
	if n == len(rest) || rest[n] != '$' {
		return false
	}
	tag := rest[:n+1]
	end := strings.Index(rest[len(tag):], tag)
	if end < 0 {
		return false
	}
	s.at += len(tag) + end + len(tag)
	return true
}

// answer looks for the clauses that say where the answer goes: a FORMAT
// counts when nothing but SETTINGS follows it.
func (s *scanner) answer() (format string, outfile bool) {
	before := ""
	for {
		word, start := s.word()
		switch {
		case word == "":
			return format, outfile
		case strings.EqualFold(before, "FORMAT") && !strings.EqualFold(word, "FROM") && s.text[max(0, start-1)] != '.':
			format = word
			if next := (scanner{text: s.text, at: s.at}); !next.endsOrSettings() {
				format = ""
			}
		case strings.EqualFold(before, "INTO") && strings.EqualFold(word, "OUTFILE"):
			outfile = true
		}
		before = word
	}
}

func (s *scanner) endsOrSettings() bool {
	for s.at < len(s.text) {
		if strings.IndexByte(" \t\r\n;", s.text[s.at]) >= 0 {
			s.at++
		} else if !s.comment() {
			break
		}
	}
	if s.at == len(s.text) {
		return true
	}
	word, _ := s.word()
	return strings.EqualFold(word, "SETTINGS")
}
