package discovery

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// words writes loads as a test reads them: - is a figure that is not reported.
func words(loads []Load) string {
	var out []string
	for _, l := range loads {
		out = append(out, fmt.Sprintf("%d: %s %s %s %s", l.Rank, word(l.Running), word(l.Waiting), word(l.QueuedPrefillTokens), word(l.KVUsed)))
	}
	return strings.Join(out, ", ")
}

func word[T any](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

func missingWords(c *Client) string {
	var out []string
	for _, m := range c.Missing() {
		out = append(out, m.Figure)
	}
	return strings.Join(out, " ")
}

// TestLoadOfEveryGeneration: rank: running waiting queued-tokens kv-used.
func TestLoadOfEveryGeneration(t *testing.T) {
	for name, c := range map[string]struct {
		pages   pages
		want    string
		missing string
	}{
		"vLLM 0.26, two ranks": {pages{"/metrics": vllmMetrics}, "0: 3 0 - 0.25, 1: 5 2 - 0.5", ""},
		"vLLM, waiting by reason only": {pages{"/metrics": `vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting_by_reason{engine="0",reason="waiting for capacity, or not"} 2
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 3
vllm:kv_cache_usage_perc{engine="0"} 1.25
`}, "0: 1 5 - 1", ""},
		"vLLM 0.6, older names, no ranks": {pages{"/metrics": `vllm:num_requests_running{model_name="m"} 4.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.75`}, "0: 4 0 - 0.75", ""},
		"vLLM, one rank served alone": {pages{"/metrics": `vllm:num_requests_running{engine="3"} 4
vllm:num_requests_waiting{engine="3"} 1
`}, "3: 4 1 - -", "kv_used"},
		"vLLM without statistics": {pages{"/metrics": "python_gc_objects_collected_total{generation=\"0\"} 4.0\n"}, "", "running waiting kv_used"},
		"not numbers": {pages{"/metrics": `vllm:num_requests_running NaN
vllm:num_requests_waiting -1
vllm:kv_cache_usage_perc +Inf
`}, "0: - - - -", "running waiting kv_used"},
		"a line that cannot be read": {pages{"/metrics": "vllm:num_requests_running{engine=\"0 3\nvllm:num_requests_waiting{engine=\"0\"} 7 1700000000000\nbroken{ 1\r\n"}, "0: - 7 - -", "running kv_used"},
		"SGLang, workers of one rank tell the same": {pages{"/metrics": `sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 4.0
sglang:num_queue_reqs{model_name="m",priority="",tp_rank="0"} 14.0
sglang:num_queue_reqs{model_name="m",priority="-1",tp_rank="0"} 13.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
`}, "0: 4 14 - 0.5", ""},
		"SGLang, ranks": {pages{"/metrics": `sglang:num_running_reqs{dp_rank="1",tp_rank="1"} 2
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 1
sglang:num_queue_reqs{dp_rank="1",tp_rank="1"} 0
sglang:token_usage{dp_rank="1",tp_rank="1"} 0.5
`, "/v1/loads": `{"loads":[{"dp_rank":0,"num_running_reqs":9,"num_waiting_reqs":3,"num_waiting_uncached_tokens":812,"token_usage":0.1},
 {"dp_rank":1,"num_running_reqs":9,"num_waiting_reqs":9,"num_waiting_uncached_tokens":0}]}`}, "0: 1 3 812 0.1, 1: 2 0 0 0.5", ""},
		"SGLang without metrics": {pages{"/v1/loads": `{"timestamp":"2026-01-01","dp_rank_count":1,"loads":[{"dp_rank":0,"num_running_reqs":2,"num_waiting_reqs":"1","token_usage":0.25,"num_used_tokens":5,"num_total_tokens":100}]}`},
			"0: 2 1 - 0.25", ""},
		"TensorRT-LLM text":                  {pages{"/metrics": trtllmIterations, "/prometheus/metrics": trtllmMetrics}, "0: 4 1 - 0.25", ""},
		"TensorRT-LLM utilization":           {pages{"/metrics": "[]", "/prometheus/metrics": trtllmMetrics + "trtllm_kv_cache_utilization 0.125\n"}, "0: 4 1 - 0.125", ""},
		"TensorRT-LLM iterations":            {pages{"/metrics": trtllmIterations}, "0: 5 3 - 0.6", ""},
		"TensorRT-LLM, text without figures": {pages{"/metrics": trtllmIterations, "/prometheus/metrics": "trtllm_request_success_total 3\n"}, "0: 5 3 - 0.6", ""},
		"TensorRT-LLM older iteration":       {pages{"/metrics": `[{"numActiveRequests":1,"kvCacheStats":{"maxNumBlocks":0,"usedNumBlocks":0}}]`}, "0: 1 - - -", "waiting kv_used"},
	} {
		t.Run(name, func(t *testing.T) {
			client := New(serve(t, c.pages).URL, nil)
			loads, err := client.Load(context.Background())
			if err != nil || words(loads) != c.want || missingWords(client) != c.missing {
				t.Errorf("got  %s (missing %s), %v\nwant %s (missing %s)", words(loads), missingWords(client), err, c.want, c.missing)
			}
			again, err := client.Load(context.Background())
			if err != nil || words(again) != c.want {
				t.Errorf("the second time it is %s, %v", words(again), err)
			}
		})
	}
}

func TestFiguresWithoutRankAreNotDivided(t *testing.T) {
	f := serve(t, pages{
		"/v1/models": vllmModels, "/server_info": `{"page_size":16,"dp_size":4}`,
		"/metrics": "sglang:num_running_reqs 8\nsglang:num_queue_reqs{dp_rank=\"2\"} 1\n",
	})
	client := New(f.URL, nil)
	if e, err := client.Discover(context.Background(), ""); err != nil || e.Ranks != 4 {
		t.Fatalf("got %+v, %v", e, err)
	}
	loads, err := client.Load(context.Background())
	if err != nil || words(loads) != "2: - 1 - -" {
		t.Fatalf("got %s, %v", words(loads), err)
	}
	missing := client.Missing()
	if len(missing) != 2 || missing[0].Figure != FigureRunning || !strings.Contains(missing[0].Why, "4 ranks") || !strings.Contains(missing[1].Why, "--enable-metrics") {
		t.Errorf("missing is %+v", missing)
	}
}

func TestIdleEngineIsNotMissingItsFigures(t *testing.T) {
	f := serve(t, pages{"/metrics": trtllmIterations})
	client := New(f.URL, nil)
	ctx := context.Background()
	if loads, err := client.Load(ctx); err != nil || words(loads) != "0: 5 3 - 0.6" {
		t.Fatalf("got %s, %v", words(loads), err)
	}
	f.set("/metrics", "[]")
	loads, err := client.Load(ctx)
	if err != nil || len(loads) != 0 || len(client.Missing()) != 0 {
		t.Errorf("no iteration since the last look is told as %s, %v, missing %v", words(loads), err, client.Missing())
	}
}

// Who reads TensorRT-LLM's iterations takes them away from other readers.
func TestIterationsAreLeftToOthers(t *testing.T) {
	f := serve(t, pages{"/v1/models": trtllmModels, "/metrics": "[]", "/prometheus/metrics": trtllmMetrics})
	client := New(f.URL, nil)
	if _, err := client.Discover(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	before := f.times("/metrics")
	if _, err := client.Load(context.Background()); err != nil {
		t.Fatal(err)
	}
	if f.times("/metrics") != before {
		t.Error("the iterations were read although the text tells everything")
	}
}

func TestPagesThatAreNotThereAreNotAskedAgain(t *testing.T) {
	f := serve(t, pages{"/v1/models": vllmModels, "/v1/loads": `{"loads":[{"dp_rank":0,"num_running_reqs":2}]}`})
	client := New(f.URL, nil)
	ctx := context.Background()
	for range 3 {
		if _, err := client.Load(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.times("/metrics"); n != 1 {
		t.Errorf("a page that is not there was asked for %d times", n)
	}
	f.set("/metrics", "sglang:num_queue_reqs 4\n")
	if _, err := client.Discover(ctx, ""); err != nil { // asks for everything anew
		t.Fatal(err)
	}
	if loads, err := client.Load(ctx); err != nil || words(loads) != "0: 2 4 - -" {
		t.Errorf("got %s, %v", words(loads), err)
	}
}

func TestLoadOfAnEngineThatIsAway(t *testing.T) {
	f := serve(t, pages{"/metrics": "503 "})
	if loads, err := New(f.URL, nil).Load(context.Background()); err == nil || loads != nil {
		t.Errorf("got %s, %v", words(loads), err)
	}
	f.Close()
	if _, err := New(f.URL, nil).Load(context.Background()); err == nil {
		t.Error("an engine that is away has a load")
	}
}

func BenchmarkReadMetrics(b *testing.B) {
	page := []byte(vllmMetrics + strings.Repeat(`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="Qwen/Qwen3-0.6B"} 0.0`+"\n", 2000))
	b.ReportAllocs()
	b.SetBytes(int64(len(page)))
	for b.Loop() {
		if len(readMetrics(page).series) == 0 {
			b.Fatal("nothing was read")
		}
	}
}
