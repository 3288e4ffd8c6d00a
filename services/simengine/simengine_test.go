package simengine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"warmpath/engine"
	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
	"warmpath/streams/streamstest"
)

func TestCompletions(t *testing.T) {
	r := newRig(t)
	s := r.start(t, Config{})
	body := map[string]any{"model": "llama-3-8b", "prompt": ids(0, 100), "max_tokens": 20, "ignore_eos": true}
	cold := s.post(t, "/v1/completions", "a", body)
	wantStatus(t, cold, http.StatusOK)
	if cold.id != "cmpl-a" || len(cold.text) != 20 || cold.reason != "length" {
		t.Errorf("answer %+v", cold)
	}
	if want := (usage{PromptTokens: 100, CompletionTokens: 20, TotalTokens: 120}); cold.usage == nil || *cold.usage != want {
		t.Errorf("usage %+v, want %+v", cold.usage, want)
	}
	if cold.timing != nil {
		t.Error("model times from a wall clock")
	}

	body["stream"] = true
	body["stream_options"] = map[string]any{"include_usage": true}
	warm := s.post(t, "/v1/completions", "a", body)
	wantStatus(t, warm, http.StatusOK)
	if warm.text != cold.text || warm.deltas != 20 || warm.reason != "length" || !warm.done {
		t.Errorf("streamed %+v, want the text %q", warm, cold.text)
	}
	if warm.usage == nil || warm.usage.PromptTokensDetails.CachedTokens != 96 {
		t.Errorf("usage %+v, want 96 cached tokens", warm.usage)
	}

	delete(body, "stream_options")
	if again := s.post(t, "/v1/completions", "b", body); again.usage != nil || !again.done || again.text == cold.text {
		t.Errorf("another request, without usage: %+v", again)
	}
	body["cache_salt"] = "tenant"
	delete(body, "stream")
	if other := s.post(t, "/v1/completions", "c", body); other.usage.PromptTokensDetails.CachedTokens != 0 {
		t.Errorf("another tenant's blocks were used: %+v", other.usage)
	}
	r.checkFold(t, s)
}

func TestChatReusesItsOwnAnswers(t *testing.T) {
	r := newRig(t)
	s := r.start(t, Config{})
	messages := []map[string]any{{"role": "system", "content": prompt(300)}, {"role": "user", "content": "first question"}}
	first := s.post(t, "/v1/chat/completions", "a", map[string]any{"messages": messages, "max_completion_tokens": 64, "ignore_eos": true})
	wantStatus(t, first, http.StatusOK)
	if first.id != "chatcmpl-a" || len(first.text) != 64 {
		t.Fatalf("answer %+v", first)
	}
	messages = append(messages, map[string]any{"role": "assistant", "content": first.text}, map[string]any{"role": "user", "content": "second question"})
	second := s.post(t, "/v1/chat/completions", "b", map[string]any{
		"messages": messages, "max_completion_tokens": 8, "stream": true, "stream_options": map[string]any{"include_usage": true},
	})
	wantStatus(t, second, http.StatusOK)
	// Everything but the last generated token was computed, prompt and answer.
	want := (first.usage.TotalTokens - 1) / 16 * 16
	if second.usage == nil || second.usage.PromptTokensDetails.CachedTokens != want || second.deltas != 8 {
		t.Errorf("second turn %+v %+v, want %d cached tokens", second, second.usage, want)
	}
}

