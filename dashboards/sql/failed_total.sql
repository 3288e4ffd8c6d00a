-- Share of requests that failed: neither answered nor cancelled by their client.
SELECT if(count() = 0, NULL, countIf(status NOT IN ('ok', 'cancelled')) / count()) AS failed
FROM requests
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
