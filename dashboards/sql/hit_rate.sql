-- Actual and predicted hit rate. They should lie on one another: a gap that lasts is a mismatch of
-- template, tokenizer, block size, LoRA or salt, or events that are missing.
SELECT
    $__timeInterval(ts) AS time,
    if(sumIf(r.prompt_tokens, isNotNull(r.cached_tokens)) = 0, NULL,
        sum(r.cached_tokens) / sumIf(r.prompt_tokens, isNotNull(r.cached_tokens))) AS actual,
    if(ifNull(sum(r.prompt_tokens_decided), 0) = 0, NULL, sum(r.predicted_cached_tokens) / sum(r.prompt_tokens_decided)) AS predicted
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
GROUP BY time
ORDER BY time
