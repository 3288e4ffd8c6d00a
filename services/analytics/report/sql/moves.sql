-- Requests that did not go, or not stay, where the policy preferred.
SELECT countIf(stolen) AS steals, sum(r.moves) AS moves, countIf(reason = 'fallback') AS fallbacks, sum(r.regret_tokens) AS regret_tokens
FROM requests AS r
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
