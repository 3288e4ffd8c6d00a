-- Time to first token of the requests that found at least half of their prompt in cache.
WITH quantilesTDigest(0.5, 0.95, 0.99)(assumeNotNull(ttft_us)) AS q
SELECT
    $__timeInterval(ts) AS time,
    q[1] / 1000 AS p50,
    q[2] / 1000 AS p95,
    q[3] / 1000 AS p99
FROM requests
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
    AND isNotNull(ttft_us) AND hit_class = 'hit'
GROUP BY time
ORDER BY time
