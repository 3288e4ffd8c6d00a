package workload

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestPromptIsItsTokens(t *testing.T) {
	trace := &Trace{BlockTokens: 16, Seed: 3}
	for _, prompt := range []int{0, 1, 5, 6, 7, 15, 16, 17, 40, 48, 50} {
		s := &Session{Scope: 2}
		r := &Request{PromptTokens: prompt, Blocks: []Run{{0, 1}, {1 << 40, 2}}}
		tokens := trace.AppendTokens(nil, s, r)
		text := trace.AppendPrompt([]byte("x"), s, r)[1:]
		var decoded []uint32
		if err := json.Unmarshal(text, &decoded); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if len(tokens) != prompt || !slices.Equal(tokens, decoded) {
			t.Errorf("%d tokens: %v, as JSON %s", prompt, tokens, text)
		}
		for _, id := range tokens {
			if id >= VocabularySize {
				t.Errorf("token %d", id)
			}
		}
	}
}

func TestTokensFollowFromSeedScopeAndID(t *testing.T) {
	tokens := func(seed, scope, id uint64) []uint32 {
		trace := &Trace{BlockTokens: 64, Seed: seed}
		return trace.AppendTokens(nil, &Session{Scope: scope}, &Request{PromptTokens: 64, Blocks: []Run{{id, 1}}})
	}
	base := tokens(1, 2, 3)
	if !slices.Equal(base, tokens(1, 2, 3)) {
		t.Error("not deterministic")
	}
	for _, other := range [][]uint32{tokens(2, 2, 3), tokens(1, 3, 3), tokens(1, 2, 4), tokens(1, 3, 2), tokens(2, 1, 3)} {
		if slices.Equal(base, other) {
			t.Error("two blocks are alike")
		}
	}
	// A partial block is the beginning of the whole one.
	trace := &Trace{BlockTokens: 64, Seed: 1}
	part := trace.AppendTokens(nil, &Session{Scope: 2}, &Request{PromptTokens: 33, Blocks: []Run{{3, 1}}})
	if !slices.Equal(part, base[:33]) {
		t.Error("a partial block differs from the beginning of the whole one")
	}
}

func TestGeneratorIsDeterministic(t *testing.T) {
	encode := func(g Generator) string {
		text, err := json.Marshal(g.Generate())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	first := encode(Generator{Seed: 1})
	if again := encode(Generator{Seed: 1}); again != first {
		t.Error("equal seeds give different traces")
	}
	if other := encode(Generator{Seed: 2}); other == first {
		t.Error("different seeds give equal traces")
	}
}

func TestGeneratedConversationsGrow(t *testing.T) {
	trace := Generator{Seed: 1}.Generate()
	t.Log(trace)
	if n := trace.Count(); n < 1000 || n > 4000 {
		t.Errorf("%d requests by default", n)
	}
	shared := map[uint64]int{}
	for i := range trace.Sessions {
		s := &trace.Sessions[i]
		shared[s.Requests[0].Blocks[0].Start]++
		var before []uint32
		for j := range s.Requests {
			r := &s.Requests[j]
			tokens := trace.AppendTokens(nil, s, r)
			if len(tokens) != r.PromptTokens || len(tokens) <= len(before) || !slices.Equal(tokens[:len(before)], before) {
				t.Fatalf("request %d of %s does not begin with the one before", j, s.ID)
			}
			before = tokens
		}
	}
	if len(shared) != 6 {
		t.Errorf("%d system prompts among %d sessions", len(shared), len(trace.Sessions))
	}
}

func TestLimitKeepsEverySession(t *testing.T) {
	trace := Generator{Seed: 1, Sessions: 50}.Generate()
	trace.Limit(60)
	if trace.Count() != 60 || len(trace.Sessions) != 50 {
		t.Errorf("%d requests in %d sessions", trace.Count(), len(trace.Sessions))
	}
}

func BenchmarkAppendPrompt(b *testing.B) {
	trace := &Trace{BlockTokens: 64, Seed: 1}
	s, r := &Session{}, &Request{PromptTokens: 126000, Blocks: []Run{{1, 1969}}}
	var buffer []byte
	b.ReportAllocs()
	for b.Loop() {
		buffer = trace.AppendPrompt(buffer[:0], s, r)
	}
	b.SetBytes(int64(len(buffer)))
}
