package keycache_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"warmpath/routing/blockkey"
	"warmpath/tokenize/keycache"
)

func newToy(t testing.TB, maxBytes int64) *keycache.Cache {
	t.Helper()
	cuts, err := keycache.ReadCuts([]byte(toyJSON))
	if err != nil {
		t.Fatal(err)
	}
	if !cuts.Lines || len(cuts.Tokens) != len(toyTokens) {
		t.Fatalf("cuts %+v", cuts)
	}
	c, err := keycache.New(toy{}, keycache.Config{Cuts: cuts, MaxBytes: maxBytes})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// direct is the prompt without a cache.
func direct(tok keycache.Tokenizer, p keycache.Prompt) (ids []uint32, keys []blockkey.Key) {
	ids = append(tok.Append(slices.Clone(p.Before), p.Text), p.After...)
	return ids, blockkey.Chain(nil, p.Root, ids, p.BlockTokens)
}

// compare asks the cache and checks everything it says.
func compare(c *keycache.Cache, tok keycache.Tokenizer, r *keycache.Result, p keycache.Prompt) error {
	ids, keys := direct(tok, p)
	c.Keys(r, p)
	switch {
	case r.Tokens != len(ids):
		return fmt.Errorf("%d tokens, want %d, of %q", r.Tokens, len(ids), p.Text)
	case !slices.Equal(r.Keys, keys):
		return fmt.Errorf("keys differ for %q", p.Text)
	case p.IDs && !slices.Equal(r.IDs, ids):
		return fmt.Errorf("ids differ for %q", p.Text)
	case !p.IDs && len(r.IDs) > 0:
		return fmt.Errorf("ids that were not asked for")
	case r.Reused > r.Tokens:
		return fmt.Errorf("%d of %d tokens reused", r.Reused, r.Tokens)
	}
	return nil
}

// Whatever was asked before, by however many at once, and however little is
// remembered, the answer is that of the tokenizer on the whole text.
func TestKeysAreThoseOfTheWholeText(t *testing.T) {
	for _, budget := range []int64{1, 16 * 700, 16 * 20_000, 0} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			t.Parallel()
			c := newToy(t, budget)
			var wg sync.WaitGroup
			for worker := range 4 {
				wg.Go(func() {
					// Two workers each go through the same conversations.
					r := rand.New(rand.NewPCG(uint64(worker/2), 7))
					var result keycache.Result
					for range 25 {
						p := keycache.Prompt{Root: uint64(r.IntN(2)), BlockTokens: []int{0, 1, 5, 16, 64}[r.IntN(5)], IDs: r.IntN(3) == 0}
						if r.IntN(2) == 0 {
							p.Before, p.After = []uint32{7}, []uint32{8, 9}[:r.IntN(3)]
						}
						for range 1 + r.IntN(6) {
							p.Text += text(r, r.IntN(20))
							if err := compare(c, toy{}, &result, p); err != nil {
								t.Error(err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			if s := c.Stats(); s.Bytes > s.MaxBytes || s.Bytes < 0 || (s.Entries == 0) != (s.Bytes == 0) {
				t.Errorf("stats %+v", s)
			} else if budget == 1 && s.Entries != 0 || budget == 0 && s.Reused == 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func conversation(turns int) string {
	var b strings.Builder
	b.WriteString("<|im_start|>system\n" + strings.Repeat("Be helpful and follow every rule.\n", 40) + "<|im_end|>\n")
	for i := range turns {
		fmt.Fprintf(&b, "<|im_start|>user\nquestion %d: %s<|im_end|>\n<|im_start|>assistant\nanswer %d<|im_end|>\n", i, strings.Repeat("why? ", 80), i)
	}
	return b.String() + "<|im_start|>assistant\n"
}

// The next turn costs its new part and at most the part that is too short to cut.
func TestNextTurnReusesTheTurnsBefore(t *testing.T) {
	c := newToy(t, 0)
	var r keycache.Result
	prompt := func(turns int) keycache.Prompt {
		return keycache.Prompt{Text: conversation(turns), BlockTokens: 16}
	}
	c.Keys(&r, prompt(5))
	before := r.Tokens
	if r.Reused != 0 {
		t.Errorf("an empty cache reused %d tokens", r.Reused)
	}
	if err := compare(c, toy{}, &r, prompt(6)); err != nil {
		t.Fatal(err)
	}
	if r.Reused < before-200 || r.Reused == r.Tokens {
		t.Errorf("reused %d of %d tokens, %d of which were there a turn ago", r.Reused, r.Tokens, before)
	}
	// The same again, as a retry does, costs nothing.
	c.Keys(&r, prompt(6))
	if r.Reused != r.Tokens {
		t.Errorf("reused %d of %d tokens of the same prompt", r.Reused, r.Tokens)
	}
	// Another root shares no keys, and still no text is tokenized twice.
	before = c.Stats().Entries
	p := prompt(6)
	p.Root = 99
	if err := compare(c, toy{}, &r, p); err != nil {
		t.Fatal(err)
	}
	if r.Reused != 0 {
		t.Errorf("reused %d tokens of another root", r.Reused)
	}
	added := c.Stats().Entries - before
	segments := 0
	for text := range strings.SplitSeq(keycache.Segments(newToy(t, 0), p.Text), "\x00") {
		_ = text
		segments++
	}
	if added != segments {
		t.Errorf("%d new entries, want a prefix for each of %d segments and no tokens", added, segments)
	}
}

// A plain text that goes on is found again up to its last cut at a line.
func TestLongTextReusesItsLines(t *testing.T) {
	c := newToy(t, 0)
	var r keycache.Result
	p := keycache.Prompt{Text: strings.Repeat("func main() { return 42 }\n", 1000), BlockTokens: 16}
	c.Keys(&r, p)
	before := r.Tokens
	p.Text += strings.Repeat("another line at the end\n", 20)
	if err := compare(c, toy{}, &r, p); err != nil {
		t.Fatal(err)
	}
	if r.Reused < before*9/10 {
		t.Errorf("reused %d of %d tokens that were there before", r.Reused, before)
	}
}

// The least recently used goes first: a prefix in use stays while others pass.
func TestEvictionKeepsWhatIsUsed(t *testing.T) {
	c := newToy(t, 16*30_000)
	var r keycache.Result
	used := keycache.Prompt{Text: conversation(3), BlockTokens: 16}
	c.Keys(&r, used)
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		c.Keys(&r, keycache.Prompt{Text: text(random, 60), BlockTokens: 16})
		c.Keys(&r, used)
		if r.Reused < r.Tokens {
			t.Fatalf("reused %d of %d tokens of the prompt in use", r.Reused, r.Tokens)
		}
	}
	s := c.Stats()
	if s.Evictions == 0 || s.Bytes > s.MaxBytes {
		t.Errorf("stats %+v", s)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := keycache.New(toy{}, keycache.Config{MaxBytes: -1}); err == nil || !strings.Contains(err.Error(), "max bytes -1") {
		t.Errorf("got %v", err)
	}
}

func FuzzKeys(f *testing.F) {
	f.Add("<|im_start|>user\nhi<|im_end|>\n", " and more\nlines", uint8(16))
	f.Add(strings.Repeat("a line\n", 700), "x", uint8(3))
	f.Add(strings.Repeat("\n", 3000), "/", uint8(1))
	c := newToy(f, 0)
	f.Fuzz(func(t *testing.T, a, b string, block uint8) {
		a, b = a[:min(len(a), 5000)], b[:min(len(b), 300)] // the toy is slow
		var r keycache.Result
		for _, s := range []string{a, a + b, b, a + strings.Repeat(b, 20), a + b + a} {
			if err := compare(c, toy{}, &r, keycache.Prompt{Text: s, BlockTokens: int(block), IDs: len(s)%2 == 0}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A text behind a BOS token is another prompt than the text alone, though its
// segments are the same.
func TestTokensInFrontMakeAnotherPrompt(t *testing.T) {
	c := newToy(t, 0)
	var r keycache.Result
	for range 2 {
		for _, before := range [][]uint32{nil, {7}, {8}, {7, 8}} {
			if err := compare(c, toy{}, &r, keycache.Prompt{Text: conversation(2), Before: before, After: before, BlockTokens: 16}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r.Reused < r.Tokens-4 {
		t.Errorf("reused %d of %d tokens", r.Reused, r.Tokens)
	}
}
