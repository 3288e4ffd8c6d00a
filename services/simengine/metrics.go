package simengine

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/engine"
)

// Buckets are vLLM's, in seconds.
var (
	latencyBuckets = []float64{
		0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
	}
	tokenBuckets = []float64{
		0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
	}
)

// metrics are the replica's, under vLLM's names with vLLM's labels; its own are
// under warmpath_simengine. Seconds are those of the engine's clock.
type metrics struct {
	server *Server

	ttft, queue, e2e, tpot prometheus.Histogram
	finished               *prometheus.CounterVec

	running, waiting, kvUsed              *prometheus.Desc
	queries, hits, prompt, cached, output *prometheus.Desc
	preemptions, config                   *prometheus.Desc
	stored, evicted, dropped, epochs      *prometheus.Desc
}

func newMetrics(s *Server) *metrics {
	labels := prometheus.Labels{"model_name": s.cfg.Model, "engine": "0"}
	own := prometheus.Labels{"pool": s.cfg.Pool, "replica": s.cfg.Replica}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: labels})
	}
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, labels) }
	return &metrics{
		server: s,
		ttft:   histogram("vllm:time_to_first_token_seconds", "Time from arrival to the first token.", latencyBuckets),
		queue:  histogram("vllm:request_queue_time_seconds", "Time from arrival to the first step.", latencyBuckets),
		e2e:    histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", latencyBuckets),
		tpot:   histogram("vllm:request_time_per_output_token_seconds", "Mean time per output token after the first.", tokenBuckets),
		finished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vllm:request_success_total", Help: "Requests ended, by reason.", ConstLabels: labels,
		}, []string{"finished_reason"}),
		running:     desc("vllm:num_requests_running", "Requests in the running batch."),
		waiting:     desc("vllm:num_requests_waiting", "Requests accepted and not yet running."),
		kvUsed:      desc("vllm:kv_cache_usage_perc", "Share of KV blocks that requests hold, 0 to 1."),
		queries:     desc("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
		hits:        desc("vllm:prefix_cache_hits_total", "Prompt tokens served from the prefix cache."),
		prompt:      desc("vllm:prompt_tokens_total", "Prompt tokens of admitted requests."),
		cached:      desc("vllm:prompt_tokens_cached_total", "Prompt tokens that were not computed."),
		output:      desc("vllm:generation_tokens_total", "Tokens generated."),
		preemptions: desc("vllm:num_preemptions_total", "Requests that gave up their blocks and started over."),
		config: prometheus.NewDesc("vllm:cache_config_info", "Configuration of the KV cache.",
			[]string{"block_size", "num_gpu_blocks", "enable_prefix_caching"}, labels),
		stored:  prometheus.NewDesc("warmpath_simengine_blocks_stored_total", "KV blocks that entered the cache.", nil, own),
		evicted: prometheus.NewDesc("warmpath_simengine_blocks_evicted_total", "KV blocks evicted.", nil, own),
		dropped: prometheus.NewDesc("warmpath_simengine_batches_dropped_total", "KV batches not published, by reason; a new epoch follows.", []string{"reason"}, own),
		epochs:  prometheus.NewDesc("warmpath_simengine_epochs_total", "Epochs begun, by reason.", []string{"reason"}, own),
	}
}

// observe records a request's progress.
func (m *metrics) observe(out engine.Output) {
	if out.First {
		m.ttft.Observe((out.FirstAt - out.Submitted).Seconds())
		m.queue.Observe((out.Started - out.Submitted).Seconds())
	}
	if !out.Finished {
		return
	}
	m.e2e.Observe((out.At - out.Submitted).Seconds())
	if out.Tokens > 1 {
		m.tpot.Observe((out.At - out.FirstAt).Seconds() / float64(out.Tokens-1))
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.running, m.waiting, m.kvUsed, m.queries, m.hits, m.prompt, m.cached, m.output,
		m.preemptions, m.config, m.stored, m.evicted, m.dropped, m.epochs,
	} {
		ch <- d
	}
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.ttft, m.queue, m.e2e, m.tpot, m.finished}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
	s := m.server
	s.mu.Lock()
	var load engine.Load
	var stats engine.Stats
	if s.engine != nil {
		load, stats = s.engine.Load(), s.engine.Stats()
	}
	s.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(m.running, float64(load.Running))
	gauge(m.waiting, float64(load.Waiting))
	gauge(m.kvUsed, load.KVUsed)
	counter(m.queries, stats.QueriedTokens)
	counter(m.hits, stats.CachedTokens)
	counter(m.prompt, stats.QueriedTokens)
	counter(m.cached, stats.CachedTokens)
	counter(m.output, stats.GeneratedTokens)
	counter(m.preemptions, stats.Preemptions)
	gauge(m.config, 1, strconv.Itoa(s.config.BlockTokens), strconv.Itoa(s.config.Blocks), "True")
	counter(m.stored, stats.StoredBlocks)
	counter(m.evicted, stats.EvictedBlocks)
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	for reason, n := range s.out.dropped {
		counter(m.dropped, n, reason)
	}
	for reason, n := range s.out.epochs {
		counter(m.epochs, n, reason)
	}
}
