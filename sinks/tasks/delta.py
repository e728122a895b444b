"""Append to a Delta table, effectively once, from ``foreachBatch``: one commit per batch, which also records the progress.

Delta's own remedy is a pair of options, ``txnAppId`` and ``txnVersion``: the table ignores a write whose version it already has.
With the batch's number as version it ignores new data once the checkpoint is lost, because the new one counts from 0 again; with
the query's id in ``txnAppId`` it then writes the old data twice. Here the version counts the pipeline's commits, and what each
of them covers is in its ``userMetadata``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import failpoints
from ..errors import Fenced, OffsetGap, SinkError
from ..offsets import Checkpoint, Progress, advanced, decide

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The key of the progress in ``userMetadata``, which other tools may use too.
_KEY = "onceproof"

#: The options that the guarantees depend on, in lower case, as Spark compares them.
_OWN = ("txnappid", "txnversion", "usermetadata", "replacewhere", "partitionoverwritemode")

#: How many of the newest versions are read first. Usually the last one is of this pipeline.
_NEWEST = 20

#: What Delta says of a path without a table. If there is data of another format, the append fails.
_NOTHING_YET = "DELTA_TABLE_ONLY_OPERATION"


@dataclass(frozen=True)
class _Commit:
    """What one version of the table records of the pipeline."""

    number: int
    """Its ``txnVersion``: how many commits of the pipeline precede it."""
    progress: Progress


class DeltaAppend:
    """A sink for ``df.writeStream.foreachBatch(sink)`` that appends each batch to ``table`` in one commit.

    ``table`` is a path or an address if it has a slash: the first batch creates the table. Otherwise it is the name, as in SQL, of a
    table that exists: a commit that creates one by its name would not record the progress.
    ``pipeline`` is the logical name under which the table records progress: the same over restarts, for one query only.
    ``rebuilds_state`` is that of `onceproof.sinks.postgres.PostgresAppend`. ``options`` are those of Delta's writer,
    for example ``mergeSchema="true"``.

    Assumes Kafka sources, synchronous micro-batches, a session with Delta's SQL extension, and that a commit of this pipeline is younger than
    the table's ``delta.logRetentionDuration`` (30 days by default), unless nobody else writes to the table. A table that is restored
    to an older version has lost rows of which the progress remains: give the pipeline another name, and the query another checkpoint.

    Guarantees: each batch is in the table completely or not at all, and once. A replayed batch is skipped, also by a query with a new
    checkpoint; a batch that does not begin where progress ends raises `OffsetGap`. Of two drivers that write at once, one gets
    `Fenced`: Delta refuses two concurrent commits of one ``txnAppId``.
    """

    def __init__(
        self, table: str, *, pipeline: str, checkpoint: str | Path, rebuilds_state: bool = False, **options: Any
    ) -> None:
        """Raises `SinkError` for an option that the guarantees depend on."""
        for name in options:
            if name.lower() in _OWN:
                raise SinkError(f"option {name!r} is set by the sink", hint="leave it out")
        self._table = table
        self._is_path = "/" in table
        self._pipeline = pipeline
        self._checkpoint = Checkpoint(checkpoint)
        self._rebuilds_state = rebuilds_state
        self._options = options
        self._query_id = ""

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Called by Spark. Runs one action on the frame even if the batch is skipped, because stateful queries need it."""
        self._query_id = self._checkpoint.query_id()
        failpoints.reach("after-offset-log", **self._who(batch_id), phase="sink-entry")
        try:
            written = self._write(batch_df, batch_id)
        except Exception as error:
            failpoints.report("attempt-failed", **self._who(batch_id), error=type(error).__name__, message=str(error))
            raise
        failpoints.report("committed" if written else "skipped", **self._who(batch_id))
        if written:
            failpoints.reach("after-sink-commit", **self._who(batch_id))

    def _write(self, batch_df: DataFrame, batch_id: int) -> bool:
        # Before the batch has run: Spark 4 makes the folder of the state when it plans the first batch.
        ranges = self._checkpoint.ranges(batch_id)
        spark = batch_df.sparkSession
        last = self._last(spark)
        recorded = None if last is None else last.progress
        if decide(recorded, ranges, self._query_id, rebuilds_state=self._rebuilds_state) == "skip":
            batch_df.write.format("noop").mode("overwrite").save()
            return False
        number = 0 if last is None else last.number + 1
        self._append(batch_df, number, Progress(self._query_id, batch_id, advanced(recorded, ranges)))
        self._demand(spark, number, batch_id)
        return True

    def _append(self, batch_df: DataFrame, number: int, progress: Progress) -> None:
        known = {"pipeline": self._pipeline, "number": number, **asdict(progress)}
        own: dict[str, Any] = {
            "txnAppId": f"onceproof/{self._pipeline}",
            "txnVersion": number,
            "userMetadata": json.dumps({_KEY: known}),
        }
        writer = batch_df.write.format("delta").mode("append").options(**self._options, **own)
        try:
            writer.save(self._table) if self._is_path else writer.saveAsTable(self._table)
        except Exception as error:
            # By its name, because Delta's Python package, which has the class, need not be installed.
            if "ConcurrentTransactionException" in str(error):
                raise Fenced(
                    f"another driver of pipeline {self._pipeline!r} has written to {self._table} at the same time",
                    hint="stop all drivers but one; a restart of this one reads what the other has written",
                ) from error
            raise

    def _demand(self, spark: SparkSession, number: int, batch_id: int) -> None:
        """Raise unless the commit of that number is this batch's: Delta skips a version that the table has, without a word."""
        found = {commit.number: commit.progress for commit in self._commits(spark, _NEWEST)}
        if number not in found:
            found = {commit.number: commit.progress for commit in self._commits(spark, None)}
        if (mine := found.get(number)) is None:
            raise OffsetGap(
                f"{self._table} has transaction {number} of pipeline {self._pipeline!r}, but no longer its commit: "
                "it is unknown up to where the input was written",
                hint="give the pipeline another name and start the query where its output ends; a longer "
                "delta.logRetentionDuration keeps commits for longer",
            )
        if (mine.query_id, mine.batch_id) != (self._query_id, batch_id):
            raise Fenced(
                f"another driver of pipeline {self._pipeline!r} has written batch {mine.batch_id} of query {mine.query_id} "
                f"to {self._table} in place of this batch",
                hint="stop all drivers but one; a restart of this one reads what the other has written",
            )

    def _last(self, spark: SparkSession) -> _Commit | None:
        """The newest commit of the pipeline."""
        for limit in (_NEWEST, None):
            if found := self._commits(spark, limit):
                return found[0]
        return None

    def _commits(self, spark: SparkSession, limit: int | None) -> list[_Commit]:
        """The commits of the pipeline among the newest ``limit`` versions of the table, or among all; newest first."""
        quoted = "`" + self._table.replace("`", "``") + "`"
        history = f"DESCRIBE HISTORY {'delta.' + quoted if self._is_path else self._table}"
        try:
            rows = (
                spark.sql(history if limit is None else f"{history} LIMIT {limit}")
                .select("version", "userMetadata")
                .collect()
            )
        except Exception as error:
            if self._is_path and _NOTHING_YET in str(error):
                return []
            if "TABLE_OR_VIEW_NOT_FOUND" in str(error):
                raise SinkError(f"there is no table {self._table}", hint="create it before the job starts") from error
            raise
        known = (_own_metadata(row["userMetadata"]) for row in sorted(rows, key=lambda row: -row["version"]))
        return [
            _Commit(one["number"], Progress(one["query_id"], one["batch_id"], one["offsets"]))
            for one in known
            if one.get("pipeline") == self._pipeline
        ]

    def _who(self, batch_id: int) -> dict[str, Any]:
        return {"sink": "delta", "batch": batch_id, "query_id": self._query_id}


def _own_metadata(text: str | None) -> dict[str, Any]:
    """What a sink wrote into ``userMetadata``; nothing if that is of another tool."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return {}
    own = found.get(_KEY) if isinstance(found, dict) else None
    return own if isinstance(own, dict) else {}
