-- Where the rows of a stream end, and where its open decisions begin.
SELECT
    max(stream_seq) AS last_seq,
    argMin(floor_seq, (-toInt64(stream_seq), floor_seq)) AS floor_seq,
    (SELECT max(stream_seq) FROM candidates WHERE stream = @stream) AS candidates_seq,
    (SELECT max(max_seq) FROM requests_1m WHERE stream = @stream) AS rollup_seq
FROM requests
WHERE stream = @stream
