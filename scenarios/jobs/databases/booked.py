"""The rows of the second of two stages. Each is in one transaction with the stage's position in the topic that it reads."""

from __future__ import annotations

from typing import Any

import psycopg

#: The tables, for `prepare: sql` of a scenario:
#: CREATE TABLE booked (id bigint, key text); CREATE TABLE progress (next bigint); INSERT INTO progress VALUES (0)
ROW = "INSERT INTO booked (id, key) VALUES (%(id)s, %(key)s) ON CONFLICT DO NOTHING"


class Booked:
    def __init__(self, database: psycopg.Connection) -> None:
        self._database = database

    def position(self) -> int:
        """The offset after the last record whose row is in the table."""
        found = self._database.execute("SELECT next FROM progress").fetchone()
        assert found is not None, "the scenario inserts the row"
        return int(found[0])

    def add(self, offset: int, order: dict[str, Any]) -> None:
        """Insert the row of the record at ``offset``. A unique key of the table makes a row that is there already a no-op."""
        with self._database.transaction():
            self._database.execute(ROW, order)
            self._database.execute("UPDATE progress SET next = %s", [offset + 1])