func TestEndOfOutput(t *testing.T) {
	s := newRig(t).start(t, Config{})
	ask := func(id string, body map[string]any) result {
		t.Helper()
		body["prompt"] = "hello"
		a := s.post(t, "/v1/completions", id, body)
		wantStatus(t, a, http.StatusOK)
		return a
	}
	if a := ask("a", map[string]any{}); a.usage.CompletionTokens != 16 {
		t.Errorf("default length %+v", a.usage)
	}
	long := ask("a", map[string]any{"max_tokens": 600})
	if long.reason != "stop" || long.usage.CompletionTokens >= 512 {
		t.Errorf("natural end %q %+v", long.reason, long.usage)
	}
	if a := ask("a", map[string]any{"max_tokens": 600, "min_tokens": 550}); a.reason != "stop" || a.usage.CompletionTokens != 550 {
		t.Errorf("min_tokens %q %+v", a.reason, a.usage)
	}
	if a := ask("a", map[string]any{"max_tokens": 600, "ignore_eos": true}); a.reason != "length" || a.usage.CompletionTokens != 600 {
		t.Errorf("ignore_eos %q %+v", a.reason, a.usage)
	}
	word := strings.Fields(long.text)[1]
	stopped := ask("a", map[string]any{"max_tokens": 600, "stop": []string{"§", word}})
	if before, _, _ := strings.Cut(long.text, word); stopped.text != before || stopped.reason != "stop" || stopped.usage.CompletionTokens != len(before)+len(word) {
		t.Errorf("stop at %q in %q gave %+v", word, long.text, stopped)
	}
	same := map[string]any{"temperature": 0, "max_tokens": 40}
	if a, b := ask("x", same), ask("y", same); a.text != b.text {
		t.Errorf("at temperature 0 %q and %q", a.text, b.text)
	}
}

func TestFaultsNameTheField(t *testing.T) {
	s := newRig(t).start(t, Config{Blocks: 100, MaxBodyBytes: 100_000})
	for _, c := range []struct {
		body   string
		status int
		param  string
	}{
		{`{"prompt":"x","n":2}`, 400, "n"},
		{`{"prompt":"x","best_of":2}`, 400, "best_of"},
		{`{"prompt":"x","echo":true}`, 400, "echo"},
		{`{"prompt":"x","logprobs":1}`, 400, "logprobs"},
		{`{"prompt":"x","min_tokens":-1}`, 400, "min_tokens"},
		{`{"prompt":"x","min_tokens":9,"max_tokens":8}`, 400, "min_tokens"},
		{`{"prompt":"x","max_tokens":0}`, 400, "max_tokens"},
		{`{"prompt":"x","max_tokens":1600}`, 400, "max_tokens"},
		{`{"prompt":"x","max_tokens":"8"}`, 400, "max_tokens"},
		{`{"prompt":"x","ignore_eos":3}`, 400, "ignore_eos"},
		{`{"prompt":"x","temperature":3}`, 400, "temperature"},
		{`{"prompt":[1,"a"]}`, 400, "prompt"},
		{`{"prompt":[]}`, 400, "prompt"},
		{`{"prompt":["a","b"]}`, 400, "prompt"},
		{`{"prompt":"` + strings.Repeat("x", 1600) + `"}`, 400, "prompt"},
		{`{"max_tokens":1}`, 400, "prompt"},
		{`{"prompt":"x"`, 400, ""},
		{`{"prompt":"x","model":"gpt"}`, 404, "model"},
		{`{"prompt":"` + strings.Repeat("x", 100_000) + `"}`, 413, ""},
	} {
		a := s.postRaw(t, "/v1/completions", "a", []byte(c.body))
		if a.status != c.status || a.failure.Param != c.param || a.failure.Message == "" || a.failure.Type != "invalid_request_error" {
			t.Errorf("%.60s: status %d %+v, want %d naming %q", c.body, a.status, a.failure, c.status, c.param)
		}
	}
	a := s.postRaw(t, "/v1/chat/completions", "a", []byte(`{"messages":[{"content":"x"}]}`))
	if a.status != 400 || a.failure.Param != "messages[0].role" {
		t.Errorf("chat fault %+v", a)
	}
	if s.open() != 0 {
		t.Errorf("%d refused requests are in the engine", s.open())
	}
}

func TestStreamGivesTheCache(t *testing.T) {
	r := newRig(t)
	s := r.start(t, Config{Blocks: 120, MaxBatch: 8, PrefillBudget: 300, Clock: NewWallClock(1000)})
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 1))
			for i := range 25 {
				body := map[string]any{
					"prompt": ids(rng.IntN(4)*200, 50+rng.IntN(600)), "max_tokens": 1 + rng.IntN(60), "ignore_eos": true, "stream": i%2 == 0,
				}
				if a := s.post(t, "/v1/completions", fmt.Sprintf("%d-%d", c, i), body); a.status != http.StatusOK {
					t.Errorf("status %d: %+v", a.status, a.failure)
				}
			}
		})
	}
	clients.Wait()
	f := r.checkFold(t, s)
	s.mu.Lock()
	stats := s.engine.Stats()
	s.mu.Unlock()
	if stats.EvictedBlocks == 0 || stats.CachedTokens == 0 || f.epochs != 1 {
		t.Errorf("traffic was too light: %+v, %d epochs", stats, f.epochs)
	}
}

