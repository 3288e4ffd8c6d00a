-- Blocks evicted for each block stored, per replica: near 1 the cache turns over as fast as it fills.
SELECT
    replica,
    sum(stored_blocks) AS stored,
    sum(evicted_blocks) AS evicted,
    if(stored = 0, NULL, evicted / stored) AS evicted_per_stored
FROM kv_activity
WHERE $__timeFilter(bucket) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
GROUP BY replica
ORDER BY replica
