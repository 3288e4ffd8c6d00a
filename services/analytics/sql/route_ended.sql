-- The requests of a stream that have rows, from a sequence on.
SELECT pool, request_id, stream_seq
FROM requests
WHERE stream = @stream AND stream_seq >= @from
ORDER BY stream_seq
