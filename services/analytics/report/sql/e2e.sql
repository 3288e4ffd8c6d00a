-- Time from arrival to end of the requests that succeeded, exact quantiles.
SELECT quantilesExact(0.5, 0.95, 0.99)(assumeNotNull(e2e_us)) AS us
FROM requests
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since) AND isNotNull(e2e_us) AND status = 'ok'
HAVING count() > 0
