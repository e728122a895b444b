"""Rules on real connections: librdkafka and libpq through the proxy, then Toxiproxy, to real Kafka and real Postgres.

The tests ask the service itself what a rule did, bypassing every proxy.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from onceproof.base.timeline import Event, Timeline
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.kafka_schema import api_names
from onceproof.instruments.proxy.rules import Action, Condition, Rule
from onceproof.scenario.stack import KafkaStack, PostgresStack, StackSpec
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch import components
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.processes.owner import Owner
from onceproof.stack.toxiproxy.framed import Frames
from onceproof.stores.postgres.transactions import postgres_status

pytestmark = [pytest.mark.real, pytest.mark.services]

EVENTS: list[Event] = []
TRANSACTIONAL = ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "Produce", "EndTxn")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    folder = tmp_path_factory.mktemp("run")
    timeline = Timeline(folder / "events.jsonl")
    timeline.listen(EVENTS.append)
    with Owner() as owner:
        spec = StackSpec(kafka=KafkaStack(brokers=1), postgres=PostgresStack())
        started = EmbeddedStack.start(spec, owner, folder, components.ensure(), timeline, read_frames=True)
        yield started
        started.check_health()
    timeline.close()


@pytest.fixture
def frames(stack: EmbeddedStack) -> Frames:
    assert stack.frames is not None
    return stack.frames


@pytest.fixture
def topic(stack: EmbeddedStack, request: pytest.FixtureRequest) -> str:
    name = "t-" + "".join(c if c.isalnum() else "-" for c in request.node.name)
    stack.kafka.create_topic(name, 2)
    return name


def producer(stack: EmbeddedStack, id: str) -> Producer:
    made = Producer({**producer_config(stack.kafka.client_bootstrap), "transactional.id": id})
    made.init_transactions(20)
    return made


def written(stack: EmbeddedStack, topic: str, isolation: str = "read_committed") -> list[str]:
    """Every value of the topic, to its end, read without the proxies."""
    consumer = Consumer(
        {
            **client_config(stack.kafka.harness_bootstrap),
            "group.id": "test",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in (0, 1)])
    found, ends = [], 0
    while ends < 2:
        message = consumer.poll(10)
        assert message is not None
        error = message.error()
        if error is None:
            found.append((message.value() or b"").decode())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ends += 1
    consumer.close()
    return sorted(found)


def test_no_connection_bypasses_the_proxy_and_every_request_is_decoded(
    stack: EmbeddedStack, frames: Frames, topic: str
) -> None:
    """The decoder reads what other implementations wrote: librdkafka's requests, and the broker's answers."""
    seen: list[Frame] = []
    rules = [
        Rule(Condition(api), "park", proceed=lambda frame: seen.append(frame) is not None)
        for api in api_names(decoded=True)
    ]
    for rule in rules:
        frames.board("kafka").arm(rule)
    made = producer(stack, topic)
    made.begin_transaction()
    made.produce(topic, "a", partition=0)
    consumer = Consumer(
        {**client_config(stack.kafka.client_bootstrap), "group.id": topic, "auto.offset.reset": "earliest"}
    )
    made.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 10)
    made.commit_transaction(10)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(10) is not None
    consumer.commit(asynchronous=False)
    assert stack.check_bypass([]) == []
    consumer.close()
    for rule in rules:
        frames.board("kafka").disarm(rule)
    assert {*TRANSACTIONAL, "Fetch", "Metadata", "OffsetCommit", "FindCoordinator"} <= {frame.kind for frame in seen}
    assert [f.describe() for f in seen if "undecodable" in f.facts] == []
    by_kind = {frame.kind: frame.facts for frame in seen}
    for api in TRANSACTIONAL:
        assert by_kind[api]["transactional_id"] == topic
    assert by_kind["Produce"]["topics"] == by_kind["AddPartitionsToTxn"]["topics"] == [topic]
    assert topic in by_kind["Fetch"]["topics"] and topic in by_kind["OffsetCommit"]["topics"]
    assert by_kind["EndTxn"]["committed"] is True


@pytest.mark.parametrize("action", ["drop-answer", "drop-request"])
def test_librdkafka_survives_the_loss_of_each_kind_of_request(
    stack: EmbeddedStack, frames: Frames, topic: str, action: Action
) -> None:
    consumer = Consumer({**client_config(stack.kafka.client_bootstrap), "group.id": topic})
    group = consumer.consumer_group_metadata()
    for api in TRANSACTIONAL:
        # An id for each: while the coordinator still ends the last transaction of an id, its answer is CONCURRENT_TRANSACTIONS.
        rule = Rule(Condition(api, transactional_id=f"^{topic}-{api}$"), action, "reset")
        frames.board("kafka").arm(rule)
        made = producer(stack, f"{topic}-{api}")
        made.begin_transaction()
        made.produce(topic, api, partition=0)
        made.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], group, 20)
        made.commit_transaction(20)
        frames.board("kafka").disarm(rule)
        (hit,) = rule.hits
        if action == "drop-answer":
            assert rule.wait_for_answer(hit, 10).facts["error_codes"] == [0]
        else:
            assert hit.delivered_at is None and hit.answer is None
        assert hit.cut_at is not None
    consumer.close()
    assert written(stack, topic) == written(stack, topic, "read_uncommitted") == sorted(TRANSACTIONAL)


@pytest.mark.parametrize("reused", [True, False], ids=["reused producer", "fresh producer"])
def test_a_late_abort_hits_the_next_transaction_only_in_the_same_epoch(
    stack: EmbeddedStack, frames: Frames, topic: str, reused: bool
) -> None:
    """KAFKA-17754 on an unmodified broker: every call of the client succeeds, and a write is lost."""
    rule = Rule(Condition("EndTxn", transactional_id=topic, committed=False), "late", "reset")
    frames.board("kafka").arm(rule)
    made = producer(stack, topic)
    made.begin_transaction()
    made.produce(topic, "given up", partition=0)
    made.flush(10)
    made.abort_transaction(10)  # the client is cut off, connects again and asks again: aborted
    (hit,) = rule.hits
    if not reused:
        made = producer(stack, topic)
    made.begin_transaction()
    made.produce(topic, "first", partition=0)
    assert made.flush(10) == 0
    rule.release()
    answer = rule.wait_for_answer(hit, 10)
    made.produce(topic, "second", partition=1)
    made.commit_transaction(10)
    frames.board("kafka").disarm(rule)
    assert answer.facts["error_codes"] == ([0] if reused else [KafkaError.INVALID_PRODUCER_EPOCH])
    assert written(stack, topic) == (["second"] if reused else ["first", "second"])
    assert written(stack, topic, "read_uncommitted") == ["first", "given up", "second"]
    kinds = [event.kind for event in EVENTS if event.data.get("transactional_id") == topic]
    assert kinds == ["frame.stopped", "frame.delivered", "frame.answered"]


def test_a_client_that_is_cut_silently_times_out(stack: EmbeddedStack, frames: Frames, topic: str) -> None:
    rule = Rule(Condition("EndTxn", transactional_id=topic), "drop-answer", "silence")
    frames.board("kafka").arm(rule)
    made = producer(stack, topic)
    made.begin_transaction()
    made.produce(topic, "a", partition=0)
    with pytest.raises(KafkaException) as caught:
        made.commit_transaction(1)
    assert caught.value.args[0].retriable()
    assert rule.wait_for_answer(rule.hits[0], 10).facts["error_codes"] == [0]
    assert written(stack, topic) == ["a"]
    made.commit_transaction(20)
    frames.board("kafka").disarm(rule)


def connect(stack: EmbeddedStack) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(stack.postgres.client_uri, passfile=str(stack.postgres.passfile))  # type: ignore[union-attr]


def simple(connection: psycopg.Connection[tuple[object, ...]], table: str) -> None:
    connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
    connection.commit()


def extended(connection: psycopg.Connection[tuple[object, ...]], table: str) -> None:
    """All in one packet: BEGIN, INSERT, COMMIT, Sync."""
    with connection.pipeline():
        connection.execute(f"INSERT INTO {table} VALUES (%s)".encode(), (1,))
        connection.commit()


def copied(connection: psycopg.Connection[tuple[object, ...]], table: str) -> None:
    with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
        copy.write_row((1,))
    connection.commit()


@pytest.mark.parametrize("write", [simple, extended, copied])
@pytest.mark.parametrize("action", ["drop-answer", "drop-request", "late", "park"])
def test_each_action_on_a_postgres_commit_has_its_effect_on_the_transaction(
    stack: EmbeddedStack,
    frames: Frames,
    action: Action,
    write: Callable[[psycopg.Connection[tuple[object, ...]], str], None],
) -> None:
    assert stack.postgres is not None
    table = f"t_{action.replace('-', '_')}_{write.__name__}"
    with connect(stack) as setup:
        setup.execute(f"CREATE TABLE {table} (n int)".encode())
    rule = Rule(Condition("commit", transaction=rf"\b{table}\b"), action, "reset")
    frames.board("postgres").arm(rule)
    with connect(stack) as other:
        other.execute(b"SELECT 1")  # the COMMIT of another transaction passes
    connection = connect(stack)
    pid = connection.info.backend_pid
    xid = connection.execute(b"SELECT pg_current_xact_id()::text").fetchone()
    assert xid is not None
    if action == "park":
        rule.release()
        write(connection, table)
    else:
        with pytest.raises(psycopg.OperationalError):
            write(connection, table)
    connection.close()
    (hit,) = rule.hits
    assert hit.frame.facts["backend_pid"] == pid
    if action == "late":
        assert postgres_status(stack.postgres, str(xid[0])) == "in progress"
        rule.release()
    if action != "drop-request":
        assert rule.wait_for_answer(hit, 10).facts == {"tags": ["COMMIT"], "sqlstate": None}
    frames.board("postgres").disarm(rule)

    def settled() -> str | None:
        status = postgres_status(stack.postgres, str(xid[0]))  # type: ignore[arg-type]
        return None if status == "in progress" else status

    wanted = "aborted" if action == "drop-request" else "committed"
    assert wait_until("the transaction to end", settled, deadline_s=10) == wanted
    with connect(stack) as reader:
        assert reader.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == ((wanted == "committed"),)


def test_a_cut_of_toxiproxy_also_refuses_clients_of_the_protocol_proxy(stack: EmbeddedStack) -> None:
    assert stack.postgres is not None
    connection = connect(stack)
    stack.postgres.proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        connection.execute(b"SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(stack)
    stack.postgres.proxy.heal()
    connect(stack).close()


def test_a_connection_that_bypasses_the_protocol_proxy_is_detected(stack: EmbeddedStack, frames: Frames) -> None:
    """The connection must come from another process: the harness's own connections to Toxiproxy are the proxy's."""
    (guard,) = [guard for guard in frames.guards() if "postgres" in guard.what]
    script = f"import socket, sys; s = socket.create_connection(('127.0.0.1', {guard.port})); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None and stranger.stdout.readline() == b"\n"
        (sentence,) = stack.check_bypass([stranger.pid])
        assert "Toxiproxy's postgres" in sentence
        stranger.communicate()
    assert stack.check_bypass([]) == []
