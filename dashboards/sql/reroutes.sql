-- Steals: the policy's first choice was over its budget. Moves: the request left a replica that did
-- not answer. Fallbacks: the gateway decided, since no router answered in time.
SELECT
    $__timeInterval(ts) AS time,
    countIf(stolen) AS steals,
    sum(r.moves) AS moved,
    countIf(reason = 'fallback') AS fallbacks
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
GROUP BY time
ORDER BY time
