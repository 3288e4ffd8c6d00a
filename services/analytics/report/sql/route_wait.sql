-- Time a request waited for its decision, exact quantiles, by the wall clock.
SELECT quantilesExact(0.5, 0.95, 0.99)(assumeNotNull(wait_us)) AS us
FROM requests
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since) AND isNotNull(wait_us)
HAVING count() > 0
