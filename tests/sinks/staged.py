"""The staged sink, without and with dead letters: its targets, and the checks for it alone."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa

from onceproof.base.waiting import wait_until
from onceproof.stack.embedded import EmbeddedStack

from .bench import LONGEST_S, Bench, PostgresTarget, StagedTarget
from .conftest import FakeCheckpoint
from .dead_letters import (
    Refusing,
    batch_of_refused_rows,
    rows_that_only_the_commit_would_refuse,
    values_that_do_not_fit,
)


class RefusingStaged(Refusing, StagedTarget):
    """Of the refused rows, those with odd numbers break a constraint of the table, and the others have a key that does not fit it."""

    def __init__(self, stack: EmbeddedStack, package: str = "onceproof.sinks") -> None:
        super().__init__(stack, package)
        self.ask(f"ALTER TABLE {self.name} ALTER key TYPE varchar(9)")

    def rows(self, checkpoint: FakeCheckpoint, batch: int) -> pa.Table:
        rows = super().rows(checkpoint, batch)
        pairs = zip(rows["key"].to_pylist(), rows["src_offset"].to_pylist(), strict=True)
        keys = ["much too long" if offset < 0 and not offset % 2 else key for key, offset in pairs]
        return rows.set_column(0, "key", pa.array(keys, pa.string()))


def lost_attempt(bench: Bench) -> None:
    """A task is tried twice (a retry, or speculation); Spark counts one attempt."""
    checkpoint = bench.checkpoint(5)
    sink: Any = bench.target.recipe(checkpoint).make()
    rows = bench.target.rows(checkpoint, 0)
    destination = sink._destination(sink._staging_table(0), tuple(rows.column_names))
    destination.stage(rows.to_batches())
    assert sink.write(rows, 0)
    bench.shows(*range(5))


def staged_rows_lost(bench: Bench) -> None:
    """Postgres empties unlogged tables when it recovers from a crash, here between staging and the commit."""
    lose_staged(bench, 5, "TRUNCATE {}")


def lose_staged(bench: Bench, rows: int, lose: str) -> None:
    """Run ``lose`` on the staging table when the ``rows`` of a batch are staged, and not yet published."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    ends: list[str] = []

    def drive() -> None:
        try:
            ends.append(str(sink.write(target.rows(checkpoint, 0), 0)))
        except Exception as error:
            ends.append(type(error).__name__)

    sink: Any = target.recipe(checkpoint).make()
    driver = threading.Thread(target=drive, daemon=True)
    with psycopg.connect(
        target.server.client_uri, passfile=str(target.server.passfile), port=target.server.port
    ) as holder:
        holder.execute(f"SELECT 1 FROM {target.name}_progress FOR UPDATE".encode())
        driver.start()
        staged = f"{sink._prefix}{sink.epoch}_0"
        count = f"SELECT count(*) FROM {staged}"  # the sink's own name
        wait_until(
            "the rows to be staged",
            lambda: bool(target.ask("SELECT to_regclass(%s)", staged)[0][0]) and target.ask(count)[0][0] == rows,
            deadline_s=20,
        )
        target.ask(lose.format(staged))
    driver.join(LONGEST_S)
    assert ends == ["StagedRowsLost"], f"the sink ended with {ends}"
    bench.shows()
    assert bench.write(checkpoint, 0)
    bench.shows(*range(5))


def nothing_is_left(bench: Bench) -> None:
    """Staging tables of batches that are committed, and of starts that died, are gone."""
    checkpoint = bench.checkpoint(5, 8)
    target: Any = bench.target
    find = "SELECT relname FROM pg_class WHERE starts_with(relname, %s)"
    bench.die(checkpoint, 0, "before-sink-commit")
    sink: Any = target.recipe(checkpoint).make()
    assert target.ask(find, sink._prefix) == []
    for batch in (0, 1):
        sink.write(target.rows(checkpoint, batch), batch)
    assert target.ask(find, sink._prefix) == []


def partitions_in_order(bench: Bench) -> None:
    """Tasks stage their rows in any order; the rows are inserted in the order of the partitions."""
    checkpoint = bench.checkpoint(5)
    rows = bench.target.rows(checkpoint, 0)
    publish(bench.target, checkpoint, {3: rows.slice(3), 0: rows.slice(0, 3)})
    bench.shows(*range(5))


