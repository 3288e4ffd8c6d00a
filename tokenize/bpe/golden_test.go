package bpe

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

const shared = "../../../shared/data"

// realFiles are the tokenizers that are there in development but not committed,
// and their names in the golden file.
var realFiles = map[string]string{
	"qwen3":       "qwen3",
	"deepseek_v3": "deepseek_v3",
	"gptoss":      "gptoss_o200k_harmony",
}

var loaded sync.Map // name -> *Tokenizer

func realTokenizer(t testing.TB, name string) *Tokenizer {
	t.Helper()
	if tok, ok := loaded.Load(name); ok {
		return tok.(*Tokenizer)
	}
	tok, err := Load(readGzip(t, filepath.Join(shared, "tokenizers", name+".tokenizer.min.json.gz")))
	if err != nil {
		t.Fatal(err)
	}
	loaded.Store(name, tok)
	return tok
}

func readGzip(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Skipf("data of development: %v", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type goldenText struct {
	Cat  string
	Text string
	IDs  map[string][]uint32
}

func goldenTexts(t testing.TB) []goldenText {
	t.Helper()
	f, err := os.Open(filepath.Join(shared, "golden", "tokenizer_golden_full.jsonl.gz"))
	if err != nil {
		t.Skipf("data of development: %v", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []goldenText
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var g goldenText
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestGoldenTexts(t *testing.T) {
	texts := goldenTexts(t)
	for file, name := range realFiles {
		t.Run(file, func(t *testing.T) {
			tok := realTokenizer(t, file)
			n := 0
			for _, g := range texts {
				want, ok := g.IDs[name]
				if !ok {
					continue
				}
				n++
				for range 2 { // computed, then from the cache
					if got := tok.Append(nil, g.Text); !slices.Equal(got, want) {
						t.Errorf("%s %.60q: %d ids, want %d", g.Cat, g.Text, len(got), len(want))
					}
				}
				if back := tok.Decode(want, false); file != "qwen3" && back != g.Text {
					t.Errorf("%s %.60q decodes to %.60q", g.Cat, g.Text, back)
				}
			}
			if n < 1000 {
				t.Errorf("only %d texts have ids", n)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for file := range realFiles {
		data := readGzip(b, filepath.Join(shared, "tokenizers", file+".tokenizer.min.json.gz"))
		b.Run(file, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Load(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAppend encodes all golden texts but the random ones.
func BenchmarkAppend(b *testing.B) {
	var texts []goldenText
	size := 0
	for _, g := range goldenTexts(b) {
		if g.Cat != "fuzz" {
			texts = append(texts, g)
			size += len(g.Text)
		}
	}
	for file := range realFiles {
		b.Run(file, func(b *testing.B) {
			tok := realTokenizer(b, file)
			var ids []uint32
			tokens := 0
			b.SetBytes(int64(size))
			for b.Loop() {
				for _, g := range texts {
					ids = tok.Append(ids[:0], g.Text)
					tokens += len(ids)
				}
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
		})
	}
}
