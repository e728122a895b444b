"""Postgres as the store of consumers: the tables of one execution's outputs, and the positions of consumers that keep them there.

Each execution has a schema of its own, so that a replay finds its tables empty; the stack's replication slot sees the commits
of all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import psycopg
from psycopg import sql

from onceproof.base.errors import EnvironmentProblem
from onceproof.consumers.layout import Layout
from onceproof.history.writer import HistoryWriter
from onceproof.stack.api import Postgres
from onceproof.stores.postgres.read_back import collect_postgres

#: Where a consumer stores its position, in the transaction of its effect: one row per partition of its group.
POSITIONS = "consumer_positions"
_CREATE_POSITIONS = sql.SQL(
    "CREATE TABLE {} (consumer_group text, topic text, partition integer, next_offset bigint NOT NULL, "
    "PRIMARY KEY (consumer_group, topic, partition))"
).format(sql.Identifier(POSITIONS))
_DROP_SLOTS = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
    "WHERE database = current_database() AND slot_name <> %s"
)


class Tables:
    """Creates the tables as the pipeline's own user, as a Spark job's are. Raises `EnvironmentProblem` for refused SQL."""

    def __init__(self, postgres: Postgres, layout: Layout) -> None:
        self._postgres = postgres
        self._layout = layout
        self.replica = postgres.replica
        self.schema = layout.prefix.rstrip(".") or "public"
        with self._connected() as connection:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
            connection.execute(_CREATE_POSITIONS)
            if layout.prepare_sql:
                connection.execute(layout.prepare_sql.encode())
        if self.replica is not None:
            self.replica.follow()  # it has these tables before a consumer asks it

    def environment(self, consumer: str) -> Mapping[str, str]:
        """The variables that lead a consumer to the database, and to its table if its first output is one."""
        table = self._layout.tables.get(self._layout.output_of[consumer])
        return {
            "ONCEPROOF_POSTGRES": self._postgres.client_uri,
            **({"ONCEPROOF_TABLE": table} if table is not None else {}),
            "PGPASSFILE": str(self._postgres.passfile),
            "PGOPTIONS": f"-c search_path={self.schema}",
            **({"ONCEPROOF_POSTGRES_REPLICA": self.replica.client_uri} if self.replica is not None else {}),
        }

    def positions(self, group: str, topic: str) -> Mapping[int, int]:
        """Partition -> the offset at which the group would continue, by its own table."""
        question = sql.SQL("SELECT partition, next_offset FROM {} WHERE consumer_group = %s AND topic = %s")
        with self._connected() as connection:
            found = dict(connection.execute(question.format(sql.Identifier(POSITIONS)), [group, topic]).fetchall())
        return {partition: found.get(partition, 0) for partition in range(len(self._layout.inputs))}

    def round_trip_ms(self, kb: int = 0) -> float:
        """How long a connection like the consumers' waits for the answer to a statement of ``kb`` KB, in milliseconds."""
        with self._connected() as connection:
            began = time.monotonic()
            connection.execute("SELECT length(%s)", [1024 * kb * "."])
            return 1000 * (time.monotonic() - began)

    def collect(self, writer: HistoryWriter) -> dict[str, Any]:
        """Write the commits and the rows of the tables; returns their description for ``run.json``."""
        if not self._layout.tables:
            return {}
        places = {name: f"{self.schema}.{table}" for name, table in self._layout.tables.items()}
        return {name: asdict(found) for name, found in collect_postgres(self._postgres, places, writer).items()}

    def drop_slots(self) -> None:
        """Drop the replication slots that the consumers, which have ended, have left: a server has only a few."""
        with self._connected() as connection:
            connection.execute(_DROP_SLOTS, [self._postgres.capture_name])

    @contextmanager
    def _connected(self) -> Any:
        try:
            with psycopg.connect(
                self._postgres.client_uri,
                passfile=str(self._postgres.passfile),
                options=f"-c search_path={self.schema}",
                autocommit=True,
            ) as connection:
                yield connection
        except psycopg.Error as refused:
            raise EnvironmentProblem(
                f"Postgres refused what the consumers' tables need: {str(refused).strip()}",
                hint="pipeline.prepare.sql creates the tables, as the pipeline's own user: check its statements",
            ) from refused
