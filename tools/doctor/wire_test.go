package doctor

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/wireengine"
)

// wired starts a wire-true engine of some ranks with its HTTP face. before runs
// ahead of each prompt, when a subscription is in force on every rank that has one.
func wired(t *testing.T, api wireengine.APIConfig, cfg wireengine.Config, ranks int, before func([]*wireengine.Engine)) (string, []*wireengine.Engine) {
	t.Helper()
	engines, err := wireengine.StartRanks(cfg, ranks)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range engines {
		t.Cleanup(e.Close)
	}
	api.Model = "llama"
	face := wireengine.NewAPI(api, engines...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/v1/completions" && before != nil {
			before(engines)
		}
		face.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, engines
}

// subscribed waits for a subscriber of every rank.
func subscribed(t *testing.T) func([]*wireengine.Engine) {
	return func(engines []*wireengine.Engine) {
		for _, e := range engines {
			_ = e.AwaitSubscribers(t.Context(), 1) // the examination's own patience ends this
		}
	}
}

func withReplay(g kvevents.Generation) wireengine.Config {
	return wireengine.Config{Cache: wireengine.CacheConfig{Generation: g}, ReplayEndpoint: "tcp://127.0.0.1:0"}
}

// Every generation of a sound engine is found sound.
func TestSoundEnginesOfEveryGeneration(t *testing.T) {
	kinds := map[kvevents.Generation]wireengine.Kind{
		kvevents.SGLangLegacy: wireengine.SGLang, kvevents.SGLangMedium: wireengine.SGLang, kvevents.SGLangMetadata: wireengine.SGLang,
		kvevents.SGLangMap: wireengine.SGLang, kvevents.TRTLLMMap: wireengine.TRTLLM,
	}
	for _, g := range kvevents.Generations() {
		t.Run(g.String(), func(t *testing.T) {
			kind, ok := kinds[g]
			if !ok {
				kind = wireengine.VLLM
			}
			url, engines := wired(t, wireengine.APIConfig{Kind: kind, Version: "1.2.3"}, withReplay(g), 1, subscribed(t))
			found := examine(t, BridgeCommand{
				URL: url, KV: engines[0].Endpoint(), KVReplay: engines[0].ReplayEndpoint(), BlockTokens: 16, Wait: patience, Probe: true, JSON: true,
			})
			if problems(found) != "" {
				t.Errorf("problems: %s", problems(found))
			}
			for _, check := range []string{"engine", "load", "kv events", "encoding", "block size", "tokens", "sequence", "replay", "prefix caching", "cached tokens"} {
				want(t, found, check, OK)
			}
		})
	}
}

// SGLang says where it publishes, so that no flag is needed.
func TestSGLangNeedsNoFlags(t *testing.T) {
	cfg := withReplay(kvevents.SGLangMap)
	cfg.Topic = "kv"
	url, engines := wired(t, wireengine.APIConfig{Kind: wireengine.SGLang, Version: "0.6.0", EventsHost: "*"}, cfg, 2, subscribed(t))
	found := examine(t, BridgeCommand{URL: url, Wait: patience, Probe: true, JSON: true})
	if problems(found) != "" {
		t.Errorf("problems: %s", problems(found))
	}
	want(t, found, "ranks", OK, "2 data-parallel ranks")
	want(t, found, "kv port", OK, engines[0].Endpoint())
	want(t, found, "topic", OK, `"kv" is expected`)
	want(t, found, "replay", OK)
}

