package keycache_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"warmpath/tokenize/bpe"
	"warmpath/tokenize/keycache"
)

const goldenFile = "../../../shared/data/golden/tokenizer_golden_full.jsonl.gz"

// real loads a tokenizer that engines use, and its cuts.
func real(t testing.TB, name string) (*bpe.Tokenizer, keycache.Cuts) {
	t.Helper()
	data := tokenizerFile(t, name)
	tok, err := bpe.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	cuts, err := keycache.ReadCuts(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok, cuts
}

// goldenTexts are texts of every kind: prose, code, other scripts, JSON, noise.
func goldenTexts(t testing.TB) []string {
	t.Helper()
	f, err := os.Open(goldenFile)
	if err != nil {
		t.Skipf("the golden texts are not here: %v", err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	lines := bufio.NewScanner(unzipped)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var line struct{ Text string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, line.Text)
	}
	return texts
}

// The cuts hold for the real tokenizers on every kind of text: random
// conversations of the golden texts, growing turn by turn, with marks of the
// model and of others inside.
func TestRealTokenizers(t *testing.T) {
	texts := goldenTexts(t)
	for _, name := range []string{"qwen3", "deepseek_v3", "gptoss"} {
		t.Run(name, func(t *testing.T) {
			tok, cuts := real(t, name)
			marks := append([]string{"\n", "\n\n", " \n", "<|im_end|>", "<｜User｜>", "<|end|>", "\u0301", "/", "\r\n", "'s"}, cuts.Tokens[:min(8, len(cuts.Tokens))]...)
			c, err := keycache.New(tok, keycache.Config{Cuts: cuts, MaxBytes: 4 << 20})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for worker := range 2 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(worker), 11))
					var result keycache.Result
					for range 25 {
						p := keycache.Prompt{Root: 1, BlockTokens: 16, IDs: r.IntN(4) == 0}
						for range 1 + r.IntN(5) {
							s := texts[r.IntN(len(texts))]
							at := r.IntN(len(s) + 1)
							p.Text += s[:at] + marks[r.IntN(len(marks))] + s[at:] + marks[r.IntN(len(marks))]
							if len(p.Text) > 60_000 {
								break
							}
							if err := compare(c, tok, &result, p); err != nil {
								t.Errorf("%.300s", err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			if s := c.Stats(); s.Reused == 0 {
				t.Errorf("nothing was reused: %+v", s)
			}
		})
	}
}

// chatOf renders a ChatML conversation of golden texts of about n tokens, and one
// of about the last part tokens less.
func chatOf(t testing.TB, tok *bpe.Tokenizer, n, part int) (before, whole string) {
	texts := goldenTexts(t)
	var b strings.Builder
	size := func() int { return len(tok.Append(nil, b.String())) }
	message := func(role string, tokens int) {
		fmt.Fprintf(&b, "<|im_start|>%s\n", role)
		for start := size(); size() < start+tokens; {
			s := texts[0]
			texts = texts[1:]
			ids := tok.Append(nil, s)
			if len(ids) < 20 {
				continue
			}
			b.WriteString(tok.Decode(ids[:min(len(ids), start+tokens-size()+1)], false))
			b.WriteByte('\n')
		}
		b.WriteString("<|im_end|>\n")
	}
	message("system", 1200)
	for i := 0; size() < n-part-150; i++ {
		message([]string{"user", "assistant"}[i%2], min(220, n-part-size()))
	}
	before = b.String() + "<|im_start|>assistant\n"
	message("user", part-20)
	b.WriteString("<|im_start|>assistant\n")
	return before, b.String()
}

// BenchmarkNextTurn is a chat of 6,200 tokens of which 5,900 were seen before.
func BenchmarkNextTurn(b *testing.B) {
	tok, cuts := real(b, "qwen3")
	before, whole := chatOf(b, tok, 6200, 300)
	c, err := keycache.New(tok, keycache.Config{Cuts: cuts})
	if err != nil {
		b.Fatal(err)
	}
	var r keycache.Result
	c.Keys(&r, keycache.Prompt{Text: before, BlockTokens: 16})
	seen := r.Tokens
	var total, reused int
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		c, err = keycache.New(tok, keycache.Config{Cuts: cuts})
		if err != nil {
			b.Fatal(err)
		}
		c.Keys(&r, keycache.Prompt{Text: before, BlockTokens: 16})
		b.StartTimer()
		c.Keys(&r, keycache.Prompt{Text: whole, BlockTokens: 16})
		total, reused = r.Tokens, r.Reused
	}
	b.ReportMetric(float64(total), "tokens")
	b.ReportMetric(float64(seen), "seen")
	b.ReportMetric(float64(reused), "reused")
}

// BenchmarkCold is the same chat, never seen.
func BenchmarkCold(b *testing.B) {
	tok, cuts := real(b, "qwen3")
	_, whole := chatOf(b, tok, 6200, 300)
	var r keycache.Result
	b.ReportAllocs()
	for root := uint64(0); b.Loop(); root++ {
		b.StopTimer()
		c, err := keycache.New(tok, keycache.Config{Cuts: cuts})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		c.Keys(&r, keycache.Prompt{Text: whole, BlockTokens: 16, Root: root})
	}
	b.ReportMetric(float64(r.Tokens), "tokens")
}
