package bpe

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestLoadNamesWhatItRefuses(t *testing.T) {
	for _, c := range []struct{ part, value, want string }{
		{"version", `"2.0"`, `version: "2.0"`},
		{"model", `{"type":"Unigram"}`, `model.type: "Unigram"`},
		{"model", `{"dropout":0.1}`, "model.dropout: 0.1"},
		{"model", `{"vocab":null}`, "model.vocab: found null"},
		{"model", `{"vocab":{}}`, "model.vocab: is empty"},
		{"model", `{"vocab":{"a":-1}}`, `model.vocab["a"]`},
		{"model", `{"vocab":{"a":"b"}}`, `model.vocab["a"]: want an id`},
		{"model", `{"vocab":{"a":99999999}}`, "too large"},
		{"model", `{"merges":[["the","nothing"]]}`, `model.merges[0]: "nothing" is not in model.vocab`},
		{"model", `{"merges":[["the","the"]]}`, `model.merges[0]: the result "thethe"`},
		{"model", `{"merges":["a b c"]}`, "model.merges[0]"},
		{"model", `{"merges":[["a"]]}`, "model.merges[0]"},
		{"model", `{"merges":[7]}`, "model.merges[0]: found number"},
		{"model", `{"merges":"a b"}`, "model.merges: found string"},
		{"model", `{"byte_fallback":true}`, `model.byte_fallback: "<0x00>"`},
		{"normalizer", `{"type":"BertNormalizer"}`, `normalizer: normalizer "BertNormalizer"`},
		{"normalizer", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Precompiled"}]}`, `normalizer.normalizers[1]: normalizer "Precompiled"`},
		{"normalizer", `{"strip_left":true}`, "normalizer: has no type"},
		{"normalizer", `{"type":"Replace","content":""}`, "normalizer.pattern: has neither"},
		{"normalizer", `{"type":"Replace","pattern":{"String":""},"content":""}`, "normalizer.pattern: is empty"},
		{"normalizer", `{"type":"Replace","pattern":{"Regex":"x*"},"content":""}`, "can match nothing"},
		{"normalizer", `{"type":"Replace","pattern":{"Regex":"\\bx"},"content":""}`, `\b is not supported`},
		{"pre_tokenizer", `{"type":"UnicodeScripts"}`, `pre_tokenizer: pre-tokenizer "UnicodeScripts"`},
		{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`, "pre_tokenizer.pretokenizers[1]: Digits after ByteLevel"},
		{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"Split","pattern":{"Regex":"\\p{Thai}"},"behavior":"Isolated","invert":false}]}`, `pre_tokenizer.pretokenizers[1]: Split pattern "\\p{Thai}"`},
		{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"a"},"behavior":"Sideways"}`, `pre_tokenizer.behavior: "Sideways"`},
		{"pre_tokenizer", `{"type":"Split","pattern":{},"behavior":"Isolated"}`, "pre_tokenizer.pattern"},
		{"pre_tokenizer", `{"type":"Punctuation","behavior":"x"}`, "pre_tokenizer.behavior"},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"__"}`, "pre_tokenizer.replacement"},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"x"}`, "pre_tokenizer.prepend_scheme"},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","add_prefix_space":false}`, "pre_tokenizer.add_prefix_space"},
		{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Metaspace","replacement":"_"},{"type":"Metaspace","replacement":"_","prepend_scheme":"first"}]}`, "pre_tokenizer.pretokenizers[1].prepend_scheme"},
		{"pre_tokenizer", `{"type":"FixedLength","length":0}`, "pre_tokenizer.length"},
		{"pre_tokenizer", `{"type":"CharDelimiterSplit","delimiter":""}`, "pre_tokenizer.delimiter"},
		{"post_processor", `{"type":"Odd"}`, `post_processor: post-processor "Odd"`},
		{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],"special_tokens":{}}`, `post_processor.single[0]: "x"`},
		{"post_processor", `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}]}`, "post_processor.single[0]"},
		{"post_processor", `{"type":"TemplateProcessing","single":[]}`, "post_processor.single: has the text 0 times"},
		{"post_processor", `{"type":"BertProcessing","sep":"x","cls":["a",1]}`, "post_processor"},
		{"decoder", `{"type":"CTC"}`, `decoder: decoder "CTC"`},
		{"decoder", `{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"WordPiece"}]}`, `decoder.decoders[1]: decoder "WordPiece"`},
		{"decoder", `{"type":"Strip","content":"","start":1}`, "decoder.content"},
		{"added_tokens", `[{"content":"A","normalized":true},{"content":"A ","normalized":true}]`, `added_tokens: "A", the form of "A "`},
		{"added_tokens", `7`, "added_tokens"},
	} {
		with := map[string]json.RawMessage{c.part: json.RawMessage(c.value)}
		if c.part == "added_tokens" {
			with["normalizer"] = json.RawMessage(`{"type":"Strip","strip_left":true,"strip_right":true}`)
		}
		_, err := Load(variant(t, "byte_level", with))
		if err == nil {
			t.Errorf("%s %s is accepted", c.part, c.value)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want it to say %s", c.part, c.value, err, c.want)
		}
	}
}

func TestLoadRefusesBrokenFiles(t *testing.T) {
	for data, want := range map[string]string{
		``:                        "tokenizer.json",
		`[]`:                      "found [",
		`{}`:                      "model: missing",
		`{"model":{"vocab":{}}}`:  "model.vocab: is empty",
		`{"model":{"merges":[]}}`: "vocab or merges are missing",
		`{"model":{"vocab":{"a":0},"merges":[]},"version"`:             "tokenizer.json",
		`{"model":{"vocab":{"a":0},"merges":[]},"decoder":{"type":1}}`: "decoder",
	} {
		if _, err := Load([]byte(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%s): %v, want it to say %q", data, err, want)
		}
	}
}

// A normalizer that moves text makes "where the text begins" doubtful.
func TestLoadRefusesMetaspaceFirstAfterMoves(t *testing.T) {
	first := json.RawMessage(`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}`)
	for _, n := range []string{`{"type":"NFKC"}`, `{"type":"Prepend","prepend":"x"}`, `{"type":"Sequence","normalizers":[{"type":"Strip","strip_left":true,"strip_right":false}]}`} {
		_, err := Load(variant(t, "sentencepiece", map[string]json.RawMessage{"pre_tokenizer": first, "normalizer": json.RawMessage(n)}))
		if err == nil || !strings.Contains(err.Error(), "moves text") {
			t.Errorf("normalizer %s: %v", n, err)
		}
	}
}

// Both ways of writing merges mean the same.
func TestLoadReadsOldMerges(t *testing.T) {
	tok := load(t, "small", map[string]json.RawMessage{"model": json.RawMessage(`{"merges":["#version: 0.2","h e","l l","he ll"]}`)})
	got := tok.Append(nil, "hell")
	if want, _ := tok.ID("hell"); len(got) != 1 || got[0] != want {
		t.Errorf("hell is %v, want [%d]", got, want)
	}
}

// Of two rules for one pair the later decides when it applies.
func TestLoadLetsTheLastOfEqualMergesCount(t *testing.T) {
	tok := load(t, "small", map[string]json.RawMessage{"model": json.RawMessage(
		`{"vocab":{"a":0,"b":1,"c":2,"ab":3,"bc":4},"merges":[["a","b"],["b","c"],["a","b"]],"unk_token":null}`)})
	if got := tok.Decode(tok.Append(nil, "abc"), false); got != "a bc" {
		t.Errorf("abc is cut into %q, want \"a bc\"", got)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]},"normalizer":{"type":"NFC"}}`))
	f.Add([]byte(`{"model":{"vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a|b"},"behavior":"Removed","invert":true}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Load(data)
		if err == nil {
			tok.Decode(tok.AppendSpecial(nil, "ab \u00e9"), true)
		}
	})
}