func TestWireEnginesWithOneAilment(t *testing.T) {
	type ailment struct {
		api    wireengine.APIConfig
		cfg    wireengine.Config
		before func(*testing.T, []*wireengine.Engine)
		change func(*BridgeCommand)
		check  string
		words  []string
	}
	vllm, sglang := wireengine.APIConfig{Kind: wireengine.VLLM}, wireengine.APIConfig{Kind: wireengine.SGLang}
	missing := func(api wireengine.APIConfig, m wireengine.Missing) wireengine.APIConfig {
		api.Missing = m
		return api
	}
	for name, a := range map[string]ailment{
		"vLLM's usage tells no cached tokens": {
			api: missing(vllm, wireengine.Missing{CachedTokens: true}), cfg: withReplay(kvevents.VLLMMap),
			check: "cached tokens", words: []string{"--enable-prompt-tokens-details"},
		},
		"SGLang's usage tells no cached tokens": {
			api: missing(sglang, wireengine.Missing{CachedTokens: true}), cfg: withReplay(kvevents.SGLangMap),
			check: "cached tokens", words: []string{"--enable-cache-report"},
		},
		"no metrics": {
			api: missing(vllm, wireengine.Missing{Metrics: true}), cfg: withReplay(kvevents.VLLMMap),
			check: "load", words: []string{"/metrics"},
		},
		"a page is a token": {
			api: sglang, cfg: wireengine.Config{Cache: wireengine.CacheConfig{Generation: kvevents.SGLangMap, BlockSize: 1}, ReplayEndpoint: "tcp://127.0.0.1:0"},
			check: "block size", words: []string{"--page-size 16"},
		},
		"block sizes that do not divide": {
			api: vllm, cfg: wireengine.Config{Cache: wireengine.CacheConfig{Generation: kvevents.VLLMFull, BlockSize: 24}, ReplayEndpoint: "tcp://127.0.0.1:0"},
			check: "block size", words: []string{"--block-size 16", "--block-tokens 24"},
		},
		"topics with and without a port": {
			api: vllm, cfg: wireengine.Config{Cache: wireengine.CacheConfig{Generation: kvevents.VLLMMap}, Topic: "kv@10.0.0.7@llama", ReplayEndpoint: "tcp://127.0.0.1:0"},
			change: func(c *BridgeCommand) { c.Topic = "kv@10.0.0.7:8000@llama" },
			check:  "topic", words: []string{`"kv@10.0.0.7@llama" `, `"topic":"kv@10.0.0.7:8000@llama"`},
		},
		"batches that the engine drops": {
			api: vllm, cfg: withReplay(kvevents.VLLMMap),
			before: func(t *testing.T, engines []*wireengine.Engine) {
				engines[0].Publish(nil, wireengine.Delivered)
				engines[0].Publish(nil, wireengine.Dropped)
			},
			check: "sequence", words: []string{"1 batches are missing", `"hwm"`},
		},
		"a replay socket that does not answer": {
			api: vllm, cfg: withReplay(kvevents.VLLMMap),
			before: func(t *testing.T, engines []*wireengine.Engine) { engines[0].Mute(true) },
			check:  "replay", words: []string{"does not answer", `"replay_endpoint"`},
		},
		"events that nobody understands": {
			api: vllm, cfg: withReplay(kvevents.VLLMMap),
			before: func(t *testing.T, engines []*wireengine.Engine) {
				engines[0].PublishRaw([]byte{0xc1}, wireengine.Delivered)
			},
			check: "encoding", words: []string{"cannot be read", "--record"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			once := false
			url, engines := wired(t, a.api, a.cfg, 1, func(engines []*wireengine.Engine) {
				subscribed(t)(engines)
				if a.before != nil && !once {
					a.before(t, engines)
				}
				once = true
			})
			c := BridgeCommand{
				URL: url, KV: engines[0].Endpoint(), KVReplay: engines[0].ReplayEndpoint(), BlockTokens: 16, Wait: patience, Probe: true, JSON: true,
			}
			if a.change != nil {
				a.change(&c)
			}
			found := examine(t, c)
			want(t, found, a.check, Problem, a.words...)
			if problems(found) != a.check {
				t.Errorf("problems: %s; only %s is wrong", problems(found), a.check)
			}
		})
	}
}

// A wire engine without push is polled, and its events stay where they are.
func TestPolledEventsAreNotTaken(t *testing.T) {
	url, engines := wired(t, wireengine.APIConfig{Kind: wireengine.TRTLLM, Version: "1.0.0"},
		wireengine.Config{Cache: wireengine.CacheConfig{Generation: kvevents.TRTLLMMap, Pull: true}}, 1, nil)
	x := newExamination(BridgeCommand{URL: url, Wait: glance, Probe: true})
	x.examineEngine(t.Context())
	if asked := x.probe(t.Context()); !asked.done {
		t.Fatalf("the probe failed: %v", asked.err)
	}
	if !x.polled(t.Context()) {
		t.Error("the page of events is not seen")
	}
	if events, err := wireengine.Pull(engines...); err != nil || len(events) < 100 {
		t.Errorf("what the probe stored is no longer there: %s, %v", events, err)
	}
}
