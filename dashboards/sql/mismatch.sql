-- Where prediction and engine disagree, worst first: requests that were promised a hit and got
-- none, that got one unpromised, and whose engine says nothing of its cache.
SELECT
    pool,
    model,
    lora,
    replica,
    count() AS requests,
    countIf(r.predicted_cached_tokens > 0 AND r.cached_tokens = 0) AS promised_not_found,
    countIf(r.predicted_cached_tokens = 0 AND r.cached_tokens > 0) AS found_not_promised,
    countIf(isNull(r.cached_tokens)) AS not_reported,
    multiIf(
        not_reported * 2 > requests, 'the engine does not report cached tokens: a flag is off',
        promised_not_found * 10 > requests, 'template, tokenizer, block size, LoRA or salt differ, or removals are missing',
        found_not_promised * 10 > requests, 'KV events of this replica are missing',
        '') AS likely_cause
FROM requests AS r
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool) AND status = 'ok' AND replica != ''
GROUP BY pool, model, lora, replica
ORDER BY promised_not_found + found_not_promised + not_reported DESC, pool, model, lora, replica
LIMIT 50
