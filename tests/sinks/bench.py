"""A bench for sinks: one new output (`Target`) of a sink, checkpoints in Spark's format, and control over the sink's points. No Spark."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, TopicPartition

from onceproof.base.errors import ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import client_config
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.kafka.transactions import open_transactions

from .as_spark import AsSpark
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
    is_format: bool = False
    """``kind`` is a streaming format, and ``settings`` are its options."""

    def make(self) -> Sink:
        if self.is_format:
            return AsSpark(self.package, self.kind, self.settings)
        made: Sink = getattr(importlib.import_module(f"{self.package}.{self.module}"), self.kind)(
            *self.args, **self.settings
        )
        return made


class Target(Protocol):
    """A new output of one kind of sink, whose code is in the package ``package``."""

    package: str
    fences: bool
    """Whether an older start is refused even where its batch would do no harm."""
    publishes: bool
    """Whether a batch is published after its commit. Another driver may do that, and the one that committed is fenced meanwhile."""
    service: str
    """Whose commit the checks strike: of the sink's points, those of this service count."""

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
    publishes = False
    service = "postgres"
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

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Within it, nobody else can read or write the table."""
        with psycopg.connect(
            self.server.client_uri, passfile=str(self.server.passfile), port=self.server.port
        ) as holder:
            holder.execute(f"LOCK TABLE {table}".encode())
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


def read_committed(broker: EmbeddedKafka, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Key and value of every record that a read_committed reader gets, in order, once no transaction is about to be committed.

    A producer has its answer as soon as its coordinator has logged the commit. Readers get the records once the partitions have its
    marker. (A topic that refuses rows refuses the marker of the abort too.)
    """
    wait_until(
        "the markers of committed transactions",
        lambda: not [one for one in open_transactions(broker) if one.state == "PrepareCommit"],
        deadline_s=LONGEST_S,
        ignoring=ServiceFailed,  # a check may have restarted the broker
    )
    config = {
        **client_config(broker.harness_bootstrap),
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        # An empty fetch shows the end of the partition, and by default the broker would delay it by 500 ms.
        "fetch.wait.max.ms": 10,
    }
    with closing(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[bytes | None, bytes]] = []
        while True:
            message = consumer.poll(20)
            assert message is not None
            if error := message.error():
                assert error.code() == KafkaError._PARTITION_EOF
                return found
            found.append((message.key(), message.value() or b""))


def offsets_in(broker: EmbeddedKafka, topic: str) -> list[int]:
    """The ``src_offset`` of every record that a read_committed reader gets, in order."""
    return [json.loads(value)["src_offset"] for _, value in read_committed(broker, topic)]


class Hold:
    """Rows wait in the middle of a write, from ``waiting`` until ``go``."""

    def __init__(self) -> None:
        self.waiting, self.go = threading.Event(), threading.Event()


class HeldRows:
    def __init__(self, rows: pa.Table, hold: Hold) -> None:
        self._rows, self._hold = rows, hold
        self.column_names = rows.column_names

    def to_batches(self, **how: Any) -> list[pa.RecordBatch]:
        self._hold.waiting.set()
        self._hold.go.wait(LONGEST_S)
        found: list[pa.RecordBatch] = self._rows.to_batches(**how)
        return found


class KafkaTarget:
    fences = False
    publishes = False
    service = "kafka"
    progress_partitions = 1

    def __init__(self, stack: EmbeddedStack, package: str = "onceproof.sinks") -> None:
        self.broker, self.package = stack.kafka, package
        self.topic = self.pipeline = f"t{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(self.topic, 1)
        self.broker.create_topic(f"{self.topic}-progress", self.progress_partitions)
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
        return self._held(checkpoint.rows(batch))

    def _held(self, rows: pa.Table) -> Any:
        return rows if self._hold is None else HeldRows(rows, self._hold)

    def offsets(self) -> list[int]:
        return offsets_in(self.broker, self.topic)

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


class Bench:
    """One target, checkpoints for it, and what happens at its points."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self._folder = folder
        self._failpoints = importlib.import_module(f"{target.package}.failpoints")
        self._errors = importlib.import_module(f"{target.package}.errors")

    def checkpoint(
        self, *ends: int, start: int = 0, query: str | None = None, stateful: bool = False
    ) -> FakeCheckpoint:
        """A checkpoint in which batch N ends at ``ends[N]``; a lost one begins again with another ``query`` id."""
        made = FakeCheckpoint(self._folder / uuid.uuid4().hex[:8], list(ends), start)
        if stateful:
            (made.folder / "state" / "0" / "0").mkdir(parents=True)
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
        """``OffsetGap``, of the module of errors; ``kafka_progress:ProgressUnreadable``, of another one."""
        module, _, name = kind.rpartition(":")
        where = importlib.import_module(f"{self.target.package}.{module}") if module else self._errors
        found: type[Exception] = getattr(where, name)
        return found

    @contextmanager
    def when(self, service: str | None = None, /, **do: Callable[[], object]) -> Iterator[None]:
        """Call ``do`` the first time that a sink of this package reaches a point, or reports an event, of that name.

        A sink with two commits has each point twice; those at the commit of ``service`` (default: the target's) count.
        """
        service = service or self.target.service

        def reached(name: str, **facts: Any) -> None:
            act = do.pop(name.replace("-", "_"), None) if facts["sink"] == service else None
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
    def paused(self, checkpoint: FakeCheckpoint, batch: int) -> Iterator[Callable[[], bool | None]]:
        """A driver that is paused before its commit. Yields what lets it continue, which returns whether the batch was written.

        None: the driver ended with an error.
        """
        ready, may_go = threading.Event(), threading.Event()
        ends: list[bool | None] = []

        def pause() -> None:
            ready.set()
            may_go.wait(LONGEST_S)

        def drive() -> None:
            try:
                ends.append(self.write(checkpoint, batch))
            except Exception:
                ends.append(None)

        def resume() -> bool | None:
            may_go.set()
            driver.join(LONGEST_S)
            assert ends, "the driver never ended"
            return ends[0]

        driver = threading.Thread(target=drive, daemon=True)
        with self.when(before_sink_commit=pause):
            driver.start()
            try:
                assert ready.wait(LONGEST_S), f"no sink came to its commit: {ends}"
                yield resume
            finally:
                resume()

    def die(self, checkpoint: FakeCheckpoint, batch: int, point: str, service: str | None = None) -> None:
        """Write the batch in another process, which ends at ``point`` (of ``service``; default: the target's) without a goodbye."""
        recipe = self.target.recipe(checkpoint)
        rows = self._folder / f"{uuid.uuid4().hex[:8]}.parquet"
        pq.write_table(self.target.rows(checkpoint, batch), rows)
        program = Path(__file__).with_name("dying_writer.py")
        service = service or self.target.service
        order = {
            **recipe.__dict__,
            "service": service,
            "rows": str(rows),
            "batch": batch,
            "point": point,
            "path": sys.path,
        }
        ended = subprocess.run(
            [sys.executable, str(program)], input=json.dumps(order), text=True, capture_output=True, check=False
        )
        assert ended.returncode == 9, f"the writer did not die at {point}: {ended.stderr[-2000:]}"

    def shows(self, *offsets: int) -> None:
        found = self.target.offsets()
        assert sorted(found) == sorted(offsets), f"the output has {found}"
        assert found == sorted(found), f"the output is out of order: {found}"
