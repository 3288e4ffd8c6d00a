-- One wide row per request: its decision(s) joined with how it ended.
-- Written effectively once: every insert is one block of one partition (all rows of a
-- batch share a one-second bucket of stream_time), so it is there wholly or not at all.
-- stream, stream_seq and floor_seq make this table the offset store of analytics.
-- A column that is Nullable says absent, which is not zero.
CREATE TABLE requests
(
    -- When the request finished by the gateway's clock; for a lost one, when it was decided last.
    ts DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    -- When the stream took the message that ended it: what batches are cut by.
    stream_time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    decided_at Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),

    pool LowCardinality(String),
    gateway LowCardinality(String),
    -- Where it ended, which is where the last decision sent it.
    replica LowCardinality(String),
    model LowCardinality(String),
    lora LowCardinality(String),
    request_id String CODEC(ZSTD(1)),
    session_key UInt64 CODEC(ZSTD(1)),

    policy LowCardinality(String),
    policy_version UInt32 CODEC(T64, ZSTD(1)),
    -- score, tie, explore, steal, fallback, only; empty without a decision.
    reason LowCardinality(String),
    fallback_cause LowCardinality(String),
    decider LowCardinality(String),
    first_choice LowCardinality(String),
    -- Some decision preferred another replica than it chose (explore apart).
    stolen Bool,
    -- Decisions seen, and how often the request left a replica before it answered.
    attempts UInt32 CODEC(T64, ZSTD(1)),
    moves UInt32 CODEC(T64, ZSTD(1)),
    move_cause LowCardinality(String),

    -- ok, cancelled, upstream_error, no_replica; lost when no outcome came.
    status LowCardinality(String),
    error_kind LowCardinality(String),
    http_status UInt16 CODEC(T64, ZSTD(1)),
    finish_reason LowCardinality(String),
    streamed Bool,
    -- Clock of the durations ttft_us, tpot_us, e2e_us and queue_us: wall or model.
    clock LowCardinality(String),

    -- As the engine counts them; the decision's count where the engine did not say.
    prompt_tokens UInt64 CODEC(T64, ZSTD(1)),
    prompt_tokens_decided Nullable(UInt64) CODEC(T64, ZSTD(1)),
    completion_tokens Nullable(UInt64) CODEC(T64, ZSTD(1)),
    cached_tokens Nullable(UInt64) CODEC(T64, ZSTD(1)),
    computed_tokens Nullable(UInt64) CODEC(T64, ZSTD(1)),
    -- At least half of the prompt came from cache. A first block that every prompt
    -- shares must not make every request a hit.
    hit_class Enum8('unknown' = 0, 'miss' = 1, 'hit' = 2) MATERIALIZED
        multiIf(isNull(cached_tokens) OR prompt_tokens = 0, 'unknown', assumeNotNull(cached_tokens) * 2 >= prompt_tokens, 'hit', 'miss'),

    -- What the last decision expected of the chosen replica, and of the best eligible one.
    predicted_cached_tokens Nullable(UInt64) CODEC(T64, ZSTD(1)),
    best_cached_tokens Nullable(UInt64) CODEC(T64, ZSTD(1)),
    best_replica LowCardinality(String),
    regret_tokens Nullable(UInt64) CODEC(T64, ZSTD(1)),
    -- Scores of the chosen and of the best eligible candidate; lower is better.
    chosen_score Nullable(Float64) CODEC(ZSTD(1)),
    best_score Nullable(Float64) CODEC(ZSTD(1)),

    ttft_us Nullable(UInt64) CODEC(T64, ZSTD(1)),
    tpot_us Nullable(UInt64) CODEC(T64, ZSTD(1)),
    e2e_us Nullable(UInt64) CODEC(T64, ZSTD(1)),
    queue_us Nullable(UInt64) CODEC(T64, ZSTD(1)),

    -- The last decision: time the decider took, time the gateway waited for it.
    decide_us Nullable(UInt64) CODEC(T64, ZSTD(1)),
    wait_us Nullable(UInt64) CODEC(T64, ZSTD(1)),
    kv_seq UInt64 CODEC(T64, ZSTD(1)),
    index_age_us Nullable(Int64) CODEC(T64, ZSTD(1)),
    candidates UInt32 CODEC(T64, ZSTD(1)),
    eligible UInt32 CODEC(T64, ZSTD(1)),

    -- Name and creation time of the stream, so that a stream made anew is another one.
    stream LowCardinality(String),
    -- Sequence of the message that ended the request.
    stream_seq UInt64 CODEC(Delta, ZSTD(1)),
    -- Sequence of its last decision; 0 without one.
    decided_seq UInt64 CODEC(Delta, ZSTD(1)),
    -- Lowest sequence of a decision still open after this row: where a restart reads from.
    floor_seq UInt64 CODEC(Delta, ZSTD(1)),

    INDEX by_request request_id TYPE bloom_filter(0.01) GRANULARITY 4,
    INDEX by_ts ts TYPE minmax GRANULARITY 1,
    INDEX by_seq stream_seq TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(stream_time)
PRIMARY KEY (pool, model, policy, toStartOfMinute(ts))
ORDER BY (pool, model, policy, toStartOfMinute(ts), ts, stream, stream_seq, request_id)
TTL toDateTime(stream_time) + INTERVAL 90 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 1000
