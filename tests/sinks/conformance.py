"""The checks that every sink has to pass: one function per fault, the same for all sinks. No Spark: batches are written directly.

A `Target` is a new output of one sink, with its own pipeline name. ``test_conformance.py`` runs `CHECKS` on the shipped sinks, and
``test_mutants.py`` on copies of them in which one line is changed or gone.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, TopicPartition

from onceproof.base.waiting import wait_until
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import client_config

from .conftest import FakeCheckpoint

#: Every check takes less. A sink that waits for ever fails.
LONGEST_S = 60.0


class Sink(Protocol):
    def write(self, rows: pa.Table, batch_id: int) -> bool: ...


@dataclass(frozen=True)
class Recipe:
    """How a sink is made, as JSON: another process makes the same one, and dies."""

    package: str
    module: str
    kind: str
    args: list[str]
    settings: dict[str, Any]

    def make(self) -> Sink:
        made: Sink = getattr(importlib.import_module(f"{self.package}.{self.module}"), self.kind)(
            *self.args, **self.settings
        )
        return made


class Target(Protocol):
    """A new output of one kind of sink, whose code is in the package ``package``."""

    package: str
    fences: bool
    """Whether an older start is refused even where its batch would do no harm."""

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe: ...

    def rows(self, checkpoint: FakeCheckpoint, batch: int) -> Any: ...

    def offsets(self) -> list[int]:
        """The ``src_offset`` of every row that a reader sees, in order; one that was counted twice is there twice."""

    def lose(self, stream: str) -> None:
        """From now on, drop what the sink sends (``upstream``) or what it would be answered (``downstream``)."""

    def heal(self) -> None: ...

    def refuse(self) -> None:
        """Make the output refuse every batch from now on."""

    def held_rows(self) -> AbstractContextManager[Any]:
        """Within it, a sink that writes rows waits in the middle of them."""


class PostgresTarget:
    fences = True
    module, kind = "postgres", "PostgresAppend"
    columns = "key text, src_offset bigint"

    def __init__(self, stack: EmbeddedStack, package: str = "onceproof.sinks") -> None:
        assert stack.postgres is not None
        self.server, self.package = stack.postgres, package
        self.name = self.pipeline = f"t{uuid.uuid4().hex[:8]}"
        self.ask(f"CREATE TABLE {self.name} ({self.columns})")

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        own = {
            "pipeline": self.pipeline,
            "checkpoint": str(checkpoint.folder),
            "progress_table": f"{self.name}_progress",
            "commit_timeout_s": 0.5,
            "lock_timeout_s": 10.0,
            "write_timeout_s": 15.0,
            "idle_timeout_s": 2.0,
        }
        return Recipe(self.package, self.module, self.kind, [self.server.client_uri, self.name], {**own, **settings})

    def rows(self, checkpoint: FakeCheckpoint, batch: int) -> pa.Table:
        return checkpoint.rows(batch)

    def offsets(self) -> list[int]:
        return [row[0] for row in self.ask(f"SELECT src_offset FROM {self.name} ORDER BY ctid")]

    def lose(self, stream: Any) -> None:
        self.server.proxy.add_toxic("timeout", stream, timeout=0)

    def heal(self) -> None:
        self.server.proxy.heal()

    def refuse(self) -> None:
        self.ask(f"ALTER TABLE {self.name} ADD CHECK (src_offset < 0) NOT VALID")

    @contextmanager
    def held_rows(self) -> Iterator[None]:
        key = int(self.name[1:], 16)
        self.ask(
            f"CREATE FUNCTION hold_{self.name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_advisory_xact_lock_shared({key}); RETURN NEW; END $$"
        )
        self.ask(f"CREATE TRIGGER hold BEFORE INSERT ON {self.name} FOR EACH ROW EXECUTE FUNCTION hold_{self.name}()")
        with psycopg.connect(
            self.server.client_uri, passfile=str(self.server.passfile), port=self.server.port
        ) as holder:
            holder.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            yield

    def ask(self, statement: str, *values: Any) -> list[Any]:
        with psycopg.connect(
            self.server.client_uri, passfile=str(self.server.passfile), port=self.server.port
        ) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []


class IncrementTarget(PostgresTarget):
    """One row per offset, with the number of times that it was added."""

    kind = "PostgresUpsert"
    columns = "src_offset bigint PRIMARY KEY, key text, times bigint"

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        return super().recipe(checkpoint, key=["src_offset"], merge={"times": "sum"}, **settings)

    def rows(self, checkpoint: FakeCheckpoint, batch: int) -> pa.Table:
        rows = checkpoint.rows(batch)
        return rows.append_column("times", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))

    def offsets(self) -> list[int]:
        found = self.ask(f"SELECT src_offset, times FROM {self.name} ORDER BY src_offset")
        return [offset for offset, times in found for _ in range(times)]


class StagedTarget(PostgresTarget):
    module, kind = "postgres_staged", "PostgresStaged"


class Hold:
    """Rows wait in the middle of a write, from ``waiting`` until ``go``."""

    def __init__(self) -> None:
        self.waiting, self.go = threading.Event(), threading.Event()


class HeldRows:
    def __init__(self, rows: pa.Table, hold: Hold) -> None:
        self._rows, self._hold = rows, hold

    def to_batches(self, **how: Any) -> list[pa.RecordBatch]:
        self._hold.waiting.set()
        self._hold.go.wait(LONGEST_S)
        found: list[pa.RecordBatch] = self._rows.to_batches(**how)
        return found


class KafkaTarget:
    fences = False

    def __init__(self, stack: EmbeddedStack, package: str = "onceproof.sinks") -> None:
        self.broker, self.package = stack.kafka, package
        self.topic = self.pipeline = f"t{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(self.topic, 1)
        self.broker.create_topic(f"{self.topic}-progress", 1)
        self._hold: Hold | None = None

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        own = {
            "pipeline": self.pipeline,
            "progress_topic": f"{self.topic}-progress",
            "checkpoint": str(checkpoint.folder),
            "key": "key",
            "transaction_timeout_s": 15,
            "commit_timeout_s": 0.7,
            "commit_attempts": 2,
        }
        where = [self.broker.client_bootstrap, self.topic]
        return Recipe(self.package, "kafka", "KafkaTransactional", where, {**own, **settings})

    def rows(self, checkpoint: FakeCheckpoint, batch: int) -> Any:
        rows = checkpoint.rows(batch)
        return rows if self._hold is None else HeldRows(rows, self._hold)

    def offsets(self) -> list[int]:
        config = {
            **client_config(self.broker.harness_bootstrap),
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        with closing(Consumer(config)) as consumer:
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            found: list[int] = []
            while True:
                message = consumer.poll(20)
                assert message is not None
                if error := message.error():
                    assert error.code() == KafkaError._PARTITION_EOF
                    return found
                found.append(json.loads(message.value() or b"")["src_offset"])

    def lose(self, stream: Any) -> None:
        self.broker.client_proxy(1).add_toxic("timeout", stream, timeout=0)

    def heal(self) -> None:
        self.broker.client_proxy(1).heal()

    @contextmanager
    def held_rows(self) -> Iterator[Hold]:
        self._hold = hold = Hold()
        try:
            yield hold
        finally:
            self._hold = None
            hold.go.set()

    def refuse(self) -> None:
        self.broker.alter_topic(self.topic, {"max.message.bytes": "60"})


TARGETS: dict[str, Callable[[EmbeddedStack, str], Target]] = {
    "postgres-append": PostgresTarget,
    "postgres-increment": IncrementTarget,
    "postgres-staged": StagedTarget,
    "kafka": KafkaTarget,
}


class Bench:
    """One target, checkpoints for it, and what happens at its points."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self._folder = folder
        self._failpoints = importlib.import_module(f"{target.package}.failpoints")
        self._errors = importlib.import_module(f"{target.package}.errors")

    def checkpoint(self, *ends: int, start: int = 0, query: str | None = None) -> FakeCheckpoint:
        """A checkpoint in which batch N ends at ``ends[N]``; a lost one begins again with another ``query`` id."""
        made = FakeCheckpoint(self._folder / uuid.uuid4().hex[:8], list(ends), start)
        if query is not None:
            (made.folder / "metadata").write_text(json.dumps({"id": query}))
        return made

    def write(self, checkpoint: FakeCheckpoint, batch: int, **settings: Any) -> bool:
        """Write the batch with a new sink, as a driver that has just started does."""
        return self.target.recipe(checkpoint, **settings).make().write(self.target.rows(checkpoint, batch), batch)

    def refused(self, kind: str, write: Callable[[], bool]) -> None:
        try:
            result = write()
        except self.error(kind):
            return
        raise AssertionError(f"expected {kind}, but the batch was {'written' if result else 'skipped'}")

    def error(self, kind: str) -> type[Exception]:
        found: type[Exception] = getattr(self._errors, kind)
        return found

    @contextmanager
    def when(self, **do: Callable[[], object]) -> Iterator[None]:
        """Call ``do`` the first time that a sink of this package reaches a point, or reports an event, of that name."""

        def reached(name: str, **_facts: Any) -> None:
            act = do.pop(name.replace("-", "_"), None)
            if act is not None:
                act()

        before = self._failpoints.reach, self._failpoints.report
        self._failpoints.reach = self._failpoints.report = reached
        try:
            yield
        finally:
            self._failpoints.reach, self._failpoints.report = before
            self.target.heal()

    @contextmanager
    def parked(self, checkpoint: FakeCheckpoint, batch: int) -> Iterator[Callable[[], bool | None]]:
        """A driver that stands before its commit. Yields what lets it go on: it returns whether the batch was written.

        None: the driver ended with an error.
        """
        stands, may_go = threading.Event(), threading.Event()
        ends: list[bool | None] = []

        def park() -> None:
            stands.set()
            may_go.wait(LONGEST_S)

        def drive() -> None:
            try:
                ends.append(self.write(checkpoint, batch))
            except Exception:
                ends.append(None)

        def go() -> bool | None:
            may_go.set()
            driver.join(LONGEST_S)
            assert ends, "the driver never ended"
            return ends[0]

        driver = threading.Thread(target=drive, daemon=True)
        with self.when(before_sink_commit=park):
            driver.start()
            try:
                assert stands.wait(LONGEST_S), f"no sink came to its commit: {ends}"
                yield go
            finally:
                go()

    def die(self, checkpoint: FakeCheckpoint, batch: int, point: str) -> None:
        """Write the batch in another process, which ends at ``point`` without a goodbye."""
        recipe = self.target.recipe(checkpoint)
        rows = self._folder / f"{uuid.uuid4().hex[:8]}.parquet"
        pq.write_table(self.target.rows(checkpoint, batch), rows)
        program = Path(__file__).with_name("dying_writer.py")
        order = {**recipe.__dict__, "rows": str(rows), "batch": batch, "point": point, "path": sys.path}
        ended = subprocess.run(
            [sys.executable, str(program)], input=json.dumps(order), text=True, capture_output=True, check=False
        )
        assert ended.returncode == 9, f"the writer did not die at {point}: {ended.stderr[-2000:]}"

    def shows(self, *offsets: int) -> None:
        found = self.target.offsets()
        assert sorted(found) == sorted(offsets), f"the output has {found}"
        assert found == sorted(found), f"the output is out of order: {found}"


