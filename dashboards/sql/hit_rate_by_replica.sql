-- Hit rate of each replica: skew shows here.
SELECT
    $__timeInterval(ts) AS time,
    replica,
    sum(r.cached_tokens) / sum(r.prompt_tokens) AS hit_rate
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
    AND isNotNull(r.cached_tokens) AND r.prompt_tokens > 0 AND replica != ''
GROUP BY time, replica
ORDER BY time, replica
