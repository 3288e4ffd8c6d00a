// Package report computes what a run or a period amounted to, by SQL from the
// rows of analytics. Every figure has its own file in sql.
package report

import (
	"context"
	"embed"
	"fmt"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

//go:embed sql/*.sql
var statements embed.FS

// Scope says which requests a report is about.
type Scope struct {
	// Pool of the requests; empty for all.
	Pool string
	// Since is the earliest end of a request; zero for all.
	Since time.Time
}

// Report is the figures of a Scope. A nil figure is absent: nothing reported it,
// which is not zero. Rates and shares are 0 to 1.
type Report struct {
	// Policies that decided.
	Policies []string `json:"policies"`
	// Clock that ttft_ms, tpot_ms and e2e_ms are by: wall, model (time of the
	// modelled engine, whatever the host), mixed, or empty when nobody said.
	Clock string `json:"clock"`

	// Requests that have a row; Failed of them neither succeeded nor were
	// cancelled by the client; Lost of the failed have no outcome.
	Requests  uint64 `json:"requests"`
	Failed    uint64 `json:"failed"`
	Cancelled uint64 `json:"cancelled"`
	Lost      uint64 `json:"lost"`

	PromptTokens     uint64  `json:"prompt_tokens"`
	CachedTokens     *uint64 `json:"cached_tokens"`
	ComputedTokens   *uint64 `json:"computed_tokens"`
	CompletionTokens *uint64 `json:"completion_tokens"`
	// HitRate is cached tokens over prompt tokens, of requests whose engine
	// reported both; PredictedHitRate is what decisions expected, and BestHitRate
	// what they would have expected of the replica with the longest match.
	HitRate          *float64 `json:"hit_rate"`
	PredictedHitRate *float64 `json:"predicted_hit_rate"`
	BestHitRate      *float64 `json:"best_hit_rate"`

	TTFT ByClass   `json:"ttft_ms"`
	TPOT Quantiles `json:"tpot_ms"`
	E2E  Quantiles `json:"e2e_ms"`

	PerReplica []Replica `json:"per_replica"`
	// Imbalance is the busiest replica's computed tokens over the mean of all
	// replicas that decisions saw.
	Imbalance *float64 `json:"imbalance"`

	// DecisionUS is what deciding took, RouteWaitUS what requests waited for it;
	// both by the wall clock.
	DecisionUS  Quantiles `json:"decision_us"`
	RouteWaitUS Quantiles `json:"route_wait_us"`

	Steals       uint64  `json:"steals"`
	Moves        uint64  `json:"moves"`
	Fallbacks    uint64  `json:"fallbacks"`
	RegretTokens *uint64 `json:"regret_tokens"`
	// Evictions counts blocks.
	Evictions *uint64 `json:"evictions"`

	// Rows equals RowsDistinct unless a request was written twice.
	Rows         uint64 `json:"rows"`
	RowsDistinct uint64 `json:"rows_distinct"`
	// PublishedDecisions and PublishedOutcomes are what the streams hold; the
	// caller fills them, Compute leaves them nil.
	PublishedDecisions *uint64 `json:"published_decisions"`
	PublishedOutcomes  *uint64 `json:"published_outcomes"`
}

// ByClass splits a duration by hit class. A hit is a request that had at least
// half of its prompt tokens from cache. All is what two policies are compared by:
// their classes hold different requests.
type ByClass struct {
	All     Quantiles `json:"all"`
	Hit     Quantiles `json:"hit"`
	Miss    Quantiles `json:"miss"`
	Unknown Quantiles `json:"unknown"`
	// Requests of each class that had a first token.
	HitRequests  uint64 `json:"hit_requests"`
	MissRequests uint64 `json:"miss_requests"`
}

// Quantiles are exact.
type Quantiles struct {
	P50 *float64 `json:"p50"`
	P95 *float64 `json:"p95"`
	P99 *float64 `json:"p99"`
}

// Replica is the share of one replica.
type Replica struct {
	Pool           string   `json:"pool"`
	Replica        string   `json:"replica"`
	Requests       uint64   `json:"requests"`
	PromptTokens   uint64   `json:"prompt_tokens"`
	ComputedTokens *uint64  `json:"computed_tokens"`
	HitRate        *float64 `json:"hit_rate"`
	// ComputedShare is its part of all computed tokens.
	ComputedShare *float64 `json:"computed_share"`
	TTFTP95MS     *float64 `json:"ttft_p95_ms"`
	Evictions     *uint64  `json:"evictions"`
}

// Compute computes the report of scope from the tables of conn's database.
func Compute(ctx context.Context, conn driver.Conn, scope Scope) (*Report, error) {
	q := querier{conn: conn, args: []any{clickhouse.Named("pool", scope.Pool), clickhouse.Named("since", sinceMicros(scope.Since))}}
	r := &Report{Policies: []string{}, PerReplica: []Replica{}}
	for _, figure := range []struct {
		file string
		read func(driver.Rows) error
	}{
		{"scope", r.readScope},
		{"requests", func(rows driver.Rows) error {
			return rows.Scan(&r.Rows, &r.RowsDistinct, &r.Failed, &r.Cancelled, &r.Lost)
		}},
		{"tokens", r.readTokens},
		{"ttft", r.readTTFT},
		{"ttft_all", quantiles(&r.TTFT.All, 1000)},
		{"tpot", quantiles(&r.TPOT, 1000)},
		{"e2e", quantiles(&r.E2E, 1000)},
		{"decision", quantiles(&r.DecisionUS, 1)},
		{"route_wait", quantiles(&r.RouteWaitUS, 1)},
		{"moves", func(rows driver.Rows) error {
			return rows.Scan(&r.Steals, &r.Moves, &r.Fallbacks, &r.RegretTokens)
		}},
		{"evictions", func(rows driver.Rows) error { r.Evictions = new(uint64); return rows.Scan(r.Evictions) }},
		{"per_replica", r.readReplica},
		{"imbalance", func(rows driver.Rows) error { return rows.Scan(&r.Imbalance) }},
	} {
		if err := q.each(ctx, figure.file, figure.read); err != nil {
			return nil, err
		}
	}
	r.Requests = r.RowsDistinct
	return r, nil
}

// sinceMicros is 0 for the zero time, which is before what a column can hold.
func sinceMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// querier runs the statements of sql with the same arguments.
type querier struct {
	conn driver.Conn
	args []any
}

// each calls read for every row of sql/<file>.sql.
func (q querier) each(ctx context.Context, file string, read func(driver.Rows) error) error {
	statement, err := statements.ReadFile("sql/" + file + ".sql")
	if err != nil {
		return fmt.Errorf("report figure %s: %w", file, err)
	}
	rows, err := q.conn.Query(ctx, string(statement), q.args...)
	if err != nil {
		return fmt.Errorf("report figure %s: %w", file, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err below says what went wrong
	for rows.Next() {
		if err := read(rows); err != nil {
			return fmt.Errorf("report figure %s: %w", file, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("report figure %s: %w", file, err)
	}
	return nil
}

func (r *Report) readScope(rows driver.Rows) error {
	var clocks []string
	if err := rows.Scan(&r.Policies, &clocks); err != nil {
		return err
	}
	r.Clock = strings.Join(clocks, "")
	if len(clocks) > 1 {
		r.Clock = "mixed"
	}
	return nil
}

func (r *Report) readTokens(rows driver.Rows) error {
	var reported uint64
	var decided *uint64
	return rows.Scan(&r.PromptTokens, &r.CachedTokens, &r.ComputedTokens, &r.CompletionTokens,
		&reported, &r.HitRate, &decided, &r.PredictedHitRate, &r.BestHitRate)
}

func (r *Report) readTTFT(rows driver.Rows) error {
	var class string
	var requests uint64
	var us []uint64
	if err := rows.Scan(&class, &requests, &us); err != nil {
		return err
	}
	switch class {
	case "hit":
		r.TTFT.Hit, r.TTFT.HitRequests = newQuantiles(us, 1000), requests
	case "miss":
		r.TTFT.Miss, r.TTFT.MissRequests = newQuantiles(us, 1000), requests
	default:
		r.TTFT.Unknown = newQuantiles(us, 1000)
	}
	return nil
}

func (r *Report) readReplica(rows driver.Rows) error {
	var one Replica
	var ttftUS *uint64
	err := rows.Scan(&one.Pool, &one.Replica, &one.Requests, &one.PromptTokens, &one.ComputedTokens,
		&one.HitRate, &one.ComputedShare, &ttftUS, &one.Evictions)
	if err != nil {
		return err
	}
	if ttftUS != nil {
		one.TTFTP95MS = new(float64(*ttftUS) / 1000)
	}
	r.PerReplica = append(r.PerReplica, one)
	return nil
}

// quantiles reads a row of one array into q, in units of unit µs.
func quantiles(q *Quantiles, unit float64) func(driver.Rows) error {
	return func(rows driver.Rows) error {
		var us []uint64
		if err := rows.Scan(&us); err != nil {
			return err
		}
		*q = newQuantiles(us, unit)
		return nil
	}
}

func newQuantiles(us []uint64, unit float64) Quantiles {
	if len(us) != 3 {
		return Quantiles{}
	}
	return Quantiles{P50: new(float64(us[0]) / unit), P95: new(float64(us[1]) / unit), P99: new(float64(us[2]) / unit)}
}
