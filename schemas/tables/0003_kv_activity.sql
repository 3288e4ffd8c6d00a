-- What happened in each replica's KV cache, per second of stream time. Sum over rows:
-- a second may have more than one row of a replica.
CREATE TABLE kv_activity
(
    pool LowCardinality(String),
    replica LowCardinality(String),
    -- Start of the second in which the stream took the batches.
    bucket DateTime('UTC') CODEC(Delta, ZSTD(1)),
    -- Batches of events.
    batches UInt64 CODEC(T64, ZSTD(1)),
    stored_blocks UInt64 CODEC(T64, ZSTD(1)),
    -- Blocks that left a tier: for want of space, to a lower tier, for an unsaid reason.
    evicted_blocks UInt64 CODEC(T64, ZSTD(1)),
    offloaded_blocks UInt64 CODEC(T64, ZSTD(1)),
    removed_blocks UInt64 CODEC(T64, ZSTD(1)),
    clears UInt64 CODEC(T64, ZSTD(1)),
    -- Lives of the cache that began.
    epochs UInt64 CODEC(T64, ZSTD(1)),
    block_tokens UInt32 CODEC(T64, ZSTD(1)),
    stream LowCardinality(String),
    -- First and last sequence of the replica's batches counted here.
    first_seq UInt64 CODEC(Delta, ZSTD(1)),
    last_seq UInt64 CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(bucket)
PRIMARY KEY (pool, replica, bucket)
ORDER BY (pool, replica, bucket, stream, first_seq)
TTL bucket + INTERVAL 90 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 1000
