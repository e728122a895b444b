"""The parts of a run of consumers that need no broker: the gate, the proof of a crash, queues by key, the data set."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient

from onceproof.base.errors import EnvironmentProblem, HistoryError, WaitTimeout
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.chaos.consumers.crash import Crash, CrashSpec
from onceproof.chaos.consumers.reject import Reject, RejectSpec
from onceproof.consumers import layout as layouts
from onceproof.consumers.brokers import kafka as kafka_broker
from onceproof.consumers.brokers.kafka import GroupQueues
from onceproof.consumers.executor import ScheduleExecutor
from onceproof.consumers.faults import ConsumerFaultContext, ConsumerFaults, StepDone
from onceproof.consumers.gate import Gate
from onceproof.consumers.processes import ConsumerDied, ConsumerProcesses
from onceproof.consumers.trace import TraceEvent, from_timeline, holders, read_trace
from onceproof.data import Record, open_dataset
from onceproof.faults.contract import Proof
from onceproof.scenario.model import AtMessage, ConsumerFaultSpec, Scenario, consumers_of
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from onceproof.stack.kafka.clients import client_config
from onceproof.stack.processes.owner import Owner


def proof_of(fault: Any, before: list[TraceEvent], after: list[TraceEvent]) -> Proof:
    """The fault's proof from a trace in which it struck after ``before``."""
    proof: Proof = fault.prove(None, StepDone([*before, *after], len(before)))
    return proof


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's address is short
        yield Path(folder) / "gate"


class Consumer:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(5)
        self.socket.connect(str(path))

    def send(self, **line: object) -> None:
        self.socket.sendall(json.dumps(line).encode() + b"\n")


def pumped(gate: Gate) -> None:
    for _ in range(3):  # a connection, what came on it, and its end
        gate.pump(0.2)


def test_a_consumer_waits_at_its_gate_until_its_step_is_granted(path: Path) -> None:
    gate = Gate(path)
    one, other = Consumer(path), Consumer(path)
    one.send(consumer="c1", before="take", did=None)
    other.send(consumer="c2", before="effect", did={"step": "take", "message": "m3", "queue": "q", "redelivered": True})
    pumped(gate)
    request_of = gate.request_of("c2")
    assert (
        request_of is not None
        and request_of.before == "effect"
        and request_of.did is not None
        and request_of.did.redelivered
    )
    gate.grant("c2")
    assert other.socket.recv(10) == b"go\n" and gate.request_of("c2") is None and gate.request_of("c1") is not None
    gate.close()
    assert one.socket.recv(10) == b""


def test_the_request_of_a_dead_consumer_is_forgotten(path: Path) -> None:
    gate = Gate(path)
    Consumer(path).send(consumer="c1", before="take", did=None)
    pumped(gate)
    gate.forget("c1")
    assert gate.request_of("c1") is None
    gate.grant("c1")  # its connection is gone: nothing happens
    gate.close()


def test_closing_a_gate_twice_is_harmless(path: Path) -> None:
    gate = Gate(path)
    gate.close()
    gate.close()


def test_a_gate_on_a_path_too_long_says_what_to_do(path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"long.*\n.*set TMPDIR"):
        Gate(path.with_name("x" * 120))


def started_by(owner: Owner, gate: Gate, folder: Path, code: str) -> ConsumerProcesses:
    """Consumers that run ``code``; each finds its name in ``NAME``."""
    return ConsumerProcesses(
        [sys.executable, "-c", code],
        lambda name, mark: {"NAME": name},
        owner=owner,
        gate=gate,
        logs=folder,
        cwd=folder,
        prefix="",
        check=lambda: None,
    )


def test_a_consumer_that_ends_by_itself_is_reported_with_its_start_and_step(path: Path) -> None:
    gate = Gate(path)
    with Owner() as owner:
        processes = started_by(owner, gate, path.parent, "raise SystemExit(3)")
        for start in (0, 1):
            processes.start("c1")
            with pytest.raises(ConsumerDied, match="c1 ended with exit code 3 before its first step"):
                processes.await_step("c1")
            assert processes.exits[-1] == {"consumer": "c1", "start": start, "code": 3, "killed": False}
        processes.stop()


