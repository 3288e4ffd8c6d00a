package analytics

import (
	"fmt"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	pb "warmpath/schemas/warmpathv1"
)

// column is one column of a table and how rows of type R fill it. Values are
// built a column at a time: one slice and one call of the driver for each,
// instead of one of each per row.
type column[R any] struct {
	name string
	fill func(into driver.BatchColumn, rows []R) error
}

// col makes a column of values of type V.
func col[R, V any](name string, value func(*R) V) column[R] {
	return column[R]{name: name, fill: func(into driver.BatchColumn, rows []R) error {
		values := make([]V, len(rows))
		for i := range rows {
			values[i] = value(&rows[i])
		}
		return into.Append(values)
	}}
}

// insertStatement is the INSERT of the columns into table.
func insertStatement[R any](table string, columns []column[R]) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return "INSERT INTO " + table + " (" + strings.Join(names, ", ") + ")"
}

// fill puts rows into a prepared batch of insertStatement.
func fill[R any](into driver.Batch, columns []column[R], rows []R) error {
	for i, c := range columns {
		if err := c.fill(into.Column(i), rows); err != nil {
			return fmt.Errorf("column %s: %w", c.name, err)
		}
	}
	return nil
}

// requestColumns are the columns of requests, of a stream named stream.
func requestColumns(stream string) []column[requestRow] {
	type r = requestRow
	return []column[r]{
		col("ts", func(x *r) time.Time { return x.finishedAt() }),
		col("stream_time", func(x *r) time.Time { return x.time.UTC() }),
		col("decided_at", func(x *r) *time.Time { return x.decidedAt }),
		col("pool", func(x *r) string { return x.pool }),
		col("gateway", func(x *r) string { return x.gateway }),
		col("replica", func(x *r) string { return x.replica }),
		col("model", func(x *r) string { return x.event.GetModel() }),
		col("lora", func(x *r) string { return x.event.GetLora() }),
		col("request_id", func(x *r) string { return x.requestID }),
		col("session_key", func(x *r) uint64 { return x.event.GetSessionKey() }),
		col("policy", func(x *r) string { return x.event.GetPolicy().GetName() }),
		col("policy_version", func(x *r) uint32 { return x.event.GetPolicy().GetVersion() }),
		col("reason", func(x *r) string { return x.reason }),
		col("fallback_cause", func(x *r) string { return x.event.GetFallbackCause() }),
		col("decider", func(x *r) string { return x.event.GetDecider() }),
		col("token_source", func(x *r) string { return x.event.GetTokenSource() }),
		col("first_choice", func(x *r) string { return x.firstChoice }),
		col("stolen", func(x *r) bool { return x.stolen }),
		col("attempts", func(x *r) uint32 { return uint32(len(x.decisions)) }),
		col("moves", func(x *r) uint32 { return x.moves }),
		col("move_cause", func(x *r) string { return x.moveCause }),
		col("status", func(x *r) string { return x.status }),
		col("error_kind", func(x *r) string { return x.finished.GetErrorKind() }),
		col("http_status", func(x *r) uint16 { return uint16(min(x.finished.GetHttpStatus(), 65535)) }),
		col("finish_reason", func(x *r) string { return x.finished.GetFinishReason() }),
		col("streamed", func(x *r) bool { return x.finished.GetStreamed() }),
		col("clock", func(x *r) string { return x.clock }),
		col("prompt_tokens", func(x *r) uint64 { return x.promptTokens }),
		col("prompt_tokens_decided", func(x *r) *uint64 { return x.promptDecided }),
		col("completion_tokens", func(x *r) *uint64 { return x.finished.CompletionTokens }),
		col("cached_tokens", func(x *r) *uint64 { return x.finished.CachedTokens }),
		col("computed_tokens", func(x *r) *uint64 { return x.computed }),
		col("predicted_cached_tokens", func(x *r) *uint64 { return x.predicted }),
		col("best_cached_tokens", func(x *r) *uint64 { return x.best }),
		col("best_replica", func(x *r) string { return x.bestReplica }),
		col("regret_tokens", func(x *r) *uint64 { return x.regret }),
		col("chosen_score", func(x *r) *float64 { return x.chosenScore }),
		col("best_score", func(x *r) *float64 { return x.bestScore }),
		col("ttft_us", func(x *r) *uint64 { return x.finished.TtftUs }),
		col("tpot_us", func(x *r) *uint64 { return x.finished.TpotUs }),
		col("e2e_us", func(x *r) *uint64 { return x.e2e() }),
		col("queue_us", func(x *r) *uint64 { return x.finished.QueueUs }),
		col("dispatch_us", func(x *r) *uint64 { return x.finished.DispatchUs }),
		col("engine_us", func(x *r) *uint64 { return x.finished.EngineUs }),
		col("gateway_queue_us", func(x *r) *uint64 { return x.finished.GatewayQueueUs }),
		col("decide_us", func(x *r) *uint64 { return x.decideUS }),
		col("wait_us", func(x *r) *uint64 { return x.waitUS }),
		col("kv_seq", func(x *r) uint64 { return x.event.GetKvSeq() }),
		col("index_age_us", func(x *r) *int64 { return x.indexAgeUS }),
		col("candidates", func(x *r) uint32 { return uint32(len(x.event.GetCandidates())) }),
		col("eligible", func(x *r) uint32 { return x.eligible }),
		col("stream", func(*r) string { return stream }),
		col("stream_seq", func(x *r) uint64 { return x.seq }),
		col("decided_seq", func(x *r) uint64 { return x.last.seq }),
		col("floor_seq", func(x *r) uint64 { return x.floor }),
	}
}

