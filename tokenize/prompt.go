package tokenize

import "errors"

// prompt reads the prompt: ids go straight into the request's slice.
func (s *scanner) prompt(i int) (int, error) {
	r := s.request
	if s.null(i) {
		return i + 4, nil
	}
	if i >= len(s.json) {
		return i, unexpected(s.json, i, "a string or an array of token ids")
	}
	switch s.json[i] {
	case '"':
		text, next, err := s.text(i)
		r.Text, r.PromptKind = text, TextPrompt
		return next, err
	case '[':
	default:
		return i, unexpected(s.json, i, "a string or an array of token ids")
	}
	inner := skipSpace(s.json, i+1)
	if inner >= len(s.json) || (s.json[inner] != '"' && s.json[inner] != '[') {
		return s.ids(i)
	}
	// A list of prompts, which may have one element.
	var next int
	var err error
	if s.json[inner] == '"' {
		r.PromptKind = TextPrompt
		r.Text, next, err = s.text(inner)
	} else {
		next, err = s.ids(inner)
	}
	if err != nil {
		return next, err
	}
	if next = skipSpace(s.json, next); next < len(s.json) && s.json[next] == ',' {
		r.Text, r.PromptKind = "", SeveralPrompts
		next, err = skipValue(s.json, i, 0)
		r.PromptBytes = next - i
		return next, err
	}
	if next >= len(s.json) || s.json[next] != ']' {
		return next, unexpected(s.json, next, "']' after the prompt")
	}
	return next + 1, nil
}

func (s *scanner) ids(i int) (int, error) {
	r := s.request
	r.PromptKind = IDPrompt
	ids, n, err := AppendIDs(r.IDs, s.json[i:])
	r.IDs = ids
	var syntax *SyntaxError
	if errors.As(err, &syntax) {
		syntax.Offset += i
	}
	return i + n, err
}
