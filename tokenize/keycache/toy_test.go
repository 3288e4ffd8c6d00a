package keycache_test

import (
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// toy is a small tokenizer of the shape of the real ones: added tokens first,
// then pieces by Qwen's pattern with o200k's slashes, then tokens inside a piece that depend on where
// the piece begins. Cut at a wrong place, it gives other tokens.
type toy struct{}

var toyTokens = []string{"<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "[INST]"}

var toyPiece = regexp.MustCompile(`^(?:(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+)`)

func (toy) Append(dst []uint32, text string) []uint32 {
	for text != "" {
		at, token := len(text), -1
		for i, t := range toyTokens {
			if k := strings.Index(text, t); k >= 0 && k < at {
				at, token = k, i
			}
		}
		dst = toyPieces(dst, text[:at])
		if text = text[at:]; token >= 0 {
			dst = append(dst, uint32(token))
			text = text[len(toyTokens[token]):]
		}
	}
	return dst
}

func toyPieces(dst []uint32, text string) []uint32 {
	for text != "" {
		piece := toyPiece.FindString(text)
		if rest := text[len(piece):]; rest != "" && strings.TrimSpace(piece) == "" && !strings.HasSuffix(piece, "\n") && !strings.HasSuffix(piece, "\r") {
			next, _ := utf8.DecodeRuneInString(rest)
			_, size := utf8.DecodeLastRuneInString(piece)
			if !unicode.IsSpace(next) && len(piece) > size { // \s+(?!\S)
				piece = piece[:len(piece)-size]
			}
		}
		text = text[len(piece):]
		for piece != "" {
			n := min(3, len(piece))
			h := fnv.New32a()
			h.Write([]byte(piece[:n]))
			dst = append(dst, 1000+h.Sum32()%50000)
			piece = piece[n:]
		}
	}
	return dst
}

// toyJSON is toy as ReadCuts sees it.
const toyJSON = `{"added_tokens":[
 {"id":0,"content":"<|im_start|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
 {"id":1,"content":"<|im_end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
 {"id":2,"content":"<tool_call>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false},
 {"id":3,"content":"</tool_call>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false},
 {"id":4,"content":"[INST]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
 "normalizer":{"type":"NFC"},
 "pre_tokenizer":{"type":"Sequence","pretokenizers":[
  {"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},
  {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]},
 "model":{"type":"BPE","vocab":{},"merges":[]}}`

// words that random texts are made of: everything that cuts depend on.
var words = []string{
	"the", " model", "'s", " answers", "  ", "\n", "\n\n", " \n ", "\t", "\r\n", "x", "42", "-", "...", "!\n", "/path", "\n/", "#", "{\"a\":",
	"é", "e\u0301", "\u0301", "你好", "🚀", "\u00a0", "\u2028", "<", "<|", "|>", "<|im_", "<|im_end|>", "<|im_start|>user\n", "<tool_call>", "[INST]",
	"[INST", strings.Repeat("long line without an end ", 20), strings.Repeat("a", 300), strings.Repeat("line\n", 60), strings.Repeat("-\n", 200),
}

// text makes a random text of some words.
func text(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(words[r.IntN(len(words))])
	}
	return b.String()
}
