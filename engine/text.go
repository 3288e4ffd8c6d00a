package engine

// words are what the simulated model says. One generated token is one byte of
// text, so that a tokenizer with a token per byte (tokenize.Bytes) finds the
// engine's own token ids again when an answer comes back as history.
var words = [64]string{
	"about", "above", "across", "after", "again", "along", "always", "among",
	"answer", "around", "because", "before", "begin", "below", "between", "both",
	"build", "call", "carry", "change", "close", "come", "could", "cross",
	"each", "early", "every", "example", "far", "few", "find", "first",
	"follow", "form", "found", "great", "group", "hand", "keep", "kind",
	"large", "last", "learn", "leave", "light", "line", "little", "long",
	"measure", "near", "never", "next", "often", "open", "order", "other",
	"place", "plain", "point", "right", "small", "still", "under", "write",
}

// Text generates the output of one request, byte by byte: the same seed, the
// same text. The zero value is the text of seed 0; it is a value, so a copy
// continues on its own.
type Text struct {
	state uint64
	word  string
	space bool
}

// NewText starts the text of a seed.
func NewText(seed uint64) Text { return Text{state: seed} }

// Next returns the next byte, which is also the id of the next token.
func (t *Text) Next() byte {
	if t.word == "" {
		t.state += 0x9e3779b97f4a7c15 // splitmix64
		t.word = words[mix(t.state)%uint64(len(words))]
		if t.space {
			return ' '
		}
		t.space = true
	}
	c := t.word[0]
	t.word = t.word[1:]
	return c
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// TextSeed derives a request's output from its id and the engine's seed.
func TextSeed(seed uint64, id string) uint64 {
	h := mix(seed + 0x9e3779b97f4a7c15)
	for i := range len(id) {
		h = mix(h ^ uint64(id[i]))
	}
	return h
}
