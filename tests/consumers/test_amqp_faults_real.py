"""Faults between a consumer and its AMQP broker: lost requests and answers, and a connection cut under a living consumer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.consumers.brokers import services
from onceproof.consumers.brokers.contract import Broker
from onceproof.explore.replay import execute_once, start_services
from onceproof.history.run_directory import RunDir
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import judge
from onceproof.run import Result
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.shipped import find
from onceproof.stack.amqp import rabbitmq
from onceproof.stack.processes.owner import Owner

from ..gate import TWINS

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]

RunOnce = Callable[[str | Path], Result]
Execute = Callable[..., tuple[Verdict, list[int]]]
ON_AMQP = [twins for twins in TWINS if twins[0].startswith("amqp-")]
ON_RABBITMQ = ("amqp: {}", "amqp: {broker: rabbitmq}")


def executor_on(broker: Broker, folder: Path) -> Execute:
    """``execute(name, (old, new), ...)``: executes a changed scenario; returns its verdict and the ids that came out."""

    numbers = itertools.count(1)

    def once(name: str, *changes: tuple[str, str]) -> tuple[Verdict, list[int]]:
        text = resolved(find(name))
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = folder / f"{name}.yaml"
        path.write_text(text)
        number = next(numbers)
        directory = RunDir.below(folder / f"execution{number}")
        execute_once(load(path), folder, lambda *_: broker, directory, number)
        rows = pq.read_table(directory.path / "history" / "output.parquet").to_pylist()
        return judge(directory.path), [json.loads(row["content"])["id"] for row in rows]

    return once


@pytest.fixture(scope="module")
def execute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Execute]:
    folder = tmp_path_factory.mktemp("qpid")
    with Owner() as owner:
        start = services.fetched(load(find("amqp-cut-reorders")))
        yield executor_on(start_services(start, owner, folder), folder)


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Owner, Execute]]:
    """The owner of a RabbitMQ, and a function that executes scenarios on it."""
    try:
        rabbitmq.find()
    except EnvironmentProblem as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("rabbitmq")
    path = folder / "amqp-cut-reorders.yaml"
    path.write_text(resolved(find("amqp-cut-reorders")).replace(*ON_RABBITMQ))
    with Owner() as owner:
        yield owner, executor_on(start_services(services.fetched(load(path)), owner, folder), folder)


@pytest.fixture(scope="module")
def on_rabbitmq(rabbit: tuple[Owner, Execute]) -> Execute:
    return rabbit[1]


def test_the_evidence_names_the_frame_and_the_consumer_that_lived(run_once: RunOnce) -> None:
    (lost,) = run_once("amqp-ack-lost-transactional").verdict.faults
    assert lost.evidence[0] == "c1 sent the basic.ack of message 3 once; none of them reached the broker"
    (cut,) = run_once("amqp-cut-reorders").verdict.faults
    assert cut.evidence == (
        "c2 took message 3 from orders at tick 2 and lost its connection after take",
        "c1 had taken message 4 from orders at tick 3",
        "the broker gave it to c2 at tick 4, marked as redelivered",
        "c2 lived, and its next step, at tick 4, failed because its connection was gone",
    )


def test_without_the_cut_the_same_schedule_is_in_order(execute: Execute) -> None:
    fault = "  - {fault: cut, target: c2, at: {message: 3, while: {consumer: c1, holds: 4}}}\n"
    verdict, ids = execute("amqp-cut-reorders", (f"chaos:\n{fault}", ""))
    assert verdict.outcome is Outcome.HELD and ids == [1, 2, 3, 4, 5], verdict.reasons


LOSSES = [
    ("with-effect", "after: acknowledge}", {}, [1, 2, 3, 4], "none of them reached the broker"),
    ("with-effect", "after: acknowledge}, lost: answer", {}, [1, 2, 3, 4], "did not give message 3 out again"),
    ("before-effect", "after: take}", {}, [1, 2, 3, 4], "the broker gave it to c1"),
]
CUTS = [
    ("after-effect", "effect", {"duplicate": 1}, [1, 2, 3, 3, 4]),
    ("before-effect", "acknowledge", {"lost-write": 1}, [1, 2, 4]),
    ("with-effect", "effect", {}, [1, 2, 3, 4]),
    ("with-effect", "acknowledge", {}, [1, 2, 3, 4]),
]


def lost(execute: Execute, acknowledge: str, at: str) -> tuple[Verdict, list[int]]:
    names = "names: [c1]"
    mine = (names, f"{names}, acknowledge: {acknowledge}")
    return execute("amqp-ack-lost-duplicates", mine, ("after: effect}", at))


def cut(execute: Execute, acknowledge: str, after: str) -> tuple[Verdict, list[int]]:
    names, fault = "names: [c1]", "{fault: lost-ack, target: c1, at: {message: 3, after: effect}}"
    mine = (names, f"{names}, acknowledge: {acknowledge}")
    return execute("amqp-ack-lost-duplicates", mine, (fault, fault.replace("lost-ack", "cut").replace("effect", after)))


@pytest.mark.parametrize(("acknowledge", "at", "anomalies", "ids", "text"), LOSSES)
def test_the_outcome_of_a_lost_request_and_of_a_lost_answer(
    execute: Execute, acknowledge: str, at: str, anomalies: dict[str, int], ids: list[int], text: str
) -> None:
    verdict, found = lost(execute, acknowledge, at)
    assert (verdict.anomalies(), found) == (anomalies, ids), verdict.reasons
    (fault,) = verdict.faults
    assert fault.hit and text in " ".join(fault.evidence), fault.evidence


@pytest.mark.parametrize(("acknowledge", "after", "anomalies", "ids"), CUTS)
def test_a_cut_has_the_same_outcome_as_a_crash(
    execute: Execute, acknowledge: str, after: str, anomalies: dict[str, int], ids: list[int]
) -> None:
    verdict, found = cut(execute, acknowledge, after)
    assert (verdict.anomalies(), found) == (anomalies, ids), verdict.reasons
    assert verdict.faults[0].hit, verdict.faults[0].evidence


def test_a_consumer_that_connects_again_without_its_mark_is_refused(execute: Execute, tmp_path: Path) -> None:
    """The mark is how its next death would be noticed."""
    (tmp_path / "forgetful.py").write_text(
        "import os\n"
        "from onceproof.consumers import worker\n"
        "from onceproof.consumers.clients import amqp as amqp_client\n"
        "again = amqp_client.Channels.reopen\n"
        "def reopen(self):\n"
        "    if self._broken:\n"
        "        os.environ['ONCEPROOF_MARK'] = 'other'\n"
        "    again(self)\n"
        "amqp_client.Channels.reopen = reopen\n"
        "worker.main()\n"
    )
    command = f'pipeline:\n  command: ["{{python}}", "{tmp_path / "forgetful.py"}"]'
    with pytest.raises(EnvironmentProblem, match="consumer c2 took over a new connection without its mark"):
        execute("amqp-cut-reorders", ("pipeline:", command))


def test_rabbitmq_gives_the_same_order_each_time(on_rabbitmq: Execute) -> None:
    for _ in range(3):
        verdict, ids = on_rabbitmq("amqp-redelivery-reorders", ON_RABBITMQ)
        assert verdict.anomalies() == {"reordered": 1} and ids == [1, 2, 4, 3, 5]
        assert "marked as redelivered" in verdict.faults[0].evidence[-1]


@pytest.mark.parametrize(("naive", "remedy", "anomaly"), ON_AMQP)
def test_on_rabbitmq_the_naive_pipeline_is_violated_and_its_remedy_holds(
    on_rabbitmq: Execute, naive: str, remedy: str, anomaly: str
) -> None:
    bad, _ = on_rabbitmq(naive, ON_RABBITMQ)
    good, _ = on_rabbitmq(remedy, ON_RABBITMQ)
    assert bad.anomalies() == {anomaly: 1} and good.outcome is Outcome.HELD, (bad.reasons, good.reasons)
    assert [fault.hit for fault in (*bad.faults, *good.faults)] == [True, True]


def test_on_rabbitmq_nothing_is_redelivered_after_a_lost_answer_to_a_commit(on_rabbitmq: Execute) -> None:
    names = "names: [c1]"
    mine = (names, f"{names}, acknowledge: with-effect")
    verdict, ids = on_rabbitmq(
        "amqp-ack-lost-duplicates", ON_RABBITMQ, mine, ("after: effect}", "after: acknowledge}, lost: answer")
    )
    assert (verdict.anomalies(), ids) == ({}, [1, 2, 3, 4]) and verdict.faults[0].hit, verdict.reasons


def test_rabbitmq_and_its_port_mapper_listen_on_loopback(rabbit: tuple[Owner, Execute]) -> None:
    heard = {
        service.name: {
            connection.laddr
            for process in service.members()
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        for service in rabbit[0].services()
        if service.name in ("amqp", "epmd")
    }
    assert len({at.port for at in heard["amqp"]}) == 2, "one port for clients, one for nodes"
    assert len({at.port for at in heard["epmd"]}) == 1
    assert {at.ip for each in heard.values() for at in each} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def publish_to_no_queue(execute: Execute, folder: Path, acknowledge: str, *changes: tuple[str, str]) -> None:
    """The broker drops a message that has no queue: that is an error of the harness, not a loss by the pipeline."""
    (folder / "elsewhere.py").write_text(
        "import os\nfrom onceproof.consumers import worker\nos.environ['ONCEPROOF_OUTPUT'] = 'a/b'\nworker.main()\n"
    )
    command = f'pipeline:\n  command: ["{{python}}", "{folder / "elsewhere.py"}"]'
    order = ("names: [c1, c2]", f"names: [c1, c2]\n    acknowledge: {acknowledge}")
    with pytest.raises(EnvironmentProblem, match=r"the broker gave back message m\d, .* it has no queue for it"):
        execute("amqp-redelivery-reorders", *changes, ("pipeline:", command), order)


@pytest.mark.parametrize("acknowledge", ["after-effect", "with-effect"])
def test_a_message_that_the_broker_returns_is_an_error_of_the_harness(
    execute: Execute, tmp_path: Path, acknowledge: str
) -> None:
    publish_to_no_queue(execute, tmp_path, acknowledge)


@pytest.mark.parametrize("acknowledge", ["after-effect", "with-effect"])
def test_on_rabbitmq_a_returned_message_is_an_error_of_the_harness(
    on_rabbitmq: Execute, tmp_path: Path, acknowledge: str
) -> None:
    """RabbitMQ returns the message before it answers the commit; Qpid ends the connection."""
    publish_to_no_queue(on_rabbitmq, tmp_path, acknowledge, ON_RABBITMQ)


@pytest.mark.parametrize("name", ["a:b", "a b", "ü.☃", "#", "q" * 200, "..", "x\\y", "%2F"])
def test_every_queue_name_that_validate_accepts_can_be_published_to(execute: Execute, name: str) -> None:
    verdict, ids = execute("amqp-queue-per-consumer", ("topic: processed", f"topic: {json.dumps(name)}"))
    assert verdict.outcome is Outcome.HELD and len(ids) == 5