def letters_of_a_lost_attempt(bench: Bench) -> None:
    """A task is tried twice, and each attempt stages refused rows; only those of the attempt that Spark counts become dead letters."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    sink = target.recipe(checkpoint).make()
    rows = target.rows(checkpoint, 0)
    destination = sink._destination(sink._staging_table(0), tuple(rows.column_names))
    assert destination.stage(rows.to_batches()).refused == 2
    assert sink.write(rows, 0)
    bench.shows(*range(5))
    assert len(target.letters()) == 5


def letters_of_staged_rows_have_source_and_reason(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 7)
    target: Any = bench.target
    sink = target.recipe(checkpoint).make()
    for batch in (0, 1):
        assert sink.write(target.rows(checkpoint, batch), batch)
    found = target.ask(
        "SELECT pipeline, query_id, batch_id, source, row_number, row_value, sqlstate, reason"
        f" FROM {target.name}_dead WHERE batch_id = 1 ORDER BY row_number"
    )
    query, rows = "11111111-2222-3333-4444-555555555555", target.rows(checkpoint, 1).to_pylist()
    assert [row[:7] for row in found] == [
        (target.name, query, 1, {"t": {"0": [5, 7]}}, number, rows[number], state)
        for number, state in ((1, "22001"), (3, "23514"))
    ]
    assert "value too long" in found[0][7]
    assert "violates check constraint" in found[1][7]


def rows_that_only_the_tasks_refuse(bench: Bench) -> None:
    """All rows that were staged are put at once, without those that the staging table refused."""
    checkpoint = bench.checkpoint(3)
    target: Any = bench.target
    rows = pa.table({"key": ["a", "much too long", "b"], "src_offset": [0, 1, 2]})
    assert target.recipe(checkpoint).make().write(rows, 0)
    assert target.ask(f"SELECT key, src_offset FROM {target.name} ORDER BY ctid") == [("a", 0), ("b", 2)]
    assert target.letters() == [{"key": "much too long", "src_offset": 1}]


def parts_in_order(bench: Bench) -> None:
    """Tasks stage their rows in any order; a batch that is put in parts is inserted in the order of the partitions."""
    checkpoint = bench.checkpoint(13)
    target: Any = bench.target
    rows = pa.table({"key": ["k"] * 13, "src_offset": [*range(12), -1]})
    publish(target, checkpoint, {first: rows.slice(first, 4) for first in (12, 8, 4, 0)})
    assert PostgresTarget.offsets(target) == [*range(12)]
    assert target.letters() == [{"key": "k", "src_offset": -1}]


def publish(target: Any, checkpoint: FakeCheckpoint, parts: dict[int, pa.Table]) -> None:
    """Stage the parts, which are by the number of their first row, in the order that is given, and publish them as batch 0."""
    sink = target.recipe(checkpoint).make()
    staged = importlib.import_module(f"{target.package}.postgres_staged")
    columns, table = tuple(next(iter(parts.values())).column_names), sink._staging_table(0)
    to = sink._destination(table, columns)
    attempts = {first: to.stage(part.to_batches()) for first, part in parts.items()}
    assert sink._publish(staged.Staged(table, columns, tuple(attempts[first] for first in sorted(parts))), 0)


def letters_of_partitions_have_the_numbers_of_the_batch(bench: Bench) -> None:
    """Each task numbers its own rows."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    rows = target.rows(checkpoint, 0)
    publish(target, checkpoint, {first: rows.slice(first, 3) for first in (9, 3, 0, 6)})
    bench.shows(*range(5))
    letters = target.ask(f"SELECT row_number, row_value FROM {target.name}_dead ORDER BY row_number")
    assert letters == [(number, rows.to_pylist()[number]) for number in (1, 3, 5, 7, 9)]


def staged_letters_lost(bench: Bench) -> None:
    lose_staged(bench, 10, "DELETE FROM {} WHERE onceproof_reason IS NOT NULL")


def staged_rows_lost_next_to_refused_ones(bench: Bench) -> None:
    """A row is missing, and another is refused before the rows are counted."""
    lose_staged(bench, 10, "DELETE FROM {} WHERE src_offset = 2")


def values_of_all_types(bench: Bench) -> None:
    """Of rows that the staging table refuses, and of those that only the target does."""
    checkpoint = bench.checkpoint(2)
    target: Any = bench.target
    target.ask(
        f"ALTER TABLE {target.name} ADD at timestamptz, ADD data bytea, ADD share float8, ADD many int[], ADD n numeric"
    )
    rows = pa.table(
        {
            "key": ["much too long", "k"],
            "src_offset": [-1, -2],
            "at": pa.array([10**15, 10**15], pa.timestamp("us", "UTC")),
            "data": [b"\xff\x00", b"\xff\x00"],
            "share": [float("nan"), float("inf")],
            "many": [[1, None], [2]],
            "n": pa.array(["12345678901234567890.12"] * 2).cast(pa.decimal128(30, 2)),
        }
    )
    assert target.recipe(checkpoint).make().write(rows, 0)
    letters = target.ask(f"SELECT row_value::text FROM {target.name}_dead ORDER BY row_number")
    for (text,), share, many in zip(letters, ("nan", "Infinity"), ("[1, null]", "[2]"), strict=True):
        for shown in ("2001-09-09", "ff00", share, many, "12345678901234567890.12"):
            assert shown in text.replace("[1,null]", "[1, null]")


CHECKS: dict[str, tuple[Callable[[Bench], None], ...]] = {
    "postgres-staged": (lost_attempt, staged_rows_lost, nothing_is_left, partitions_in_order),
    "staged-dead-letters": (
        letters_of_a_lost_attempt,
        letters_of_staged_rows_have_source_and_reason,
        rows_that_only_the_tasks_refuse,
        parts_in_order,
        letters_of_partitions_have_the_numbers_of_the_batch,
        staged_letters_lost,
        staged_rows_lost_next_to_refused_ones,
        values_of_all_types,
        values_that_do_not_fit,
        rows_that_only_the_commit_would_refuse,
        batch_of_refused_rows,
        nothing_is_left,
    ),
}
