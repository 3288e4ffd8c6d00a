-- Requests that ended.
SELECT count() AS requests
FROM requests
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
