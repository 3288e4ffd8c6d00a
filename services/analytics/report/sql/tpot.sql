-- Mean time per output token after the first of each request, exact quantiles over requests.
SELECT quantilesExact(0.5, 0.95, 0.99)(assumeNotNull(tpot_us)) AS us
FROM requests
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since) AND isNotNull(tpot_us)
HAVING count() > 0
