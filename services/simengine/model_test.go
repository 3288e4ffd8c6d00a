package simengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"warmpath/engine"
	"warmpath/streams/streamstest"
	"warmpath/tokenize"
)

// TestModelTime runs the brief's conversation under a model clock: times are
// those of the modelled hardware, whatever this machine does.
func TestModelTime(t *testing.T) {
	r := newRig(t)
	clock := &stepClock{}
	var mu sync.Mutex
	var hooks []string
	hook := func(what string) func(string) {
		return func(id string) {
			mu.Lock()
			defer mu.Unlock()
			hooks = append(hooks, fmt.Sprint(what, " ", id, " at ", clock.Now().Milliseconds()))
		}
	}
	s := r.start(t, Config{
		Model: "llama-3-70b", Blocks: 200, BlockTokens: 100, Clock: clock, ModelTime: true,
		Hooks: Hooks{Accepted: hook("accepted"), Finished: hook("finished")},
	})
	ask := func(id string, prompt []uint32, stream bool) result {
		t.Helper()
		body := map[string]any{"prompt": prompt, "max_tokens": 11, "ignore_eos": true, "stream": stream}
		if stream {
			body["stream_options"] = map[string]any{"include_usage": true}
		}
		answer := make(chan result)
		go func() { answer <- s.post(t, "/v1/completions", id, body) }()
		streamstest.Until(t, func() bool { return s.open() == 1 })
		for clock.step() {
		}
		a := <-answer
		wantStatus(t, a, http.StatusOK)
		return a
	}
	prompt := ids(0, 6200)
	cold := ask("cold", prompt, true)
	if cold.timing == nil || cold.timing.Clock != "model" || cold.deltas > 2 || len(cold.text) != 11 {
		t.Fatalf("answer %+v", cold)
	}
	if ms := cold.timing.TTFTUS / 1000; ms < 432 || ms > 460 {
		t.Errorf("cold TTFT %d ms, want 450", ms)
	}
	if got := *cold.timing.TPOTUS * 10; cold.timing.E2EUS-cold.timing.TTFTUS-got > 10 || cold.timing.QueueUS != 0 {
		t.Errorf("timing %+v", cold.timing)
	}
	prompt = append(slices.Clone(prompt[:5900]), ids(7, 300)...)
	warm := ask("warm", prompt, false)
	if warm.usage.PromptTokensDetails.CachedTokens != 5900 {
		t.Fatalf("usage %+v", warm.usage)
	}
	if ms := float64(warm.timing.TTFTUS) / 1000; ms < 21 || ms > 23 {
		t.Errorf("warm TTFT %.1f ms, want 22", ms)
	}
	end := cold.timing.E2EUS / 1000
	want := []string{
		"accepted cold at 0", fmt.Sprint("finished cold at ", end),
		fmt.Sprint("accepted warm at ", end), fmt.Sprint("finished warm at ", clock.Now().Milliseconds()),
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(hooks, want) {
		t.Errorf("hooks %q, want %q", hooks, want)
	}
	if err := s.Settle(t.Context()); err != nil {
		t.Error(err)
	}
	if last := s.load.last; !s.load.any || last != s.now() {
		t.Errorf("published load %+v", last)
	}
	r.checkFold(t, s)
}

func TestWithoutIDs(t *testing.T) {
	for _, c := range [][2]string{
		{`{"prompt":[1,2,3],"n":1}`, `{"prompt":null,"n":1}`},
		{`{"user":"\"prompt\":[","x":{"prompt":[9]},"prompt" : [ [1,2] ] ,"n":1}`, `{"user":"\"prompt\":[","x":{"prompt":[9]},"prompt" :null ,"n":1}`},
		{`{"pr\u006fmpt":[1]}`, `{"pr\u006fmpt":[1]}`},
		{`{"user":"prompt","prompt":[]}`, `{"user":"prompt","prompt":null}`},
	} {
		if got := string(withoutIDs([]byte(c[0]))); got != c[1] {
			t.Errorf("%s gives %s, want %s", c[0], got, c[1])
		}
	}
}

// BenchmarkRead reads a request with a prompt of 900,000 token ids.
func BenchmarkRead(b *testing.B) {
	s := newRig(b).start(b, Config{Blocks: 100_000})
	raw, err := json.Marshal(map[string]any{"prompt": ids(0, 900_000), "max_tokens": 8})
	if err != nil {
		b.Fatal(err)
	}
	body := string(raw)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		if _, fault := s.read(nil, req, false); fault != nil {
			b.Fatal(fault)
		}
	}
}

func FuzzWithoutIDs(f *testing.F) {
	f.Add([]byte(`{"user":"\"prompt\":[","prompt" : [ [1,2] ] ,"n":1}`))
	f.Add([]byte(`{"n":1,"prompt":[1 , 2]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		scanned, err := tokenize.ScanRequest(body, nil)
		if err != nil || scanned.PromptKind != tokenize.IDPrompt {
			return
		}
		var whole, cut map[string]json.RawMessage
		if json.Unmarshal(body, &whole) != nil {
			return
		}
		if err := json.Unmarshal(withoutIDs(body), &cut); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		for name, value := range whole {
			if name != "prompt" && string(cut[name]) != string(value) {
				t.Fatalf("%q: %s became %s", body, value, cut[name])
			}
		}
	})
}

// BenchmarkSettle settles after a request was submitted: a batch and a report.
func BenchmarkSettle(b *testing.B) {
	r := newRig(b)
	clock := &stepClock{}
	s := r.start(b, Config{Clock: clock, ModelTime: true})
	next := 0
	for b.Loop() {
		b.StopTimer()
		id := fmt.Sprint(next)
		if _, err := s.submit(id, engine.Request{Prompt: engine.NewPrompt(1, ids(next, 64), 16), OutputTokens: 1 + next%2}); err != nil {
			b.Fatal(err)
		}
		next++
		clock.step()
		b.StartTimer()
		if err := s.Settle(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
