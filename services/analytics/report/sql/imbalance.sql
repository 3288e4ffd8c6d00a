-- Computed tokens of the busiest replica against the mean over all replicas that decisions
-- saw, those without a request too. 1 is even, the number of replicas is the worst.
SELECT if(sum(computed) = 0, NULL, max(computed) / avg(computed)) AS imbalance
FROM
(
    SELECT f.pool AS pool, f.replica AS replica, ifNull(r.tokens, 0) AS computed
    FROM
    (
        SELECT DISTINCT pool, replica FROM candidates WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
        UNION DISTINCT
        SELECT DISTINCT pool, replica FROM requests WHERE replica != '' AND (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
    ) AS f
    LEFT JOIN
    (
        SELECT q.pool AS pool, q.replica AS replica, sum(q.computed_tokens) AS tokens
        FROM requests AS q
        WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
        GROUP BY pool, replica
    ) AS r ON r.pool = f.pool AND r.replica = f.replica
)
