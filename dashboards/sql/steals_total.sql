-- Share of requests that went elsewhere than their policy preferred, because that replica was
-- over its budget.
SELECT if(count() = 0, NULL, countIf(stolen) / count()) AS stolen
FROM requests
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
