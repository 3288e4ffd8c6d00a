-- Prompt tokens that each replica had to compute: its share of the fleet's prefill work.
SELECT
    $__timeInterval(ts) AS time,
    replica,
    sum(r.computed_tokens) AS computed
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
    AND isNotNull(r.computed_tokens) AND replica != ''
GROUP BY time, replica
ORDER BY time, replica