func TestDisconnectAborts(t *testing.T) {
	r := newRig(t)
	s := r.start(t, Config{Clock: NewWallClock(1), MaxBatch: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	for i, stream := range []bool{true, false} { // one runs, the other waits behind it
		body, _ := json.Marshal(map[string]any{"prompt": ids(i, 200), "max_tokens": 100_000, "ignore_eos": true, "stream": stream})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Address()+"/v1/completions", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			resp, err := s.client.Do(req)
			if err == nil {
				<-ctx.Done()
				resp.Body.Close()
			}
		})
		streamstest.Until(t, func() bool { return s.open() == i+1 })
	}
	if load := s.now(); load.Running+load.Waiting != 2 {
		t.Errorf("load %+v", load)
	}
	cancel()
	clients.Wait()
	streamstest.Until(t, func() bool { return s.open() == 0 && s.now() == (engine.Load{}) })
	r.checkFold(t, s)
}

// now is the engine's load.
func (r *replica) now() engine.Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engine.Load()
}

func TestRestartIsANewEpoch(t *testing.T) {
	r := newRig(t)
	body := map[string]any{"prompt": ids(0, 100), "max_tokens": 4}
	s := r.start(t, Config{})
	s.post(t, "/v1/completions", "a", body)
	before := r.checkFold(t, s)
	if before.epochs != 1 || len(before.keys) == 0 {
		t.Fatalf("first life: %+v", before)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = r.start(t, Config{})
	if after := r.checkFold(t, s); after.epochs != 2 || len(after.keys) != 0 {
		t.Errorf("second life begins with %d epochs, %d blocks", after.epochs, len(after.keys))
	}
	if a := s.post(t, "/v1/completions", "a", body); a.usage.PromptTokensDetails.CachedTokens != 0 {
		t.Errorf("the cache survived: %+v", a.usage)
	}
	r.checkFold(t, s)
}

func TestGapTellsTheCacheAgain(t *testing.T) {
	r := newRig(t)
	s := r.start(t, Config{Blocks: 200})
	for i := range 6 {
		s.post(t, "/v1/completions", strconv.Itoa(i), map[string]any{"prompt": ids(i*30, 400), "max_tokens": 40, "ignore_eos": true})
	}
	before := r.checkFold(t, s)
	lost := streams.Message{ID: streams.KVID(s.cfg.Replica, before.epoch, before.seq)}
	s.out.gap(lost, lost)
	streamstest.Until(t, func() bool { return !bytes.Equal(s.out.current(), before.epoch) })
	after := r.checkFold(t, s)
	if after.epochs != 2 || len(after.keys) != len(before.keys) {
		t.Errorf("after the gap %d epochs, %d blocks; before %d blocks", after.epochs, len(after.keys), len(before.keys))
	}
	s.out.gap(lost, lost) // of the old epoch: no news
	s.post(t, "/v1/completions", "z", map[string]any{"prompt": ids(500, 400), "max_tokens": 40})
	if last := r.checkFold(t, s); last.epochs != 2 {
		t.Errorf("a late report of an old gap started epoch %d", last.epochs)
	}
}

func TestFullQueueTellsTheCacheAgain(t *testing.T) {
	o := newOutbox(pool, "e", 16)
	first := o.current()
	chain := blockkey.Chain(nil, 1, ids(0, 16), 1)
	for range maxBatches + 10 {
		o.push([]*pb.KVEvent{{Event: &pb.KVEvent_Store{Store: &pb.KVStore{Tier: pb.Tier_TIER_GPU, Keys: chain}}}})
	}
	if _, broken := o.take(); broken != epochOverflow {
		t.Fatalf("broken %q", broken)
	}
	if o.dropped[epochOverflow] != 11 { // the first batch is the clear
		t.Errorf("dropped %v", o.dropped)
	}
	o.renew(epochOverflow, nil)
	batch, broken := o.take()
	if broken != "" || batch.GetSeq() != 1 || bytes.Compare(batch.GetEpoch(), first) <= 0 || batch.GetEvents()[0].GetClear() == nil {
		t.Errorf("after the overflow %v %q", batch, broken)
	}
}

func TestFleetAndLoad(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var entries []*pb.FleetEntry // nil for a deletion
	var reports []*pb.LoadReport
	var watching sync.WaitGroup
	watching.Go(func() {
		err := streams.WatchFleet(ctx, r.js, pool, func(entry *pb.FleetEntry, _ string) {
			mu.Lock()
			defer mu.Unlock()
			entries = append(entries, entry)
		})
		if ctx.Err() == nil {
			t.Error(err)
		}
	})
	watching.Go(func() {
		err := streams.FollowLoad(ctx, r.nc, r.js, pool, func(report *pb.LoadReport) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, report)
		})
		if ctx.Err() == nil {
			t.Error(err)
		}
	})
	s := r.start(t, Config{Replica: "e0.dp1", Clock: NewWallClock(1)})
	seen := func(ok func() bool) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return ok()
		}
	}
	streamstest.Until(t, seen(func() bool { return len(entries) > 0 && len(reports) > 0 }))
	mu.Lock()
	e := entries[0]
	mu.Unlock()
	if e.GetReplica() != "e0.dp1" || e.GetAddress() != s.Address() || e.GetDraining() || !e.GetKvEvents() || e.GetBlockTokens() != 16 ||
		!bytes.Equal(e.GetEpoch(), s.out.current()) || e.GetClock() != pb.Clock_CLOCK_WALL || e.GetPrefillTokensPerSecond() != 125_000 {
		t.Errorf("entry %v", e)
	}
	var client sync.WaitGroup
	client.Go(func() {
		if a := s.post(t, "/v1/completions", "a", map[string]any{"prompt": ids(0, 100), "max_tokens": 120, "ignore_eos": true}); a.status != http.StatusOK {
			t.Errorf("a request that was there before the stop: %+v", a)
		}
	})
	streamstest.Until(t, seen(func() bool {
		last := reports[len(reports)-1]
		return last.GetRunning() == 1 && last.GetKvUsed() > 0 && last.QueuedPrefillTokens != nil
	}))
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	client.Wait()
	streamstest.Until(t, seen(func() bool { return entries[len(entries)-1] == nil }))
	mu.Lock()
	if n := len(entries); n < 3 || !entries[n-2].GetDraining() {
		t.Errorf("entries at the end: %v", entries)
	}
	mu.Unlock()
	cancel()
	watching.Wait()
}

