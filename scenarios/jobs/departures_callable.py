"""Flights that departed, appended to a Postgres table: as functions that build a query, for `pipeline.callable`."""

from __future__ import annotations

from common import departures, plain_append
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from onceproof.sinks.postgres import PostgresAppend

_COLUMNS = ["carrier", "flight", "tailnum", "origin", "dest", "sched_dep", "dep_delay"]


def _flights(spark: SparkSession, kafka: str, topic: str) -> DataFrame:
    flights: DataFrame = departures(spark, kafka, topic).select(*_COLUMNS)
    return flights


def effectively_once(
    spark: SparkSession, *, bootstrap_servers: str, topic: str, checkpoint: str, postgres: str, table: str
) -> DataStreamWriter:
    """Appends each batch exactly once: the rows and the progress are one transaction."""
    sink = PostgresAppend(postgres, table, pipeline="departures", checkpoint=checkpoint)
    return _flights(spark, bootstrap_servers, topic).writeStream.foreachBatch(sink)


def naive(
    spark: SparkSession, *, bootstrap_servers: str, topic: str, checkpoint: str, postgres: str, table: str
) -> DataStreamWriter:
    """Appends each batch and records nothing: a replayed batch is appended again."""
    return _flights(spark, bootstrap_servers, topic).writeStream.foreachBatch(plain_append(postgres, table))


class _Remembered:
    """Appends a batch unless it remembers its number, in memory only: a restart forgets it."""

    done: set[int] = set()  # noqa: RUF012  # shared by all objects of the process: that is the mistake it shows

    def __init__(self, postgres: str, table: str) -> None:
        self._append = plain_append(postgres, table)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if batch_id not in self.done:
            self._append(batch, batch_id)
            self.done.add(batch_id)


def remembered_in_memory(
    spark: SparkSession, *, bootstrap_servers: str, topic: str, checkpoint: str, postgres: str, table: str
) -> DataStreamWriter:
    """Appends each batch and remembers its number in a variable of the module, which a crash loses."""
    return _flights(spark, bootstrap_servers, topic).writeStream.foreachBatch(_Remembered(postgres, table))
