-- Cached tokens given up against the candidate that held most of the prompt, over prompt tokens:
-- what balancing load cost in hits.
SELECT
    $__timeInterval(ts) AS time,
    if(ifNull(sum(r.prompt_tokens_decided), 0) = 0, NULL, sum(r.regret_tokens) / sum(r.prompt_tokens_decided)) AS regret
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
GROUP BY time
ORDER BY time
