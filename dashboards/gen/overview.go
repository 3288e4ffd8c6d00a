package main

import (
	"fmt"
	"io/fs"
	"strings"
)

// view is a panel as it is written down here; overview turns it into Grafana's.
type view struct {
	kind        string // stat, timeseries, table, bargauge; row begins a section
	title       string
	description string
	unit        string
	width       int
	height      int
	// sql names the query's file; expr is a query to Prometheus instead.
	sql    string
	expr   []expr
	max    float64 // 0 leaves the axis to Grafana
	stack  string  // percent or normal, for time series
	points bool    // bars, for counts
	units  map[string]string
}

type expr struct{ query, legend string }

const share = "percentunit"

// views is the overview from top to bottom. The brief's six numbers come
// first; then what no other router shows.
var views = []view{
	{kind: "stat", title: "Prefix hit rate", unit: share, width: 4, height: 4, sql: "hit_rate_total", max: 1,
		description: "Prompt tokens served from cache over all prompt tokens, as the engines report them: a ratio of sums."},
	{kind: "stat", title: "Predicted hit rate", unit: share, width: 4, height: 4, sql: "predicted_rate_total", max: 1,
		description: "What the router expected when it decided. Far from the actual rate, something does not match: see Mismatch."},
	{kind: "stat", title: "Miss over hit, TTFT p95", unit: "none", width: 4, height: 4, sql: "ttft_gain_total",
		description: "How many times longer a miss waits for its first token than a hit. Near 1 the router is wrong about hits, or the engines stall."},
	{kind: "stat", title: "Stolen", unit: share, width: 4, height: 4, sql: "steals_total", max: 1,
		description: "Requests that did not go to the policy's first choice, because it was over its budget."},
	{kind: "stat", title: "Failed", unit: share, width: 4, height: 4, sql: "failed_total", max: 1,
		description: "Requests that were neither answered nor given up by their client."},
	{kind: "stat", title: "Requests", unit: "short", width: 4, height: 4, sql: "requests_total",
		description: "Requests that ended in the time shown."},

	{kind: "timeseries", title: "Hit rate: actual and predicted", unit: share, width: 12, height: 8, sql: "hit_rate", max: 1,
		description: "Tokens from cache over prompt tokens, as engines report it and as decisions expected it. The two lines should lie on one another."},
	{kind: "timeseries", title: "Hit rate by replica", unit: share, width: 12, height: 8, sql: "hit_rate_by_replica", max: 1,
		description: "One replica far below the others has lost its cache, or its events do not arrive."},
	{kind: "timeseries", title: "TTFT of hits", unit: "ms", width: 12, height: 8, sql: "ttft_hit",
		description: "Time to first token of requests that found at least half of their prompt in cache."},
	{kind: "timeseries", title: "TTFT of misses", unit: "ms", width: 12, height: 8, sql: "ttft_miss",
		description: "Time to first token of requests that found less than half of their prompt in cache. Hits should be an order of magnitude faster."},
	{kind: "timeseries", title: "Route decision", unit: "µs", width: 8, height: 8, sql: "decision_latency",
		description: "Time the router took to decide, and at the 99th percentile the time requests waited for it. More than 5 ms is a fault of the router."},
	{kind: "timeseries", title: "Steals, moves and fallbacks", unit: "short", width: 8, height: 8, sql: "reroutes", points: true,
		description: "Requests that did not go, or not stay, where the policy preferred; and decisions the gateway took itself because no router answered."},
	{kind: "timeseries", title: "Evictions", unit: "suffix: blocks/s", width: 8, height: 8, sql: "evictions",
		description: "Blocks evicted for want of space, per replica. High on a busy replica: a capacity problem, not one of routing."},

	{kind: "row", title: "Does the prediction hold?"},
	{kind: "timeseries", title: "Prediction error", unit: share, width: 12, height: 7, sql: "prediction_error",
		description: "Prompt tokens promised from cache and not found there, and found unpromised, over prompt tokens."},
	{kind: "timeseries", title: "Hits given up for load", unit: share, width: 12, height: 7, sql: "regret",
		description: "Cached tokens of the best candidate above those of the chosen one, over prompt tokens: what balancing cost."},
	{kind: "table", title: "Mismatch", unit: "short", width: 24, height: 7, sql: "mismatch",
		description: "Where prediction and engine disagree, worst first, with the likely cause."},

	{kind: "row", title: "Where the work goes"},
	{kind: "timeseries", title: "Share of computed tokens", unit: "short", width: 12, height: 8, sql: "computed_by_replica", stack: "percent", points: true,
		description: "Prompt tokens each replica had to compute. Equal shares are even load; hits do not count, since they cost nothing."},
	{kind: "timeseries", title: "Decisions by reason", unit: "short", width: 8, height: 8, sql: "reasons", stack: "normal", points: true,
		description: "score: the best score alone. tie: equal scores, placed by hash. steal, explore and fallback as named."},
	{kind: "bargauge", title: "Evicted per stored block", unit: share, width: 4, height: 8, sql: "eviction_share",
		description: "Near 100 % the cache turns over as fast as it fills."},

	{kind: "row", title: "The router itself, from Prometheus"},
	{kind: "timeseries", title: "Index behind the stream", unit: "suffix: messages", width: 8, height: 7,
		description: "KV messages that the router has not applied yet.",
		expr:        []expr{{"max by (pool, instance) (warmpath_router_kv_lag)", "{{pool}} {{instance}}"}}},
	{kind: "timeseries", title: "Age of events when applied", unit: "s", width: 8, height: 7,
		description: "From the engine's event to the index, 50th and 99th percentile over five minutes.",
		expr: []expr{
			{"histogram_quantile(0.5, sum by (pool, le) (rate(warmpath_router_kv_batch_age_seconds_bucket[5m])))", "{{pool}} p50"},
			{"histogram_quantile(0.99, sum by (pool, le) (rate(warmpath_router_kv_batch_age_seconds_bucket[5m])))", "{{pool}} p99"},
		}},
	{kind: "timeseries", title: "Suspect replicas, gateway fallbacks", unit: "short", width: 8, height: 7,
		description: "Replicas whose event history has a hole, and decisions per second that gateways took themselves.",
		expr: []expr{
			{"max by (pool) (warmpath_router_index_suspects)", "{{pool}} suspect"},
			{"sum by (cause) (rate(warmpath_gateway_fallbacks_total[5m]))", "fallback: {{cause}}"},
		}},

	{kind: "row", title: "Request by request"},
	{kind: "table", title: "Latest requests", unit: "short", width: 24, height: 10, sql: "latest_requests",
		description: "What was predicted, what happened, and why it went there.",
		units:       map[string]string{"ttft_ms": "ms", "tpot_ms": "ms", "index_age_ms": "ms", "decide_us": "µs"}},
}

