package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	pb "warmpath/schemas/warmpathv1"
)

// maxAnswer bounds what is read of an engine's answer; metrics pages of large
// engines are some hundred kilobytes.
const maxAnswer = 16 << 20

// The names by which engines say their load, newest first.
var (
	runningNames = []string{"vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running"}
	waitingNames = []string{"vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting"}
	kvUsedNames  = []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "trtllm_kv_cache_utilization"}
)

// state is what the parts of a bridge know of each other. Safe for concurrent use.
type state struct {
	mu    sync.Mutex
	known []byte
	why   error
	said  map[string]bool
}

func (s *state) set(epoch []byte, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.why = epoch, why
}

// epoch is the engine's, nil while it does not answer.
func (s *state) epoch() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// err is why the engine is not in the fleet, nil when it is.
func (s *state) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// once reports whether a word is said for the first time.
func (s *state) once(word string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said[word] {
		return false
	}
	if s.said == nil {
		s.said = map[string]bool{}
	}
	s.said[word] = true
	return true
}

// get reads one page of the engine.
func (b *Bridge) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.cfg.Engine+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := b.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", path, response.Status)
	}
	return body, nil
}

// ask returns the model that the engine serves: the one configured, or the only
// one it lists.
func (b *Bridge) ask(ctx context.Context) (string, error) {
	body, err := b.get(ctx, "/v1/models")
	if err != nil {
		return "", fmt.Errorf("engine %s: %w", b.cfg.Engine, err)
	}
	if b.cfg.Model != "" {
		return b.cfg.Model, nil
	}
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return "", fmt.Errorf("engine %s: /v1/models: %w", b.cfg.Engine, err)
	}
	var models []string
	for _, m := range list.Data {
		if m.Parent == "" { // a LoRA adapter names its base model
			models = append(models, m.ID)
		}
	}
	if len(models) != 1 {
		return "", fmt.Errorf("engine %s serves %d models %v; name one by --model", b.cfg.Engine, len(models), models)
	}
	return models[0], nil
}

// scrape reads the load from the engine's metrics. A figure that is missing
// stays absent, which is not zero, and is said once.
func (b *Bridge) scrape(ctx context.Context) (*pb.LoadReport, error) {
	response, err := b.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return b.readLoad(response)
}

func (b *Bridge) readLoad(page []byte) (*pb.LoadReport, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil && len(families) == 0 {
		return nil, fmt.Errorf("/metrics: %w", err)
	}
	report := new(pb.LoadReport)
	if sum, _, ok := b.gauge(families, runningNames); ok {
		running := uint32(sum)
		report.Running = &running
	}
	if sum, _, ok := b.gauge(families, waitingNames); ok {
		waiting := uint32(sum)
		report.Waiting = &waiting
	}
	if sum, n, ok := b.gauge(families, kvUsedNames); ok {
		used := min(max(sum/float64(n), 0), 1)
		report.KvUsed = &used
	}
	if report.Running == nil && report.Waiting == nil && report.KvUsed == nil {
		return nil, errors.New("/metrics has none of the load figures known")
	}
	return report, nil
}

// gauge sums the first metric that is there over its label sets, which are the
// ranks of one engine.
func (b *Bridge) gauge(families map[string]*dto.MetricFamily, names []string) (sum float64, n int, ok bool) {
	for _, name := range names {
		family, ok := families[name]
		if !ok {
			continue
		}
		for _, m := range family.GetMetric() {
			switch {
			case m.Gauge != nil:
				sum += m.GetGauge().GetValue()
			case m.Untyped != nil:
				sum += m.GetUntyped().GetValue()
			default:
				continue
			}
			n++
		}
		return sum, n, n > 0
	}
	if b.state.once(names[0]) {
		b.metrics.missing.WithLabelValues(names[0]).Set(1)
		slog.Warn("engine does not report a load figure; it is left out, not read as zero", "engine", b.cfg.Engine, "names", names)
	}
	return 0, 0, false
}
