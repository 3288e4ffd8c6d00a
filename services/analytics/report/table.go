package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// absent stands for a figure that nothing reported.
const absent = "-"

// Table writes main as an aligned table, with baseline beside it when it is not
// nil, and a line of definition for the figures that need one.
func Table(w io.Writer, main, baseline *Report) error {
	t := table{baseline: baseline != nil, w: tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)}
	reports := []*Report{main}
	if baseline != nil {
		reports = append(reports, baseline)
	}
	t.header(reports)
	t.count("requests", reports, func(r *Report) *uint64 { return &r.Requests })
	t.count("failed", reports, func(r *Report) *uint64 { return &r.Failed })
	t.count("cancelled", reports, func(r *Report) *uint64 { return &r.Cancelled })
	t.count("prompt tokens", reports, func(r *Report) *uint64 { return &r.PromptTokens })
	t.count("cached tokens", reports, func(r *Report) *uint64 { return r.CachedTokens })
	t.rate("hit rate", reports, func(r *Report) *float64 { return r.HitRate })
	t.rate("  predicted", reports, func(r *Report) *float64 { return r.PredictedHitRate })
	t.rate("  of the longest match", reports, func(r *Report) *float64 { return r.BestHitRate })
	t.quantiles("ttft, ms", reports, func(r *Report) Quantiles { return r.TTFT.All })
	t.quantiles("ttft of hits, ms", reports, func(r *Report) Quantiles { return r.TTFT.Hit })
	t.quantiles("ttft of misses, ms", reports, func(r *Report) Quantiles { return r.TTFT.Miss })
	t.quantiles("time per token, ms", reports, func(r *Report) Quantiles { return r.TPOT })
	t.quantiles("end to end, ms", reports, func(r *Report) Quantiles { return r.E2E })
	t.quantiles("decision, us", reports, func(r *Report) Quantiles { return r.DecisionUS })
	t.quantiles("wait for decision, us", reports, func(r *Report) Quantiles { return r.RouteWaitUS })
	t.number("imbalance", reports, func(r *Report) *float64 { return r.Imbalance }, 2)
	t.count("steals", reports, func(r *Report) *uint64 { return &r.Steals })
	t.count("moves", reports, func(r *Report) *uint64 { return &r.Moves })
	t.count("fallbacks", reports, func(r *Report) *uint64 { return &r.Fallbacks })
	t.count("evicted blocks", reports, func(r *Report) *uint64 { return r.Evictions })
	t.count("rows", reports, func(r *Report) *uint64 { return &r.Rows })
	t.count("rows distinct", reports, func(r *Report) *uint64 { return &r.RowsDistinct })
	t.count("published decisions", reports, func(r *Report) *uint64 { return r.PublishedDecisions })
	t.count("published outcomes", reports, func(r *Report) *uint64 { return r.PublishedOutcomes })
	if err := t.w.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := replicaTable(w, main); err != nil {
		return err
	}
	return definitions(w, main)
}

// table collects rows of a label and a cell per report, and between two reports
// how many times the first is the second.
type table struct {
	baseline bool
	w        *tabwriter.Writer
}

func (t *table) row(label string, cells ...string) {
	fmt.Fprintf(t.w, "%-26s\t%s\t\n", label, strings.Join(cells, "\t"))
}

func (t *table) header(reports []*Report) {
	cells := make([]string, 0, len(reports)+1)
	for i, r := range reports {
		name := strings.Join(r.Policies, "+")
		if name == "" {
			name = [...]string{"run", "baseline"}[i]
		}
		cells = append(cells, name)
	}
	if t.baseline {
		cells = append(cells, "factor")
	}
	t.row("", cells...)
}

func (t *table) count(label string, reports []*Report, figure func(*Report) *uint64) {
	cells := make([]string, 0, len(reports)+1)
	for _, r := range reports {
		cell := absent
		if v := figure(r); v != nil {
			cell = grouped(*v)
		}
		cells = append(cells, cell)
	}
	if t.baseline {
		cells = append(cells, "")
	}
	t.row(label, cells...)
}

func (t *table) rate(label string, reports []*Report, figure func(*Report) *float64) {
	t.figures(label, reports, figure, percent)
}

func (t *table) number(label string, reports []*Report, figure func(*Report) *float64, digits int) {
	t.figures(label, reports, figure, func(v *float64) string { return fixed(v, digits) })
}

func (t *table) quantiles(label string, reports []*Report, figure func(*Report) Quantiles) {
	t.number(label+" p50", reports, func(r *Report) *float64 { return figure(r).P50 }, 1)
	t.number(strings.Repeat(" ", len(label))+" p95", reports, func(r *Report) *float64 { return figure(r).P95 }, 1)
	t.number(strings.Repeat(" ", len(label))+" p99", reports, func(r *Report) *float64 { return figure(r).P99 }, 1)
}

func (t *table) figures(label string, reports []*Report, figure func(*Report) *float64, show func(*float64) string) {
	cells := make([]string, 0, len(reports)+1)
	for _, r := range reports {
		cells = append(cells, show(figure(r)))
	}
	if t.baseline {
		cells = append(cells, factor(figure(reports[0]), figure(reports[1])))
	}
	t.row(label, cells...)
}

func replicaTable(w io.Writer, r *Report) error {
	if len(r.PerReplica) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\n%-24s\trequests\thit rate\tcomputed share\tttft p95, ms\tevicted blocks\t\n", "replica")
	for _, one := range r.PerReplica {
		evictions := absent
		if one.Evictions != nil {
			evictions = grouped(*one.Evictions)
		}
		fmt.Fprintf(t, "%-24s\t%s\t%s\t%s\t%s\t%s\t\n", one.Replica, grouped(one.Requests),
			percent(one.HitRate), percent(one.ComputedShare), fixed(one.TTFTP95MS, 1), evictions)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// clocks says what durations are by.
var clocks = map[string]string{
	"wall":  "wall clock of the gateway",
	"model": "model clock of the simulated engines: true to the modelled hardware, not to this host",
	"mixed": "wall clock and a model clock, in different requests: their quantiles mix two things",
	"":      "clock that nobody named",
}

func definitions(w io.Writer, r *Report) error {
	_, err := fmt.Fprintf(w, `
hit rate   cached tokens / prompt tokens as the engines report them, ratio of sums
hit, miss  a hit had at least half of its prompt tokens from cache
ttft       time to first token; it, time per token and end to end are by the
           %s
imbalance  computed tokens of the busiest replica / mean over all replicas of the fleet; 1 is even
`, clocks[r.Clock])
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func percent(v *float64) string {
	if v == nil {
		return absent
	}
	return strconv.FormatFloat(*v*100, 'f', 1, 64) + "%"
}

func fixed(v *float64, digits int) string {
	if v == nil {
		return absent
	}
	return strconv.FormatFloat(*v, 'f', digits, 64)
}

// factor is how many times b goes into a.
func factor(a, b *float64) string {
	if a == nil || b == nil || *b == 0 {
		return ""
	}
	return strconv.FormatFloat(*a / *b, 'f', 2, 64) + "x"
}

// grouped writes a count with its thousands apart.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
