package dev

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"warmpath/services/analytics/report"
)

// clockMeans says what durations are, by the report's clock and the engines' speed.
func clockMeans(clock string, speed float64) string {
	switch {
	case clock == "model" && speed != 0:
		return fmt.Sprintf("durations are by the engines' clock, %g times as fast as the wall's: those of the modelled hardware, within what this machine keeps up with", speed)
	case clock == "model":
		return "durations are by the engines' model clock: true to the modelled hardware, not to this machine"
	case clock == "wall":
		return "durations are by the gateway's wall clock"
	}
	return ""
}

// result is the report of one replay as JSON.
type result struct {
	*report.Report
	Policy     string `json:"policy"`
	ClockMeans string `json:"clock_means,omitempty"`
	Pool       string `json:"pool"`
	// FailedForClient counts what the replay saw fail; Failed what rows say.
	FailedForClient int `json:"failed_for_client"`
	// Restarts counts components that died and were started again so far.
	Restarts int `json:"restarts"`
	// ExpiredHolds counts times at which the model clock gave up waiting.
	ExpiredHolds int     `json:"expired_holds"`
	Seconds      float64 `json:"replay_seconds"`
}

// whole is what --json prints.
type whole struct {
	result
	Trace       string  `json:"trace"`
	Replicas    int     `json:"replicas"`
	Blocks      int     `json:"blocks"`
	BlockTokens int     `json:"block_tokens"`
	Seed        uint64  `json:"seed"`
	WallSeconds float64 `json:"wall_seconds"`
	Baseline    *result `json:"baseline,omitempty"`
	Gain        *gain   `json:"gain,omitempty"`
}

// gain compares a replay with its baseline; a ratio is absent where the baseline
// has nothing to compare with.
type gain struct {
	// HitRateRatio is the hit rate over the baseline's.
	HitRateRatio *float64 `json:"hit_rate_ratio"`
	// TTFTP50Ratio is the baseline's median time to first token over this one's.
	TTFTP50Ratio *float64 `json:"ttft_p50_ratio"`
	// ComputedTokensSaved is how many prompt tokens fewer were computed.
	ComputedTokensSaved *int64 `json:"computed_tokens_saved"`
	// ComputedShareSaved is that over what the baseline computed.
	ComputedShareSaved *float64 `json:"computed_share_saved"`
}

func newResult(o *outcome, speed float64) result {
	return result{
		Report: o.report, Policy: o.policy, ClockMeans: clockMeans(o.report.Clock, speed), Pool: o.pool,
		FailedForClient: o.totals.Failed, Restarts: o.restarts, ExpiredHolds: o.expired, Seconds: o.seconds,
	}
}

func newGain(main, baseline *outcome) *gain {
	g := &gain{
		HitRateRatio: ratio(main.report.HitRate, baseline.report.HitRate),
		TTFTP50Ratio: ratio(baseline.report.TTFT.All.P50, main.report.TTFT.All.P50),
	}
	if a, b := main.report.ComputedTokens, baseline.report.ComputedTokens; a != nil && b != nil {
		g.ComputedTokensSaved = new(int64(*b) - int64(*a))
		if *b > 0 {
			g.ComputedShareSaved = new(float64(*g.ComputedTokensSaved) / float64(*b))
		}
	}
	return g
}

func ratio(a, b *float64) *float64 {
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	return new(*a / *b)
}

// print writes the report.
func (r *run) print(w io.Writer, took time.Duration) error {
	p := r.plan
	out := whole{
		result: newResult(r.main, p.speed), Trace: p.trace.Name, Replicas: p.Replicas, Blocks: p.Blocks, BlockTokens: p.BlockTokens,
		Seed: p.Seed, WallSeconds: took.Seconds(),
	}
	if r.baseline != nil {
		out.Baseline = new(newResult(r.baseline, p.speed))
		out.Gain = newGain(r.main, r.baseline)
	}
	if p.JSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(out)
	}
	fmt.Fprintf(w, "\n%s\n%d × %s on %s, %d blocks of %d tokens each\n\n", p.trace, p.Replicas, p.Model, p.GPU, p.Blocks, p.BlockTokens)
	var baseline *report.Report
	if r.baseline != nil {
		baseline = r.baseline.report
	}
	if err := report.Table(w, r.main.report, baseline); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if g := out.Gain; g != nil {
		g.print(w, p, r)
	}
	fmt.Fprintf(w, "%.1f s on this machine\n", took.Seconds())
	return nil
}

// print says the gain in words.
func (g *gain) print(w io.Writer, p *plan, r *run) {
	fmt.Fprintf(w, "%s against %s:", p.Policy, r.baseline.policy)
	if g.HitRateRatio != nil {
		fmt.Fprintf(w, " hit rate %.1f times as high,", *g.HitRateRatio)
	}
	if g.TTFTP50Ratio != nil {
		fmt.Fprintf(w, " median time to first token %.0f ms instead of %.0f,", *r.main.report.TTFT.All.P50, *r.baseline.report.TTFT.All.P50)
	}
	if g.ComputedShareSaved != nil {
		fmt.Fprintf(w, " %.0f%% of the prefill saved (%.1f million tokens)", 100**g.ComputedShareSaved, float64(*g.ComputedTokensSaved)/1e6)
	}
	fmt.Fprintln(w)
}
