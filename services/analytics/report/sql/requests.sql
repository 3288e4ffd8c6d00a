-- Requests that have a row, how they ended, and whether any has two.
SELECT
    count() AS rows,
    uniqExact(pool, request_id) AS rows_distinct,
    countIf(status NOT IN ('ok', 'cancelled')) AS failed,
    countIf(status = 'cancelled') AS cancelled,
    countIf(status = 'lost') AS lost
FROM requests
WHERE (@pool = '' OR pool = @pool) AND ts >= fromUnixTimestamp64Micro(@since)
