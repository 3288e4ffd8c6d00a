-- Prompt tokens and where they came from. Rates are ratios of sums. A request whose engine
-- did not report cached tokens is in no hit rate: not reported is not zero.
SELECT
    sum(r.prompt_tokens) AS prompt_tokens,
    sum(r.cached_tokens) AS cached_tokens,
    sum(r.computed_tokens) AS computed_tokens,
    sum(r.completion_tokens) AS completion_tokens,
    sumIf(r.prompt_tokens, isNotNull(r.cached_tokens)) AS reported,
    if(reported = 0, NULL, cached_tokens / reported) AS hit_rate,
    sum(r.prompt_tokens_decided) AS decided,
    if(ifNull(decided, 0) = 0, NULL, sum(r.predicted_cached_tokens) / decided) AS predicted_hit_rate,
    if(ifNull(decided, 0) = 0, NULL, sum(r.best_cached_tokens) / decided) AS best_hit_rate
FROM requests AS r
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
