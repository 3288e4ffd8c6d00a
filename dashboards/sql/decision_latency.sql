-- Time the decider took for a decision, and at the last the time that requests waited for it,
-- transport included.
WITH quantilesTDigest(0.5, 0.95, 0.99)(assumeNotNull(decide_us)) AS q
SELECT
    $__timeInterval(ts) AS time,
    q[1] AS p50,
    q[2] AS p95,
    q[3] AS p99,
    quantileTDigest(0.99)(assumeNotNull(ifNull(wait_us, decide_us))) AS waited_p99
FROM requests
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool) AND isNotNull(decide_us)
GROUP BY time
ORDER BY time
