"""The Postgres sink against a real server, with lost acknowledgements through a real Toxiproxy. No Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from onceproof.sinks import failpoints
from onceproof.sinks.errors import CommitUnknown, Fenced, OffsetGap, SinkError
from onceproof.sinks.postgres import PostgresAppend, PostgresUpsert
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.real, pytest.mark.services]

MakeCheckpoint = Callable[..., Any]


@pytest.fixture
def server(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedPostgres]:
    assert stack.postgres is not None
    monkeypatch.setenv("PGPASSFILE", str(stack.postgres.passfile))
    yield stack.postgres
    stack.postgres.proxy.heal()


class Table:
    """A new table and pipeline name, and what the table holds."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.name = self.pipeline = f"t{uuid.uuid4().hex[:8]}"
        self.server = server
        self._ask(f"CREATE TABLE {self.name} (key text, src_offset bigint)")

    def sink(self, checkpoint: Any, **settings: Any) -> PostgresAppend:
        return PostgresAppend(
            self.server.client_uri, self.name, pipeline=self.pipeline, checkpoint=checkpoint.folder, **settings
        )

    def offsets(self) -> list[int]:
        return [row[0] for row in self._ask(f"SELECT src_offset FROM {self.name} ORDER BY ctid")]

    def progress(self) -> tuple[int, int | None, Any]:
        row = self._ask("SELECT epoch, batch_id, offsets FROM onceproof_progress WHERE pipeline = %s", self.pipeline)[0]
        return row[0], row[1], row[2]

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        with psycopg.connect(
            self.server.client_uri, passfile=str(self.server.passfile), port=self.server.port
        ) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def table(server: EmbeddedPostgres) -> Table:
    return Table(server)


def test_batches_are_appended_in_order_with_their_progress(table: Table, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5, 8)
    sink = table.sink(checkpoint)
    assert sink.write(checkpoint.rows(0), 0)
    assert sink.write(checkpoint.rows(1), 1)
    assert table.offsets() == list(range(8))
    assert table.progress() == (1, 1, {"t": {"0": 8}})


def test_a_gap_is_refused_and_nothing_is_written(table: Table, make_checkpoint: MakeCheckpoint) -> None:
    first, other = make_checkpoint(5, 8), make_checkpoint(7, 9, name="other")
    table.sink(first).write(first.rows(0), 0)
    with pytest.raises(OffsetGap, match=r"t/0: batch \[7, 9\), recorded up to 5"):
        table.sink(other).write(other.rows(1), 1)
    assert table.offsets() == list(range(5))


def test_an_older_epoch_is_fenced(table: Table, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5)
    zombie = table.sink(checkpoint)
    successor = table.sink(checkpoint)
    with pytest.raises(Fenced, match="at epoch 2, but this start of it has epoch 1"):
        zombie.write(checkpoint.rows(0), 0)
    assert successor.write(checkpoint.rows(0), 0)
    assert table.offsets() == list(range(5))


# The connection is closed at the first byte of the answer, or the answer is dropped: libpq alone would wait for ever.
@pytest.mark.parametrize(("toxic", "attribute"), [("limit_data", "bytes"), ("timeout", "timeout")])
@pytest.mark.parametrize(("stream", "applied"), [("downstream", True), ("upstream", False)])
def test_a_commit_without_an_answer_is_unknown_until_the_replay(
    table: Table,
    make_checkpoint: MakeCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
    toxic: str,
    attribute: str,
    stream: str,
    applied: bool,
) -> None:
    checkpoint = make_checkpoint(5)
    events: list[str] = []

    def cut(point: str, **_facts: Any) -> None:
        if point == "before-sink-commit":
            table.server.proxy.add_toxic(toxic, stream, **{attribute: 0})  # type: ignore[arg-type]  # parametrised

    monkeypatch.setattr(failpoints, "reach", cut)
    monkeypatch.setattr(failpoints, "report", lambda event, **_facts: events.append(event))
    with pytest.raises(CommitUnknown, match=r"the COMMIT of batch 0 .* got no answer"):
        table.sink(checkpoint, commit_timeout_s=0.5).write(checkpoint.rows(0), 0)
    assert events == ["commit-failed", "attempt-failed"]
    monkeypatch.setattr(failpoints, "reach", lambda *_args, **_facts: None)
    table.server.proxy.heal()
    assert table.sink(checkpoint).write(checkpoint.rows(0), 0) is not applied
    assert table.offsets() == list(range(5))


def test_a_refused_row_rolls_the_batch_back(table: Table, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5)
    table._ask(f"ALTER TABLE {table.name} ADD CHECK (src_offset < 4)")
    with pytest.raises(psycopg.errors.CheckViolation):
        table.sink(checkpoint).write(checkpoint.rows(0), 0)
    assert table.offsets() == []
    assert table.progress() == (1, None, None)


