package bpe

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"warmpath/tokenize/bpe/onig"
)

func TestIDAndToken(t *testing.T) {
	tok := load(t, "byte_level", map[string]json.RawMessage{
		"normalizer":   json.RawMessage(`{"type":"Lowercase"}`),
		"added_tokens": json.RawMessage(`[{"content":"<S>","special":true},{"content":"NEW","normalized":true},{"content":""}]`),
	})
	size := uint32(tok.VocabSize())
	for token, want := range map[string]uint32{"<S>": size - 2, "NEW": size - 1} {
		if id, ok := tok.ID(token); !ok || id != want {
			t.Errorf("ID(%q) = %d, %v, want %d", token, id, ok, want)
		}
	}
	if token, ok := tok.Token(size - 1); !ok || token != "new" {
		t.Errorf("Token of NEW = %q, %v, want its normalized form", token, ok)
	}
	id, ok := tok.ID("Ġthe")
	if token, ok2 := tok.Token(id); !ok || !ok2 || token != "Ġthe" {
		t.Errorf("Ġthe has id %d, %v, and that is %q, %v", id, ok, token, ok2)
	}
	if _, ok := tok.ID("nowhere"); ok {
		t.Error("an unknown token has an id")
	}
	if _, ok := tok.Token(size); ok {
		t.Error("an unknown id has a token")
	}
	if got := tok.Decode([]uint32{id, size + 7}, false); got != " the" {
		t.Errorf("an unknown id is not left out: %q", got)
	}
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	tok := load(t, "byte_level", nil)
	got := tok.Append([]uint32{7, 8}, "the")
	if !slices.Equal(got[:2], []uint32{7, 8}) || !slices.Equal(got[2:], tok.Append(nil, "the")) {
		t.Errorf("Append to [7 8] gives %v", got)
	}
}

func TestInvalidUTF8CountsAsReplacementCharacters(t *testing.T) {
	tok := load(t, "byte_level", nil)
	if got, want := tok.Append(nil, "a\xffb\xe4\xb8"), tok.Append(nil, "a\ufffdb\ufffd\ufffd"); !slices.Equal(got, want) {
		t.Errorf("invalid bytes give %v, want %v", got, want)
	}
	ids := tok.Append(nil, "中")
	all := tok.Append(nil, "é😀")
	for _, c := range []struct {
		ids  []uint32
		want string
	}{{ids, "中"}, {all[len(all)-4:], "😀"}, {all[len(all)-3:], "\ufffd\ufffd\ufffd"}, {append(all[len(all)-4:len(all)-1:len(all)-1], ids...), "\ufffd中"}} {
		if got := tok.Decode(c.ids, false); got != c.want {
			t.Errorf("%v decodes to %+q, want %+q", c.ids, got, c.want)
		}
	}
}

// The scanners must cut text as their patterns do.
func TestScannersCutAsTheirPatterns(t *testing.T) {
	for name, pattern := range scannedPatterns() {
		t.Run(name, func(t *testing.T) {
			re, err := onig.Compile(pattern)
			if err != nil {
				t.Fatal(err)
			}
			scan := handWritten(pattern)
			if scan == nil {
				t.Fatal("the pattern has no scanner")
			}
			random := rand.New(rand.NewPCG(1, 2))
			for range 6000 {
				checkScanner(t, scan, re, randomText(random))
			}
		})
	}
}

func scannedPatterns() map[string]string {
	return map[string]string{
		"gpt2": gpt2Pattern, "qwen2": qwen2Pattern, "llama3": llama3Pattern, "qwen35": qwen35Pattern,
		"o200k": o200kPattern, "tekken": tekkenPattern, "deepseek": deepseekPattern,
	}
}

func checkScanner(t *testing.T, scan scanner, re *onig.Pattern, text string) {
	t.Helper()
	if got, want := pieces(scanStage{scan}, text), pieces(splitStage{find: findRegex(re)}, text); !slices.Equal(got, want) {
		t.Fatalf("%+q is cut into %+q, want %+q", text, got, want)
	}
}

