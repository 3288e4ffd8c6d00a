-- One row per candidate per decision: what the router saw of each replica when it chose.
-- Written before the requests row of the same request, under the same rules.
CREATE TABLE candidates
(
    -- ts and stream_time of the requests row.
    ts DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    stream_time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    decided_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    pool LowCardinality(String),
    policy LowCardinality(String),
    request_id String CODEC(ZSTD(1)),
    attempt UInt32 CODEC(T64, ZSTD(1)),
    replica LowCardinality(String),
    chosen Bool,
    -- Empty, or why it could not be chosen.
    ineligible LowCardinality(String),
    suspect Bool,

    -- Leading blocks held: on gpu alone, over all tiers, and with predictions.
    gpu_blocks UInt32 CODEC(T64, ZSTD(1)),
    total_blocks UInt32 CODEC(T64, ZSTD(1)),
    predicted_blocks UInt32 CODEC(T64, ZSTD(1)),
    -- The blocks of the match by their best tier.
    tier_gpu_blocks UInt32 CODEC(T64, ZSTD(1)),
    tier_cpu_blocks UInt32 CODEC(T64, ZSTD(1)),
    tier_disk_blocks UInt32 CODEC(T64, ZSTD(1)),
    tier_remote_blocks UInt32 CODEC(T64, ZSTD(1)),
    expected_cached_tokens UInt64 CODEC(T64, ZSTD(1)),

    queued_prefill_tokens UInt64 CODEC(T64, ZSTD(1)),
    in_flight UInt32 CODEC(T64, ZSTD(1)),
    running UInt32 CODEC(T64, ZSTD(1)),
    waiting UInt32 CODEC(T64, ZSTD(1)),
    kv_used Float64 CODEC(ZSTD(1)),
    report_age_us Nullable(Int64) CODEC(T64, ZSTD(1)),
    prefill_tokens_per_second Float64 CODEC(ZSTD(1)),
    -- By the policy; lower is better.
    score Float64 CODEC(ZSTD(1)),

    stream LowCardinality(String),
    -- stream_seq of the requests row, and sequence of this decision.
    stream_seq UInt64 CODEC(Delta, ZSTD(1)),
    decided_seq UInt64 CODEC(Delta, ZSTD(1)),

    INDEX by_request request_id TYPE bloom_filter(0.01) GRANULARITY 4,
    INDEX by_seq stream_seq TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(stream_time)
PRIMARY KEY (pool, toStartOfMinute(ts))
ORDER BY (pool, toStartOfMinute(ts), ts, stream, stream_seq, decided_seq, replica)
TTL toDateTime(stream_time) + INTERVAL 30 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 1000