def test_a_consumer_that_ended_is_noticed_while_another_is_awaited(path: Path) -> None:
    """A consumer that was killed does not count: the schedule restarts it."""
    gate = Gate(path)
    code = "import os, time; exit(3) if os.environ['NAME'] == 'c2' else time.sleep(60)"
    with Owner() as owner:
        processes = started_by(owner, gate, path.parent, code)
        processes.start("c1")
        processes.start("c3")
        processes.kill("c3")
        processes.check_running()
        processes.start("c2")
        wait_until("c2 to end", lambda: not processes.is_alive("c2"), deadline_s=30)
        with pytest.raises(ConsumerDied, match="c2 ended with exit code 3 before its first step"):
            processes.check_running()
        assert [consumer["consumer"] for consumer in processes.exits] == ["c3", "c2"]
        Consumer(path).send(consumer="c2", before="take", did=None)
        pumped(gate)
        with pytest.raises(ConsumerDied, match="c2 ended with exit code 3 while it was held before a step"):
            processes.check_running()
        processes.stop()


@pytest.mark.parametrize(
    "line", [{"before": "take"}, {"consumer": "c1", "before": "sleep"}, {"consumer": "c1", "before": "take", "did": 3}]
)
def test_a_line_that_is_not_a_valid_step_is_refused(path: Path, line: dict[str, object]) -> None:
    gate = Gate(path)
    consumer = Consumer(path)
    consumer.send(**line)
    with pytest.raises(EnvironmentProblem, match="which is not a valid step"):
        pumped(gate)
    gate.close()


def take(consumer: str, message: int, tick: int, *, redelivered: bool = False) -> TraceEvent:
    return TraceEvent("take", tick, 0.0, consumer, message, "q", redelivered)


CRASH = Crash(
    CrashSpec.model_validate(
        {"fault": "crash", "target": "c2", "at": {"message": 3, "while": {"consumer": "c1", "holds": 4}}}
    )
)
BEFORE = [take("c2", 3, 2), take("c1", 4, 3)]
BACK = TraceEvent("return", 3, 0.0, "c2", 3, "q")


def test_a_crash_hit_if_the_message_was_held_and_given_out_again() -> None:
    proof = proof_of(CRASH, BEFORE, [BACK, take("c1", 3, 4, redelivered=True)])
    assert proof.hit and proof.evidence[-1].endswith("at tick 4, marked as redelivered")
    unmarked = proof_of(CRASH, BEFORE, [BACK, take("c1", 3, 4)])
    assert unmarked.hit and unmarked.evidence[-1].endswith("without the mark of a redelivery")


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (BEFORE, [BACK], "was never given out again"),
        ([take("c2", 3, 2), take("c1", 5, 3)], [take("c1", 3, 4, redelivered=True)], "c1 did not hold message 4"),
        ([take("c2", 2, 2), take("c1", 4, 3)], [], "c2 did not hold message 3"),
    ],
)
def test_a_crash_missed_if_any_part_of_its_proof_was_not_seen(
    before: list[TraceEvent], after: list[TraceEvent], why: str
) -> None:
    proof = proof_of(CRASH, before, after)
    assert not proof.hit and why in proof.evidence[-1]


def test_an_acknowledged_message_need_not_be_given_out_again() -> None:
    spec = CrashSpec.model_validate({"fault": "crash", "target": "c2", "at": {"message": 3, "after": "acknowledge"}})
    proof = proof_of(Crash(spec), [take("c2", 3, 2), TraceEvent("acknowledge", 3, 0.0, "c2", 3, "q")], [])
    assert proof.hit and "had been acknowledged" in proof.evidence[-1]


def test_a_crash_after_effect_and_acknowledgement_proves_nothing() -> None:
    spec = CrashSpec.model_validate({"fault": "crash", "target": "c2", "at": {"message": 3, "after": "acknowledge"}})
    done = [TraceEvent("effect", 3, 0.0, "c2", 3, "q"), TraceEvent("acknowledge", 3, 0.0, "c2", 3, "q")]
    proof = proof_of(Crash(spec), [take("c2", 3, 2), *done], [TraceEvent("crash", 3, 0.0, "c2", 3)])
    assert not proof.hit and "nothing left that the fault could break" in proof.evidence[-1]


def test_a_take_in_which_a_consumer_ended_is_reported_as_not_observed() -> None:
    """A poisonous message ends each consumer that takes it. It was given out again, but no consumer lived to report it."""
    died = TraceEvent("end", 5, 0.0, "c1")
    seen = proof_of(CRASH, [TraceEvent("start", 0, 0.0, "c1"), *BEFORE], [BACK, died])
    assert not seen.hit and "c1 ended by itself in a take at tick 5" in seen.evidence[-1]
    assert "never" not in seen.evidence[-1]
    at_start = proof_of(CRASH, BEFORE, [TraceEvent("crash", 3, 0.0, "c2", 3), BACK, TraceEvent("end", 13, 0.0, "c2")])
    assert not at_start.hit and "was never given out again" in at_start.evidence[-1]