// e2e is nil for a lost request, which has no end.
func (r *requestRow) e2e() *uint64 {
	if r.outcome.finished == nil {
		return nil
	}
	return new(r.finished.GetE2EUs())
}

// candidateColumns are the columns of candidates, of a stream named stream.
func candidateColumns(stream string) []column[candidateRow] {
	type r = candidateRow
	return []column[r]{
		col("ts", func(x *r) time.Time { return x.finishedAt() }),
		col("stream_time", func(x *r) time.Time { return x.time.UTC() }),
		col("decided_at", func(x *r) time.Time { return time.UnixMicro(x.last.event.GetDecidedAtUs()).UTC() }),
		col("pool", func(x *r) string { return x.last.event.GetPool() }),
		col("policy", func(x *r) string { return x.last.event.GetPolicy().GetName() }),
		col("request_id", func(x *r) string { return x.last.event.GetRequestId() }),
		col("attempt", func(x *r) uint32 { return x.last.event.GetAttempt() }),
		col("replica", func(x *r) string { return x.event.GetReplica() }),
		col("chosen", func(x *r) bool { return x.event.GetReplica() == x.last.event.GetChosen() }),
		col("ineligible", func(x *r) string { return x.event.GetIneligible() }),
		col("suspect", func(x *r) bool { return x.event.GetSuspect() }),
		col("gpu_blocks", func(x *r) uint32 { return x.event.GetGpuBlocks() }),
		col("total_blocks", func(x *r) uint32 { return x.event.GetTotalBlocks() }),
		col("predicted_blocks", func(x *r) uint32 { return x.event.GetPredictedBlocks() }),
		col("tier_gpu_blocks", func(x *r) uint32 { return x.tiers[pb.Tier_TIER_GPU] }),
		col("tier_cpu_blocks", func(x *r) uint32 { return x.tiers[pb.Tier_TIER_CPU] }),
		col("tier_disk_blocks", func(x *r) uint32 { return x.tiers[pb.Tier_TIER_DISK] }),
		col("tier_remote_blocks", func(x *r) uint32 { return x.tiers[pb.Tier_TIER_REMOTE] }),
		col("expected_cached_tokens", func(x *r) uint64 { return x.event.GetExpectedCachedTokens() }),
		col("queued_prefill_tokens", func(x *r) uint64 { return x.event.GetLoad().GetQueuedPrefillTokens() }),
		col("in_flight", func(x *r) uint32 { return x.event.GetLoad().GetInFlight() }),
		col("running", func(x *r) uint32 { return x.event.GetLoad().GetRunning() }),
		col("waiting", func(x *r) uint32 { return x.event.GetLoad().GetWaiting() }),
		col("kv_used", func(x *r) float64 { return x.event.GetLoad().GetKvUsed() }),
		col("report_age_us", func(x *r) *int64 { return x.reportAge() }),
		col("prefill_tokens_per_second", func(x *r) float64 { return x.event.GetPrefillTokensPerSecond() }),
		col("score", func(x *r) float64 { return x.event.GetScore() }),
		col("stream", func(*r) string { return stream }),
		col("stream_seq", func(x *r) uint64 { return x.seq }),
		col("decided_seq", func(x *r) uint64 { return x.last.seq }),
	}
}

func (r *candidateRow) reportAge() *int64 {
	if load := r.event.GetLoad(); load != nil {
		return load.ReportAgeUs
	}
	return nil
}

// activityColumns are the columns of kv_activity, of a stream named stream.
func activityColumns(stream string) []column[*activityRow] {
	type r = *activityRow
	return []column[r]{
		col("pool", func(x *r) string { return (*x).pool }),
		col("replica", func(x *r) string { return (*x).replica }),
		col("bucket", func(x *r) time.Time { return (*x).bucket }),
		col("batches", func(x *r) uint64 { return (*x).batches }),
		col("stored_blocks", func(x *r) uint64 { return (*x).stored }),
		col("evicted_blocks", func(x *r) uint64 { return (*x).evicted }),
		col("offloaded_blocks", func(x *r) uint64 { return (*x).offloaded }),
		col("removed_blocks", func(x *r) uint64 { return (*x).removed }),
		col("clears", func(x *r) uint64 { return (*x).cleared }),
		col("epochs", func(x *r) uint64 { return (*x).epochs }),
		col("block_tokens", func(x *r) uint32 { return (*x).blockTokens }),
		col("stream", func(*r) string { return stream }),
		col("first_seq", func(x *r) uint64 { return (*x).firstSeq }),
		col("last_seq", func(x *r) uint64 { return (*x).lastSeq }),
	}
}
