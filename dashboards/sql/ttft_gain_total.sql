-- How many times longer a miss waits for its first token than a hit, at the 95th percentile.
WITH
    quantileTDigestIf(0.95)(assumeNotNull(ttft_us), isNotNull(ttft_us) AND hit_class = 'hit') AS hit_us,
    quantileTDigestIf(0.95)(assumeNotNull(ttft_us), isNotNull(ttft_us) AND hit_class = 'miss') AS miss_us
SELECT if(isNaN(hit_us) OR isNaN(miss_us) OR hit_us = 0, NULL, miss_us / hit_us) AS times
FROM requests
WHERE $__timeFilter(ts) AND $__conditionalAll(pool IN (${pool:singlequote}), $pool)