// pieces returns what a stage makes of a text.
func pieces(st stage, text string) []string {
	if text == "" {
		return nil
	}
	var out []string
	e := &encoding{t: &Tokenizer{stages: []stage{collect{&out}}}}
	st.apply(e, 0, text, true)
	return out
}

// collect is a last stage that keeps the pieces.
type collect struct{ out *[]string }

func (c collect) apply(_ *encoding, _ int, text string, _ bool) { *c.out = append(*c.out, text) }

// randomText mixes characters of all the classes that patterns tell apart.
func randomText(r *rand.Rand) string {
	const alphabet = "  \n\r\t\u00a0\u2028\u3000aabzAZ09'''sStTrReEvVmMlLdDſ.,!/-_#é\u0301ÉǅʰªαΩЖ中文あア한ก٣½Ⅷ😀\u200d€„\x00\x01\u0378\ue000\U000e0100\U000e0001\U00020000"
	runes := []rune(alphabet)
	var b strings.Builder
	for range r.IntN(14) {
		c := runes[r.IntN(len(runes))]
		for range 1 + max(0, r.IntN(6)-3) {
			b.WriteRune(c)
		}
	}
	return b.String()
}

func FuzzScanners(f *testing.F) {
	type pair struct {
		scan scanner
		re   *onig.Pattern
	}
	var all []pair
	for _, pattern := range scannedPatterns() {
		re, err := onig.Compile(pattern)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, pair{handWritten(pattern), re})
	}
	f.Add("It's  DON'T\r\n\n 123 camelCase 中文\x00\u0301")
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return
		}
		for _, p := range all {
			checkScanner(t, p.scan, p.re, text)
		}
	})
}

// Finding numbers and East Asian text by hand must agree with the patterns.
func TestSimpleMatchesAreThePatterns(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, pattern := range []string{`\p{N}{1,3}`, "[一-龥\u3040-ゟ゠-ヿ]+"} {
		re, err := onig.Compile(pattern)
		if err != nil {
			t.Fatal(err)
		}
		find := simpleMatches(pattern)
		if find == nil {
			t.Fatalf("%s is not known", pattern)
		}
		for range 20000 {
			text := randomText(random) + "\u303f\u3040\u30ff\u3100\u4dff\u4e00\u9fa5\u9fa6"[random.IntN(8)*3:]
			got, want := pieces(splitStage{find: find}, text), pieces(splitStage{find: findRegex(re)}, text)
			if !slices.Equal(got, want) {
				t.Fatalf("%s cuts %+q into %+q, want %+q", pattern, text, got, want)
			}
		}
	}
}

// What the array and the heap merge must be the same.
func TestMergingByArrayAndByHeapAgree(t *testing.T) {
	var rules []mergeRule
	var b vocabBuilder
	for i, c := range "abcd" {
		b.add(string(c), uint32(i))
	}
	random := rand.New(rand.NewPCG(5, 6))
	tokens := []string{"a", "b", "c", "d"}
	seen := map[string]bool{"a": true, "b": true, "c": true, "d": true}
	for len(rules) < 120 {
		left, right := tokens[random.IntN(len(tokens))], tokens[random.IntN(len(tokens))]
		if len(left+right) > 7 {
			continue
		}
		rules = append(rules, mergeRule{left, right})
		if !seen[left+right] {
			seen[left+right] = true
			b.add(left+right, uint32(len(tokens)))
			tokens = append(tokens, left+right)
		}
	}
	v, err := b.build()
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := newPairTable(v, rules, "")
	if err != nil {
		t.Fatal(err)
	}
	var array, heap merger
	for range 5000 {
		symbols := make([]uint32, 2+random.IntN(arrayLimit-1))
		for i := range symbols {
			symbols[i] = uint32(random.IntN(4))
		}
		array.symbols, heap.symbols = slices.Clone(symbols), slices.Clone(symbols)
		array.mergeArray(pairs)
		heap.mergeHeap(pairs)
		if !slices.Equal(array.symbols, heap.symbols) {
			t.Fatalf("%v merges to %v by array, %v by heap", symbols, array.symbols, heap.symbols)
		}
	}
}

