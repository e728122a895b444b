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
from onceproof.chaos.consumers.crash import Crash, CrashSpec
from onceproof.chaos.consumers.reject import Reject, RejectSpec
from onceproof.consumers import layout as layouts
from onceproof.consumers.brokers import kafka as kafka_broker
from onceproof.consumers.brokers.kafka import GroupQueues
from onceproof.consumers.drive import Drive
from onceproof.consumers.faults import ConsumerFaults, Scene, StepDone
from onceproof.consumers.gate import Gate
from onceproof.consumers.processes import ConsumerDied, Crew
from onceproof.consumers.trace import Move, event_kind, holder, of_event, of_run
from onceproof.data import Record, open_dataset
from onceproof.faults.contract import Proof
from onceproof.scenario.model import AtMessage, ConsumerFaultSpec, Scenario, consumers_of
from onceproof.scenario_files.load import find, load
from onceproof.stack.kafka.clients import client_config
from onceproof.stack.processes.owner import Owner


def proof_of(fault: Any, before: list[Move], after: list[Move]) -> Proof:
    """From all moves, at the place between these two."""
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

    def say(self, **said: object) -> None:
        self.socket.sendall(json.dumps(said).encode() + b"\n")


def pumped(gate: Gate) -> None:
    for _ in range(3):  # a connection, what came on it, and its end
        gate.pump(0.2)


def test_a_consumer_waits_at_its_gate_until_it_is_let_go(path: Path) -> None:
    gate = Gate(path)
    one, other = Consumer(path), Consumer(path)
    one.say(consumer="c1", before="take", did=None)
    other.say(consumer="c2", before="effect", did={"step": "take", "message": "m3", "queue": "q", "redelivered": True})
    pumped(gate)
    asked = gate.asked("c2")
    assert asked is not None and asked.before == "effect" and asked.did is not None and asked.did.redelivered
    gate.go("c2")
    assert other.socket.recv(10) == b"go\n" and gate.asked("c2") is None and gate.asked("c1") is not None
    gate.close()
    assert one.socket.recv(10) == b""


def test_what_a_dead_consumer_asked_for_is_forgotten(path: Path) -> None:
    gate = Gate(path)
    Consumer(path).say(consumer="c1", before="take", did=None)
    pumped(gate)
    gate.forget("c1")
    assert gate.asked("c1") is None
    gate.go("c1")  # nobody is there: nothing happens
    gate.close()


def test_a_gate_is_closed_twice(path: Path) -> None:
    gate = Gate(path)
    gate.close()
    gate.close()


def test_a_gate_on_a_path_too_long_says_what_to_do(path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"long.*\n.*set TMPDIR"):
        Gate(path.with_name("x" * 120))


def test_an_end_by_itself_names_its_start_and_its_step(path: Path) -> None:
    gate, command = Gate(path), [sys.executable, "-c", "raise SystemExit(3)"]
    with Owner() as owner:
        crew = Crew(
            command,
            lambda name, mark: {},
            owner=owner,
            gate=gate,
            logs=path.parent,
            cwd=path.parent,
            prefix="",
            check=lambda: None,
        )
        for start in (0, 1):
            crew.start("c1")
            with pytest.raises(ConsumerDied, match="c1 ended with exit code 3 before its first step"):
                crew.at_step("c1")
            assert crew.exits[-1] == {"consumer": "c1", "start": start, "code": 3, "killed": False}
        crew.stop()


@pytest.mark.parametrize(
    "said", [{"before": "take"}, {"consumer": "c1", "before": "sleep"}, {"consumer": "c1", "before": "take", "did": 3}]
)
def test_a_line_that_is_no_step_is_refused(path: Path, said: dict[str, object]) -> None:
    gate = Gate(path)
    consumer = Consumer(path)
    consumer.say(**said)
    with pytest.raises(EnvironmentProblem, match="which is no step"):
        pumped(gate)
    gate.close()


def take(consumer: str, message: int, tick: int, *, redelivered: bool = False) -> Move:
    return Move("take", tick, 0.0, consumer, message, "q", redelivered)


CRASH = Crash(
    CrashSpec.model_validate(
        {"fault": "crash", "target": "c2", "at": {"message": 3, "while": {"consumer": "c1", "holds": 4}}}
    )
)
BEFORE = [take("c2", 3, 2), take("c1", 4, 3)]
BACK = Move("return", 3, 0.0, "c2", 3, "q")


def test_a_crash_hit_if_the_message_was_held_and_came_again() -> None:
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
def test_a_crash_missed_if_anything_of_it_was_not_seen(before: list[Move], after: list[Move], why: str) -> None:
    proof = proof_of(CRASH, before, after)
    assert not proof.hit and why in proof.evidence[-1]


