-- Prompt tokens that were expected in cache and were not, and the reverse, over prompt tokens.
SELECT
    $__timeInterval(ts) AS time,
    sum(if(p > c, p - c, 0)) / sum(tokens) AS promised_too_much,
    sum(if(c > p, c - p, 0)) / sum(tokens) AS promised_too_little
FROM
(
    SELECT
        ts,
        assumeNotNull(r.predicted_cached_tokens) AS p,
        assumeNotNull(r.cached_tokens) AS c,
        r.prompt_tokens AS tokens
    FROM requests AS r
    WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
        AND isNotNull(r.predicted_cached_tokens) AND isNotNull(r.cached_tokens) AND r.prompt_tokens > 0
)
GROUP BY time
ORDER BY time
