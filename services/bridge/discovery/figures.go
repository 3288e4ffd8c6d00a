package discovery

import (
	"bytes"
	"math"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// gauge is one name by which an engine tells a figure.
type gauge struct {
	name string
	// sum adds the series of a rank, which are parts of the figure. Else the largest
	// counts: each tensor-parallel worker tells the same, and SGLang's shares of
	// single priorities stand beside their sum.
	sum bool
}

// The names of the load figures, newest first for each engine.
var (
	runningGauges = []gauge{{name: "vllm:num_requests_running"}, {name: "sglang:num_running_reqs"}, {name: "trtllm_num_requests_running"}}
	waitingGauges = []gauge{
		{name: "vllm:num_requests_waiting"}, {name: "vllm:num_requests_waiting_by_reason", sum: true},
		{name: "sglang:num_queue_reqs"}, {name: "trtllm_num_requests_waiting"},
	}
	kvUsedGauges = []gauge{
		{name: "vllm:kv_cache_usage_perc"}, {name: "vllm:gpu_cache_usage_perc"},
		{name: "sglang:token_usage"}, {name: "trtllm_kv_cache_utilization"},
	}
	usedBlocks = []gauge{{name: "trtllm_kv_cache_used_blocks"}}
	maxBlocks  = []gauge{{name: "trtllm_kv_cache_max_blocks"}}
)

// Names of what an engine is, rather than does.
const (
	vllmCacheInfo       = "vllm:cache_config_info"
	sglangCacheInfo     = "sglang:cache_config_info"
	sglangPageSize      = "sglang:page_size"
	sglangPages         = "sglang:num_pages"
	sglangTokens        = "sglang:max_total_num_tokens"
	trtllmTokensInBlock = "trtllm_kv_cache_tokens_per_block"
)

// wanted are all names that are looked for.
var wanted = wantedNames()

func wantedNames() map[string]bool {
	names := map[string]bool{
		vllmCacheInfo: true, sglangCacheInfo: true, sglangPageSize: true, sglangPages: true, sglangTokens: true, trtllmTokensInBlock: true,
	}
	for _, list := range [][]gauge{runningGauges, waitingGauges, kvUsedGauges, usedBlocks, maxBlocks} {
		for _, g := range list {
			names[g.name] = true
		}
	}
	return names
}

// rankLabels are the labels that tell the data-parallel rank of a series.
var rankLabels = []string{"engine", "dp_rank", "attn_dp_rank", "attention_dp_rank"}

// metricsPage is what is wanted of a page in Prometheus' text format.
type metricsPage struct {
	kind   Kind
	series map[string][]series
}

type series struct {
	labels map[string]string
	value  float64
}

// readMetrics reads the wanted lines only: pages are read several times a second
// and are nearly all histograms, and a line of another exporter that cannot be
// parsed must not hide the load.
func readMetrics(body []byte) metricsPage {
	page := metricsPage{series: map[string][]series{}}
	for line := range bytes.Lines(body) {
		end := bytes.IndexAny(line, "{ \t\r\n")
		if end < 0 {
			end = len(line)
		}
		name := line[:end]
		if page.kind == "" {
			page.kind = kindByMetric(name)
		}
		if wanted[string(name)] {
			page.add(line)
		}
	}
	return page
}

func kindByMetric(name []byte) Kind {
	switch {
	case bytes.HasPrefix(name, []byte("vllm:")):
		return VLLM
	case bytes.HasPrefix(name, []byte("sglang:")):
		return SGLang
	case bytes.HasPrefix(name, []byte("trtllm_")):
		return TRTLLM
	}
	return ""
}

// add parses one line. One that cannot be parsed is left out.
func (p *metricsPage) add(line []byte) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(append(bytes.TrimSpace(line), '\n')))
	if err != nil {
		return
	}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			value := m.GetUntyped().GetValue() // a line without its TYPE comment is untyped
			if m.Untyped == nil || math.IsNaN(value) || math.IsInf(value, 0) {
				continue
			}
			p.series[name] = append(p.series[name], series{labels: labelsOf(m), value: value})
		}
	}
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string, len(m.GetLabel()))
	for _, pair := range m.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}

// rank is the data-parallel rank that a series is of.
func (s series) rank() (int, bool) {
	for _, name := range rankLabels {
		if rank, err := strconv.Atoi(s.labels[name]); err == nil && rank >= 0 {
			return rank, true
		}
	}
	return 0, false
}

// figure is one load figure by rank. Without labels it is under rank 0.
type figure struct {
	byRank   map[int]float64
	labelled bool
}

// figure returns the first of the names that the page has.
func (p metricsPage) figure(names []gauge) (figure, bool) {
	for _, g := range names {
		if all := p.series[g.name]; len(all) > 0 {
			return g.fold(all), true
		}
	}
	return figure{}, false
}

func (g gauge) fold(all []series) figure {
	f := figure{byRank: map[int]float64{}, labelled: true}
	for _, s := range all {
		rank, labelled := s.rank()
		f.labelled = f.labelled && labelled
		old, again := f.byRank[rank]
		switch {
		case g.sum:
			f.byRank[rank] = old + s.value
		case !again || s.value > old:
			f.byRank[rank] = s.value
		}
	}
	return f
}

// ranks are the ranks that label the page's load figures.
func (p metricsPage) ranks() map[int]bool {
	found := map[int]bool{}
	for _, names := range [][]gauge{runningGauges, waitingGauges, kvUsedGauges} {
		if f, ok := p.figure(names); ok && f.labelled {
			for rank := range f.byRank {
				found[rank] = true
			}
		}
	}
	return found
}

// largest is the largest count of a name, 0 when it is not there.
func (p metricsPage) largest(name string) int {
	most := 0
	for _, s := range p.series[name] {
		most = max(most, countOf(s.value))
	}
	return most
}

// info are the labels of an information series, one for each rank.
func (p metricsPage) info(name string) []fields {
	var out []fields
	for _, s := range p.series[name] {
		labels := fields{}
		for k, v := range s.labels {
			labels[k] = v
		}
		out = append(out, labels)
	}
	return out
}
