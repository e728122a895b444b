"""The streaming formats ``onceproof-postgres`` and ``onceproof-kafka``: `PostgresStaged` and `KafkaPartitioned` without ``foreachBatch``.

Spark makes the writer of a batch in one process, calls it in tasks, and commits or aborts in another process. The three share
the options, the messages of the tasks, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

from .. import failpoints
from ..errors import CheckpointUnreadable, SinkError
from ..kafka_records import RecordFormat
from ..kafka_transaction import TopicTransactions
from ..offsets import Checkpoint
from .kafka import stateless
from .lanes import Batch, Lanes, Written
from .options import CHECKPOINT, Kinds, names, settings_of, truth
from .postgres import StagedAttempt, StagedBatches
from .rows import SourceColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make ``writeStream.format("onceproof-postgres")`` and ``format("onceproof-kafka")`` known to a session."""
    from .spark import data_source

    for writing in (PostgresWriting, KafkaWriting):
        spark.dataSource.register(data_source(writing))


class PostgresWriting:
    """``onceproof-postgres``: tasks stage their rows, and the commit publishes the rows of the attempts that Spark counted.

    Options: ``conninfo``, ``table`` and ``pipeline``, and the settings of `onceproof.sinks.postgres_staged.PostgresStaged`.
    """

    name = "onceproof-postgres"
    kinds: ClassVar[Kinds] = {
        CHECKPOINT: str,
        **dict.fromkeys(("conninfo", "table", "pipeline", "progress_table", "dead_letters"), str),
        **dict.fromkeys(("rebuilds_state", "ordered"), truth),
        "connect_timeout_s": int,
        **dict.fromkeys(("lock_timeout_s", "idle_timeout_s", "write_timeout_s", "commit_timeout_s"), float),
    }

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        """Raises `SinkError`."""
        settings = settings_of(self.name, options, ("conninfo", "table", "pipeline"), self.kinds)
        folder = local_checkpoint(settings.pop(CHECKPOINT))
        self._settings = {**settings, "checkpoint": folder}
        self._columns = tuple(columns)

    def write(self, batches: Iterable[pa.RecordBatch], batch_id: int, run: str) -> StagedAttempt:
        """In a task. ``run`` is Spark's id of this start of the query. Raises `psycopg.Error`."""
        return self._sink().stage(batches, self._columns, batch_id, run)

    def commit(self, messages: Sequence[StagedAttempt], batch_id: int) -> bool:
        """Returns whether the batch was written. Raises `SinkError` or `psycopg.Error`."""
        return self._sink().commit(messages, self._columns, batch_id)

    def abort(self, messages: Sequence[StagedAttempt]) -> None:
        self._sink().abort(messages)

    def _sink(self) -> StagedBatches:
        return StagedBatches(**self._settings)


class KafkaWriting:
    """``onceproof-kafka``: tasks commit, each source partition in its own transaction. The commit only completes the progress.

    Options: ``kafka.bootstrap.servers``, ``topic``, ``pipeline``, ``progress_topic`` and ``source``, and the settings of
    `onceproof.sinks.tasks.kafka.KafkaPartitioned`; columns with commas between them. Others that begin with ``kafka.`` are
    settings of librdkafka. A batch is made for the newest file in the checkpoint's folder ``offsets``.
    """

    name = "onceproof-kafka"
    kinds: ClassVar[Kinds] = {
        CHECKPOINT: str,
        **dict.fromkeys(("kafka.bootstrap.servers", "topic", "pipeline", "progress_topic", "key"), str),
        **dict.fromkeys(("source", "value"), names),
        **dict.fromkeys(("transaction_timeout_s", "commit_timeout_s"), float),
        "commit_attempts": int,
    }

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        """Raises `SinkError`."""
        config = {k: v for k, v in options.items() if k.startswith("kafka.") and k != "kafka.bootstrap.servers"}
        needed = ("kafka.bootstrap.servers", "topic", "pipeline", "progress_topic", "source")
        own = {name: text for name, text in options.items() if name not in config}
        settings = settings_of(self.name, own, needed, self.kinds)
        folder = local_checkpoint(settings.pop(CHECKPOINT))
        bootstrap, topic = settings.pop("kafka.bootstrap.servers"), settings.pop("topic")
        source, record = SourceColumns(settings.pop("source")), RecordFormat(topic, *_key_and_value(settings))
        record.demand_names(columns)
        source.demand(columns)
        settings["config"] = {name.removeprefix("kafka."): value for name, value in config.items()}
        TopicTransactions(bootstrap, topic, **settings)  # refuses wrong settings here, and not in a task
        self._lanes = Lanes(bootstrap, topic, source, record, settings)
        # Made again for the commit, where the first batch of a query with state has made the folder that shows that it has state.
        checkpoint = Checkpoint(folder)
        self._batch = stateless(Batch(checkpoint.query_id(), checkpoint.ranges(newest_batch(folder))))
        self._harness = failpoints.socket_path()

    def write(self, batches: Iterable[pa.RecordBatch], batch_id: int, run: str) -> list[Written]:
        """In a task. Raises `SinkError` or `KafkaException`."""
        failpoints.join(self._harness)
        return list(self._lanes.write(batches, self._newest(batch_id)))

    def commit(self, messages: Sequence[list[Written]], batch_id: int) -> bool:
        """Returns whether a row was written. Raises `SinkError` or `KafkaException`."""
        written = [one for message in messages for one in message]
        self._lanes.settle(self._newest(batch_id), written)
        return any(not one.skipped for one in written)

    def abort(self, messages: Sequence[list[Written]]) -> None:
        """Nothing: what a task has committed stays, and its replay is skipped."""

    def _newest(self, batch_id: int) -> Batch:
        if self._batch.ranges.batch != batch_id:
            raise SinkError(
                f"Spark writes batch {batch_id}, but the newest file in the checkpoint's folder offsets is of batch "
                f"{self._batch.ranges.batch}",
                hint="give the sink the query's own checkpointLocation; only one query may use it",
            )
        return self._batch


def _key_and_value(settings: dict[str, Any]) -> tuple[str | None, list[str] | None]:
    return settings.pop("key", None), settings.pop("value", None)


def local_checkpoint(location: str) -> Path:
    """The folder. Raises `CheckpointUnreadable`: the processes in which a format runs have no JVM to read others with."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise CheckpointUnreadable(
            f"the checkpoint {location} is not in a local folder, and a streaming format can read no other",
            hint="use the sink with foreachBatch (PostgresStaged, KafkaPartitioned), which reads it with Spark's file systems",
        )
    return Path(unquote(parts.path) if parts.scheme else location)


def newest_batch(checkpoint: Path) -> int:
    """The batch that Spark is about to write: it has planned it, and no later one. Raises `CheckpointUnreadable`."""
    folder = checkpoint / "offsets"
    try:
        return max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    except (OSError, ValueError) as error:
        raise CheckpointUnreadable(
            f"no batch is planned in {folder}: {error}", hint="give the sink the query's own checkpointLocation"
        ) from error