def test_the_position_of_a_fault_is_readable_and_round_trips() -> None:
    at = AtMessage.model_validate({"message": 3, "while": {"consumer": "c1", "holds": 4}})
    assert str(at) == "message 3 after take while c1 holds message 4"
    assert AtMessage.model_validate(at.model_dump(by_alias=True)) == at


def test_keys_are_assigned_to_queues_in_the_order_of_their_first_record() -> None:
    keys = [b"b", b"b", b"a", b"c", None, b"a"]
    assert layouts.keys_to_queues([Record(key, b"", 0) for key in keys], 2) == [0, 0, 1, 0, 0, 1]


def test_messages_are_numbered_from_one() -> None:
    dataset = open_dataset("messages", {"keys": ["x", "y", "z"]}, seed=0)
    assert dataset.rows() == 3
    assert [(r.key, json.loads(r.value)["id"]) for r in dataset.records(1, 3)] == [(b"y", 2), (b"z", 3)]


def test_the_trace_is_read_back_from_the_timeline(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "events.jsonl")
    written = [take("c2", 3, 2), TraceEvent("crash", 3, 0.0, "c2", 3), take("c1", 3, 4, redelivered=True)]
    events = [timeline.emit(event.timeline_kind, **event.timeline_data()) for event in written]
    timeline.emit("phase", name="judge")
    timeline.close()
    assert read_trace(tmp_path) == tuple(from_timeline(event) for event in events)
    assert holders(read_trace(tmp_path), 3) == ["c2", "c1"]
    (tmp_path / "events.jsonl").write_text("{")
    with pytest.raises(HistoryError, match="cannot be read"):
        read_trace(tmp_path)


def test_a_crash_in_one_group_is_proved_by_takes_of_that_group_only() -> None:
    lost, other = replace(take("c2", 3, 2), group="g2"), replace(take("c1", 4, 3), group="g1")
    copy = replace(take("c1", 3, 4), group="g1")
    assert not proof_of(CRASH, [lost, other], [BACK, copy]).hit, "another group was given its own copy"
    again = replace(take("c2", 3, 9), group="g2")
    assert proof_of(CRASH, [lost, other], [BACK, copy, again]).hit


REJECT = Reject(RejectSpec.model_validate({"fault": "reject", "target": "c1", "at": {"message": 3}, "times": 2}))


def refused(message: int, tick: int) -> TraceEvent:
    return TraceEvent("refuse", tick, 0.0, "c1", message, "q")


def test_a_reject_hit_if_the_broker_refused_the_effect_as_often_as_asked() -> None:
    twice = [refused(3, 2), refused(4, 3), refused(3, 4), TraceEvent("effect", 5, 0.0, "c1", 3, "q")]
    proof = proof_of(REJECT, [], twice)
    assert proof.hit and proof.evidence[-1] == "c1 did the effect at tick 5"
    once = proof_of(REJECT, [], [refused(3, 2), TraceEvent("effect", 3, 0.0, "c1", 3, "q")])
    assert not once.hit
    never = proof_of(REJECT, [], [refused(3, 2), refused(3, 4)])
    assert never.hit and never.evidence[-1] == "the effect was never done after that"
    assert proof_of(REJECT, [], [refused(4, 2)]).evidence == ("no effect of message 3 was refused",)
    others = [refused(3, 2), refused(3, 4), TraceEvent("effect", 5, 0.0, "c2", 3, "q", group="another")]
    assert proof_of(REJECT, [], others).evidence[-1] == "the effect was never done after that"


