-- Blocks that each replica evicted for want of space, per second. A high rate on a busy replica is
-- a matter of capacity, not of routing.
SELECT
    $__timeInterval(bucket) AS time,
    replica,
    sum(evicted_blocks) / $__interval_s AS evicted
FROM kv_activity
WHERE $__timeFilter(bucket) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
GROUP BY time, replica
ORDER BY time, replica
