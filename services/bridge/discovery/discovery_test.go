package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

// pages is an engine's HTTP face: what it answers by path. A body that begins with
// a number and a space is a status.
type pages map[string]string

// face serves pages, and counts how often each path was asked.
type face struct {
	*httptest.Server
	mu    sync.Mutex
	pages pages
	asked map[string]int
}

func serve(t *testing.T, p pages) *face {
	t.Helper()
	f := &face{pages: p, asked: map[string]int{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.asked[r.URL.Path]++
		body, ok := f.pages[r.URL.Path]
		var status int
		if n, _ := fmt.Sscanf(body, "%d ", &status); n == 1 {
			w.WriteHeader(status)
			return
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, body)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *face) set(path, body string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages[path] = body
}

func (f *face) times(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[path]
}

func (f *face) discover(t *testing.T, model string) Engine {
	t.Helper()
	e, err := New(f.URL+"/", nil).Discover(context.Background(), model)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// port is a port number of a page's text, with the host of the test's engine.
func (f *face) endpoint(t *testing.T, port int) string {
	t.Helper()
	u, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("tcp://%s:%d", u.Hostname(), port)
}

const vllmModels = `{"object":"list","data":[
 {"id":"Qwen/Qwen3-0.6B","object":"model","created":1,"owned_by":"vllm","root":"Qwen/Qwen3-0.6B","parent":null,"max_model_len":40960,"permission":[]},
 {"id":"sql-lora","object":"model","owned_by":"vllm","root":"/loras/sql","parent":"Qwen/Qwen3-0.6B"}]}`

// vllmMetrics is a page of two data-parallel ranks, as version 0.26 writes it.
const vllmMetrics = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-0.6B"} 3.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-0.6B"} 5.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-0.6B"} 0.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-0.6B"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="1",model_name="Qwen/Qwen3-0.6B",reason="capacity"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-0.6B"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="Qwen/Qwen3-0.6B"} 0.5
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="Qwen/Qwen3-0.6B"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="Qwen/Qwen3-0.6B"} 1.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_cpu_blocks="None",num_gpu_blocks="74272",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="1",num_cpu_blocks="None",num_gpu_blocks="74270",sliding_window="None"} 1.0
`

func TestVLLMSaysWhatItIs(t *testing.T) {
	e := serve(t, pages{"/v1/models": vllmModels, "/version": `{"version":"0.26.0"}`, "/metrics": vllmMetrics}).discover(t, "")
	on := true
	want := Engine{
		Kind: VLLM, Version: "0.26.0", Model: "Qwen/Qwen3-0.6B", Models: []string{"Qwen/Qwen3-0.6B"}, LoRAs: []string{"sql-lora"},
		BlockTokens: 16, GPUBlocks: 74272, MaxModelLen: 40960, Ranks: 2, RankNumbers: []int{0, 1}, PrefixCaching: &on,
		Missing: []string{"whether and where it publishes KV events"},
	}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("got  %+v\nwant %+v", e, want)
	}
}

// sglangInfo is a /server_info of version 0.5.18, cut to what matters and to some
// things that must not confuse.
const sglangInfo = `{"model_path":"/models/qwen","served_model_name":"qwen","host":"0.0.0.0","api_key":"secret","page_size":16,
 "dp_size":2,"dcp_size":1,"context_length":null,"disable_radix_cache":false,"enable_cache_report":false,"speculative_algorithm":"EAGLE3",
 "kv_events_config":"{\"publisher\":\"zmq\"}","max_total_num_tokens":200000,"max_req_input_len":32762,"version":"0.5.18",
 "internal_states":[{"memory_usage":{"token_capacity":200000}}],
 "kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":16,"dp_size":2,
  "replay_endpoint_host":"0.0.0.0","replay_endpoint_port_base":5657,"load_endpoint_port_base":5559,"load_topic":"load"}}`

func TestSGLangSaysWhereItPublishes(t *testing.T) {
	f := serve(t, pages{
		"/v1/models":   `{"object":"list","data":[{"id":"qwen","object":"model","owned_by":"sglang","root":"qwen","max_model_len":32768}]}`,
		"/server_info": sglangInfo,
	})
	e := f.discover(t, "")
	on, off := true, false
	want := Engine{
		Kind: SGLang, Version: "0.5.18", Model: "qwen", Models: []string{"qwen"}, BlockTokens: 16, GPUBlocks: 12500, MaxModelLen: 32768,
		Ranks: 2, PrefixCaching: &on, CachedTokensReported: &off,
		KVEvents: KVEvents{
			Known: true, Enabled: true, Host: "*", Endpoint: f.endpoint(t, 5557), ReplayEndpoint: f.endpoint(t, 5657), Topic: "kv", BlockTokens: 16,
			LoadEndpoint: f.endpoint(t, 5559), LoadTopic: "load",
		},
	}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("got  %+v\nwant %+v", e, want)
	}
}

func TestKVEventsOfSGLang(t *testing.T) {
	for name, c := range map[string]struct {
		info string
		want KVEvents
	}{
		"off":                    {`{"page_size":16,"kv_events":null}`, KVEvents{Known: true}},
		"off by publisher":       {`{"kv_events":{"publisher":"null","endpoint_port_base":5557}}`, KVEvents{Known: true}},
		"version that says none": {`{"page_size":16}`, KVEvents{}},
		"description of a type that is not known": {`{"kv_events":"yes"}`, KVEvents{}},
		"named host": {`{"kv_events":{"publisher":"zmq","endpoint_host":"10.0.0.7","endpoint_port_base":"5600"}}`,
			KVEvents{Known: true, Enabled: true, Host: "10.0.0.7", Endpoint: "tcp://10.0.0.7:5600"}},
		"argument only": {`{"page_size":16,"kv_events_config":"{\"publisher\":\"zmq\",\"endpoint\":\"tcp://[::]:6000\",\"topic\":\"t\"}"}`,
			KVEvents{Known: true, Enabled: true, Host: "[::]", Endpoint: "tcp://127.0.0.1:6000", Topic: "t"}},
		"argument with defaults": {`{"page_size":16,"kv_events_config":"{\"publisher\":\"zmq\"}"}`,
			KVEvents{Known: true, Enabled: true, Host: "*", Endpoint: "tcp://127.0.0.1:5557"}},
		"no argument":    {`{"page_size":16,"kv_events_config":null}`, KVEvents{Known: true}},
		"broken":         {`{"page_size":16,"kv_events_config":"{"}`, KVEvents{}},
		"null publisher": {`{"page_size":16,"kv_events_config":"{\"publisher\":\"null\"}"}`, KVEvents{Known: true}},
	} {
		t.Run(name, func(t *testing.T) {
			e := serve(t, pages{"/v1/models": vllmModels, "/server_info": c.info}).discover(t, "")
			if e.KVEvents != c.want || e.Kind != SGLang {
				t.Errorf("got %+v of %s, want %+v", e.KVEvents, e.Kind, c.want)
			}
		})
	}
}

func TestBlockSizeOfSGLang(t *testing.T) {
	for name, c := range map[string]struct {
		pages  pages
		tokens int
		blocks uint64
	}{
		"older name of the page":    {pages{"/get_server_info": `{"page_size":64,"internal_states":[{"max_total_num_tokens":6400}]}`}, 64, 100},
		"widened by the events":     {pages{"/server_info": `{"page_size":64,"dcp_size":2,"max_total_num_tokens":6400,"kv_events":{"endpoint_port_base":1,"block_size":128}}`}, 128, 50},
		"to be widened":             {pages{"/server_info": `{"page_size":64,"dcp_size":2,"max_total_num_tokens":6400,"kv_events":{"endpoint_port_base":1,"block_size":64}}`}, 128, 50},
		"labels of version 0.5.9":   {pages{"/metrics": `sglang:cache_config_info{num_pages="200000",page_size="1"} 1.0`}, 1, 200000},
		"gauges of version 0.5.16":  {pages{"/metrics": "sglang:page_size{tp_rank=\"0\"} 16.0\nsglang:num_pages{tp_rank=\"0\"} 12500.0\n"}, 16, 12500},
		"tokens only":               {pages{"/server_info": `{"page_size":16}`, "/metrics": "sglang:max_total_num_tokens 3200\n"}, 16, 200},
		"nonsense":                  {pages{"/server_info": `{"page_size":2662439576,"dp_size":1e18}`}, 0, 0},
		"more ranks than there are": {pages{"/server_info": `{"page_size":16,"dp_size":100000}`}, 16, 0},
		"words for numbers":         {pages{"/server_info": `{"page_size":"32","max_total_num_tokens":"None"}`}, 32, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.pages["/v1/models"] = vllmModels
			e := serve(t, c.pages).discover(t, "")
			if e.Kind != SGLang || e.BlockTokens != c.tokens || e.GPUBlocks != c.blocks || e.Ranks != 1 {
				t.Errorf("got %s, %d blocks of %d tokens, %d ranks", e.Kind, e.GPUBlocks, e.BlockTokens, e.Ranks)
			}
			if c.tokens == 0 && !slices.Contains(e.Missing, "block size") {
				t.Errorf("missing is %q", e.Missing)
			}
		})
	}
}

// In its development mode vLLM has a page of the same name.
func TestServerInfoOfVLLM(t *testing.T) {
	e := serve(t, pages{
		"/v1/models":   `{"data":[{"id":"m","object":"model"}]}`,
		"/server_info": `{"vllm_config":"model='m', page_size=16","page_size":16,"kv_events":null}`,
	}).discover(t, "")
	if e.Kind != VLLM || e.KVEvents.Known {
		t.Errorf("got %+v", e)
	}
}

const trtllmModels = `{"object":"list","data":[{"id":"llama","object":"model","created":1,"owned_by":"tensorrt_llm"}]}`

const trtllmIterations = `[{"iter":1,"numActiveRequests":9,"numQueuedRequests":9},
 {"iter":2,"gpuMemUsage":56401920000,"iterLatencyMS":16.5,"numActiveRequests":5,"numQueuedRequests":3,
  "kvCacheStats":{"maxNumBlocks":1000,"freeNumBlocks":400,"usedNumBlocks":600,"tokensPerBlock":32,"cacheHitRate":0.85},
  "inflightBatchingStats":{"numContextRequests":1}}]`

const trtllmMetrics = `# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="pytorch",model_name="llama",pid="1"} 4.0
trtllm_num_requests_waiting{engine_type="pytorch",model_name="llama",pid="1"} 1.0
trtllm_kv_cache_max_blocks{engine_type="pytorch",model_name="llama",pid="1"} 19960.0
trtllm_kv_cache_used_blocks{engine_type="pytorch",model_name="llama",pid="1"} 4990.0
trtllm_kv_cache_tokens_per_block{engine_type="pytorch",model_name="llama",pid="1"} 32.0
`

func TestTensorRTLLMSaysWhatItIs(t *testing.T) {
	for name, c := range map[string]struct {
		pages  pages
		blocks uint64
	}{
		"text":       {pages{"/metrics": `[]`, "/prometheus/metrics": trtllmMetrics}, 19960},
		"iterations": {pages{"/metrics": trtllmIterations}, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			c.pages["/v1/models"], c.pages["/version"] = trtllmModels, `{"version":"1.3.0"}`
			e := serve(t, c.pages).discover(t, "")
			if e.Kind != TRTLLM || e.Version != "1.3.0" || e.BlockTokens != 32 || e.GPUBlocks != c.blocks || e.KVEvents.Known {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestModelIsToldOrNamed(t *testing.T) {
	two := `{"data":[{"id":"a"},{"id":"b"},{"id":7},{"nothing":1},"c"]}`
	for name, c := range map[string]struct {
		models, ask, want, err string
	}{
		"only one":            {vllmModels, "", "Qwen/Qwen3-0.6B", ""},
		"named":               {two, "b", "b", ""},
		"several":             {two, "", "", "2 models (a, b); name one by --model"},
		"none":                {`{"data":[]}`, "", "", "name it by --model"},
		"no such page":        {"404 ", "", "", "name it by --model"},
		"no such page, named": {"404 ", "m", "m", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := New(serve(t, pages{"/v1/models": c.models, "/version": `{"version":"9"}`}).URL, nil).Discover(context.Background(), c.ask)
			if e.Model != c.want || (err == nil) != (c.err == "") || e.Version != "9" {
				t.Fatalf("got %q, %v, version %q", e.Model, err, e.Version)
			}
			if err != nil && (!errors.Is(err, ErrModel) || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error is %v", err)
			}
		})
	}
	e := serve(t, pages{"/v1/models": two}).discover(t, "other")
	if !strings.Contains(strings.Join(e.Missing, "; "), "other is not among those it lists (a, b)") {
		t.Errorf("a model that is not listed is not named: %q", e.Missing)
	}
}

func TestEngineThatDoesNotAnswer(t *testing.T) {
	ctx := context.Background()
	if _, err := New(serve(t, pages{"/v1/models": "503 ", "/version": `{"version":"1"}`}).URL, nil).Discover(ctx, "m"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("an engine that starts gives %v", err)
	}
	if _, err := New(serve(t, pages{"/v1/models": "401 "}).URL, nil).Discover(ctx, "m"); !errors.Is(err, ErrKey) {
		t.Errorf("an engine with a key gives %v", err)
	}
	if _, err := New(serve(t, pages{"/v1/models": "<html>"}).URL, nil).Discover(ctx, "m"); err == nil {
		t.Error("a page that is no model list is taken for one")
	}
	gone := serve(t, pages{})
	gone.Close()
	if _, err := New(gone.URL, nil).Discover(ctx, "m"); err == nil || errors.Is(err, ErrModel) {
		t.Errorf("an engine that is away gives %v", err)
	}
	if _, err := New("no url at all\x00", nil).Discover(ctx, "m"); err == nil {
		t.Error("a base that is no URL is used")
	}
}

func TestKeyIsSentAndRedirectsStay(t *testing.T) {
	var elsewhere int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer k":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/v1/models":
			http.Redirect(w, r, "/v1/models/", http.StatusTemporaryRedirect)
		case r.URL.Path == "/v1/models/":
			fmt.Fprint(w, vllmModels)
		default:
			http.Redirect(w, r, other.URL+"/metrics", http.StatusTemporaryRedirect)
		}
	}))
	defer engine.Close()
	client := New(engine.URL, nil)
	client.Key = "k"
	e, err := client.Discover(context.Background(), "")
	if err != nil || e.Model != "Qwen/Qwen3-0.6B" {
		t.Errorf("got %+v, %v", e, err)
	}
	if elsewhere != 0 {
		t.Error("a redirect to another host was followed")
	}
}

func TestAnswersAreBounded(t *testing.T) {
	f := serve(t, pages{"/v1/models": vllmModels, "/metrics": vllmMetrics + "# " + strings.Repeat("x", maxAnswer)})
	e := f.discover(t, "")
	if e.BlockTokens != 0 {
		t.Error("an answer past the bound is read")
	}
	if _, err := New(f.URL, nil).Load(context.Background()); err == nil || !strings.Contains(err.Error(), "longer than 16 MiB") {
		t.Errorf("error is %v", err)
	}
}
