-- Prompt tokens served from cache over prompt tokens: a ratio of sums, over the requests
-- whose engine reported its cached tokens. Not reported is not zero.
WITH sumIf(r.prompt_tokens, isNotNull(r.cached_tokens)) AS reported
SELECT if(reported = 0, NULL, sum(r.cached_tokens) / reported) AS hit_rate
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
