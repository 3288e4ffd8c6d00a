package keycache_test

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"warmpath/tokenize/keycache"
)

const dataDir = "../../../shared/data/tokenizers"

func qwenSplit() string { return gjson(toyJSON, "pre_tokenizer") }

// gjson is one member of a JSON object.
func gjson(object, member string) string {
	var m map[string]json.RawMessage
	if json.Unmarshal([]byte(object), &m) != nil {
		return ""
	}
	return string(m[member])
}

func TestReadCutsTokens(t *testing.T) {
	plain := func(content string) string {
		return `{"content":"` + content + `","single_word":false,"lstrip":false,"rstrip":false,"normalized":false}`
	}
	with := func(content, flag string) string {
		return strings.Replace(plain(content), `"`+flag+`":false`, `"`+flag+`":true`, 1)
	}
	cases := []struct {
		name, normalizer string
		added            []string
		want             []string
	}{
		{"exact ones", `{"type":"NFC"}`, []string{plain("<s>"), plain("[INST]")}, []string{"<s>", "[INST]"}},
		{"strips and words", `null`, []string{plain("<s>"), with("<l>", "lstrip"), with("<r>", "rstrip"), with("<w>", "single_word")}, []string{"<s>"}},
		{"normalized, with a normalizer", `{"type":"NFC"}`, []string{plain("<s>"), with("<n>", "normalized")}, []string{"<s>"}},
		{"normalized, without one", `{"type":"Sequence","normalizers":[]}`, []string{plain("<s>"), with("<n>", "normalized")}, []string{"<n>", "<s>"}},
		{"open ends", `null`, []string{plain("word"), plain(" <s>"), plain("<s> "), plain("<s>x"), plain("<_")}, nil},
		{"one in another", `null`, []string{plain("<s>"), plain("<<s>>"), plain("<t>")}, []string{"<t>"}},
		{"overlapping ends", `null`, []string{plain("<ab>"), plain(">cd<"), plain("[e]")}, []string{"[e]"}},
		{"a prefix of another", `null`, []string{plain("<|"), plain("<|x|>"), plain("[e]")}, []string{"[e]"}},
		{"overlap with one that strips", `null`, []string{plain("<a>"), with(">b<", "lstrip"), plain("[e]")}, []string{"[e]"}},
		{"a rival of the second round", `{"type":"NFC"}`, []string{plain("<a>"), with("<a><b>", "normalized")}, []string{"<a>"}},
		{"given twice", `null`, []string{plain("<a>"), plain("<a>")}, []string{"<a>"}},
	}
	for _, c := range cases {
		cuts, err := keycache.ReadCuts([]byte(`{"added_tokens":[` + strings.Join(c.added, ",") + `],"normalizer":` + c.normalizer + `}`))
		if err != nil || !slices.Equal(cuts.Tokens, c.want) {
			t.Errorf("%s: got %q, %v; want %q", c.name, cuts.Tokens, err, c.want)
		}
		if cuts.Lines {
			t.Errorf("%s: lines without a known pre-tokenizer", c.name)
		}
	}
}

