"""The streaming formats: their targets, and the checks for them alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg

from .bench import LONGEST_S, Bench, PostgresTarget, Recipe
from .conftest import FakeCheckpoint
from .partitioned import ONE, ZERO, PartitionedTarget, checkpoint_of, rows_of


def as_options(settings: dict[str, Any]) -> dict[str, str]:
    """Settings of a sink as Spark passes them."""
    known = {"checkpoint": "checkpointLocation"}
    return {known.get(name, name): str(value) for name, value in settings.items()}


class PostgresFormatTarget(PostgresTarget):
    fences = False

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        own = super().recipe(checkpoint, **settings)
        options = as_options({**own.settings, "conninfo": own.args[0], "table": own.args[1]})
        return Recipe(self.package, "tasks.formats", "PostgresWriting", [], options, is_format=True)

    def staging(self) -> list[str]:
        """The staging tables of all pipelines of the server: those of others end with their checks."""
        found = self.ask(
            "SELECT relname FROM pg_class WHERE relname ~ '^onceproof_format_' AND relkind = 'r' ORDER BY 1"
        )
        return [row[0] for row in found]


class KafkaFormatTarget(PartitionedTarget):
    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        own = super().recipe(checkpoint, **settings)
        made = {**own.settings, "kafka.bootstrap.servers": own.args[0], "topic": own.args[1]}
        options = as_options({**made, "source": ",".join(made["source"])})
        return replace(own, module="tasks.formats", kind="KafkaWriting", args=[], settings=options, is_format=True)


def query_of(bench: Bench, checkpoint: FakeCheckpoint, **options: Any) -> Any:
    return bench.target.recipe(checkpoint, **options).make()


def attempt_that_is_not_counted(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5)
    query, rows = query_of(bench, checkpoint), bench.target.rows(checkpoint, 0)
    lost, counted = query.task(rows, 0), query.task(rows, 0)
    assert lost.table == counted.table
    assert query.writer(rows.column_names, 0).commit([counted], 0)
    bench.shows(*range(5))


def staged_rows_are_gone(bench: Bench) -> None:
    """Postgres empties unlogged tables when it recovers from a crash, here between the tasks and the commit."""
    checkpoint, target = bench.checkpoint(5), bench.target
    query, rows = query_of(bench, checkpoint), target.rows(checkpoint, 0)
    message = query.task(rows, 0)
    target.ask(f"TRUNCATE {message.table}")  # type: ignore[attr-defined]
    commit = query.writer(rows.column_names, 0).commit
    bench.refused("postgres_staged:StagedRowsLost", lambda: commit([message], 0))
    bench.shows()
    assert query.write(rows, 0)
    bench.shows(*range(5))


def staging_tables_are_dropped(bench: Bench) -> None:
    """That of a commit, of a start that died, of an attempt that came too late, and of an abort; not that of a later batch."""
    checkpoint = bench.checkpoint(5, 8, 9)
    target: Any = bench.target
    others = set(target.staging())

    def left() -> set[str]:
        return set(target.staging()) - others

    died, query = query_of(bench, checkpoint), query_of(bench, checkpoint)
    rows = [target.rows(checkpoint, batch) for batch in range(3)]
    died.task(rows[0], 0)
    query.write(rows[0], 0)
    assert left() == set()
    late, early = query.task(rows[0], 0), died.task(rows[2], 2)
    assert left() == {late.table, early.table}
    query.write(rows[1], 1)
    assert left() == {early.table}
    query.writer(rows[2].column_names, 2).abort([died.task(rows[2], 2)])
    assert left() == set()
    bench.shows(*range(8))


def abort_of_another_start(bench: Bench) -> None:
    """Two drivers have staged the same batch. One of them gives up: the other one commits."""
    checkpoint = bench.checkpoint(5)
    rows = bench.target.rows(checkpoint, 0)
    first, second = query_of(bench, checkpoint), query_of(bench, checkpoint)
    staged = [query.task(rows, 0) for query in (first, second)]
    first.writer(rows.column_names, 0).abort(staged[:1])
    assert second.writer(rows.column_names, 0).commit(staged[1:], 0)
    bench.shows(*range(5))


def two_tasks_are_the_first_at_once(bench: Bench) -> None:
    """Another one has created the staging table, and not committed yet."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    query, rows, made = query_of(bench, checkpoint), target.rows(checkpoint, 0), []
    table = query.task(rows.slice(0, 0), 0).table
    target.ask(f"DROP TABLE {table}")
    staging = threading.Thread(target=lambda: made.append(query.task(rows, 0)), daemon=True)
    with psycopg.connect(
        target.server.client_uri, passfile=str(target.server.passfile), port=target.server.port
    ) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (table,))
        names = "onceproof_attempt uuid, onceproof_row bigint, onceproof_value json, onceproof_sqlstate text, onceproof_reason text"
        other.execute(f"CREATE UNLOGGED TABLE {table} ({target.columns}, {names})".encode())
        staging.start()
        staging.join(1.0)  # in vain: it waits
    staging.join(LONGEST_S)
    assert len(made) == 1, "the second task has failed"
    assert query.writer(rows.column_names, 0).commit(made, 0)
    bench.shows(*range(5))