def test_an_acknowledged_message_need_not_come_again() -> None:
    spec = CrashSpec.model_validate({"fault": "crash", "target": "c2", "at": {"message": 3, "after": "acknowledge"}})
    proof = proof_of(Crash(spec), [take("c2", 3, 2), Move("acknowledge", 3, 0.0, "c2", 3, "q")], [])
    assert proof.hit and "was acknowledged by then" in proof.evidence[-1]


def test_a_crash_when_effect_and_acknowledgement_are_done_proves_nothing() -> None:
    spec = CrashSpec.model_validate({"fault": "crash", "target": "c2", "at": {"message": 3, "after": "acknowledge"}})
    done = [Move("effect", 3, 0.0, "c2", 3, "q"), Move("acknowledge", 3, 0.0, "c2", 3, "q")]
    proof = proof_of(Crash(spec), [take("c2", 3, 2), *done], [Move("crash", 3, 0.0, "c2", 3)])
    assert not proof.hit and "nothing that the fault could break" in proof.evidence[-1]


def test_what_an_ended_consumer_was_given_is_not_known() -> None:
    """The poison that ends whoever takes it again is given out again, and nobody is left to say so."""
    died = Move("end", 5, 0.0, "c1")
    seen = proof_of(CRASH, [Move("start", 0, 0.0, "c1"), *BEFORE], [BACK, died])
    assert not seen.hit and "c1 ended by itself in a take at tick 5" in seen.evidence[-1]
    assert "never" not in seen.evidence[-1]
    at_start = proof_of(CRASH, BEFORE, [Move("crash", 3, 0.0, "c2", 3), BACK, Move("end", 13, 0.0, "c2")])
    assert not at_start.hit and "was never given out again" in at_start.evidence[-1]


def test_a_position_reads_as_it_is_written() -> None:
    at = AtMessage.model_validate({"message": 3, "while": {"consumer": "c1", "holds": 4}})
    assert str(at) == "message 3 after take while c1 holds message 4"
    assert AtMessage.model_validate(at.model_dump(by_alias=True)) == at


def test_keys_are_dealt_out_to_queues_in_the_order_in_which_they_come() -> None:
    keys = [b"b", b"b", b"a", b"c", None, b"a"]
    assert layouts.keys_to_queues([Record(key, b"", 0) for key in keys], 2) == [0, 0, 1, 0, 0, 1]


def test_messages_are_numbered_from_one() -> None:
    dataset = open_dataset("messages", {"keys": ["x", "y", "z"]}, seed=0)
    assert dataset.rows() == 3
    assert [(r.key, json.loads(r.value)["id"]) for r in dataset.records(1, 3)] == [(b"y", 2), (b"z", 3)]


def test_moves_are_read_back_from_the_timeline(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "events.jsonl")
    told = [take("c2", 3, 2), Move("crash", 3, 0.0, "c2", 3), take("c1", 3, 4, redelivered=True)]
    events = [timeline.emit(event_kind(move), **move.event()) for move in told]
    timeline.emit("phase", name="judge")
    timeline.close()
    assert of_run(tmp_path) == tuple(of_event(event) for event in events)
    assert holder(of_run(tmp_path), 3) == ["c2", "c1"]
    (tmp_path / "events.jsonl").write_text("{")
    with pytest.raises(HistoryError, match="cannot be read"):
        of_run(tmp_path)


def test_a_crash_in_one_group_is_proved_by_that_group_alone() -> None:
    lost, other = replace(take("c2", 3, 2), group="g2"), replace(take("c1", 4, 3), group="g1")
    copy = replace(take("c1", 3, 4), group="g1")
    assert not proof_of(CRASH, [lost, other], [BACK, copy]).hit, "another group was given a copy of its own"
    again = replace(take("c2", 3, 9), group="g2")
    assert proof_of(CRASH, [lost, other], [BACK, copy, again]).hit


REJECT = Reject(RejectSpec.model_validate({"fault": "reject", "target": "c1", "at": {"message": 3}, "times": 2}))


def refused(message: int, tick: int) -> Move:
    return Move("refuse", tick, 0.0, "c1", message, "q")


def test_a_refusal_hit_if_the_broker_said_no_so_many_times() -> None:
    twice = [refused(3, 2), refused(4, 3), refused(3, 4), Move("effect", 5, 0.0, "c1", 3, "q")]
    proof = proof_of(REJECT, [], twice)
    assert proof.hit and proof.evidence[-1] == "it was done at tick 5 by c1"
    once = proof_of(REJECT, [], [refused(3, 2), Move("effect", 3, 0.0, "c1", 3, "q")])
    assert not once.hit
    never = proof_of(REJECT, [], [refused(3, 2), refused(3, 4)])
    assert never.hit and never.evidence[-1] == "it was never done after that"
    assert proof_of(REJECT, [], [refused(4, 2)]).evidence == ("no effect of message 3 was refused",)
    theirs = [refused(3, 2), refused(3, 4), Move("effect", 5, 0.0, "c2", 3, "q", group="another")]
    assert proof_of(REJECT, [], theirs).evidence[-1] == "it was never done after that"


