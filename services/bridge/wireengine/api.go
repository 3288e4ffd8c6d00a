package wireengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

// Kind is what an API speaks like.
type Kind string

// The kinds.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
	TRTLLM Kind = "trtllm"
)

// Missing is what an API does not have, as when a flag was not given.
type Missing struct {
	// Version, Metrics and ServerInfo answer 404. CacheInfo leaves the block size
	// and count out of the metrics, KVEvents the publisher out of server_info, and
	// CachedTokens the prompt's details out of a completion's usage.
	Version, Metrics, ServerInfo, CacheInfo, KVEvents, CachedTokens bool
}

// APIConfig says what an API tells.
type APIConfig struct {
	Kind           Kind
	Model, Version string
	// OldNames uses the metrics' former names: vLLM's of KV use.
	OldNames bool
	// MissIsNull leaves the prompt's details out where nothing was cached, as older
	// vLLM does.
	MissIsNull bool
	Missing    Missing
	// EventsHost is what server_info names as the publisher's host; empty means 127.0.0.1.
	EventsHost string
}

// Figures are a rank's load.
type Figures struct {
	Running, Waiting int
	// KVUse is the part of the KV cache that is used, 0 to 1.
	KVUse float64
}

// API is an engine's HTTP face, an http.Handler. It is safe for concurrent use.
type API struct {
	cfg   APIConfig
	ranks []*Engine
	mux   *http.ServeMux

	mu      sync.Mutex
	figures []Figures
}

// NewAPI is the face of an engine's ranks, of which completions go to the first.
func NewAPI(cfg APIConfig, ranks ...*Engine) *API {
	a := &API{cfg: cfg, ranks: ranks, mux: http.NewServeMux(), figures: make([]Figures, len(ranks))}
	page := func(pattern string, missing bool, answer func(*http.Request) (any, error)) {
		if missing {
			return
		}
		a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := answer(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if text, ok := v.(string); ok {
				w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
				fmt.Fprint(w, text)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(v) //nolint:errcheck // a client that went away has no remedy
		})
	}
	page("GET /v1/models", false, a.models)
	page("GET /health", false, func(*http.Request) (any, error) { return "", nil })
	page("GET /version", cfg.Missing.Version || cfg.Kind == SGLang, func(*http.Request) (any, error) {
		return map[string]string{"version": cfg.Version}, nil
	})
	metrics := "GET /metrics"
	if cfg.Kind == TRTLLM {
		metrics = "GET /prometheus/metrics"
		page("GET /metrics", cfg.Missing.Metrics, func(*http.Request) (any, error) { return []any{}, nil })
		page("POST /kv_cache_events", cfg.Missing.KVEvents, func(*http.Request) (any, error) {
			b, err := Pull(a.ranks...)
			return json.RawMessage(b), err
		})
	}
	page(metrics, cfg.Missing.Metrics, func(*http.Request) (any, error) { return a.metrics(), nil })
	page("GET /server_info", cfg.Missing.ServerInfo || cfg.Kind != SGLang, a.serverInfo)
	page("POST /v1/completions", false, a.complete)
	page("POST /tokenize", cfg.Kind != VLLM, a.tokenize)
	return a
}

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// SetFigures sets what the metrics say of a rank.
func (a *API) SetFigures(rank int, f Figures) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.figures[rank] = f
}

func (a *API) models(*http.Request) (any, error) {
	owner := string(a.cfg.Kind)
	if a.cfg.Kind == TRTLLM {
		owner = "tensorrt_llm"
	}
	return map[string]any{"object": "list", "data": []any{map[string]any{
		"id": a.cfg.Model, "object": "model", "owned_by": owner, "root": a.cfg.Model, "max_model_len": 40960,
	}}}, nil
}

