-- What a user would write by hand instead of `onceproof check`, for the runs of benchmarks/judge.py with a Kafka output:
-- decode both files once, two anti-joins over all columns, one duplicate group-by. It finds lost, wrong, unexplained and
-- duplicated records. It checks neither the order nor the files themselves, and names no cause.
-- :input and :output are replaced by the paths of the Parquet files.
CREATE TEMP TABLE expected AS
SELECT "partition" AS src_partition, "offset" AS src_offset, unnest(json_transform(decode("value"),
       '{"id": "BIGINT", "key": "VARCHAR", "origin": "VARCHAR", "dest": "VARCHAR", "delay": "BIGINT", "fare": "DOUBLE", "booked_at": "VARCHAR"}'))
FROM read_parquet(:input) WHERE visibility = 'committed';

CREATE TEMP TABLE found AS
SELECT unnest(json_transform(content,
       '{"src_partition": "INTEGER", "src_offset": "BIGINT", "id": "BIGINT", "key": "VARCHAR", "origin": "VARCHAR", "dest": "VARCHAR", "delay": "BIGINT", "fare": "DOUBLE", "booked_at": "VARCHAR"}'))
FROM read_parquet(:output) WHERE visibility = 'committed';

SELECT 'lost or wrong' AS what, src_partition, src_offset
FROM expected ANTI JOIN found USING (src_partition, src_offset, id, "key", origin, dest, delay, fare, booked_at);

SELECT 'wrong or unexplained' AS what, src_partition, src_offset
FROM found ANTI JOIN expected USING (src_partition, src_offset, id, "key", origin, dest, delay, fare, booked_at);

SELECT 'duplicate' AS what, src_partition, src_offset
FROM found GROUP BY src_partition, src_offset HAVING count(*) > 1;
