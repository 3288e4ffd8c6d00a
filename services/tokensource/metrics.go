package tokensource

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"warmpath/tokenize/keycache"
)

const namespace = "warmpath_tokensource"

// metrics are a source's figures for Prometheus.
type metrics struct {
	requests    *prometheus.CounterVec
	unavailable *prometheus.CounterVec
	others      []prometheus.Collector
}

func newMetrics(s *Source) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "prompts_total",
			Help: "Prompts by where their tokens were looked for (in_process, engine, client, bytes) and what came of it: ok, refused (the prompt was wrong), unavailable."}, []string{"source", "result"}),
		unavailable: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "unavailable_total",
			Help: "Prompts whose tokens could not be known, which are routed by load alone, by reason."}, []string{"reason"}),
	}
	gauge := func(name, help string, value func() float64) {
		m.others = append(m.others, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value))
	}
	counter := func(name, help string, value func() float64) {
		m.others = append(m.others, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, value))
	}
	gauge("engine_fallback", "1 while engines are asked because the tokens made in process were shown to be wrong.", func() float64 {
		if _, on := s.Fallback(); on {
			return 1
		}
		return 0
	})
	if s.inProcess != nil {
		stats := func(pick func(keycache.Stats) float64) func() float64 {
			return func() float64 { return pick(s.inProcess.cache.Stats()) }
		}
		gauge("prefix_cache_bytes", "Memory of remembered prefixes.", stats(func(s keycache.Stats) float64 { return float64(s.Bytes) }))
		counter("tokens_total", "Prompt tokens made in process.", stats(func(s keycache.Stats) float64 { return float64(s.Tokens) }))
		counter("tokens_reused_total", "Those of them that a remembered prefix had.", stats(func(s keycache.Stats) float64 { return float64(s.Reused) }))
		counter("prefix_cache_evictions_total", "Entries that left the memory of prefixes for others.", stats(func(s keycache.Stats) float64 { return float64(s.Evictions) }))
	}
	if e := s.engines; e != nil {
		counter("engine_questions_total", "Questions sent to engines' /tokenize.", func() float64 { return float64(e.asked.Load()) })
		counter("engine_retries_total", "Questions that went to a second engine.", func() float64 { return float64(e.retried.Load()) })
		counter("engine_answers_reused_total", "Prompts whose ids an engine had said before.", func() float64 {
			_, hits := e.answers.totals()
			return float64(hits)
		})
		gauge("engine_answers_bytes", "Memory of engines' answers.", func() float64 {
			bytes, _ := e.answers.totals()
			return float64(bytes)
		})
	}
	return m
}

func (m *metrics) register(reg prometheus.Registerer) error {
	for _, c := range append([]prometheus.Collector{m.requests, m.unavailable}, m.others...) {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// count counts a prompt by what came of it.
func (m *metrics) count(mode Mode, err error) {
	result := "ok"
	var prompt *PromptError
	var unavailable *UnavailableError
	switch {
	case errors.As(err, &prompt):
		result = "refused"
	case errors.As(err, &unavailable):
		result = "unavailable"
		m.unavailable.WithLabelValues(unavailable.Reason).Inc()
	}
	m.requests.WithLabelValues(string(mode), result).Inc()
}