// metrics is the Prometheus page, with each engine's names and labels.
func (a *API) metrics() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	for rank, f := range a.figures {
		cache := a.ranks[rank].cfg.Cache
		line := func(name, labels string, v float64) {
			fmt.Fprintf(&b, "# TYPE %s gauge\n%s{%s} %s\n", name, name, labels, strconv.FormatFloat(v, 'g', -1, 64))
		}
		model := fmt.Sprintf("model_name=%q", a.cfg.Model)
		switch a.cfg.Kind {
		case VLLM:
			labels := fmt.Sprintf(`engine="%d",%s`, rank, model)
			use := "vllm:kv_cache_usage_perc"
			if a.cfg.OldNames {
				use = "vllm:gpu_cache_usage_perc"
			}
			line("vllm:num_requests_running", labels, float64(f.Running))
			line("vllm:num_requests_waiting", labels, float64(f.Waiting))
			line(use, labels, f.KVUse)
			if !a.cfg.Missing.CacheInfo {
				line("vllm:cache_config_info", fmt.Sprintf(`block_size="%d",enable_prefix_caching="True",engine="%d",num_gpu_blocks="%d"`,
					cache.BlockSize, rank, cache.Capacity), 1)
			}
		case SGLang:
			labels := fmt.Sprintf(`dp_rank="%d",%s,tp_rank="%d"`, rank, model, rank)
			line("sglang:num_running_reqs", labels, float64(f.Running))
			line("sglang:num_queue_reqs", labels, float64(f.Waiting))
			line("sglang:token_usage", labels, f.KVUse)
			if !a.cfg.Missing.CacheInfo {
				line("sglang:cache_config_info", fmt.Sprintf(`num_pages="%d",page_size="%d"`, cache.Capacity, cache.BlockSize), 1)
			}
		case TRTLLM:
			line("trtllm_num_requests_running", model, float64(f.Running))
			line("trtllm_num_requests_waiting", model, float64(f.Waiting))
			line("trtllm_kv_cache_utilization", model, f.KVUse)
			if !a.cfg.Missing.CacheInfo {
				line("trtllm_kv_cache_max_blocks", model, float64(cache.Capacity))
				line("trtllm_kv_cache_tokens_per_block", model, float64(cache.BlockSize))
			}
		}
	}
	return b.String()
}

func (a *API) serverInfo(*http.Request) (any, error) {
	first := a.ranks[0]
	cache := first.cfg.Cache
	info := map[string]any{
		"version": a.cfg.Version, "served_model_name": a.cfg.Model, "page_size": cache.BlockSize, "dp_size": len(a.ranks),
		"disable_radix_cache": false, "enable_cache_report": !a.cfg.Missing.CachedTokens,
		"max_total_num_tokens": cache.BlockSize * cache.Capacity, "kv_events": nil,
	}
	if a.cfg.Missing.KVEvents {
		return info, nil
	}
	host := a.cfg.EventsHost
	if host == "" {
		host = "127.0.0.1"
	}
	port, err := zmq.Port(first.Endpoint())
	if err != nil {
		return nil, err
	}
	events := map[string]any{
		"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": first.cfg.Topic,
		"block_size": cache.BlockSize, "dp_size": len(a.ranks),
	}
	if at := first.ReplayEndpoint(); at != "" {
		if port, err = zmq.Port(at); err != nil {
			return nil, err
		}
		events["replay_endpoint_host"], events["replay_endpoint_port_base"] = host, port
		events["replay_buffer_steps"] = first.cfg.Buffer
	}
	info["kv_events"] = events
	return info, nil
}

// prompt is a request's: token ids, or text, of which each byte is a token.
type prompt []uint32

func (p *prompt) UnmarshalJSON(b []byte) error {
	var ids []uint32
	if json.Unmarshal(b, &ids) == nil {
		*p = ids
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("prompt: give text or token ids: %w", err)
	}
	for _, c := range []byte(text) {
		*p = append(*p, uint32(c)+1)
	}
	return nil
}

type request struct {
	Model  string `json:"model"`
	Prompt prompt `json:"prompt"`
}

func (a *API) request(r *http.Request) (request, error) {
	var q request
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 16<<20)).Decode(&q); err != nil {
		return q, err
	}
	if q.Model != a.cfg.Model {
		return q, fmt.Errorf("model %q is not served; %q is", q.Model, a.cfg.Model)
	}
	return q, nil
}

func (a *API) tokenize(r *http.Request) (any, error) {
	q, err := a.request(r)
	return map[string]any{"count": len(q.Prompt), "max_model_len": 40960, "tokens": q.Prompt}, err
}

// complete answers with one token, and with how much of the prompt was cached.
func (a *API) complete(r *http.Request) (any, error) {
	q, err := a.request(r)
	if err != nil {
		return nil, err
	}
	var cached int
	a.ranks[0].Change(func(c *Cache) (events []kvevents.Event) {
		cached, events = c.Complete(q.Prompt)
		return events
	}, Delivered)
	var details any
	if !a.cfg.Missing.CachedTokens && (cached > 0 || !a.cfg.MissIsNull) {
		details = map[string]int{"cached_tokens": cached}
	}
	return map[string]any{
		"id": "cmpl-0", "object": "text_completion", "created": 0, "model": a.cfg.Model,
		"choices": []any{map[string]any{"index": 0, "text": "a", "finish_reason": "length"}},
		"usage": map[string]any{
			"prompt_tokens": len(q.Prompt), "completion_tokens": 1, "total_tokens": len(q.Prompt) + 1, "prompt_tokens_details": details,
		},
	}, nil
}
