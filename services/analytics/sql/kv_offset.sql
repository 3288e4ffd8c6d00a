-- Where the activity of a stream ends.
SELECT max(last_seq) FROM kv_activity WHERE stream = @stream