def batches_in_order(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    sink = bench.target.recipe(checkpoint).make()
    for batch in (0, 1):
        assert sink.write(bench.target.rows(checkpoint, batch), batch)
    bench.shows(*range(8))


def replay(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5)
    assert bench.write(checkpoint, 0)
    assert not bench.write(checkpoint, 0)
    bench.shows(*range(5))


def crash_before_the_commit(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    bench.write(checkpoint, 0)
    bench.die(checkpoint, 1, "before-sink-commit")
    bench.shows(*range(5))
    assert bench.write(checkpoint, 1)
    bench.shows(*range(8))


def crash_after_the_commit(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    bench.write(checkpoint, 0)
    bench.die(checkpoint, 1, "after-sink-commit")
    assert not bench.write(checkpoint, 1)
    bench.shows(*range(8))


def lost_answer(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5)
    with bench.when(before_sink_commit=lambda: bench.target.lose("downstream")):
        bench.refused("CommitUnknown", lambda: bench.write(checkpoint, 0))
    assert not bench.write(checkpoint, 0)
    bench.shows(*range(5))


def lost_request(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5)
    with bench.when(before_sink_commit=lambda: bench.target.lose("upstream")):
        bench.refused("CommitUnknown", lambda: bench.write(checkpoint, 0))
    assert bench.write(checkpoint, 0)
    bench.shows(*range(5))


def lost_answer_on_a_path_that_heals(bench: Bench) -> None:
    """The path works again as soon as the commit has failed: a sink that now aborts, or writes again, does harm."""
    checkpoint = bench.checkpoint(5, 8)
    with bench.when(before_sink_commit=lambda: bench.target.lose("downstream"), commit_failed=bench.target.heal):
        try:
            bench.write(checkpoint, 0)
        except bench.error("CommitUnknown"):
            assert not bench.write(checkpoint, 0)
    bench.shows(*range(5))
    assert bench.write(checkpoint, 1)
    bench.shows(*range(8))


def refused_rows(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    bench.write(checkpoint, 0)
    bench.target.refuse()
    try:
        written = bench.write(checkpoint, 1)
    except bench.error("CommitUnknown"):
        raise AssertionError("nothing was written, and the sink says that it does not know") from None
    except Exception:
        written = False
    assert not written, "the output refused the rows, and the sink says that it wrote them"
    bench.shows(*range(5))


def older_start(bench: Bench) -> None:
    """A driver that was thought dead begins a batch after its successor has started, and written another."""
    checkpoint = bench.checkpoint(5, 8)
    zombie = bench.target.recipe(checkpoint).make()
    successor = bench.target.recipe(checkpoint).make()
    rows = bench.target.rows(checkpoint, 1)
    assert successor.write(bench.target.rows(checkpoint, 0), 0)
    if bench.target.fences:
        bench.refused("Fenced", lambda: zombie.write(rows, 1))
        assert successor.write(rows, 1)
    else:
        assert zombie.write(rows, 1)
        assert not successor.write(rows, 1)
    bench.shows(*range(8))


def late_commit(bench: Bench) -> None:
    """A driver stands before its commit, its successor starts and takes up the batch, and then the commit goes out."""
    checkpoint = bench.checkpoint(5, 8)
    wrote: list[bool] = []
    with bench.parked(checkpoint, 0) as go:
        successor = threading.Thread(target=lambda: wrote.append(bench.write(checkpoint, 0)), daemon=True)
        successor.start()
        successor.join(1.5)  # in vain if it waits for the predecessor, as it does on Postgres
        went = go()
        successor.join(LONGEST_S)
    assert [went, *wrote].count(True) == 1, f"the predecessor's result is {went}, its successor's {wrote}"
    bench.shows(*range(5))
    assert bench.write(checkpoint, 1)
    bench.shows(*range(8))


def predecessor_that_never_ends(bench: Bench) -> None:
    """A driver stands before its commit, connected and silent, until its successor has written the batch."""
    checkpoint = bench.checkpoint(5, 8)
    with bench.parked(checkpoint, 0) as go:
        assert bench.write(checkpoint, 0)
        assert not go()
    bench.shows(*range(5))
    assert bench.write(checkpoint, 1)
    bench.shows(*range(8))


def two_writers_in_the_middle(bench: Bench) -> None:
    """Two drivers are in the middle of the same batch at once, before either has recorded it."""
    checkpoint = bench.checkpoint(5)
    ends: list[bool | None] = []

    def drive() -> None:
        try:
            ends.append(bench.write(checkpoint, 0))
        except Exception:
            ends.append(None)

    drivers = [threading.Thread(target=drive, daemon=True) for _ in range(2)]
    with bench.target.held_rows():
        for driver in drivers:
            driver.start()
            driver.join(1.0)
    for driver in drivers:
        driver.join(LONGEST_S)
    assert ends.count(True) == 1, f"the results are {ends}"
    bench.shows(*range(5))


def lost_checkpoint(bench: Bench) -> None:
    """The query begins again, with another id and batch 0, and reads its input from the start in the same batches."""
    before = bench.checkpoint(5, 8)
    bench.write(before, 0)
    again = bench.checkpoint(5, 8, query="22222222-0000-0000-0000-000000000000")
    assert not bench.write(again, 0)
    assert bench.write(again, 1)
    bench.shows(*range(8))


def other_batch_boundaries(bench: Bench) -> None:
    bench.write(bench.checkpoint(5), 0)
    again = bench.checkpoint(8, query="22222222-0000-0000-0000-000000000000")
    bench.refused("OffsetGap", lambda: bench.write(again, 0))
    bench.shows(*range(5))


def gap(bench: Bench) -> None:
    bench.write(bench.checkpoint(5), 0)
    bench.refused("OffsetGap", lambda: bench.write(bench.checkpoint(7, 9), 1))
    bench.shows(*range(5))


def lost_progress(bench: Bench) -> None:
    bench.refused("OffsetGap", lambda: bench.write(bench.checkpoint(5, 8), 1))
    bench.shows()


def batch_without_input(bench: Bench) -> None:
    """After the watermark has moved, Spark runs a batch without input, which emits closed windows."""
    checkpoint = bench.checkpoint(5, 5)
    bench.write(checkpoint, 0)
    windows = bench.target.rows(bench.checkpoint(5, 7), 1)
    for expected in (True, False):
        assert bench.target.recipe(checkpoint).make().write(windows, 1) is expected
    bench.shows(*range(7))
    other = bench.checkpoint(5, 5, query="22222222-0000-0000-0000-000000000000")
    bench.refused("OffsetGap", lambda: bench.target.recipe(other).make().write(windows, 1))


CHECKS: tuple[Callable[[Bench], None], ...] = (
    batches_in_order,
    replay,
    crash_before_the_commit,
    crash_after_the_commit,
    lost_answer,
    lost_request,
    lost_answer_on_a_path_that_heals,
    refused_rows,
    older_start,
    late_commit,
    predecessor_that_never_ends,
    two_writers_in_the_middle,
    lost_checkpoint,
    other_batch_boundaries,
    gap,
    lost_progress,
    batch_without_input,
)


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
            lambda: bool(target.ask("SELECT to_regclass(%s)", staged)[0][0]) and target.ask(count)[0][0] == 5,
            deadline_s=20,
        )
        target.ask(f"TRUNCATE {staged}")
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
    sink: Any = bench.target.recipe(checkpoint).make()
    staged = importlib.import_module(f"{bench.target.package}.postgres_staged")
    rows = bench.target.rows(checkpoint, 0)
    columns, table = tuple(rows.column_names), sink._staging_table(0)
    to = sink._destination(table, columns)
    second, first = (to.stage(part.to_batches())[0] for part in (rows.slice(3), rows.slice(0, 3)))
    assert sink._publish(staged.Staged(table, columns, (first, second), 5), 0)
    bench.shows(*range(5))


def increments_add_up(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    bench.write(checkpoint, 0)
    again = bench.target.rows(checkpoint, 0)
    assert bench.target.recipe(checkpoint).make().write(again, 1)
    bench.shows(*range(5), *range(5))


def commit_is_sent_again(bench: Bench) -> None:
    """A commit that times out is sent again, on a path that works again; its answer tells the outcome."""
    checkpoint = bench.checkpoint(5)
    with bench.when(before_sink_commit=lambda: bench.target.lose("downstream"), commit_failed=bench.target.heal):
        assert bench.write(checkpoint, 0, commit_attempts=8)
    bench.shows(*range(5))


def commit_after_the_successor_has_read(bench: Bench) -> None:
    """The predecessor's commit goes out after its successor has read the progress, and before it writes."""
    checkpoint = bench.checkpoint(5)
    reader = importlib.import_module(f"{bench.target.package}.kafka_progress").ProgressReader
    read = reader.last
    predecessor = threading.Thread(target=lambda: suppressed(lambda: bench.write(checkpoint, 0)), daemon=True)
    with bench.target.held_rows() as hold:
        predecessor.start()
        assert hold.waiting.wait(LONGEST_S)

        def last(self: Any) -> Any:
            found = read(self)
            hold.go.set()
            predecessor.join(LONGEST_S)
            return found

        reader.last = last
        try:
            bench.write(checkpoint, 0)
        finally:
            reader.last = read
    bench.shows(*range(5))


def suppressed(do: Callable[[], object]) -> None:
    with suppress(Exception):
        do()


#: Checks for one sink only.
OF: dict[str, tuple[Callable[[Bench], None], ...]] = {
    "postgres-increment": (increments_add_up,),
    "postgres-staged": (lost_attempt, staged_rows_lost, nothing_is_left, partitions_in_order),
    "kafka": (commit_is_sent_again, commit_after_the_successor_has_read),
}
