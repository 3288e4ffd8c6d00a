package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"warmpath/tokenize/bpe"
)

const (
	// minTokens is the tokens a second that one core makes of English chat and code.
	minTokens = 8e6
	// loadRounds bounds how often a tokenizer is loaded anew, which takes up to a
	// second, to see it meet texts for the first time.
	loadRounds = 3
)

// Tokenize is `warmpath bench tokenize`.
type Tokenize struct {
	JSON   bool     `name:"json" help:"Print a JSON object per line: the machine, then each figure."`
	Quick  bool     `help:"Few texts, a short chat and few rounds: shows that everything runs, judges nothing."`
	Rounds int      `default:"7" help:"Times that floor and tokenizer are measured in turns; medians are printed."`
	Model  []string `placeholder:"PATH" help:"Model directory, or a tokenizer.json, which may be gzipped; NAME=PATH gives it another name than its file's. May be repeated. Default: the tokenizers of --data."`
	Data   string   `type:"existingdir" placeholder:"DIR" help:"Directory with tokenizers/NAME.tokenizer.json.gz, NAME.tokenizer_config.json beside it, and golden/."`
	Golden string   `type:"existingdir" placeholder:"DIR" help:"Directory with tokenizer_golden*.jsonl or .jsonl.gz: texts, and their ids by model, of which one that begins with the model's name is compared. Default: golden/ of --data; without either, texts of this program's own are measured and nothing is compared."`
}

// Run measures and prints. It returns an error when a figure misses its bound, or
// when any golden text has other tokens.
func (c *Tokenize) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *Tokenize) run(ctx context.Context, stdout io.Writer) error {
	if c.Rounds < 1 {
		return fmt.Errorf("--rounds is %d; give at least 1", c.Rounds)
	}
	sources, err := c.sources()
	if err != nil {
		return err
	}
	texts, err := c.corpus()
	if err != nil {
		return err
	}
	b := &bench{quick: c.Quick, rounds: c.Rounds, out: newOutput(stdout, c.JSON)}
	if c.Quick {
		b.rounds = min(b.rounds, 2)
		texts.shorten()
	}
	var parts []part
	for _, s := range sources {
		parts = append(parts, part{s.name, func(b *bench, ctx context.Context) error { return b.tokenize(ctx, s, texts) }})
	}
	return b.run(ctx, parts)
}

// tokenize measures one model.
func (b *bench) tokenize(ctx context.Context, s modelSource, texts *corpus) error {
	l, err := s.load()
	if err != nil {
		return err
	}
	if err := b.exact(l, texts); err != nil {
		return err
	}
	for _, of := range []struct {
		name  string
		texts []string
	}{{"English chat", texts.chat}, {"code", texts.code}} {
		if err := b.tokenRate(l, of.name, of.texts); err != nil {
			return err
		}
	}
	v, err := b.conversation(l, texts.chat)
	if err != nil {
		return err
	}
	if err := b.firstSight(l, slices.Concat(texts.chat, texts.code), v); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.chat(l, v)
}

// exact compares the ids of every golden text, twice: as computed, and as
// remembered.
func (b *bench) exact(l *language, texts *corpus) error {
	if len(texts.golden) == 0 {
		return nil
	}
	series, err := texts.series(l.name)
	if err != nil {
		return err
	}
	var ids []uint32
	compared := 0
	var differ []string
	for i, g := range texts.golden {
		want, ok := g.IDs[series]
		if !ok {
			continue
		}
		compared++
		for range 2 {
			if ids = l.Append(ids[:0], g.Text); !slices.Equal(ids, want) {
				differ = append(differ, fmt.Sprintf("%d (%s)", i+1, g.Cat))
				break
			}
		}
	}
	if len(differ) > 0 {
		return fmt.Errorf("%d of %d golden texts have other tokens than %s: numbers %s", len(differ), compared, series, strings.Join(differ[:min(len(differ), 10)], ", "))
	}
	return b.report(Figure{Name: l.name + ": golden texts with the same ids, all that there are", Value: float64(compared), Unit: "texts"}, nil)
}

// tokenRate measures the tokens a second of texts, on one core. The floor splits
// the same texts at spaces and looks each word up in a map: what tokenizing would
// be if every word were one token.
func (b *bench) tokenRate(l *language, name string, texts []string) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	words := map[string]uint32{}
	for _, text := range texts {
		for word := range strings.SplitSeq(text, " ") {
			words[word] = uint32(len(words))
		}
	}
	var ids []uint32
	tokens := 0
	for _, text := range texts {
		ids = l.Append(ids[:0], text)
		tokens += len(ids)
	}
	p := interleave(b.rounds,
		func() float64 {
			return float64(tokens) / b.perPass(func() {
				for _, text := range texts {
					ids = ids[:0]
					for word := range strings.SplitSeq(text, " ") {
						ids = append(ids, words[word])
					}
				}
			})
		},
		func() float64 {
			return float64(tokens) / b.perPass(func() {
				for _, text := range texts {
					ids = l.Append(ids[:0], text)
				}
			})
		})
	return b.report(p.figure(l.name+": "+name+", one core", "tokens/s"), &bound{of: "value", atLeast: true, limit: minTokens})
}

// firstSight measures tokenizers that were just loaded and remember nothing: a
// chat to keys, then once through all texts.
func (b *bench) firstSight(l *language, texts []string, v *conversation) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var rate, keys pair
	var ids []uint32
	for range min(b.rounds, loadRounds) {
		fresh, err := bpe.Load(l.json)
		if err != nil {
			return err
		}
		took, _, err := v.keys(fresh, l.cuts, false)
		if err != nil {
			return err
		}
		keys.values = append(keys.values, took)
		if fresh, err = bpe.Load(l.json); err != nil {
			return err
		}
		runtime.GC()
		tokens := 0
		pass := seconds(func() {
			for _, text := range texts {
				ids = fresh.Append(ids[:0], text)
				tokens += len(ids)
			}
		})
		rate.values = append(rate.values, float64(tokens)/pass)
	}
	if err := b.report(rate.figure(l.name+": chat and code by a tokenizer just loaded, one core", "tokens/s"), nil); err != nil {
		return err
	}
	// Once in a process's life, a page fault at a time: it explains, and is not judged.
	return b.report(keys.figure(v.name+", text to keys by a tokenizer just loaded", "us"), nil)
}

// perPass is the mean time of f in seconds, done again and again for a round.
func (b *bench) perPass(f func()) float64 {
	budget := matchTime
	if b.quick {
		budget /= 20
	}
	n := 0
	began := time.Now()
	for n == 0 || time.Since(began) < budget {
		f()
		n++
	}
	return time.Since(began).Seconds() / float64(n)
}

// errNoModel says what is missing when there is nothing to measure.
var errNoModel = errors.New("there is no tokenizer to measure; give --model DIR, a model directory with tokenizer.json as Hugging Face has it, or --data DIR with tokenizers/NAME.tokenizer.json.gz")