func TestReadCutsLines(t *testing.T) {
	base := qwenSplit()
	change := func(old, new string) string {
		changed := strings.Replace(base, old, new, 1)
		if changed == base {
			t.Fatalf("%q is not in %s", old, base)
		}
		return changed
	}
	token := `{"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false}`
	cases := []struct {
		name, pre, normalizer, added string
		want                         bool
	}{
		{"qwen", base, `{"type":"NFC"}`, token, true},
		{"llama 3", change(`|\\p{N}|`, `|\\p{N}{1,3}|`), `null`, token, true},
		{"an unknown alternative", change(`|\\p{N}|`, `|\\p{N}+|`), `null`, token, false},
		{"no run of line feeds, as in GPT-2", change(`|\\s*[\\r\\n]+`, ``), `null`, token, false},
		{"white space before line feeds", change(`\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`, `\\s+(?!\\S)|\\s*[\\r\\n]+|\\s+`), `null`, token, false},
		{"another behaviour", change(`Isolated`, `MergedWithNext`), `null`, token, false},
		{"inverted", change(`"invert":false`, `"invert":true`), `null`, token, false},
		{"a space before each part", change(`"add_prefix_space":false`, `"add_prefix_space":true`), `null`, token, false},
		{"a second pattern", change(`"use_regex":false`, `"use_regex":true`), `null`, token, false},
		{"not a sequence", `{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, `null`, token, false},
		{"another normalizer", base, `{"type":"NFKC"}`, token, false},
		{"a sequence of normalizers", base, `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"}]}`, token, false},
		{"a token that strips", base, `null`, strings.Replace(token, `"lstrip":false`, `"lstrip":true`, 1), false},
		{"a token with a line feed", base, `null`, strings.Replace(token, `<s>`, `<s>\n`, 1), false},
	}
	for _, c := range cases {
		cuts, err := keycache.ReadCuts([]byte(`{"added_tokens":[` + c.added + `],"normalizer":` + c.normalizer + `,"pre_tokenizer":` + c.pre + `}`))
		if err != nil || cuts.Lines != c.want {
			t.Errorf("%s: got %v, %v", c.name, cuts.Lines, err)
		}
	}
}

func TestReadCutsRefuses(t *testing.T) {
	for in, words := range map[string]string{
		`[`:                   "tokenizer.json: ",
		`{"normalizer":5}`:    "normalizer: ",
		`{"pre_tokenizer":5}`: "pre_tokenizer: ",
	} {
		if _, err := keycache.ReadCuts([]byte(in)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: got %v, want %q", in, err, words)
		}
	}
}

func tokenizerFile(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join(dataDir, name+".tokenizer.min.json.gz"))
	if err != nil {
		t.Skipf("the tokenizer files are not here: %v", err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The files that people use have cuts at every mark of their chat templates.
func TestReadCutsOfRealFiles(t *testing.T) {
	for name, want := range map[string][]string{
		"qwen3":       {"<|im_start|>", "<|im_end|>", "<tool_call>", "</think>"},
		"deepseek_v3": {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜tool▁call▁end｜>"},
		"gptoss":      {"<|start|>", "<|end|>", "<|message|>", "<|return|>"},
	} {
		cuts, err := keycache.ReadCuts(tokenizerFile(t, name))
		if err != nil || !cuts.Lines {
			t.Errorf("%s: lines %v, error %v", name, cuts.Lines, err)
		}
		for _, token := range want {
			if !slices.Contains(cuts.Tokens, token) {
				t.Errorf("%s: no cut at %s", name, token)
			}
		}
	}
}

// What a text is cut into does not depend on what comes after it, or the next
// turn would find nothing.
func TestSegmentsOfAPrefixAreThoseOfTheText(t *testing.T) {
	c := newToy(t, 0)
	r := rand.New(rand.NewPCG(3, 4))
	long := 0
	for range 1000 {
		a := text(r, r.IntN(60))
		whole := strings.Split(keycache.Segments(c, a+text(r, r.IntN(60))), "\x00")
		part := strings.Split(keycache.Segments(c, a), "\x00")
		// The last one may still grow, as may one that ends in a part of a token.
		keep := max(0, len(part)-2)
		if !slices.Equal(part[:keep], whole[:min(keep, len(whole))]) {
			t.Fatalf("%q of %q", part, whole)
		}
		if strings.Join(part, "") != a {
			t.Fatalf("segments %q are not the text %q", part, a)
		}
		long += keep
	}
	if long < 300 {
		t.Errorf("only %d segments were compared", long)
	}
}

func TestSegments(t *testing.T) {
	c := newToy(t, 0)
	x := strings.Repeat("x", 300)
	line := strings.Repeat("y", 2100)
	cases := map[string]string{
		"":                        "",
		"abc":                     "abc",
		"<|im_end|>":              "<|im_end|>",
		x + "<|im_end|>":          x + "|<|im_end|>",
		"a<|im_end|>b<|im_end|>":  "a<|im_end|>b<|im_end|>", // too short to cut
		x + "<|im_en":             x + "<|im_en",
		x + "<|im_<|im_start|>":   x + "<|im_|<|im_start|>",
		x + "\ny":                 x + "\ny",
		line + "\nz":              line + "\n|z",
		line + "\n":               line + "\n",
		line + "\n/z":             line + "\n/z",
		line + "\n z\nw":          line + "\n z\n|w",
		line + "\n\n\r\nw":        line + "\n\n\r\n|w",
		line + "\néz":             line + "\néz",
		line + "\n<|im_end|>z":    line + "\n|<|im_end|>z",
		line[:2040] + "\n" + "zz": line[:2040] + "\nzz",
	}
	for in, want := range cases {
		if got := strings.ReplaceAll(keycache.Segments(c, in), "\x00", "|"); got != want {
			t.Errorf("%.40q…: got %q, want %q", in, got, want)
		}
	}
}
