"""Sinks with dead letters: targets to which every batch brings rows that the table refuses, and the checks for them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from onceproof.stack.embedded import EmbeddedStack

from .bench import Bench, IncrementTarget, PostgresTarget, Recipe
from .conftest import FakeCheckpoint
from .outbox import OutboxTarget


class Refusing(PostgresTarget):
    """Each row is followed by one with a negative number, which the table refuses. Both are written once, or neither is."""

    def __init__(self, stack: EmbeddedStack, package: str = "onceproof.sinks") -> None:
        super().__init__(stack, package)
        self.ask(f"ALTER TABLE {self.name} ADD CHECK (src_offset >= 0)")

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        return super().recipe(checkpoint, **{"dead_letters": f"{self.name}_dead", **settings})

    def rows(self, checkpoint: FakeCheckpoint, batch: int) -> pa.Table:
        rows = super().rows(checkpoint, batch)
        offset = rows.column_names.index("src_offset")
        refused = rows.set_column(offset, "src_offset", [[-1 - number for number in rows["src_offset"].to_pylist()]])
        pairs = [part.slice(number, 1) for number in range(rows.num_rows) for part in (rows, refused)]
        return pa.concat_tables(pairs) if pairs else rows

    def offsets(self) -> list[int]:
        rows, letters = super().offsets(), self.letters()
        assert sorted(-1 - row["src_offset"] for row in letters) == sorted(rows), (
            f"{rows} are written, {letters} refused"
        )
        return rows

    def letters(self) -> list[Any]:
        exists = self.ask("SELECT to_regclass(%s)", f"{self.name}_dead")[0][0]
        found = self.ask(f"SELECT row_value FROM {self.name}_dead ORDER BY ctid") if exists else []
        return [row for (row,) in found]

    def refuse(self) -> None:
        # Not because of a row: this fails the batch.
        self.ask(f"ALTER TABLE {self.name} RENAME key TO other")


class RefusingAppend(Refusing):
    pass


class RefusingIncrement(Refusing, IncrementTarget):
    pass


class RefusingOutbox(Refusing, OutboxTarget):
    pass


def letters_have_source_and_reason(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 7)
    target: Any = bench.target
    sink = target.recipe(checkpoint).make()
    for batch in (0, 1):
        assert sink.write(target.rows(checkpoint, batch), batch)
    found = target.ask(
        "SELECT pipeline, query_id, batch_id, source, row_number, row_value, sqlstate, reason"
        f" FROM {target.name}_dead WHERE batch_id = 1 ORDER BY row_number"
    )
    query = "11111111-2222-3333-4444-555555555555"
    assert [row[:7] for row in found] == [
        (
            target.name,
            query,
            1,
            {"t": {"0": [5, 7]}},
            2 * number + 1,
            target.rows(checkpoint, 1).to_pylist()[2 * number + 1],
            "23514",
        )
        for number in (0, 1)
    ]
    assert all("violates check constraint" in row[7] for row in found)


def values_that_do_not_fit(bench: Bench) -> None:
    """Refused by the types of the columns, by a unique index, and by a text that Postgres cannot hold."""
    checkpoint = bench.checkpoint(6)
    target: Any = bench.target
    target.ask(f"ALTER TABLE {target.name} ADD UNIQUE (src_offset), ALTER key TYPE varchar(2)")
    rows = pa.table({"key": ["a", "too long", "b", "c", "d\0", "e"], "src_offset": [0, 1, 2, 2, 3, 4]})
    assert target.recipe(checkpoint).make().write(rows, 0)
    assert PostgresTarget.offsets(target) == [0, 2, 4]
    found = target.ask(f"SELECT row_number, row_value, sqlstate FROM {target.name}_dead ORDER BY ctid")
    assert found == [
        (number, rows.to_pylist()[number], state) for number, state in ((1, "22001"), (3, "23505"), (4, "22021"))
    ]


def rows_that_only_the_commit_would_refuse(bench: Bench) -> None:
    """By constraints that are checked at COMMIT. Rows that refer to each other are accepted together."""
    checkpoint = bench.checkpoint(4, 6, 9)
    target: Any = bench.target
    target.ask(f"ALTER TABLE {target.name} ADD UNIQUE (src_offset) DEFERRABLE INITIALLY DEFERRED, ADD UNIQUE (key)")
    target.ask(f"ALTER TABLE {target.name} ADD next text REFERENCES {target.name} (key) DEFERRABLE INITIALLY DEFERRED")
    rows = pa.table({"key": ["a", "b", "c", "d"], "src_offset": [0, 1, 1, 3], "next": [None, "a", "a", "z"]})
    sink = target.recipe(checkpoint).make()
    assert sink.write(rows, 0)
    assert PostgresTarget.offsets(target) == [0, 1]
    found = target.ask(f"SELECT row_number, row_value, sqlstate FROM {target.name}_dead ORDER BY ctid")
    assert found == [(number, rows.to_pylist()[number], state) for number, state in ((2, "23505"), (3, "23503"))]
    assert sink.write(pa.table({"key": ["e", "f"], "src_offset": [4, 5], "next": ["f", "e"]}), 1)
    assert PostgresTarget.offsets(target) == [0, 1, 4, 5]
    # A refused row between them separates them.
    assert sink.write(pa.table({"key": ["g", "x", "h"], "src_offset": [6, -1, 8], "next": ["h", None, "g"]}), 2)
    assert PostgresTarget.offsets(target) == [0, 1, 4, 5, 6, 8]


def batch_of_refused_rows(bench: Bench) -> None:
    checkpoint = bench.checkpoint(3, 5)
    target: Any = bench.target
    refused = pa.table({"key": ["a", "b", "c"], "src_offset": [-1, -2, -3]})
    assert target.recipe(checkpoint).make().write(refused, 0)
    assert PostgresTarget.offsets(target) == []
    assert [row["src_offset"] for row in target.letters()] == [-1, -2, -3]
    assert bench.write(checkpoint, 1)


def records_that_do_not_fit(bench: Bench) -> None:
    """A row that cannot become a record is in neither output: otherwise the topic would lack a row of the table."""
    checkpoint = bench.checkpoint(4)
    target: Any = bench.target
    target.ask(f"ALTER TABLE {target.name} ADD share double precision")
    rows = pa.table(
        {"key": ["a", "b", "x" * 600, "c"], "src_offset": [0, 1, 2, 3], "share": [0.5, float("nan"), 0.5, 0.5]}
    )
    settings = {"topic_settings": {"config": {"message.max.bytes": 1000}}}
    assert target.recipe(checkpoint, **settings).make().write(rows, 0)
    assert target.published() == PostgresTarget.offsets(target) == [0, 3]
    found = target.ask(f"SELECT row_number, reason FROM {target.name}_dead ORDER BY ctid")
    assert [number for number, _ in found] == [1, 2]
    assert "has no form in JSON" in found[0][1] and "larger than message.max.bytes" in found[1][1]


CHECKS: dict[str, tuple[Callable[[Bench], None], ...]] = {
    "postgres-append-dead-letters": (
        letters_have_source_and_reason,
        values_that_do_not_fit,
        rows_that_only_the_commit_would_refuse,
        batch_of_refused_rows,
    ),
    "outbox-dead-letters": (records_that_do_not_fit,),
}
