-- Roll-up of requests per minute. It has a deduplication window of its own: without it
-- an insert that is sent again would count again here.
CREATE TABLE requests_1m
(
    minute DateTime('UTC') CODEC(Delta, ZSTD(1)),
    pool LowCardinality(String),
    model LowCardinality(String),
    policy LowCardinality(String),
    replica LowCardinality(String),
    clock LowCardinality(String),
    hit_class Enum8('unknown' = 0, 'miss' = 1, 'hit' = 2),
    stream LowCardinality(String),

    requests SimpleAggregateFunction(sum, UInt64),
    failed SimpleAggregateFunction(sum, UInt64),
    cancelled SimpleAggregateFunction(sum, UInt64),
    lost SimpleAggregateFunction(sum, UInt64),
    fallbacks SimpleAggregateFunction(sum, UInt64),
    steals SimpleAggregateFunction(sum, UInt64),
    moves SimpleAggregateFunction(sum, UInt64),
    prompt_tokens SimpleAggregateFunction(sum, UInt64),
    -- Prompt tokens of the requests whose engine reported cached tokens: what a hit rate divides by.
    reported_prompt_tokens SimpleAggregateFunction(sum, UInt64),
    cached_tokens SimpleAggregateFunction(sum, UInt64),
    computed_tokens SimpleAggregateFunction(sum, UInt64),
    completion_tokens SimpleAggregateFunction(sum, UInt64),
    decided_prompt_tokens SimpleAggregateFunction(sum, UInt64),
    predicted_cached_tokens SimpleAggregateFunction(sum, UInt64),
    best_cached_tokens SimpleAggregateFunction(sum, UInt64),
    regret_tokens SimpleAggregateFunction(sum, UInt64),
    ttft_us AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Nullable(UInt64)),
    tpot_us AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Nullable(UInt64)),
    e2e_us AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Nullable(UInt64)),
    decide_us AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Nullable(UInt64)),
    wait_us AggregateFunction(quantilesTDigest(0.5, 0.95, 0.99), Nullable(UInt64)),
    -- Last row of requests that is counted here.
    max_seq SimpleAggregateFunction(max, UInt64)
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(minute)
ORDER BY (pool, model, policy, minute, replica, clock, hit_class, stream)
TTL minute + INTERVAL 400 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 1000
