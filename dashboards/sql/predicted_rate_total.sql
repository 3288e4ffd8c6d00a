-- What decisions expected to be served from cache, over the prompt tokens they decided on.
SELECT if(ifNull(sum(r.prompt_tokens_decided), 0) = 0, NULL, sum(r.predicted_cached_tokens) / sum(r.prompt_tokens_decided)) AS predicted
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
