package keycache

import "strings"

// Segments is a text's segments with a zero byte between them.
func Segments(c *Cache, text string) string {
	var out []string
	w := c.segmenter.walk(text)
	for more := text != ""; more; {
		var s string
		s, more = w.segment()
		out = append(out, s)
	}
	return strings.Join(out, "\x00")
}
