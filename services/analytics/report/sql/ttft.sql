-- Time to first token by hit class, exact quantiles. A class without a first token has no row.
SELECT toString(hit_class) AS class, count() AS requests, quantilesExact(0.5, 0.95, 0.99)(assumeNotNull(ttft_us)) AS us
FROM requests
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since) AND isNotNull(ttft_us)
GROUP BY class
