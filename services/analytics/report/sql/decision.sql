-- Time a decision took its decider, exact quantiles, by the wall clock.
SELECT quantilesExact(0.5, 0.95, 0.99)(assumeNotNull(decide_us)) AS us
FROM requests
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since) AND isNotNull(decide_us)
HAVING count() > 0