func TestOperations(t *testing.T) {
	r := newRig(t)
	s := r.start(t, Config{Blocks: 300})
	s.post(t, "/v1/completions", "a", map[string]any{"prompt": ids(0, 100), "max_tokens": 4})
	s.post(t, "/v1/completions", "b", map[string]any{"prompt": ids(0, 100), "max_tokens": 4})
	text := r.get(t, s.Address()+"/metrics")
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="llama-3-8b"} 0`,
		`vllm:num_requests_waiting{engine="0",model_name="llama-3-8b"} 0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="llama-3-8b"} 0`,
		`vllm:prefix_cache_queries_total{engine="0",model_name="llama-3-8b"} 200`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="llama-3-8b"} 96`,
		`vllm:prompt_tokens_total{engine="0",model_name="llama-3-8b"} 200`,
		`vllm:generation_tokens_total{engine="0",model_name="llama-3-8b"} 8`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="llama-3-8b"} 2`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="llama-3-8b"} 2`,
		`vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",model_name="llama-3-8b",num_gpu_blocks="300"} 1`,
		`warmpath_simengine_epochs_total{pool="p",reason="start",replica="e0"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if got := r.get(t, s.Address()+"/v1/models"); !strings.Contains(got, `"id":"llama-3-8b"`) {
		t.Errorf("models %s", got)
	}
	if got := r.get(t, s.Address()+"/health"); got != "ok\n" {
		t.Errorf("health %q", got)
	}
}
