-- The values of the pool variable.
SELECT DISTINCT pool FROM requests WHERE ts > now() - INTERVAL 30 DAY ORDER BY pool
