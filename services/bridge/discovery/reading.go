package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// reading gathers one look at the load from the pages that tell it.
type reading struct {
	ranks int // 0 unknown
	kind  Kind
	loads map[int]*Load
	why   map[string]string
	// read is true when any page was read. idle is true when the page tells
	// iterations, and there was none since it was last read: neither zero nor missing.
	read, idle bool
}

// readPages reads the metrics pages until the figures are known. TensorRT-LLM's
// text is at another place, and its /metrics is JSON.
func (c *Client) readPages(ctx context.Context, r *reading) error {
	paths := []string{"/metrics", "/prometheus/metrics"}
	if r.kind == TRTLLM {
		slices.Reverse(paths) // who reads its iterations may take them from others
	}
	var errs []error
	var iterations []fields
	for _, path := range paths {
		if r.complete() || (path != "/metrics" && (r.kind == VLLM || r.kind == SGLang)) {
			break
		}
		body, err := c.getIfThere(ctx, path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.read = true
		if found := readIterations(body); found != nil {
			iterations = found
			r.kind = TRTLLM
			r.idle = len(found) == 0
			continue
		}
		r.fromMetrics(readMetrics(body))
	}
	if len(iterations) > 0 {
		r.fromIteration(iterations[len(iterations)-1])
	}
	if r.complete() {
		r.idle = false
	}
	return errors.Join(errs...)
}

// complete reports whether some rank's figures are all known.
func (r *reading) complete() bool {
	for _, l := range r.loads {
		if l.Running != nil && l.Waiting != nil && l.KVUsed != nil {
			return true
		}
	}
	return false
}

func (r *reading) at(rank int) *Load {
	l, ok := r.loads[rank]
	if !ok {
		l = &Load{Rank: rank}
		r.loads[rank] = l
	}
	return l
}

// tell adds a figure, unless a page that was read before told it.
func (r *reading) tell(name string, f figure) {
	if !f.labelled && r.ranks > 1 {
		r.why[name] = fmt.Sprintf("it is told for the engine as a whole, which has %d ranks; figures without a rank label are not divided by guess", r.ranks)
		return
	}
	for rank, value := range f.byRank {
		if !f.labelled {
			rank = r.only()
		}
		l := r.at(rank)
		switch {
		case value < 0:
		case name == FigureRunning && l.Running == nil:
			l.Running = whole(value)
		case name == FigureWaiting && l.Waiting == nil:
			l.Waiting = whole(value)
		case name == FigureKVUsed && l.KVUsed == nil:
			share := min(value, 1)
			l.KVUsed = &share
		}
	}
}

// only is the rank that figures without a label are of.
func (r *reading) only() int {
	if len(r.loads) == 1 {
		for rank := range r.loads {
			return rank
		}
	}
	return 0
}

func whole(x float64) *uint32 {
	n := uint32(min(x, 1<<32-1))
	return &n
}

func (r *reading) fromMetrics(page metricsPage) {
	if page.kind != "" {
		r.kind = page.kind
	}
	for _, one := range []struct {
		name  string
		names []gauge
	}{{FigureRunning, runningGauges}, {FigureWaiting, waitingGauges}, {FigureKVUsed, kvUsedGauges}} {
		if f, ok := page.figure(one.names); ok {
			r.tell(one.name, f)
		}
	}
	used, haveUsed := page.figure(usedBlocks)
	most, haveMost := page.figure(maxBlocks)
	if haveUsed && haveMost {
		r.tell(FigureKVUsed, used.dividedBy(most))
	}
}

// dividedBy is f as a share of another figure, for the ranks that have both.
func (f figure) dividedBy(of figure) figure {
	out := figure{byRank: map[int]float64{}, labelled: f.labelled && of.labelled}
	for rank, value := range f.byRank {
		if whole := of.byRank[rank]; whole > 0 {
			out.byRank[rank] = value / whole
		}
	}
	return out
}

// readLoads reads SGLang's /v1/loads, which also serves where metrics are off, and
// alone tells queued tokens.
func (c *Client) readLoads(ctx context.Context, r *reading) error {
	if r.kind == VLLM || r.kind == TRTLLM {
		return nil
	}
	body, err := c.getIfThere(ctx, "/v1/loads")
	if err != nil {
		return err
	}
	said, err := readFields(body)
	if err != nil {
		return fmt.Errorf("/v1/loads: %w", err)
	}
	r.read = true
	for i, one := range said.objects("loads") {
		r.kind = SGLang
		rank := i
		if x, ok := one.number("dp_rank"); ok && x >= 0 {
			rank = int(x)
		}
		for name, field := range map[string]string{FigureRunning: "num_running_reqs", FigureWaiting: "num_waiting_reqs", FigureKVUsed: "token_usage"} {
			if x, ok := one.number(field); ok {
				r.tell(name, figure{byRank: map[int]float64{rank: x}, labelled: true})
			}
		}
		if x, ok := one.number("num_waiting_uncached_tokens"); ok && x >= 0 {
			tokens := uint64(x)
			r.at(rank).QueuedPrefillTokens = &tokens
		}
	}
	return nil
}

func (r *reading) sorted() []Load {
	out := make([]Load, 0, len(r.loads))
	for _, rank := range slices.Sorted(maps.Keys(r.loads)) {
		out = append(out, *r.loads[rank])
	}
	return out
}

// missing names the figures that no rank has.
func (r *reading) missing() []Missing {
	var out []Missing
	has := func(told func(*Load) bool) bool {
		for _, l := range r.loads {
			if told(l) {
				return true
			}
		}
		return false
	}
	for _, one := range []struct {
		name  string
		names []gauge
		told  func(*Load) bool
	}{
		{FigureRunning, runningGauges, func(l *Load) bool { return l.Running != nil }},
		{FigureWaiting, waitingGauges, func(l *Load) bool { return l.Waiting != nil }},
		{FigureKVUsed, kvUsedGauges, func(l *Load) bool { return l.KVUsed != nil }},
	} {
		if has(one.told) {
			continue
		}
		why := r.why[one.name]
		if why == "" {
			why = r.kind.whyMissing(one.names)
		}
		out = append(out, Missing{Figure: one.name, Why: why})
	}
	return out
}

// whyMissing says what was looked for, and what usually switches it off.
func (k Kind) whyMissing(names []gauge) string {
	switch k {
	case VLLM:
		return fmt.Sprintf("/metrics has no %s; vLLM leaves it out with --disable-log-stats", firstOf(names, "vllm:"))
	case SGLang:
		return fmt.Sprintf("neither /metrics (%s) nor /v1/loads tells it; start SGLang with --enable-metrics", firstOf(names, "sglang:"))
	case TRTLLM:
		return fmt.Sprintf("neither /prometheus/metrics (%s) nor the iterations in /metrics tell it; set enable_iter_perf_stats and return_perf_metrics to true", firstOf(names, "trtllm_"))
	}
	return fmt.Sprintf("/metrics has none of the names known, such as %s", names[0].name)
}

func firstOf(names []gauge, prefix string) string {
	for _, g := range names {
		if strings.HasPrefix(g.name, prefix) {
			return g.name
		}
	}
	return names[0].name
}