// overview builds the dashboard; queries come from sql/*.sql of files.
func overview(files fs.FS) (dashboard, error) {
	pools, err := query(files, "pools")
	if err != nil {
		return dashboard{}, err
	}
	d := dashboard{
		UID: "warmpath-overview", Title: "Warmpath: overview",
		Description: "Does each request reach the replica that holds its prefix, what is it worth, and does the router predict it right?",
		Tags:        []string{"warmpath"}, SchemaVersion: 41, Version: 1, GraphTooltip: 1, Timezone: "browser", Refresh: "10s",
		Time: timeRange{From: "now-15m", To: "now"},
		Templating: templating{List: []variable{
			{Name: "datasource", Label: "ClickHouse", Type: "datasource", Query: clickhouse.Type, Refresh: 1},
			{Name: "prometheus", Label: "Prometheus", Type: "datasource", Query: prometheus.Type, Refresh: 1},
			{Name: "pool", Label: "Pool", Type: "query", Query: pools, Datasource: clickhouse, Refresh: 2, Multi: true, IncludeAll: true,
				Current: &current{Text: "All", Value: "$__all"}},
		}},
	}
	x, y, line := 0, 0, 0
	for i, v := range views {
		if v.kind == "row" {
			v.width, v.height = 24, 1
		}
		if x+v.width > 24 {
			x, y, line = 0, y+line, 0
		}
		p, err := v.panel(files)
		if err != nil {
			return dashboard{}, err
		}
		p.ID, p.GridPos = i+1, gridPos{H: v.height, W: v.width, X: x, Y: y}
		d.Panels = append(d.Panels, p)
		x, line = x+v.width, max(line, v.height)
	}
	return d, nil
}

func query(files fs.FS, name string) (string, error) {
	text, err := fs.ReadFile(files, "sql/"+name+".sql")
	if err != nil {
		return "", fmt.Errorf("query of a panel: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func (v view) panel(files fs.FS) (panel, error) {
	p := panel{Type: v.kind, Title: v.title, Description: v.description, FieldConfig: fieldConfig{Overrides: []override{}}}
	if v.kind == "row" {
		return p, nil
	}
	p.FieldConfig.Defaults = fieldDefaults{Unit: v.unit, NoValue: "no data"}
	if v.max > 0 {
		zero := 0.0
		p.FieldConfig.Defaults.Min, p.FieldConfig.Defaults.Max = &zero, &v.max
	}
	p.Options, p.FieldConfig.Defaults.Custom = v.look()
	for _, name := range sortedKeys(v.units) {
		p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, override{
			Matcher: matcher{ID: "byName", Options: name}, Properties: []property{{ID: "unit", Value: v.units[name]}},
		})
	}
	if v.expr != nil {
		p.Datasource = prometheus
		for i, e := range v.expr {
			p.Targets = append(p.Targets, target{RefID: string(rune('A' + i)), Datasource: prometheus, Expr: e.query, LegendFormat: e.legend})
		}
		return p, nil
	}
	text, err := query(files, v.sql)
	if err != nil {
		return panel{}, err
	}
	p.Datasource = clickhouse
	t := target{RefID: "A", Datasource: clickhouse, EditorType: "sql", RawSQL: text, PluginVersion: pluginVersion, QueryType: "table", Format: 1}
	if v.kind == "timeseries" {
		t.QueryType, t.Format = "timeseries", 0
	}
	p.Targets = []target{t}
	return p, nil
}

// look is the panel's options and the drawing of its fields.
func (v view) look() (options, custom any) {
	reduce := map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}
	switch v.kind {
	case "stat":
		return map[string]any{"reduceOptions": reduce, "colorMode": "value", "graphMode": "none", "textMode": "value"}, nil
	case "bargauge":
		return map[string]any{
			"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "evicted_per_stored", "values": true},
			"orientation":   "horizontal", "displayMode": "basic",
		}, nil
	case "table":
		return map[string]any{"showHeader": true, "cellHeight": "sm"}, nil
	}
	draw := map[string]any{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 5, "showPoints": "auto", "spanNulls": true}
	if v.points {
		draw["drawStyle"], draw["fillOpacity"], draw["spanNulls"] = "bars", 60, false
	}
	if v.stack != "" {
		draw["stacking"] = map[string]any{"mode": v.stack, "group": "A"}
	}
	return map[string]any{
		"legend":  map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}, draw
}
