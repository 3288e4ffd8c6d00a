-- Rows that ClickHouse took into requests and, because it stopped in between, not into
-- the roll-up. The SELECT is that of the view (schemas/tables), as a test compares.
INSERT INTO requests_1m
    (minute, pool, model, policy, replica, clock, hit_class, stream, requests, failed, cancelled, lost, fallbacks, steals, moves, prompt_tokens, reported_prompt_tokens, cached_tokens, computed_tokens, completion_tokens, decided_prompt_tokens, predicted_cached_tokens, best_cached_tokens, regret_tokens, ttft_us, tpot_us, e2e_us, decide_us, wait_us, max_seq)
SELECT
    toStartOfMinute(toDateTime(ts, 'UTC')) AS minute,
    pool,
    model,
    policy,
    replica,
    clock,
    hit_class,
    stream,
    count() AS requests,
    countIf(status NOT IN ('ok', 'cancelled')) AS failed,
    countIf(status = 'cancelled') AS cancelled,
    countIf(status = 'lost') AS lost,
    countIf(reason = 'fallback') AS fallbacks,
    countIf(stolen) AS steals,
    sum(r.moves) AS moves,
    sum(r.prompt_tokens) AS prompt_tokens,
    sumIf(r.prompt_tokens, isNotNull(r.cached_tokens)) AS reported_prompt_tokens,
    sum(ifNull(r.cached_tokens, 0)) AS cached_tokens,
    sum(ifNull(r.computed_tokens, 0)) AS computed_tokens,
    sum(ifNull(r.completion_tokens, 0)) AS completion_tokens,
    sum(ifNull(r.prompt_tokens_decided, 0)) AS decided_prompt_tokens,
    sum(ifNull(r.predicted_cached_tokens, 0)) AS predicted_cached_tokens,
    sum(ifNull(r.best_cached_tokens, 0)) AS best_cached_tokens,
    sum(ifNull(r.regret_tokens, 0)) AS regret_tokens,
    quantilesTDigestState(0.5, 0.95, 0.99)(r.ttft_us) AS ttft_us,
    quantilesTDigestState(0.5, 0.95, 0.99)(r.tpot_us) AS tpot_us,
    quantilesTDigestState(0.5, 0.95, 0.99)(r.e2e_us) AS e2e_us,
    quantilesTDigestState(0.5, 0.95, 0.99)(r.decide_us) AS decide_us,
    quantilesTDigestState(0.5, 0.95, 0.99)(r.wait_us) AS wait_us,
    max(r.stream_seq) AS max_seq
FROM requests AS r
WHERE stream = @stream AND stream_seq > @from AND stream_seq <= @to
GROUP BY minute, pool, model, policy, replica, clock, hit_class, stream
