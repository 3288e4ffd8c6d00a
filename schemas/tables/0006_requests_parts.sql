-- The parts of a request's time to first token by the gateway's clock, and where
-- its tokens came from.
ALTER TABLE requests
    -- in_process, engine, client or none.
    ADD COLUMN IF NOT EXISTS token_source LowCardinality(String) AFTER decider,
    -- From arrival until the engine took the request, waiting in the gateway
    -- included; gateway_queue_us is that wait, engine_us from then to first content.
    ADD COLUMN IF NOT EXISTS dispatch_us Nullable(UInt64) CODEC(T64, ZSTD(1)) AFTER queue_us,
    ADD COLUMN IF NOT EXISTS engine_us Nullable(UInt64) CODEC(T64, ZSTD(1)) AFTER dispatch_us,
    ADD COLUMN IF NOT EXISTS gateway_queue_us Nullable(UInt64) CODEC(T64, ZSTD(1)) AFTER engine_us
