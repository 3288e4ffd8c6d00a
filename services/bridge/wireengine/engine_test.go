package wireengine

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

const patience = 30 * time.Second

func start(t *testing.T, cfg Config) *Engine {
	t.Helper()
	e, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// subscribe receives what an engine publishes, from a connection that stands.
func subscribe(t *testing.T, e *Engine) (frames chan zmq.Frame, states chan zmq.State) {
	t.Helper()
	frames, states = make(chan zmq.Frame, 1<<16), make(chan zmq.State, 1<<10)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		s := zmq.Subscription{Endpoint: e.Endpoint(), State: func(s zmq.State) { states <- s }}
		if err := zmq.Subscribe(ctx, s, func(f zmq.Frame) { frames <- f }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	connected(t, e)
	return frames, states
}

func connected(t *testing.T, e *Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.AwaitSubscribers(ctx, 1); err != nil {
		t.Fatal(err)
	}
}

func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func replayed(t *testing.T, e *Engine, from uint64) (seqs []uint64, got zmq.Replayed, err error) {
	t.Helper()
	got, err = zmq.Replay(context.Background(), e.ReplayEndpoint(), from, func(f zmq.Frame) error { seqs = append(seqs, f.Seq); return nil })
	return seqs, got, err
}

func TestFaultsOfABatch(t *testing.T) {
	e := start(t, Config{
		Cache: CacheConfig{Generation: kvevents.VLLMMap}, Topic: "kv@here", FirstSeq: 1, ReplayEndpoint: "tcp://127.0.0.1:0", Rank: 3,
	})
	frames, _ := subscribe(t, e)
	for _, fault := range []Fault{Delivered, Dropped, Lost, Twice, Delivered} {
		if _, ok := e.Change((*Cache).Compute, fault); !ok {
			t.Fatal("nothing was published")
		}
	}
	dec := kvevents.NewDecoder(kvevents.Limits{})
	for _, want := range []uint64{1, 4, 4, 5} {
		f := next(t, frames)
		b, err := dec.Decode(f.Payload)
		if f.Seq != want || string(f.Topic) != "kv@here" || err != nil || b.Rank != 3 || len(b.Events) == 0 {
			t.Errorf("sequence %d, want %d: %+v, %v", f.Seq, want, b, err)
		}
	}
	if seqs, got, err := replayed(t, e, 2); err != nil || !slices.Equal(seqs, []uint64{2, 4, 5}) || got.Missing != 1 || !got.Complete {
		t.Errorf("replay: %v, %+v, %v", seqs, got, err)
	}
}

func TestReplayBufferAndFraming(t *testing.T) {
	for _, g := range []kvevents.Generation{kvevents.VLLMRank, kvevents.VLLMMap, kvevents.SGLangMap, kvevents.TRTLLMMap, kvevents.SimulatorArray} {
		e := start(t, Config{Cache: CacheConfig{Generation: g}, Topic: "t", ReplayEndpoint: "tcp://127.0.0.1:0", Buffer: 10})
		for range 25 {
			e.Publish(nil, Delivered)
		}
		withTopic := 0
		got, err := zmq.Replay(context.Background(), e.ReplayEndpoint(), 3, func(f zmq.Frame) error {
			if string(f.Topic) == "t" {
				withTopic++
			}
			return nil
		})
		if err != nil || got.First != 15 || got.Last != 24 || got.Count != 10 {
			t.Errorf("%v: %+v, %v", g, got, err)
		}
		if old := g == kvevents.VLLMRank || g == kvevents.SGLangMap; (withTopic == 0) != old {
			t.Errorf("%v: %d replies had a topic", g, withTopic)
		}
		e.Shorten(2)
		if seqs, _, err := replayed(t, e, 3); err != nil || !slices.Equal(seqs, []uint64{23, 24}) {
			t.Errorf("%v, shortened: %v, %v", g, seqs, err)
		}
		for range 3 {
			e.Publish(nil, Delivered)
		}
		e.DropReplies(4)
		if seqs, got, err := replayed(t, e, 20); err != nil || !slices.Equal(seqs, []uint64{23, 24, 25, 26, 27}) || got.Asked < 2 {
			t.Errorf("%v, with drops: %v, %+v, %v", g, seqs, got, err)
		}
		e.DropReplies(0)
		e.Mute(true)
		mute := zmq.Replaying{Endpoint: e.ReplayEndpoint(), Quiet: 50 * time.Millisecond}
		if _, err := mute.Do(context.Background(), func(zmq.Frame) error { return nil }); err == nil {
			t.Errorf("%v: a mute replay socket answered", g)
		}
	}
}

func TestRestartBeginsAnew(t *testing.T) {
	e := start(t, Config{ReplayEndpoint: "tcp://127.0.0.1:0"})
	frames, states := subscribe(t, e)
	for range 3 {
		e.Change((*Cache).Compute, Delivered)
		next(t, frames)
	}
	before, _ := e.Truth(model, 16)
	e.Restart()
	if after, _ := e.Truth(model, 16); len(before) == 0 || len(after) != 0 {
		t.Errorf("held %d before and %d after", len(before), len(after))
	}
	if seq, lives := e.Next(); seq != 0 || lives != 2 {
		t.Errorf("next is %d in life %d", seq, lives)
	}
	for want := range []zmq.Change{zmq.Connected, zmq.Disconnected, zmq.Connected} {
		for st := next(t, states); st.Change != []zmq.Change{zmq.Connected, zmq.Disconnected, zmq.Connected}[want]; st = next(t, states) {
			if st.Change != zmq.Failed {
				t.Fatalf("got %+v", st)
			}
		}
	}
	connected(t, e)
	e.Change((*Cache).Compute, Delivered)
	if f := next(t, frames); f.Seq != 0 {
		t.Errorf("got sequence %d", f.Seq)
	}
	if seqs, _, err := replayed(t, e, 0); err != nil || !slices.Equal(seqs, []uint64{0}) {
		t.Errorf("replay: %v, %v", seqs, err)
	}
}

func TestDialsAListeningBridge(t *testing.T) {
	frames, at := make(chan zmq.Frame, 100), make(chan string, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		s := zmq.Subscription{Endpoint: "tcp://127.0.0.1:0", Listen: true, State: func(s zmq.State) {
			if s.Change == zmq.Listening {
				at <- s.Addr
			}
		}}
		done <- zmq.Subscribe(ctx, s, func(f zmq.Frame) { frames <- f })
	}()
	e := start(t, Config{Endpoint: next(t, at), Dial: true, FirstSeq: 1, Topic: "kv@10.0.0.1:5557@m", Cache: CacheConfig{Generation: kvevents.SimulatorArray}})
	for range 2 {
		connected(t, e)
		e.Change((*Cache).Compute, Delivered)
		if f := next(t, frames); f.Seq != 1 {
			t.Errorf("got sequence %d", f.Seq)
		}
		e.Restart()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRanksFollowEachOther(t *testing.T) {
	ranks, err := StartRanks(Config{ReplayEndpoint: "tcp://127.0.0.1:0"}, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range ranks {
		defer e.Close()
		events, _ := zmq.AtRank(ranks[0].Endpoint(), i)
		replay, _ := zmq.AtRank(ranks[0].ReplayEndpoint(), i)
		if e.Endpoint() != events || e.ReplayEndpoint() != replay || e.cfg.Rank != i {
			t.Errorf("rank %d is at %s and %s", i, e.Endpoint(), e.ReplayEndpoint())
		}
	}
}

// TestChaosIsTold checks that a listener that gets every batch of a life, by
// subscription or replay, ends with the truth.
func TestChaosIsTold(t *testing.T) {
	e := start(t, Config{
		Cache:          CacheConfig{Generation: kvevents.VLLMMap, Seed: 7, Capacity: 300, Salts: []string{"a"}},
		ReplayEndpoint: "tcp://127.0.0.1:0",
	})
	odds := Odds{Dropped: 100, Twice: 100, Clears: 20, Restarts: 20, HangUps: 20}
	c := NewChaos(e, odds, 7)
	for range 2000 {
		c.Step()
	}
	if did := c.Did(); did.Batches != 2000 || did.Dropped == 0 || did.Twice == 0 || did.Restarts == 0 || did.HangUps == 0 {
		t.Errorf("did %+v", did)
	}
	l, dec := newListener(t, e.cache), kvevents.NewDecoder(kvevents.Limits{})
	got, err := zmq.Replay(context.Background(), e.ReplayEndpoint(), 0, func(f zmq.Frame) error {
		b, err := dec.Decode(f.Payload)
		if err == nil {
			l.take(b.Events)
		}
		return err
	})
	if seq, _ := e.Next(); err != nil || got.Last+1 != seq || got.First != 0 || got.Missing != 0 {
		t.Fatalf("got %+v, %v; the next is %d", got, err, seq)
	}
	truth, err := e.Truth(model, 16)
	if err != nil || len(truth) == 0 || len(truth) != len(l.holds(16)) {
		t.Errorf("holds %d, believed %d, %v", len(truth), len(l.holds(16)), err)
	}
}

func TestPullHasHoles(t *testing.T) {
	e := start(t, Config{Cache: CacheConfig{Pull: true}})
	e.Change((*Cache).Compute, Delivered)
	e.Change((*Cache).Compute, Lost)
	e.Change((*Cache).Compute, Delivered)
	body, err := Pull(e)
	if err != nil {
		t.Fatal(err)
	}
	events, err := kvevents.DecodePull(body)
	if err != nil || len(events) < 3 || events[0].Created == nil {
		t.Fatalf("%+v, %v", events, err)
	}
	holes := 0
	for i := 1; i < len(events); i++ {
		if events[i].ID != events[i-1].ID+1 {
			holes++
		}
	}
	if holes != 1 {
		t.Errorf("%d holes in %s", holes, body)
	}
	if body, err = Pull(e); err != nil || string(body) != "[]" {
		t.Errorf("a second time: %s, %v", body, err)
	}
}

func TestLoadSocket(t *testing.T) {
	s, err := NewLoadSocket("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	frames := make(chan zmq.Frame, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- zmq.Subscribe(ctx, zmq.Subscription{Endpoint: s.Endpoint(), Topic: "load"}, func(f zmq.Frame) { frames <- f })
	}()
	if err := s.AwaitSubscribers(ctx, 1); err != nil {
		t.Fatal(err)
	}
	want := kvevents.LoadStat{Running: 3, Waiting: 1, Tokens: 70000, MaxTokens: 200000, Rank: 2, QueuedTokens: -1}
	s.Publish(want)
	if got, err := kvevents.DecodeLoad(next(t, frames).Payload); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func ask(t *testing.T, a *API, method, path, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func TestCompletionsTellWhatWasCached(t *testing.T) {
	prompt := `{"model":"m","prompt":"` + strings.Repeat("x", 40) + `"}`
	for name, c := range map[string]struct {
		cfg         APIConfig
		first, then string
	}{
		"all":          {APIConfig{}, `{"cached_tokens":0}`, `{"cached_tokens":32}`},
		"miss is null": {APIConfig{MissIsNull: true}, `null`, `{"cached_tokens":32}`},
		"flag off":     {APIConfig{Missing: Missing{CachedTokens: true}}, `null`, `null`},
	} {
		c.cfg.Kind, c.cfg.Model = VLLM, "m"
		a := NewAPI(c.cfg, start(t, Config{}))
		for _, want := range []string{c.first, c.then} {
			code, body := ask(t, a, "POST", "/v1/completions", prompt)
			var got struct {
				Usage struct {
					Prompt  int             `json:"prompt_tokens"`
					Details json.RawMessage `json:"prompt_tokens_details"`
				}
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK || got.Usage.Prompt != 40 || string(got.Usage.Details) != want {
				t.Errorf("%s: %d %s, want %s", name, code, body, want)
			}
		}
		if code, body := ask(t, a, "POST", "/v1/completions", `{"model":"other","prompt":[1]}`); code != http.StatusBadRequest {
			t.Errorf("another model: %d %s", code, body)
		}
	}
}

func TestPagesOfEachKind(t *testing.T) {
	all := []string{"/v1/models", "/version", "/metrics", "/prometheus/metrics", "/server_info"}
	for _, c := range []struct {
		cfg  APIConfig
		has  map[string]string // page -> what it says
		post string
	}{
		{APIConfig{Kind: VLLM}, map[string]string{"/v1/models": `"vllm"`, "/version": `"9.9"`, "/metrics": `vllm:num_requests_running{engine="0",model_name="m"} 5`}, ""},
		{APIConfig{Kind: VLLM, OldNames: true, Missing: Missing{Version: true, CacheInfo: true}}, map[string]string{"/v1/models": "", "/metrics": "vllm:gpu_cache_usage_perc"}, ""},
		{APIConfig{Kind: SGLang}, map[string]string{"/v1/models": `"sglang"`, "/metrics": "sglang:token_usage", "/server_info": `"endpoint_port_base":`}, ""},
		{APIConfig{Kind: SGLang, Missing: Missing{KVEvents: true, Metrics: true}}, map[string]string{"/v1/models": "", "/server_info": `"kv_events":null`}, ""},
		{APIConfig{Kind: TRTLLM}, map[string]string{"/v1/models": `"tensorrt_llm"`, "/version": "", "/metrics": "[]", "/prometheus/metrics": "trtllm_kv_cache_utilization"}, `"created"`},
	} {
		c.cfg.Model, c.cfg.Version = "m", "9.9"
		a := NewAPI(c.cfg, start(t, Config{Cache: CacheConfig{Pull: c.cfg.Kind == TRTLLM}, ReplayEndpoint: "tcp://127.0.0.1:0"}))
		a.SetFigures(0, Figures{Running: 5, Waiting: 1, KVUse: 0.5})
		for _, page := range all {
			code, body := ask(t, a, "GET", page, "")
			want, has := c.has[page]
			if has != (code == http.StatusOK) || !strings.Contains(body, want) {
				t.Errorf("%s without %+v: %s is %d %s", c.cfg.Kind, c.cfg.Missing, page, code, body)
			}
		}
		if _, body := ask(t, a, "GET", "/metrics", ""); c.cfg.Missing.CacheInfo && strings.Contains(body, "block_size") {
			t.Errorf("told the block size: %s", body)
		}
		code, body := ask(t, a, "POST", "/kv_cache_events", "")
		if (code == http.StatusOK) != (c.post != "") || !strings.Contains(body, c.post) {
			t.Errorf("%s: events are %d %s", c.cfg.Kind, code, body)
		}
	}
}
