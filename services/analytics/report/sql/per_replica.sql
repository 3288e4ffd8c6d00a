-- Every replica that a decision saw or a request went to, with its share of the work.
SELECT
    f.pool AS pool,
    f.replica AS replica,
    r.requests AS requests,
    r.prompt_tokens AS prompt_tokens,
    r.computed_tokens AS computed_tokens,
    if(r.reported = 0, NULL, r.cached_tokens / r.reported) AS hit_rate,
    if(sum(ifNull(r.computed_tokens, 0)) OVER () = 0, NULL, ifNull(r.computed_tokens, 0) / sum(ifNull(r.computed_tokens, 0)) OVER ()) AS computed_share,
    if(r.with_ttft = 0, NULL, r.ttft_p95_us) AS ttft_p95_us,
    if(k.batches = 0, NULL, k.evicted) AS evictions
FROM
(
    SELECT DISTINCT pool, replica FROM candidates WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
    UNION DISTINCT
    SELECT DISTINCT pool, replica FROM requests WHERE replica != '' AND (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
) AS f
LEFT JOIN
(
    SELECT
        q.pool AS pool, q.replica AS replica, count() AS requests,
        sum(q.prompt_tokens) AS prompt_tokens,
        sum(q.computed_tokens) AS computed_tokens,
        sum(q.cached_tokens) AS cached_tokens,
        sumIf(q.prompt_tokens, isNotNull(q.cached_tokens)) AS reported,
        countIf(isNotNull(q.ttft_us)) AS with_ttft,
        quantileExactIf(0.95)(assumeNotNull(q.ttft_us), isNotNull(q.ttft_us)) AS ttft_p95_us
    FROM requests AS q
    WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
    GROUP BY pool, replica
) AS r ON r.pool = f.pool AND r.replica = f.replica
LEFT JOIN
(
    SELECT a.pool AS pool, a.replica AS replica, sum(a.batches) AS batches, sum(a.evicted_blocks) AS evicted
    FROM kv_activity AS a
    WHERE (@pool = '' OR pool = @pool) AND bucket >= toDateTime(intDiv(@since, 1000000), 'UTC')
    GROUP BY pool, replica
) AS k ON k.pool = f.pool AND k.replica = f.replica
ORDER BY pool, replica