// Cutting text before the marks must not change what it encodes to.
func TestCuttingAtMarksChangesNothing(t *testing.T) {
	for _, with := range []map[string]json.RawMessage{nil, {"model": json.RawMessage(
		`{"vocab":{"<unk>":0,"▁":1,"a":2,"b":3,"b▁":4,"▁a":5,"b▁a":6,"▁▁":7},"merges":[["b","▁"],["▁","a"],["b▁","a"],["▁","▁"]],"byte_fallback":false}`)}} {
		cut := load(t, "sentencepiece", with)
		whole := load(t, "sentencepiece", with)
		if cut.model.mark == "" {
			t.Fatal("text is not cut")
		}
		if with != nil && cut.model.joins != "b" {
			t.Fatalf("joins = %q, want b", cut.model.joins)
		}
		whole.model.mark = ""
		random := rand.New(rand.NewPCG(7, 8))
		for range 5000 {
			var b strings.Builder
			for range random.IntN(30) {
				b.WriteString([]string{" ", " ", "a", "b", "the", "x", "中"}[random.IntN(7)])
			}
			if got, want := cut.Append(nil, b.String()), whole.Append(nil, b.String()); !slices.Equal(got, want) {
				t.Fatalf("%q is %v, want %v", b.String(), got, want)
			}
		}
	}
}

// Long enough that anything quadratic would be noticed.
func TestLongRunsOfOneThing(t *testing.T) {
	tok := load(t, "byte_level", nil)
	for _, unit := range []string{"a", "\n", " ", "中", "-", "aab", "\u0301"} {
		text := strings.Repeat(unit, 1<<17/len(unit))
		if got := tok.Decode(tok.Append(nil, text), false); got != text {
			t.Errorf("%d bytes of %q come back as %d", len(text), unit, len(got))
		}
	}
}

// Many goroutines and a cache so small that they overwrite each other's words.
func TestConcurrentUse(t *testing.T) {
	tok := load(t, "byte_level", nil)
	tok.model.cache = newWordCache(4)
	alone := load(t, "byte_level", nil)
	var texts []string
	var want [][]uint32
	for i := range 2000 {
		text := strings.Repeat("ab", i%11) + string(rune('a'+i%26)) + " the " + string(rune(0x4e00+i)) + strings.Repeat("-", i%40)
		texts, want = append(texts, text), append(want, alone.Append(nil, text))
	}
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range texts {
				k := (i*7 + g*251) % len(texts)
				if got := tok.Append(nil, texts[k]); !slices.Equal(got, want[k]) {
					t.Errorf("%q is %v, want %v", texts[k], got, want[k])
					return
				}
			}
		})
	}
	group.Wait()
}

func FuzzAppend(f *testing.F) {
	tok := load(f, "byte_level", map[string]json.RawMessage{
		"pre_tokenizer": json.RawMessage(`{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + quote(llama3Pattern) +
			`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]}`),
		"added_tokens": json.RawMessage(`[{"content":"<s>","special":true},{"content":"the a","normalized":true}]`),
	})
	sp := load(f, "sentencepiece", nil)
	for _, s := range []string{"the hello 中文 <s>the a\n\n", "", "\xff\u0301", strings.Repeat("a", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.Append(nil, text)
		if got, want := tok.Decode(ids, false), replaceInvalid(text); got != want {
			t.Errorf("%+q comes back as %+q", want, got)
		}
		if again := tok.Append(nil, text); !slices.Equal(ids, again) {
			t.Errorf("%+q is %v, then %v", text, ids, again)
		}
		if got := sp.Append(nil, text); text != "" && len(got) == 0 {
			t.Errorf("%+q is nothing", text)
		}
	})
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}