@pytest.mark.parametrize(("name", "group"), [("fan-out", "shipping"), ("crash-before-offset-duplicates", "")])
def test_a_fault_is_stored_with_the_group_that_it_struck(name: str, group: str, tmp_path: Path) -> None:
    scenario = load(find(name))
    chaos = scenario.faults(ConsumerFaultSpec)
    timeline = Timeline(tmp_path / "events.jsonl")
    unused: Any = None  # nothing is executed
    assert scenario.pipeline.consumers is not None
    layout = layouts.of_scenario(scenario)
    executor = ScheduleExecutor(scenario.pipeline.consumers, [], layout, unused, unused, [], timeline, chaos, 1.0)
    timeline.close()
    assert [row["query"] for row in executor.faults.rows()] == [group]
    assert [json.loads(line)["query"] for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [group]


def test_a_fault_that_is_in_force_when_a_run_ends_early_is_healed(tmp_path: Path) -> None:
    scenario = load(find("retry-topic-reorders"))
    timeline = Timeline(tmp_path / "events.jsonl")
    refusals: list[bool] = []
    trace: list[TraceEvent] = []
    queues: Any = SimpleNamespace(refuse=lambda _output, refusing: refusals.append(refusing))
    context = ConsumerFaultContext(cast(Any, None), queues, layouts.of_scenario(scenario))
    faults = ConsumerFaults(scenario.faults(ConsumerFaultSpec), timeline, consumers_of(scenario), context, trace)
    (armed,) = faults.armed
    assert faults.strike(armed) and not faults.heal_if_over(armed) and faults.active == ["reject"]
    faults.heal_all()
    faults.heal_all()
    faults.settle()
    timeline.close()
    assert refusals == [True, False] and faults.quiet
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert kinds == ["fault.armed", "fault.fired", "fault.healed", "fault.missed"]
    (row,) = faults.rows()
    assert row["healed_at"] >= row["fired_at"] >= row["armed_at"] and row["batch"] is None and not row["hit"]


def changed(name: str, partitions: int, **consumers: object) -> Scenario:
    document = load(find(name)).model_dump(mode="json", by_alias=True)
    document["input"][0]["partitions"] = partitions
    document["pipeline"]["consumers"] |= consumers
    return Scenario.model_validate({**document, "chaos": [], "oracle": {"kind": "sql", "queries": {}}})


@pytest.mark.parametrize(
    ("partitions", "names", "assigned"),
    [
        (2, ["b", "a"], {"b": ("orders-0",), "a": ("orders-1",)}),
        (5, ["a", "b"], {"a": ("orders-0", "orders-1", "orders-2"), "b": ("orders-3", "orders-4")}),
        (1, ["a", "b"], {"a": ("orders",), "b": ()}),
    ],
)
def test_partitions_are_assigned_as_by_kafkas_range_assignor(
    partitions: int, names: list[str], assigned: dict[str, tuple[str, ...]]
) -> None:
    assert layouts.of_scenario(changed("kafka-partition-per-key", partitions, names=names)).queues_of == assigned


def test_the_consumer_of_the_retry_topic_takes_from_nothing_else() -> None:
    layout = layouts.of_scenario(load(find("retry-topic-reorders")), "replay1.")
    assert layout.queues_of == {"c1": ("orders",), "retrier": ("orders-retry",)}
    assert layout.group_of == {"c1": layouts.GROUP, "retrier": layouts.GROUP}


def test_each_group_reads_all_messages_and_writes_to_its_own_output() -> None:
    layout = layouts.of_scenario(load(find("fan-out")))
    assert set(layout.queues_of.values()) == {("orders",)}
    assert layout.output_of == {"biller": "billed", "shipper": "shipped", "auditor": "audited"}
    assert layout.groups() == ["billing", "shipping", "audit"]


def test_members_of_a_share_group_take_from_all_queues() -> None:
    layout = layouts.of_scenario(load(find("share-group-redelivery-reorders")))
    assert layout.queues_of == {"c1": ("orders",), "c2": ("orders",)}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> GroupQueues:
    """The queues of a consumer group whose broker is gone: a client, and nothing that listens at its port."""
    monkeypatch.setattr(kafka_broker, "_ANSWER_S", 0.5)
    queues = object.__new__(GroupQueues)
    queues._layout, queues._tables = layouts.of_scenario(load(find("kafka-partition-per-key"))), None
    queues._partitions, queues._past, queues._queues_of = len(queues._layout.inputs), 0, dict(queues._layout.queues_of)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    kafka = SimpleNamespace(harness_bootstrap=address, brokers=[1], harness_address=lambda _broker: address)
    stack: Any = SimpleNamespace(check_health=lambda: None, kafka=kafka)
    queues._stack, queues.admin = stack, AdminClient(client_config(address))
    return queues


def test_waiting_in_vain_for_committed_offsets_reports_why(silent: GroupQueues) -> None:
    with pytest.raises(WaitTimeout, match=r"committed offsets of group consumers; last seen: .*(imed out|ransport)"):
        silent.committed(layouts.GROUP)


def test_a_broker_that_does_not_answer_is_reported_as_an_environment_problem(silent: GroupQueues) -> None:
    with pytest.raises(EnvironmentProblem, match="Kafka does not answer: "):
        silent._meet_broker()
    with pytest.raises(EnvironmentProblem, match="Kafka did not answer a request about group consumers within "):
        silent.is_connected("c1", "", lambda: None)
