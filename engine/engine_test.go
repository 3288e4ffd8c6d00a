package engine

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
)

// lookup returns rates that the test relies on.
func lookup(t testing.TB, model, gpu string) Rates {
	t.Helper()
	r, err := Lookup(model, gpu)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newEngine(t testing.TB, cfg Config) *Engine {
	t.Helper()
	if cfg.Rates.Flops == 0 {
		cfg.Rates = lookup(t, "llama-3-70b", "h100")
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// tokens are n distinguishable tokens.
func tokens(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

func request70b(e *Engine, id string, prompt []uint32, output int) Request {
	return Request{ID: id, Prompt: NewPrompt(1, prompt, e.Config().BlockTokens), OutputTokens: output, Seed: TextSeed(0, id)}
}

// drain runs the engine until it has nothing to do.
func drain(t testing.TB, e *Engine) []Output {
	t.Helper()
	var outputs []Output
	for range 1_000_000 {
		at, ok := e.Next()
		if !ok {
			return outputs
		}
		outputs = append(outputs, e.Advance(at)...)
	}
	t.Fatal("the engine never became idle")
	return nil
}

// within fails unless got is want within a share.
func within(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s is %.4g, want %.4g within %.0f%%", what, got, want, share*100)
	}
}

func TestFiguresOfTheBrief(t *testing.T) {
	r := lookup(t, "llama-3-70b", "h100")
	within(t, "cold TFLOP", r.Flop(6200)/1e12, 870, 0.01)
	within(t, "prefill tokens/s", r.PrefillTokensPerSecond(), 14300, 0.01)
	within(t, "560 TFLOP of 4000 tokens", r.Flop(4000)/1e12, 560, 0.01)
	within(t, "280 ms of 4000 tokens", r.StepTime(4000, 4000).Seconds()*1e3, 280, 0.01)
	within(t, "112 ms of 1600 tokens", r.StepTime(1600, 4000).Seconds()*1e3, 112, 0.02)

	// Turn 8 of a conversation: 6,200 tokens cold, then the same with 300 new ones.
	// Blocks of 100 tokens make the brief's 5,900 a whole number of blocks.
	e := newEngine(t, Config{BlockTokens: 100, Blocks: 200})
	history := tokens(0, 5900)
	cold := append(append([]uint32(nil), history...), tokens(100_000, 300)...)
	if err := e.Submit(0, request70b(e, "cold", cold, 1)); err != nil {
		t.Fatal(err)
	}
	out := drain(t, e)
	within(t, "cold TTFT ms", (out[0].FirstAt-out[0].Submitted).Seconds()*1e3, 450, 0.04)
	warm := append(append([]uint32(nil), history...), tokens(200_000, 300)...)
	if err := e.Submit(time.Second, request70b(e, "warm", warm, 1)); err != nil {
		t.Fatal(err)
	}
	out = drain(t, e)
	if out[0].CachedTokens != 5900 {
		t.Fatalf("cached %d tokens, want 5900", out[0].CachedTokens)
	}
	within(t, "warm TTFT ms", (out[0].FirstAt-out[0].Submitted).Seconds()*1e3, 22, 0.04)
}

func TestLookupErrorsNameTheRemedy(t *testing.T) {
	for _, c := range [][3]string{
		{"gpt-9", "h100", `model "gpt-9" is not in the table; choose one of llama-3-405b, llama-3-70b, llama-3-8b`},
		{"llama-3-8b", "tpu", `gpu "tpu" is not in the table; choose one of a100, h100, h200, l40s, or several as in 4xh100`},
		{"llama-3-405b", "h100", `model "llama-3-405b" does not fit on gpu "h100"; use 6xh100 or more`},
	} {
		if _, err := Lookup(c[0], c[1]); err == nil || err.Error() != c[2] {
			t.Errorf("Lookup(%s, %s) = %v, want %s", c[0], c[1], err, c[2])
		}
	}
	lookup(t, "llama-3-405b", "6xh100")
	for model := range models {
		for gpu := range devices {
			if r := lookup(t, model, "16x"+gpu); r.Blocks(16) < 1000 {
				t.Errorf("%s on 16x%s has %d blocks", model, gpu, r.Blocks(16))
			}
		}
	}
}

func TestSumOfStepsIsExact(t *testing.T) {
	for _, gpu := range []string{"h100", "a100"} {
		c := lookup(t, "llama-3-70b", gpu).costs()
		for _, batch := range []int{1, 3, 256, 20_000} {
			for _, context := range []int64{0, 1000, 3_000_000} {
				var sum picos
				for n := range 300 {
					if got := c.steps(n, batch, context); got != sum {
						t.Fatalf("%s: %d steps of %d tokens at context %d take %d ps, one by one %d", gpu, n, batch, context, got, sum)
					}
					sum += c.step(batch, context+int64(n*batch))
				}
			}
		}
	}
}

func TestFullyCachedPromptComputesItsLastBlock(t *testing.T) {
	e := newEngine(t, Config{BlockTokens: 4, Blocks: 100})
	for i, want := range []int{0, 12, 12} {
		if err := e.Submit(e.now, request70b(e, fmt.Sprint(i), tokens(0, 16), 1)); err != nil {
			t.Fatal(err)
		}
		if got := drain(t, e)[0].CachedTokens; got != want {
			t.Errorf("request %d: cached %d tokens, want %d", i, got, want)
		}
	}
}

func TestGeneratedTokensAreReused(t *testing.T) {
	e := newEngine(t, Config{BlockTokens: 4, Blocks: 100})
	if err := e.Submit(0, request70b(e, "a", tokens(0, 6), 11)); err != nil {
		t.Fatal(err)
	}
	drain(t, e)
	history := tokens(0, 6)
	text := NewText(TextSeed(0, "a"))
	for range 11 {
		history = append(history, uint32(text.Next()))
	}
	// 17 tokens, of which the last was never computed: 4 blocks.
	if err := e.Submit(e.now, request70b(e, "b", append(history, 1, 2, 3), 1)); err != nil {
		t.Fatal(err)
	}
	if got := drain(t, e)[0].CachedTokens; got != 16 {
		t.Errorf("cached %d tokens of the conversation, want 16", got)
	}
}

func TestSameInstantSharesTheFirstStep(t *testing.T) {
	e := newEngine(t, Config{BlockTokens: 4, Blocks: 100})
	for i := range 3 {
		if err := e.Submit(time.Second, request70b(e, fmt.Sprint(i), tokens(0, 16), 2)); err != nil {
			t.Fatal(err)
		}
	}
	outputs := drain(t, e)
	// The first computes 16 tokens; the others find its blocks in the same step.
	for i, want := range []int{0, 12, 12} {
		if outputs[i].CachedTokens != want || outputs[i].FirstAt != outputs[0].FirstAt {
			t.Errorf("request %d: cached %d at %s, want %d at %s", i, outputs[i].CachedTokens, outputs[i].FirstAt, want, outputs[0].FirstAt)
		}
	}
}

func TestRefusals(t *testing.T) {
	e := newEngine(t, Config{BlockTokens: 4, Blocks: 4, MaxWaiting: 1})
	try := func(q Request, want error) {
		t.Helper()
		if err := e.Submit(0, q); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	try(request70b(e, "", tokens(0, 4), 1), ErrInvalid)
	try(request70b(e, "a", nil, 1), ErrInvalid)
	try(request70b(e, "a", tokens(0, 4), 0), ErrInvalid)
	try(Request{ID: "a", Prompt: NewPrompt(1, tokens(0, 4), 2), OutputTokens: 1}, ErrInvalid)
	try(request70b(e, "a", tokens(0, 14), 4), ErrTooLarge)
	try(request70b(e, "a", tokens(0, 14), 3), nil)
	try(request70b(e, "a", tokens(0, 4), 1), ErrDuplicate)
	try(request70b(e, "b", tokens(0, 4), 1), ErrOverloaded)
	if out := drain(t, e); len(out) != 2 || !out[1].Finished || out[1].Tokens != 3 {
		t.Errorf("a request that fits exactly gave %+v", out)
	}
}

func TestAbortFreesBlocks(t *testing.T) {
	e := newEngine(t, Config{BlockTokens: 4, Blocks: 10, MaxBatch: 1})
	for _, id := range []string{"runs", "waits"} {
		if err := e.Submit(0, request70b(e, id, tokens(0, 12), 20)); err != nil {
			t.Fatal(err)
		}
	}
	e.Advance(time.Second / 10)
	if l := e.Load(); l.Running != 1 || l.Waiting != 1 || l.KVUsed == 0 {
		t.Fatalf("load %+v", l)
	}
	for _, id := range []string{"waits", "runs"} {
		if !e.Abort(time.Second/10, id) {
			t.Errorf("%s is not there", id)
		}
	}
	if e.Abort(time.Second/10, "runs") {
		t.Error("aborted twice")
	}
	if out := drain(t, e); len(out) != 0 {
		t.Errorf("outputs after the abort: %+v", out)
	}
	if l := e.Load(); l != (Load{}) {
		t.Errorf("load after the abort: %+v", l)
	}
	if e.cache.available() != 10 {
		t.Errorf("%d of 10 blocks are available", e.cache.available())
	}
}

func TestEvictionTakesLeavesFirst(t *testing.T) {
	e := newEngine(t, Config{BlockTokens: 4, Blocks: 6})
	run := func(id string, prompt []uint32) {
		if err := e.Submit(e.now, request70b(e, id, prompt, 1)); err != nil {
			t.Fatal(err)
		}
		drain(t, e)
	}
	a := blockkey.Chain(nil, 1, tokens(0, 16), 4)
	run("a", tokens(0, 16))
	run("b", tokens(100, 8))
	e.Changes()
	run("c", tokens(200, 12))
	var evicted []blockkey.Key
	for _, c := range e.Changes() {
		for _, event := range c.Events {
			evicted = append(evicted, event.GetRemove().GetKeys()...)
			if r := event.GetRemove(); r != nil && r.GetReason() != pb.KVRemoveReason_KV_REMOVE_REASON_EVICTED {
				t.Errorf("reason %s", r.GetReason())
			}
		}
	}
	want := []blockkey.Key{a[3], a[2], a[1]}
	if fmt.Sprint(evicted) != fmt.Sprint(want) {
		t.Errorf("evicted %v, want %v", evicted, want)
	}
}

// BenchmarkSteps reports what an engine step costs: conversations of 2,000 new
// tokens and 200 generated ones, eight at a time, on an H100.
func BenchmarkSteps(b *testing.B) {
	e := newEngine(b, Config{BlockTokens: 64, Blocks: 4000, Rates: lookup(b, "llama-3-8b", "h100")})
	prompt := tokens(0, 4000)
	next := 0
	submit := func() {
		prompt[2000] = uint32(next)
		if err := e.Submit(e.now, request70b(e, fmt.Sprint(next), prompt, 200)); err != nil {
			b.Fatal(err)
		}
		next++
	}
	for range 8 {
		submit()
	}
	b.ReportAllocs()
	for b.Loop() {
		at, _ := e.Next()
		for _, out := range e.Advance(at) {
			if out.Finished {
				submit()
			}
		}
		e.Changes()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(e.Stats().Steps), "ns/step")
}

// BenchmarkLargeBatch is 64 requests at once in blocks of 16 tokens, where
// hardly any step can be leapt over.
func BenchmarkLargeBatch(b *testing.B) {
	e := newEngine(b, Config{Blocks: 40_000, Rates: lookup(b, "llama-3-8b", "h100")})
	prompt := tokens(0, 4000)
	next := 0
	submit := func() {
		prompt[2000] = uint32(next)
		if err := e.Submit(e.now, request70b(e, fmt.Sprint(next), prompt, 343)); err != nil {
			b.Fatal(err)
		}
		next++
	}
	for range 64 {
		submit()
	}
	b.ReportAllocs()
	for b.Loop() {
		at, _ := e.Next()
		for _, out := range e.Advance(at) {
			if out.Finished {
				submit()
			}
		}
		e.Changes()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(e.Stats().Steps), "ns/step")
}
