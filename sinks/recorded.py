"""The recorded progress of pipelines, outside of a query: shows it, and repairs it while no driver can write in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._lazy import psycopg, sql
from .errors import SinkError
from .kafka_progress import PARTITION, ProgressReader
from .kafka_records import Addressed
from .kafka_transaction import TopicTransactions
from .offsets import Progress

if TYPE_CHECKING:
    from typing_extensions import LiteralString


@dataclass(frozen=True)
class Recorded:
    """The record of one pipeline."""

    pipeline: str
    progress: Progress | None
    """None: a pipeline that has not written a batch."""
    epoch: int | None = None
    """How often the pipeline was started, in Postgres only."""
    partition: int = field(default=PARTITION, compare=False)
    """Of the progress topic, in Kafka only."""


Change = Callable[[Progress | None], Progress]
"""Makes the new progress from the recorded one."""


class NoProgressTable(SinkError):
    """The table of progress does not exist, or is not one."""


class UnknownPipeline(SinkError):
    """Nothing is recorded for the pipeline."""


class PostgresProgress:
    """The table in which the Postgres sinks record progress."""

    def __init__(self, conninfo: str, table: str = "onceproof_progress", *, timeout_s: float = 10.0) -> None:
        """``timeout_s`` limits the connection, and how long `change` waits for a batch that is being written."""
        self._conninfo = conninfo
        self._name = table
        self._table = sql.Identifier(*table.split("."))
        self._timeout_s = timeout_s

    def read(self, pipeline: str | None = None) -> list[Recorded]:
        """The record of ``pipeline``, or of all, in the order of their names.

        Raises `UnknownPipeline`, `NoProgressTable` or `psycopg.Error`.
        """
        with closing(self._connect()) as connection:
            found = self._select(connection, pipeline, "")
            if pipeline is not None and not found:
                raise self._unknown(connection, pipeline)
            return found

    def change(self, pipeline: str, change: Change) -> tuple[Recorded, Recorded]:
        """Record what ``change`` makes of the progress. Returns the record before and after.

        It waits for a batch that is being written, and takes the next epoch: a running driver then raises `Fenced` at its next
        batch. Raises `UnknownPipeline`, `NoProgressTable`, `psycopg.Error`, and what ``change`` raises: then
        nothing was changed.
        """
        with closing(self._connect()) as connection:
            found = self._select(connection, pipeline, " FOR UPDATE")
            if not found:
                raise self._unknown(connection, pipeline)
            (before,) = found
            after = change(before.progress)
            update = sql.SQL(
                "UPDATE {} SET epoch = epoch + 1, query_id = %s, batch_id = %s, offsets = %s WHERE pipeline = %s RETURNING epoch"
            ).format(self._table)
            values = (after.query_id, after.batch_id, json.dumps(after.offsets), pipeline)
            ((epoch,),) = connection.execute(update, values).fetchall()
            connection.commit()
        return before, Recorded(pipeline, after, epoch)

    def _unknown(self, connection: psycopg.Connection[Any], pipeline: str) -> UnknownPipeline:
        return _unknown(pipeline, f"table {self._name}", self._select(connection, None, ""))

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._conninfo, connect_timeout=int(self._timeout_s))
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{int(self._timeout_s * 1000)}ms",))
        return connection

    def _select(self, connection: psycopg.Connection[Any], pipeline: str | None, lock: LiteralString) -> list[Recorded]:
        select = sql.SQL(
            "SELECT pipeline, epoch, query_id, batch_id, offsets FROM {} WHERE %(pipeline)s::text IS NULL OR pipeline = %(pipeline)s"
            " ORDER BY pipeline{}"
        ).format(self._table, sql.SQL(lock))
        try:
            rows = connection.execute(select, {"pipeline": pipeline}).fetchall()
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedColumn,
            psycopg.errors.InvalidSchemaName,
        ) as error:
            raise NoProgressTable(
                f"{self._name} is not a table of progress: {str(error).splitlines()[0]}",
                hint="name the sink's progress_table, with its schema; a sink creates it at its first start",
            ) from None
        return [
            Recorded(name, None if offsets is None else Progress(query, batch, offsets), epoch)
            for name, epoch, query, batch, offsets in rows
        ]


class KafkaProgress:
    """The topic in which the Kafka sinks record progress."""

    def __init__(
        self, bootstrap: str, topic: str, *, config: Mapping[str, Any] | None = None, timeout_s: float = 10.0
    ) -> None:
        """``config``: settings of librdkafka, such as a login. ``timeout_s`` limits each request."""
        self._bootstrap = bootstrap
        self._topic = topic
        self._config = config
        self._timeout_s = timeout_s

    def read(self, pipeline: str | None = None) -> list[Recorded]:
        """The last committed record of ``pipeline``, or of all, in the order of their names.

        Raises `UnknownPipeline` or another `SinkError`.
        """
        transactions = self._transactions(pipeline or "onceproof")
        found: dict[str, Recorded] = {}
        with closing(
            ProgressReader(transactions.settings, self._topic, pipeline or "", timeout_s=self._timeout_s)
        ) as reader:
            # Sinks that write from tasks have the progress of each source partition in a partition of its own.
            for partition in reader.partitions():
                reader.turn_to(partition)
                if pipeline is None:
                    found |= {name: Recorded(name, one, partition=partition) for name, one in reader.all().items()}
                elif (last := reader.last()) is not None:
                    return [Recorded(pipeline, last, partition=partition)]
        if pipeline is not None:
            raise self._unknown(pipeline)
        return [found[name] for name in sorted(found)]

    def change(self, pipeline: str, change: Change) -> tuple[Recorded, Recorded]:
        """Record what ``change`` makes of the progress, in a transaction of the pipeline. Returns the record before and after.

        The open transaction of a running driver is aborted, and its commit raises `CommitUnknown`. Raises `UnknownPipeline`,
        other `SinkError`, `KafkaException`, and what ``change`` raises: then nothing was changed.
        """
        (known,) = self.read(pipeline)
        return self._transactions(pipeline, known.partition).change(change, lambda: self._unknown(pipeline))

    def _unknown(self, pipeline: str) -> UnknownPipeline:
        return _unknown(pipeline, f"topic {self._topic}", self.read())

    def _transactions(self, pipeline: str, partition: int = PARTITION) -> _Repair:
        return _Repair(
            self._bootstrap,
            self._topic,
            pipeline=pipeline,
            progress_topic=self._topic,
            progress_partition=partition,
            config=self._config,
            transaction_timeout_s=self._timeout_s,
        )


class _Repair(TopicTransactions):
    """A transaction with a record of progress and nothing else."""

    @property
    def settings(self) -> dict[str, Any]:
        return self._settings

    def change(self, change: Change, unknown: Callable[[], UnknownPipeline]) -> tuple[Recorded, Recorded]:
        pair: list[Progress] = []

        def plan(recorded: Progress | None) -> tuple[list[Addressed], Progress]:
            if recorded is None:
                raise unknown()
            pair[:] = recorded, change(recorded)
            return [], pair[1]

        # A batch of no query, only for messages.
        self._write(plan, -1)
        before, after = pair
        return Recorded(self._pipeline, before), Recorded(self._pipeline, after)


def _unknown(pipeline: str, where: str, known: list[Recorded]) -> UnknownPipeline:
    names = ", ".join(repr(one.pipeline) for one in known)
    return UnknownPipeline(
        f"no progress of pipeline {pipeline!r} is recorded in {where}",
        hint=f"it has that of {names}" if known else "it has no progress at all: is it the right one?",
    )