def foreach_batch_after_a_format(bench: Bench) -> None:
    """The pipeline goes on with `PostgresStaged`, which drops staging tables of older starts: it must not take this one for its own."""
    checkpoint = bench.checkpoint(5, 8)
    target: Any = bench.target
    query_of(bench, checkpoint).task(target.rows(checkpoint, 0), 0)
    own = PostgresTarget.recipe(target, checkpoint)
    try:
        sink = replace(own, module="postgres_staged", kind="PostgresStaged").make()
    except ValueError as error:
        raise AssertionError("it does not understand the name of the format's staging table") from error
    assert sink.write(target.rows(checkpoint, 0), 0)
    assert query_of(bench, checkpoint).write(target.rows(checkpoint, 1), 1)
    bench.shows(*range(8))


def dead_letters_are_asked_for_later(bench: Bench) -> None:
    """The pipeline has progress already when its query is started with the option: the table must be created nevertheless."""
    checkpoint = bench.checkpoint(5, 7)
    target: Any = bench.target
    assert query_of(bench, checkpoint).write(target.rows(checkpoint, 0), 0)
    target.ask(f"ALTER TABLE {target.name} ADD CHECK (src_offset <> 6) NOT VALID")
    assert query_of(bench, checkpoint, dead_letters=f"{target.name}_dead").write(target.rows(checkpoint, 1), 1)
    bench.shows(*range(6))
    assert target.ask(f"SELECT row_value ->> 'src_offset' FROM {target.name}_dead") == [("6",)]


def source_partition_without_rows_of_a_format(bench: Bench) -> None:
    """The commit records its progress: its next batch is written nevertheless."""
    checkpoint = checkpoint_of(bench, {"0": 5, "1": 3}, {"0": 6, "1": 4})
    query = query_of(bench, checkpoint, source=["src_partition", "at"])
    assert query.write(rows_of(*ZERO), 0)
    assert query.write(rows_of((0, 5), (1, 3)), 1)
    bench.shows(*range(6), 103)


def tasks_of_a_format(bench: Bench) -> None:
    """One of two tasks has committed when the batch is aborted: the replay writes the other one."""
    checkpoint = checkpoint_of(bench, {"0": 5, "1": 3})
    query = query_of(bench, checkpoint, source=["src_partition", "at"])
    rows = rows_of(*ZERO)
    query.writer(rows.column_names, 0).abort([query.task(rows, 0)])
    bench.shows(*range(5))
    found = [query.task(rows_of(*places), 0) for places in (ZERO, ONE)]
    assert [[one.skipped for one in each] for each in found] == [[True], [False]]
    assert query.writer(rows.column_names, 0).commit(found, 0)
    bench.shows(*range(5), 100, 101, 102)


def batch_that_is_not_the_newest(bench: Bench) -> None:
    """The checkpoint is that of another query, which is at another batch."""
    checkpoint = checkpoint_of(bench, {"0": 5, "1": 3}, {"0": 6, "1": 4})
    query = query_of(bench, checkpoint, source=["src_partition", "at"])
    rows = rows_of(*ZERO)
    writer = query.writer(rows.column_names, 1)
    for refused in (lambda: writer.write(rows.to_batches(), 0, query.run), lambda: writer.commit([], 0)):
        try:
            refused()
        except bench.error("SinkError") as error:
            assert "Spark writes batch 0" in str(error), error
        else:
            raise AssertionError("a batch was written with the offsets of another one")
    bench.shows()


def wrong_options(bench: Bench) -> None:
    """Refused when the batch is planned, with the option's name."""
    checkpoint = bench.checkpoint(5)
    recipe, rows = bench.target.recipe(checkpoint), bench.target.rows(checkpoint, 0)

    def refused(kind: str, says: str, without: str = "", **options: str) -> None:
        made = {name: value for name, value in {**recipe.settings, **options}.items() if name != without}
        try:
            replace(recipe, settings=made).make().write(rows, 0)
        except Exception as error:
            assert isinstance(error, bench.error(kind)), repr(error)
            assert says in str(error), error
            return
        raise AssertionError(f"accepted: {options} without {without!r}")

    refused("SinkError", "lacks the option 'checkpointLocation'", without="checkpointLocation")
    refused("SinkError", "lacks the option 'pipeline'", without="pipeline")
    refused("SinkError", "has no option 'pipelin'\n  did you mean 'pipeline'?", pipelin="a")
    refused("SinkError", "'commit_timeout_s' of format", commit_timeout_s="soon")
    bench.shows()
    location = recipe.settings["checkpointLocation"]
    whole = bench.target.recipe(checkpoint).make()
    for remote in ("s3a://bucket/checkpoint", "hdfs:///checkpoint"):
        options = {**recipe.settings, "checkpointLocation": remote}
        try:
            whole._writing(options, rows.column_names)
        except bench.error("CheckpointUnreadable"):
            continue
        raise AssertionError(f"accepted: {remote}")
    whole._options["checkpointLocation"] = location
    assert whole.write(rows, 0)
    bench.shows(*range(5))


OF_FORMATS: dict[str, tuple[Callable[[Bench], None], ...]] = {
    "format-postgres": (
        attempt_that_is_not_counted,
        staged_rows_are_gone,
        staging_tables_are_dropped,
        abort_of_another_start,
        two_tasks_are_the_first_at_once,
        foreach_batch_after_a_format,
        dead_letters_are_asked_for_later,
        wrong_options,
    ),
    "format-kafka": (
        source_partition_without_rows_of_a_format,
        tasks_of_a_format,
        batch_that_is_not_the_newest,
        wrong_options,
    ),
}
