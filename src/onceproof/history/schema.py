"""The tables of a history, one row per observation. ``VERSION`` changes whenever one of them does.

Times (``*_at``) are seconds on the run's monotonic clock, the one of ``events.jsonl``. Offsets are Kafka's; ranges are half open.
"""

from __future__ import annotations

import pyarrow as pa

from onceproof.history.version import VERSION as VERSION

#: The key of the Parquet schema's metadata under which a file stores its version.
VERSION_KEY = b"onceproof.history"

# What a Kafka log holds about a record besides the record itself: the header of its batch (KIP-98) and the marker that
# ended its transaction. All are null where only a consumer could read the log, the last two also for a record outside
# of transactions.
_PRODUCER = {
    "producer_id": pa.int64(),  # null: the producer was neither idempotent nor transactional, or is not known
    "producer_epoch": pa.int32(),
    "sequence": pa.int32(),  # of this record among its producer's to this partition
    "txn_end_offset": pa.int64(),  # the marker's offset; null also while the transaction is open
    "txn_end_ms": pa.int64(),  # the marker's timestamp: the broker's wall clock
}

#: Columns that were added later: a history of this version may lack them.
LATER = ("headers", "seen")

# A record's headers, in order: a JSON list of [name, value], each value as text (bytes that are not UTF-8 as ``\\xNN``) or null.
_HEADERS = {"headers": pa.string()}

_COLUMNS: dict[str, dict[str, pa.DataType]] = {
    # What the input logs hold, read back from the brokers after the run.
    "input": {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "timestamp_ms": pa.int64(),
        "visibility": pa.string(),  # committed | aborted | open
        **_PRODUCER,
        **_HEADERS,
    },
    # The producer's ledger: seq is the record's place in its data set.
    "sent": {
        "topic": pa.string(),
        "seq": pa.int64(),
        "status": pa.string(),  # acked | failed | unknown
        "partition": pa.int32(),  # null unless acked
        "offset": pa.int64(),  # null unless acked
        "error": pa.string(),
    },
    # Kafka: one row per record read back. Postgres: one row per decoded change, in commit order.
    "output": {
        "output": pa.string(),
        "op": pa.string(),  # insert | update | delete | truncate (Kafka: insert)
        "partition": pa.int32(),  # null for Postgres
        "offset": pa.int64(),  # Kafka offset; Postgres: position among the output's decoded changes
        "xid": pa.int64(),  # Postgres transaction; null for Kafka
        "commit_order": pa.int64(),  # Postgres: position of its commit in the stream; null for Kafka
        "key": pa.binary(),  # Kafka key; null for Postgres
        "content": pa.string(),  # Kafka: the value as text; Postgres: the new row as JSON, column -> text or null
        "raw": pa.binary(),  # Kafka: the value where it is not UTF-8 (content is null then), or where a format or function decodes it
        "before": pa.string(),  # Postgres update and delete: the old row as JSON
        "visibility": pa.string(),  # committed | aborted | open
        "timestamp_ms": pa.int64(),  # Kafka; null for Postgres, whose commits have one
        **_PRODUCER,
        **_HEADERS,
    },
    # Kafka only: each partition of an input or output topic, as it was at collection.
    "partitions": {
        "topic": pa.string(),
        "partition": pa.int32(),
        "start_offset": pa.int64(),  # above 0: retention or compaction removed earlier records
        "stable_offset": pa.int64(),  # the last stable offset: read_committed readers get no further
        "end_offset": pa.int64(),  # the high watermark
        "collected_ms": pa.int64(),  # wall clock
    },
    # Postgres only: the table as it was after the drain.
    "snapshot": {"output": pa.string(), "content": pa.string()},
    # Postgres: every commit that the slot decoded, also those that touched no output.
    "commits": {
        "commit_order": pa.int64(),
        "xid": pa.int64(),
        "lsn": pa.int64(),
        "commit_time_us": pa.int64(),  # the server's wall clock, microseconds since 1970
        "changes": pa.int64(),
    },
    # The last offsets that each query's checkpoint recorded as done (end, exclusive).
    "progress": {
        "query": pa.string(),
        "batch": pa.int64(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "end_offset": pa.int64(),
    },
    # One row per batch, source topic and partition, as offsets/N planned it.
    "batches": {
        "query": pa.string(),
        "batch": pa.int64(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "start_offset": pa.int64(),
        "end_offset": pa.int64(),
        "watermark_ms": pa.int64(),
        "planned_at": pa.float64(),
        "planned_by": pa.int32(),  # which start of the driver wrote offsets/N, from 0
        "committed_at": pa.float64(),  # null: commits/N was never seen
        "committed_by": pa.int32(),
    },
    "faults": {
        "index": pa.int32(),
        "fault": pa.string(),
        "target": pa.string(),
        "query": pa.string(),
        "batch": pa.int64(),
        "point": pa.string(),
        "armed_at": pa.float64(),
        "fired_at": pa.float64(),
        "hit": pa.bool_(),
        "healed_at": pa.float64(),
        "evidence": pa.string(),  # sentences, one per line: what was seen that proves the hit, or was missing
        "seen": pa.string(),  # the same as a JSON list of {what, where, at, detail}
    },
}

TABLES: dict[str, pa.Schema] = {name: pa.schema(columns) for name, columns in _COLUMNS.items()}