def test_an_unreachable_server_fails_the_batch_at_once(table: Table, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5)
    sink = table.sink(checkpoint)
    table.server.proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        sink.write(checkpoint.rows(0), 0)
    table.server.proxy.heal()
    assert sink.write(checkpoint.rows(0), 0)


class KeyedTable(Table):
    """A table with one row per ``key``, a column that the batches fill and one that they lack."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        super().__init__(server)
        self._ask(f"DROP TABLE {self.name}")
        self._ask(f"CREATE TABLE {self.name} (key text PRIMARY KEY, total bigint, note text DEFAULT 'kept')")

    def upsert(self, checkpoint: Any, *, key: tuple[str, ...] = ("key",), **settings: Any) -> PostgresUpsert:
        return PostgresUpsert(
            self.server.client_uri, self.name, key=key, pipeline=self.pipeline, checkpoint=checkpoint.folder, **settings
        )

    def rows(self) -> list[tuple[Any, ...]]:
        return self._ask(f"SELECT key, total, note FROM {self.name} ORDER BY key")


@pytest.fixture
def keyed(server: EmbeddedPostgres) -> KeyedTable:
    return KeyedTable(server)


def totals(**of: int | None) -> pa.Table:
    return pa.table({"key": pa.array(of, pa.string()), "total": pa.array(of.values(), pa.int64())})


def test_an_upsert_keeps_the_last_state_of_each_key(keyed: KeyedTable, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5, 8)
    sink = keyed.upsert(checkpoint)
    assert sink.write(totals(a=1, b=2), 0)
    keyed._ask(f"UPDATE {keyed.name} SET note = 'mine' WHERE key = 'b'")
    assert sink.write(totals(b=None, c=3), 1)
    assert keyed.rows() == [("a", 1, "kept"), ("b", None, "mine"), ("c", 3, "kept")]
    assert keyed.progress() == (1, 1, {"t": {"0": 8}})


def test_a_replay_does_not_overwrite_a_newer_state(keyed: KeyedTable, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5, 8)
    sink = keyed.upsert(checkpoint)
    sink.write(totals(a=1), 0)
    sink.write(totals(a=2), 1)
    assert not keyed.upsert(checkpoint).write(totals(a=1), 0)
    assert keyed.rows() == [("a", 2, "kept")]


def test_an_upsert_of_keys_alone_changes_no_existing_row(keyed: KeyedTable, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5, 8)
    sink = keyed.upsert(checkpoint)
    sink.write(totals(a=1), 0)
    assert sink.write(pa.table({"key": ["a", "b"]}), 1)
    assert keyed.rows() == [("a", 1, "kept"), ("b", None, "kept")]


@pytest.mark.parametrize(("merge", "totals_of"), [("sum", (5, 2, 7)), ("min", (1, 2, 7)), ("max", (4, 2, 7))])
def test_increments_are_merged_once(
    keyed: KeyedTable, make_checkpoint: MakeCheckpoint, merge: str, totals_of: tuple[int, ...]
) -> None:
    checkpoint = make_checkpoint(5, 8)
    sink = keyed.upsert(checkpoint, merge={"total": merge})
    sink.write(totals(a=1, b=2, c=None), 0)
    assert sink.write(totals(a=4, b=None, c=7), 1)
    assert not keyed.upsert(checkpoint, merge={"total": merge}).write(totals(a=4, b=None, c=7), 1)
    assert tuple(total for _key, total, _note in keyed.rows()) == totals_of


def test_a_refused_row_of_an_upsert_rolls_the_batch_back(keyed: KeyedTable, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5)
    with pytest.raises(psycopg.errors.NotNullViolation):
        keyed.upsert(checkpoint).write(pa.table({"key": ["a", None], "total": [1, 2]}), 0)
    assert keyed.rows() == []
    assert keyed.progress() == (1, None, None)


def test_an_upsert_without_a_key_is_refused(keyed: KeyedTable, make_checkpoint: MakeCheckpoint) -> None:
    with pytest.raises(SinkError, match="an upsert needs a key"):
        keyed.upsert(make_checkpoint(5), key=())
    with pytest.raises(SinkError, match="'key' is in the key: it cannot be merged"):
        keyed.upsert(make_checkpoint(5, name="another"), merge={"key": "sum"})


def test_a_merge_of_a_column_that_the_batch_lacks_is_refused(
    keyed: KeyedTable, make_checkpoint: MakeCheckpoint
) -> None:
    """The column that was meant would be replaced, and its total lost."""
    with pytest.raises(SinkError, match="the batch has no column 'totl' to merge, but key, total"):
        keyed.upsert(make_checkpoint(5), merge={"totl": "sum"}).write(totals(a=1), 0)
    assert keyed.rows() == []
    with pytest.raises(SinkError, match="column 'total' cannot be merged by 'avg'"):
        keyed.upsert(make_checkpoint(5, name="another"), merge={"total": "avg"})
