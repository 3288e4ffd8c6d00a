-- The latest requests, one by one: what was predicted, what happened, and why it went there.
SELECT
    ts,
    request_id,
    pool,
    replica,
    reason,
    status,
    r.prompt_tokens AS prompt,
    r.predicted_cached_tokens AS predicted,
    r.cached_tokens AS cached,
    r.regret_tokens AS regret,
    r.ttft_us / 1000 AS ttft_ms,
    r.tpot_us / 1000 AS tpot_ms,
    r.decide_us AS decide_us,
    r.index_age_us / 1000 AS index_age_ms
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
ORDER BY ts DESC
LIMIT 200
