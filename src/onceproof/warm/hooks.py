"""What the session adds to PySpark, to psycopg and to onceproof's sinks: the ends of attempts inside the user's function.

In the child process only. A thread that builds a query, or runs a batch of it, knows its schedule; other threads (of the user's
sink, say) do not, so a point that is reached there counts as not reached.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from onceproof.scenario.points import Point
from onceproof.warm.attempts import Attempts, Crash

#: The sinks' package in the harness, and the one of their own distribution, which a job may import instead.
_SINKS = ("onceproof.sinks", "onceproof_sinks")

_SOURCE = {
    # The default long poll delays the first batch after each start by half a second.
    "kafka.fetch.max.wait.ms": 10,
    # Spark keeps its consumers by group and partition, and gives each start of a query a group of its own. It assigns
    # partitions itself and commits no offsets to the group, so that schedules can share consumers.
    "kafka.group.id": "onceproof-warm",
    # Registering a client's metrics costs more than a batch reads.
    "kafka.auto.include.jmx.reporter": "false",
}


@dataclass(frozen=True)
class _Here:
    """What a thread is working on."""

    attempts: Attempts
    start: int
    batch: int | None = None
    """None while the query is being built."""


class _Current(threading.local):
    here: _Here | None = None


_current = _Current()


@contextmanager
def building(attempts: Attempts) -> Iterator[None]:
    """The user's function runs in this block: the query that it builds belongs to this start of this schedule."""
    _current.here = _Here(attempts, attempts.start)
    try:
        yield
    finally:
        _current.here = None


def install(records_per_batch: int) -> None:
    """Add the hooks. ``records_per_batch``: most offsets that a batch takes from a Kafka topic."""
    _limit_source(records_per_batch)
    _wrap_foreach_batch()
    _watch_failpoints()
    _watch_commits()


def _limit_source(records: int) -> None:
    plain_format, plain_load = DataStreamReader.format, DataStreamReader.load

    def format_(self: Any, source: str) -> Any:
        self._onceproof_format = source
        return plain_format(self, source)

    def load(self: Any, path: Any = None, format: Any = None, schema: Any = None, **options: Any) -> DataFrame:
        if (format or getattr(self, "_onceproof_format", None)) == "kafka" and _current.here is not None:
            options |= {"maxOffsetsPerTrigger": records, **_SOURCE}
        return plain_load(self, path, format, schema, **options)

    DataStreamReader.format, DataStreamReader.load = format_, load  # type: ignore[method-assign]


def _wrap_foreach_batch() -> None:
    plain = DataStreamWriter.foreachBatch

    def foreach_batch(self: Any, function: Callable[[DataFrame, int], None]) -> Any:
        if (here := _current.here) is None:
            return plain(self, function)

        def wrapped(frame: DataFrame, batch: int) -> None:
            _current.here = _Here(here.attempts, here.start, batch)
            try:
                function(frame, batch)
            except Crash as crash:
                # Py4J answers the JVM only for an Exception.
                raise RuntimeError(str(crash)) from None
            finally:
                _current.here = None

        return plain(self, wrapped)

    DataStreamWriter.foreachBatch = foreach_batch  # type: ignore[method-assign, assignment]


def _watch_failpoints() -> None:
    def reach(point: str, *, sink: str, batch: int, query_id: str, **facts: Any) -> None:
        if point == Point.BEFORE_SINK_COMMIT:
            _reached("failpoint")

    def report(event: str, *, sink: str, batch: int, query_id: str, **facts: Any) -> None:
        pass

    for package in _SINKS:
        if importlib.util.find_spec(package) is not None:
            failpoints: Any = importlib.import_module(f"{package}.failpoints")
            failpoints.reach, failpoints.report = reach, report


def _watch_commits() -> None:
    plain = psycopg.Connection._exec_command

    def exec_command(self: Any, command: Any, *args: Any, **options: Any) -> Any:
        if _current.here is not None:
            _current.here.attempts.connections.add(self)
            if command in (b"COMMIT", "COMMIT") and _has_written(self):
                _reached("psycopg")
        return plain(self, command, *args, **options)

    psycopg.Connection._exec_command = exec_command  # type: ignore[method-assign]


def _has_written(connection: psycopg.Connection[Any]) -> bool:
    """Whether the open transaction has changed anything. Its end is then a commit of the sink."""
    if connection.pgconn.transaction_status != TransactionStatus.INTRANS:
        return False
    result = connection.pgconn.exec_(b"SELECT pg_current_xact_id_if_assigned()")
    return result.ntuples == 1 and result.get_value(0, 0) is not None


def _reached(instrument: str) -> None:
    """The batch of this thread is about to commit. Raises `Crash` if its attempt ends here, or has ended before."""
    here = _current.here
    if here is None or here.batch is None:
        return
    if here.attempts.is_dead(here.start) or here.attempts.reached(here.batch, Point.BEFORE_SINK_COMMIT, instrument):
        raise Crash(f"onceproof ends this attempt at batch {here.batch} before its commit")
