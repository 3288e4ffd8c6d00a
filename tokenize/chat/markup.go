package chat

import (
	"strings"
	"unsafe"

	"github.com/ardanlabs/jinja"
)

// Python marks what the filters safe and escape return: adding another string to
// it escapes that one for HTML, also where nothing else is escaped. The templates
// of some models do so by accident, and their prompts show it.

// mark returns the string as one that is safe.
func (r *rendering) mark(s string) string {
	if s == "" {
		return s
	}
	if r.safe == nil {
		r.safe = map[*byte]bool{}
	}
	s = strings.Clone(s) // the mark is on these bytes, which nothing else may share
	r.safe[unsafe.StringData(s)] = true
	return s
}

func (r *rendering) marked(s string) bool {
	return len(r.safe) > 0 && s != "" && r.safe[unsafe.StringData(s)]
}

// concat is a + b of two strings.
func (r *rendering) concat(a, b string) string {
	safeA, safeB := r.marked(a), r.marked(b)
	switch {
	case safeA && safeB:
		return r.mark(a + b)
	case safeA:
		return r.mark(a + escapeHTML(b))
	case safeB:
		return r.mark(escapeHTML(a) + b)
	}
	return a + b
}

var escapeHTML = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace

func (r *rendering) safeFilter(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	s := text(args[0])
	return jinja.NewString(r.mark(s)), r.spendText(len(s))
}

func (r *rendering) escape(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	s := text(args[0])
	if !r.marked(s) {
		s = r.mark(escapeHTML(s))
	}
	return jinja.NewString(s), r.spendText(len(s))
}

func (r *rendering) stringFilter(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	s := text(args[0])
	return jinja.NewString(s), r.spendText(len(s))
}

func (r *rendering) trim(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	b := binder{filter: "trim", args: args, kwargs: kwargs}
	s := text(b.next("value", jinja.Undefined()))
	chars := b.next("chars", jinja.None())
	if err := b.done(); err != nil {
		return chars, err
	}
	safe := r.marked(s)
	if chars.IsNone() {
		s = strings.TrimFunc(s, isSpace)
	} else {
		s = strings.Trim(s, text(chars))
	}
	if safe {
		s = r.mark(s)
	}
	return jinja.NewString(s), r.spendText(len(s))
}
