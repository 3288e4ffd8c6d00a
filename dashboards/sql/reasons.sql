-- Decisions by their reason.
SELECT
    $__timeInterval(ts) AS time,
    reason,
    count() AS decisions
FROM requests
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool) AND reason != ''
GROUP BY time, reason
ORDER BY time, reason
