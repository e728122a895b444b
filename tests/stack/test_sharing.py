"""A shared stack: nothing of an execution reaches the next one, every check can fail, and a damaged stack is replaced."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # documented, not re-exported

from onceproof.base.errors import UsageError
from onceproof.base.timeline import Event, Timeline
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.rules import Condition, Rule
from onceproof.scenario.stack import PostgresStack, StackSpec
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch import components
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.sharing.isolation import connections, isolate, leftovers
from onceproof.stack.sharing.shared import SharedStack, StackRequest

pytestmark = [pytest.mark.real, pytest.mark.services]

TOPIC = "departures"
TRANSACTION = "departures-writer"


def request(*, protocol_proxy: bool = True, postgres: bool = True) -> StackRequest:
    spec = StackSpec(postgres=PostgresStack() if postgres else None)
    return StackRequest(spec, components.ensure(), None, protocol_proxy)


class Execution:
    """An execution of a test on the shared stack, in a folder of its own."""

    def __init__(self, shared: SharedStack, folder: Path) -> None:
        self._shared = shared
        self.folder = folder
        self.events: list[Event] = []
        self._ending = ExitStack()

    def begin(self, wanted: StackRequest | None = None) -> EmbeddedStack:
        self.folder.mkdir()
        timeline = Timeline(self.folder / "events.jsonl")
        timeline.listen(self.events.append)
        self._ending.callback(timeline.close)
        self._ending.enter_context(self._shared.taken_back(self.folder / "logs", timeline))
        return self._shared.lend(wanted or request(), self.folder / "files", timeline)

    def end(self) -> None:
        self._ending.close()

    def of_kind(self, kind: str) -> list[dict[str, object]]:
        return [event.data for event in self.events if event.kind == kind]


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedStack]:
    with SharedStack() as shared:
        yield shared


@pytest.fixture(scope="module")
def clean(shared: SharedStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    """A stack that serves one execution, and on which each test leaves nothing behind."""
    execution = Execution(shared, tmp_path_factory.mktemp("clean") / "run")
    yield execution.begin()
    execution.end()


def open_transaction(stack: EmbeddedStack, topic: str) -> None:
    """A producer that wrote a record in a transaction, and is gone without ending it."""
    config = {**producer_config(stack.kafka.client_bootstrap), "transactional.id": TRANSACTION}
    producer = Producer({**config, "transaction.timeout.ms": 60_000})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"of an execution that was killed")
    assert producer.flush(20) == 0


def commit_group(stack: EmbeddedStack, topic: str) -> None:
    settings = {**client_config(stack.kafka.client_bootstrap), "group.id": "readers", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


def end_offset(stack: EmbeddedStack, topic: str) -> int:
    place = TopicPartition(topic, 0)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = stack.kafka.admin()  # the answer needs the client
    asked = admin.list_offsets({place: latest}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=10)
    return int(asked[place].result(10).offset)


def as_job(stack: EmbeddedStack) -> psycopg.Connection[tuple[object, ...]]:
    assert stack.postgres is not None
    return psycopg.connect(stack.postgres.client_uri, passfile=str(stack.postgres.passfile), autocommit=True)


def as_harness(stack: EmbeddedStack) -> psycopg.Connection[tuple[object, ...]]:
    assert stack.postgres is not None
    return psycopg.connect(stack.postgres.harness_conninfo, autocommit=True)


def test_nothing_of_an_execution_reaches_the_next_one(tmp_path: Path) -> None:
    with SharedStack() as shared:
        first = Execution(shared, tmp_path / "first")
        stack = first.begin()
        assert stack.postgres is not None and stack.frames is not None
        pids = (stack.kafka.pid(1), stack.postgres.service.pid, stack.toxiproxy.service.pid)
        stack.kafka.create_topic(TOPIC, 1, {"max.message.bytes": "2000"})
        open_transaction(stack, TOPIC)
        commit_group(stack, TOPIC)
        with as_job(stack) as job:
            job.execute("CREATE TABLE departed (n int)")
            job.execute("INSERT INTO departed VALUES (1)")
            job.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        holder = as_harness(stack)
        holder.autocommit = False
        holder.execute("LOCK TABLE departed IN ACCESS EXCLUSIVE MODE")
        stack.frames.board("kafka").arm(Rule(Condition("EndTxn"), "park"))
        stack.frames.board("postgres").listen([])
        stack.kafka.client_proxy(1).add_toxic("latency", "downstream", latency=1)
        stack.postgres.proxy.reject_clients()
        first.end()
        (removed,) = first.of_kind("stack.cleaned")
        assert {name: removed[name] for name in ("topics", "groups", "transactions")} == {
            "topics": 1,
            "groups": 1,
            "transactions": 1,
        }
        assert first.of_kind("stack.used-up") == []
        assert (first.folder / "logs" / "kafka-1.log").stat().st_size > 0

        second = Execution(shared, tmp_path / "second")
        again = second.begin()
        assert again.postgres is not None
        assert (again.kafka.pid(1), again.postgres.service.pid, again.toxiproxy.service.pid) == pids
        assert second.of_kind("stack.shared") == [{"served_before": 1, "protocol_proxy": True}]
        again.kafka.create_topic(TOPIC, 1)
        config = {**producer_config(again.kafka.client_bootstrap), "transactional.id": TRANSACTION}
        Producer(config).init_transactions(20)  # would abort what is left of the old transaction
        assert end_offset(again, TOPIC) == 0, "a marker of the first execution's transaction"
        with as_job(again) as job:
            assert job.execute("SELECT to_regclass('departed')").fetchone() == (None,)
            assert job.execute("SHOW synchronous_commit").fetchone() == ("on",)
            job.execute("CREATE TABLE departed (n int)")
        with as_harness(again) as harness:
            peek = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('onceproof', NULL, NULL, 'proto_version', '1', 'publication_names', 'onceproof')"
            assert harness.execute(peek).fetchone() == (0,), "no commit of the first execution, and no row of this one"
        log = (first.folder / "logs" / "postgres.log").read_text()
        second.end()
        assert second.of_kind("stack.used-up") == []
        later = (second.folder / "logs" / "postgres.log").read_text()
        assert log and log not in later, "each execution gets what the services logged during it"
        assert shared.starts == 1


def _topic(stack: EmbeddedStack) -> Callable[[], object]:
    stack.kafka.create_topic("left", 1)
    return lambda: None


def _topic_like_kafkas(stack: EmbeddedStack) -> Callable[[], object]:
    stack.kafka.create_topic("__progress", 1)
    return lambda: None


def _group(stack: EmbeddedStack) -> Callable[[], object]:
    stack.kafka.create_topic("left", 1)
    commit_group(stack, "left")
    return lambda: None


def _transaction(stack: EmbeddedStack) -> Callable[[], object]:
    stack.kafka.create_topic("left", 1)
    open_transaction(stack, "left")
    return lambda: None


def _toxic(stack: EmbeddedStack) -> Callable[[], object]:
    stack.kafka.client_proxy(1).add_toxic("latency", "upstream", latency=1)
    return stack.kafka.client_proxy(1).heal


def _cut(stack: EmbeddedStack) -> Callable[[], object]:
    assert stack.postgres is not None
    stack.postgres.proxy.cut()
    return stack.postgres.proxy.heal


def _rejecting(stack: EmbeddedStack) -> Callable[[], object]:
    assert stack.postgres is not None
    stack.postgres.proxy.reject_clients()
    return stack.postgres.proxy.heal


def _rule(stack: EmbeddedStack) -> Callable[[], object]:
    assert stack.frames is not None
    stack.frames.board("postgres").arm(Rule(Condition("commit"), "drop-answer"))
    return stack.frames.forget


def _connection(stack: EmbeddedStack) -> Callable[[], object]:
    return as_job(stack).close


def _session(stack: EmbeddedStack) -> Callable[[], object]:
    return as_harness(stack).close


def _slot(stack: EmbeddedStack) -> Callable[[], object]:
    with as_harness(stack) as harness:
        harness.execute("SELECT pg_create_logical_replication_slot('left', 'pgoutput')")
    return lambda: None


def _database(stack: EmbeddedStack) -> Callable[[], object]:
    with as_harness(stack) as harness:
        harness.execute("CREATE DATABASE another")
    return lambda: _dropped(stack)


def _dropped(stack: EmbeddedStack) -> None:
    with as_harness(stack) as harness:
        harness.execute("DROP DATABASE another")


@pytest.mark.parametrize(
    ("leave", "phrase"),
    [
        (_topic, "topic left is still there"),
        (_topic_like_kafkas, "topic __progress is still there"),
        (_group, "consumer group readers is still there"),
        (_transaction, f"transaction {TRANSACTION} is Ongoing"),
        (_toxic, "proxy client-1 has toxic latency_upstream"),
        (_cut, "proxy postgres is cut"),
        (_rejecting, "the protocol proxy postgres resets connections"),
        (_rule, "the protocol proxy has rules for postgres"),
        (_connection, "a connection through proxy postgres is open"),
        (_session, "of onceproof is open"),
        (_slot, "replication slot left is still there"),
        (_database, "database another is still there"),
    ],
)
def test_each_check_finds_what_it_looks_for(
    clean: EmbeddedStack, leave: Callable[[EmbeddedStack], Callable[[], object]], phrase: str
) -> None:
    isolate(clean)
    assert list(leftovers(clean)) == []
    undo = leave(clean)
    try:
        assert any(phrase in found for found in leftovers(clean))
    finally:
        undo()
        isolate(clean)


def test_a_stack_that_fails_a_check_or_that_a_fault_damaged_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceproof.stack.sharing.isolation._GONE_S", 0.5)
    small = request(protocol_proxy=False, postgres=False)
    with SharedStack() as shared:
        first = Execution(shared, tmp_path / "first")
        stack = first.begin(small)
        # Not a client of librdkafka: it closes the connection to its bootstrap server, and has none until it next needs one.
        host, _, port = stack.kafka.client_bootstrap.rpartition(":")
        open_still = socket.create_connection((host, int(port)), timeout=10)
        wait_until("the connection to be passed on", lambda: connections(stack), deadline_s=10)
        first.end()
        (used_up,) = first.of_kind("stack.used-up")
        assert used_up["reason"] == "a connection through proxy client-1 is open" and used_up["served"] == 1
        assert not stack.toxiproxy.service.is_running()
        open_still.close()

        second = Execution(shared, tmp_path / "second")
        stack = second.begin(small)
        assert second.of_kind("stack.replaced") == [{"reason": used_up["reason"]}]
        assert second.of_kind("stack.shared") == [{"served_before": 0, "protocol_proxy": False}]
        stack.kafka.kill_broker(1)
        stack.kafka.restart_broker(1)
        second.end()
        assert second.of_kind("stack.used-up") == [{"reason": "a fault killed kafka-1", "served": 1}]
        assert shared.starts == 2


def test_an_execution_that_fails_leaves_no_stack(tmp_path: Path) -> None:
    small = request(protocol_proxy=False, postgres=False)
    timeline = Timeline(tmp_path / "events.jsonl")
    with SharedStack() as shared, pytest.raises(UsageError), shared.taken_back(tmp_path / "logs", timeline):
        stack = shared.lend(small, tmp_path / "files", timeline)
        with pytest.raises(RuntimeError, match="in use"):
            shared.lend(small, tmp_path / "files", timeline)
        raise UsageError("the job cannot be started")
    timeline.close()
    assert not stack.kafka.is_running(1) and not stack.toxiproxy.service.is_running()
    assert (tmp_path / "logs" / "kafka-1.log").is_file()