@pytest.mark.parametrize(("name", "group"), [("fan-out", "shipping"), ("crash-before-offset-duplicates", "")])
def test_a_fault_is_stored_with_the_group_that_it_struck(name: str, group: str, tmp_path: Path) -> None:
    scenario = load(find(name))
    chaos = scenario.faults(ConsumerFaultSpec)
    timeline = Timeline(tmp_path / "events.jsonl")
    gone: Any = None  # nothing is played
    assert scenario.pipeline.consumers is not None
    layout = layouts.of_scenario(scenario)
    drive = Drive(scenario.pipeline.consumers, [], layout, gone, gone, [], timeline, chaos, 1.0)
    timeline.close()
    assert [row["query"] for row in drive.faults.rows()] == [group]
    assert [json.loads(line)["query"] for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [group]


def test_a_fault_that_is_in_force_when_a_run_ends_early_is_healed(tmp_path: Path) -> None:
    scenario = load(find("retry-topic-reorders"))
    timeline = Timeline(tmp_path / "events.jsonl")
    asked: list[bool] = []
    moves: list[Move] = []
    queues: Any = SimpleNamespace(refuse=lambda _output, refusing: asked.append(refusing))
    scene = Scene(cast(Any, None), queues, layouts.of_scenario(scenario))
    faults = ConsumerFaults(scenario.faults(ConsumerFaultSpec), timeline, consumers_of(scenario), scene, moves)
    (armed,) = faults.armed
    assert faults.strike(armed) and not faults.heal_if_over(armed) and faults.active == ["reject"]
    faults.heal_all()
    faults.heal_all()
    faults.settle()
    timeline.close()
    assert asked == [True, False] and faults.quiet
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
    ("partitions", "names", "dealt"),
    [
        (2, ["b", "a"], {"b": ("orders-0",), "a": ("orders-1",)}),
        (5, ["a", "b"], {"a": ("orders-0", "orders-1", "orders-2"), "b": ("orders-3", "orders-4")}),
        (1, ["a", "b"], {"a": ("orders",), "b": ()}),
    ],
)
def test_a_consumer_group_deals_out_partitions_as_its_assignor(
    partitions: int, names: list[str], dealt: dict[str, tuple[str, ...]]
) -> None:
    assert layouts.of_scenario(changed("kafka-partition-per-key", partitions, names=names)).queues_of == dealt


def test_who_takes_from_the_retry_topic_takes_from_nothing_else() -> None:
    layout = layouts.of_scenario(load(find("retry-topic-reorders")), "replay1.")
    assert layout.queues_of == {"c1": ("orders",), "retrier": ("orders-retry",)}
    assert layout.group_of == {"c1": layouts.GROUP, "retrier": layouts.GROUP}


def test_each_group_reads_all_and_writes_to_its_own_output() -> None:
    layout = layouts.of_scenario(load(find("fan-out")))
    assert set(layout.queues_of.values()) == {("orders",)}
    assert layout.output_of == {"biller": "billed", "shipper": "shipped", "auditor": "audited"}
    assert layout.groups() == ["billing", "shipping", "audit"]


def test_members_of_a_share_group_take_from_everything() -> None:
    layout = layouts.of_scenario(load(find("share-group-redelivery-reorders")))
    assert layout.queues_of == {"c1": ("orders",), "c2": ("orders",)}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> GroupQueues:
    """A consumer group whose broker is not there: a client of it, and nobody at its port."""
    monkeypatch.setattr(kafka_broker, "_ANSWER_S", 0.5)
    queues = object.__new__(GroupQueues)
    queues._layout, queues._tables = layouts.of_scenario(load(find("kafka-partition-per-key"))), None
    stack: Any = SimpleNamespace(check_health=lambda: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        queues._stack, queues.admin = stack, AdminClient(client_config(f"127.0.0.1:{taken.getsockname()[1]}"))
    return queues


def test_offsets_that_never_come_say_why(silent: GroupQueues) -> None:
    with pytest.raises(WaitTimeout, match=r"committed offsets of group consumers; last seen: .*(imed out|ransport)"):
        silent.committed(layouts.GROUP)


def test_a_broker_that_does_not_answer_is_no_crash_of_ours(silent: GroupQueues) -> None:
    with pytest.raises(EnvironmentProblem, match="Kafka does not answer: "):
        silent._meet_broker()
    with pytest.raises(EnvironmentProblem, match="Kafka does not say who is in group consumers: "):
        silent.is_there("c1", "")
