package main

import (
	"fmt"
	"strings"
)

// objective is a promise about a histogram: so large a share of the
// observations is at most bound.
type objective struct {
	name   string // of its recordings
	alert  string
	metric string
	bound  string // a bucket's upper bound, in the metric's unit
	target float64
	what   string // the promise in words
	cause  string // where to look
}

var objectives = []objective{
	{name: "ttft_slow", alert: "WarmpathTTFTBudgetBurns", metric: "warmpath_gateway_ttft_seconds", bound: "3", target: 0.99,
		what:  "99% of requests get their first token within 3 s",
		cause: "Compare TTFT of hits and of misses: slow misses alone are a matter of capacity, slow hits of queues or stalls."},
	{name: "decision_slow", alert: "WarmpathDecisionBudgetBurns", metric: "warmpath_gateway_route_wait_seconds", bound: "0.005", target: 0.99,
		what:  "99% of requests wait at most 5 ms for their decision",
		cause: "Look at the router's CPU, at warmpath_router_decision_seconds, and at the NATS round trip."},
	{name: "index_stale", alert: "WarmpathFreshnessBudgetBurns", metric: "warmpath_router_kv_batch_age_seconds", bound: "0.25", target: 0.99,
		what:  "99% of cache events are in the index within 250 ms",
		cause: "Look at warmpath_router_kv_lag, at the bridges' publish backlog, and at clock skew between hosts."},
}

// windows of the recordings, shortest first.
var windows = []string{"5m", "30m", "1h", "2h", "6h", "1d", "3d"}

// burn is a pair of windows that must both burn the budget factor times as
// fast as it may: the long one says that it matters, the short one that it is
// still so. Figures of the usual multiwindow, multi-burn-rate scheme for 30 days.
type burn struct {
	factor      string
	long, short string
}

var (
	pageBurns   = []burn{{"14.4", "1h", "5m"}, {"6", "6h", "30m"}}
	ticketBurns = []burn{{"3", "1d", "2h"}, {"1", "3d", "6h"}}
)

// alert is a condition without a budget.
type alert struct {
	name, severity, hold string
	expr                 string
	summary, description string
}

var alerts = []alert{
	{"WarmpathHitsNotAsPredicted", "page", "10m",
		"warmpath:predicted_hit_ratio:rate5m > 0.2\n  and warmpath:hit_ratio:rate5m < 0.5 * warmpath:predicted_hit_ratio:rate5m",
		"engines find less than half of what the router predicts",
		"Likely causes: chat template or tokenizer differ from the engine's, block size differs, LoRA or salt is missing, removals are lost. The Mismatch panel names the replicas."},
	{"WarmpathMismatch", "page", "0m",
		"max by (pool, replica, cause) (warmpath_gateway_mismatch) > 0",
		"predicted and actual hits do not belong together: {{ $labels.cause }}",
		"warmpath doctor gateway says what the cause means and what to do; GET /v1/mismatches of a gateway has the evidence. An empty replica is the whole pool."},
	{"WarmpathMoreHitsThanPredicted", "ticket", "30m",
		"warmpath:hit_ratio:rate5m > 0.2\n  and warmpath:predicted_hit_ratio:rate5m < 0.5 * warmpath:hit_ratio:rate5m",
		"engines find more than twice what the router predicts",
		"Likely cause: KV events of some replica do not arrive, because its flag is off or its bridge is down."},
	{"WarmpathCachedTokensNotReported", "ticket", "15m",
		"sum(rate(warmpath_gateway_cached_tokens_unreported_total[5m]))\n  > 0.5 * sum(rate(warmpath_gateway_requests_total{status=\"ok\"}[5m]))",
		"most answers do not say how many tokens were cached",
		"Hit rates then stand on few requests. Turn on the engine's flag for prompt token details."},
	{"WarmpathRequestsFail", "page", "5m",
		"sum(rate(warmpath_gateway_requests_total{status=~\"upstream_error|no_replica|overloaded\"}[5m]))\n  > 0.01 * sum(rate(warmpath_gateway_requests_total[5m]))",
		"more than 1% of requests fail",
		"By status: upstream_error is an engine's, no_replica means that none is alive and eligible, overloaded is the gateway's own limit."},
	{"WarmpathGatewayDecidesItself", "page", "5m",
		"sum(rate(warmpath_gateway_fallbacks_total[5m]))\n  > 0.05 * sum(rate(warmpath_gateway_requests_total[5m]))",
		"the router does not answer for more than 5% of requests",
		"Gateways place by hash meanwhile: requests are served, hits are lost. Label cause says whether the router is slow, absent or not ready."},
	{"WarmpathRouterNotReady", "page", "2m",
		"max by (pool) (warmpath_router_ready) == 0",
		"no router of pool {{ $labels.pool }} answers",
		"Gateways fall back to placement by hash. A router that starts reads the KV stream up to its head first: look at warmpath_router_kv_lag."},
	{"WarmpathRouterGone", "page", "5m",
		"absent(warmpath_router_ready)",
		"no router is scraped",
		"No router runs, or Prometheus does not reach it."},
	{"WarmpathIndexBehind", "page", "2m",
		"min by (pool) (warmpath_router_kv_lag) > 10000",
		"the index of pool {{ $labels.pool }} is more than 10,000 messages behind",
		"Decisions are taken on an old picture of the caches. Look at the router's CPU and its connection to NATS."},
	{"WarmpathReplicaSuspect", "ticket", "5m",
		"max by (pool) (warmpath_router_index_suspects) > 0",
		"{{ $value }} replicas of pool {{ $labels.pool }} are suspect",
		"Events are missing in the stream, or the bridge is in doubt: GET /v1/state of a router says which, and why. Their matches are discounted meanwhile."},
	{"WarmpathBridgeInDoubt", "ticket", "15m",
		"min by (replica) (warmpath_bridge_exact) == 0",
		"what is published of replica {{ $labels.replica }} is not known to be what its engine holds",
		"problem in GET /v1/state of its bridge says why; warmpath doctor bridge looks at the engine. History that was lost is in doubt until the engine clears its cache or restarts."},
	{"WarmpathBridgeHistoryLost", "ticket", "0m",
		"sum by (replica, reason) (increase(warmpath_bridge_history_lost_total[15m])) > 0",
		"KV events of replica {{ $labels.replica }} are gone: {{ $labels.reason }}",
		"Give the bridge the engine's replay endpoint (--kv-replay), or the engine a larger buffer_steps; a full engine drops at its high-water mark."},
	{"WarmpathBridgeEventsUnknown", "ticket", "5m",
		"sum by (replica) (rate(warmpath_bridge_bad_events_total[5m])) > 0\n  or sum by (replica) (rate(warmpath_bridge_unknown_total{class=\"tag\"}[5m])) > 0",
		"replica {{ $labels.replica }} publishes events that cannot be read",
		"The engine is of a version that this bridge does not know. Record them (bridge --record) and update the bridge."},
	{"WarmpathBridgeSpools", "page", "2m",
		"max by (replica) (warmpath_bridge_spool_bytes) > 0",
		"events of replica {{ $labels.replica }} wait on disk",
		"NATS is away or too slow. Past the spool's bound a new epoch tells the whole cache."},
	{"WarmpathAuditEventsLost", "page", "0m",
		"increase(warmpath_gateway_publish_lost_total[15m]) > 0\n  or increase(warmpath_gateway_events_lost_total[15m]) > 0",
		"a gateway gave up events of the audit log",
		"Decisions or outcomes are missing in ROUTE for good. NATS was away for longer than the gateway's buffer lasts."},
	{"WarmpathAnalyticsBehind", "ticket", "10m",
		"max by (stream) (warmpath_analytics_lag_messages) > 10000",
		"rows of stream {{ $labels.stream }} are more than 10,000 messages behind",
		"Dashboards on ClickHouse show the past. Look at warmpath_analytics_retries_total and at ClickHouse."},
	{"WarmpathOutcomesMissing", "ticket", "15m",
		"increase(warmpath_analytics_lost_total[15m]) > 0",
		"requests were decided and have no outcome",
		"A gateway ended without a clean stop, or lost its events."},
}

