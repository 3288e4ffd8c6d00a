-- Blocks that replicas evicted for want of space. No row when no replica reported its cache.
SELECT sum(evicted_blocks) AS evictions
FROM kv_activity
WHERE (@pool = '' OR pool = @pool) AND bucket >= toDateTime(intDiv(@since, 1000000), 'UTC')
HAVING count() > 0
