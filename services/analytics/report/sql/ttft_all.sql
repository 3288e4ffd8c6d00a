-- Time to first token of all requests that had one, exact quantiles.
SELECT quantilesExact(0.5, 0.95, 0.99)(assumeNotNull(ttft_us)) AS us
FROM requests
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since) AND isNotNull(ttft_us)
HAVING count() > 0