// rules is the rule file.
func rules() string {
	var b strings.Builder
	b.WriteString("# Generated by dashboards/gen; change that and run make generate.\ngroups:\n")
	b.WriteString("  - name: warmpath_hits\n    rules:\n")
	record(&b, "warmpath:hit_ratio:rate5m", "sum(rate(warmpath_gateway_cached_tokens_total[5m])) / sum(rate(warmpath_gateway_prompt_tokens_total[5m]))")
	record(&b, "warmpath:predicted_hit_ratio:rate5m", "sum(rate(warmpath_gateway_predicted_cached_tokens_total[5m])) / sum(rate(warmpath_gateway_prompt_tokens_total[5m]))")
	for _, o := range objectives {
		o.write(&b)
	}
	b.WriteString("  - name: warmpath_alerts\n    rules:\n")
	for _, a := range alerts {
		a.write(&b)
	}
	return b.String()
}

func record(b *strings.Builder, name, expr string) {
	fmt.Fprintf(b, "      - record: %s\n        expr: %s\n", name, expr)
}

// write adds the group of an objective: the share of observations over the
// bound in each window, and alerts on how fast they use the budget up.
func (o objective) write(b *strings.Builder) {
	fmt.Fprintf(b, "  - name: warmpath_%s\n    rules:\n", o.name)
	le := fmt.Sprintf("le=%q", o.bound)
	if !strings.Contains(o.bound, ".") { // Prometheus 3 writes the bound 3 as 3.0
		le = fmt.Sprintf(`le=~"%s(\\.0)?"`, o.bound)
	}
	for _, w := range windows {
		record(b, o.recording(w), fmt.Sprintf("1 - sum(rate(%s_bucket{%s}[%s])) / sum(rate(%s_count[%s]))", o.metric, le, w, o.metric, w))
	}
	for _, level := range []struct {
		severity string
		burns    []burn
	}{{"page", pageBurns}, {"ticket", ticketBurns}} {
		var terms []string
		for _, burn := range level.burns {
			budget := fmt.Sprintf("%s * %.2g", burn.factor, 1-o.target)
			terms = append(terms, fmt.Sprintf("(%s > %s and %s > %s)", o.recording(burn.long), budget, o.recording(burn.short), budget))
		}
		alert{
			name: o.alert, severity: level.severity, hold: "2m", expr: strings.Join(terms, "\n  or "),
			summary:     "the error budget burns too fast: " + o.what,
			description: o.cause,
		}.write(b)
	}
}

func (o objective) recording(window string) string {
	return fmt.Sprintf("warmpath:%s:ratio_rate%s", o.name, window)
}

func (a alert) write(b *strings.Builder) {
	fmt.Fprintf(b, "      - alert: %s\n        expr: |-\n          %s\n        for: %s\n", a.name, strings.ReplaceAll(a.expr, "\n", "\n          "), a.hold)
	fmt.Fprintf(b, "        labels:\n          severity: %s\n", a.severity)
	fmt.Fprintf(b, "        annotations:\n          summary: %q\n          description: %q\n", a.summary, a.description)
}
