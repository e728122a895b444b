"""A consumer that is slower than its broker waits: the fault's proof, its refusals, and what other consumers may do."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onceproof.base.errors import ScenarioError
from onceproof.chaos.consumers.slow import Slow, SlowSpec
from onceproof.consumers import layout as layouts
from onceproof.consumers.brokers.kafka import GroupQueues
from onceproof.consumers.clients import kafka_group as kafka_client
from onceproof.consumers.clients.contract import AcknowledgementRefused, Client, Lost
from onceproof.consumers.faults import StepDone
from onceproof.consumers.layout import Message, assign_ranges
from onceproof.consumers.slow_consumers import SlowConsumers
from onceproof.consumers.state import ConsumerState
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.consumers.worker import Worker
from onceproof.faults.contract import Proof
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.shipped import find


def proof_of(fault: Any, before: list[TraceEvent], after: list[TraceEvent]) -> Proof:
    """The fault's proof from a trace in which it struck after ``before``."""
    proof: Proof = fault.prove(None, StepDone([*before, *after], len(before)))
    return proof


SLOW = Slow(SlowSpec.model_validate({"fault": "slow", "target": "c2", "at": {"message": 3}}))


def event(
    kind: Kind, consumer: str, tick: int, message: int = 3, *, redelivered: bool = False, group: str = ""
) -> TraceEvent:
    return TraceEvent(kind, tick, 0.0, consumer, message, "q", redelivered, group)


TAKEN = [event("take", "c2", 2)]
GIVEN = [event("lapse", "c2", 3), event("take", "c1", 3, redelivered=True)]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("acknowledge", "answered its late acknowledgement without an error"),
        ("fenced", "refused its late acknowledgement: the message belonged to another consumer"),
    ],
)
def test_slow_hit_if_two_consumers_had_the_message_and_both_finished(answer: Kind, text: str) -> None:
    proof = proof_of(SLOW, TAKEN, [*GIVEN, event("effect", "c2", 4), event(answer, "c2", 4)])
    assert proof.hit and text in proof.evidence[-1]
    assert "for the second time to c1 at tick 3, while c2 lived and had it" in proof.evidence[1]


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ([], "to no other consumer meanwhile"),
        ([event("take", "c2", 3)], "to no other consumer meanwhile"),
        ([event("take", "c1", 3, group="another")], "to no other consumer meanwhile"),
        (GIVEN, "acknowledgement was not seen"),
        ([*GIVEN, event("effect", "c2", 4)], "acknowledgement was not seen"),
        ([*GIVEN, event("effect", "c2", 4), event("lost", "c2", 4)], "got no answer from the broker"),
        ([*GIVEN, event("lost", "c2", 4), event("take", "c2", 5), event("acknowledge", "c2", 6)], "got no answer"),
    ],
)
def test_slow_missed_if_any_part_of_its_proof_was_not_seen(after: list[TraceEvent], why: str) -> None:
    proof = proof_of(SLOW, TAKEN, after)
    assert not proof.hit and why in proof.evidence[-1]


def test_an_acknowledgement_refused_before_the_effect_is_proof_as_well() -> None:
    proof = proof_of(SLOW, TAKEN, [*GIVEN, event("fenced", "c2", 4)])
    assert proof.hit and "c2 went on and did not write its effect" in proof.evidence


def test_slow_is_over_when_another_consumer_was_given_the_message() -> None:
    assert not SLOW.is_over([event("effect", "c1", 2, message=2)])
    assert SLOW.is_over(GIVEN)


def refusal(name: str, changes: dict[str, str], tmp_path: Path) -> str:
    text = resolved(find(name))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as refused:
        load(path)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("slow-member-duplicates", {", static: false": ""}, r"c2 is a static member.*\n.*static: false"),
        ("slow-member-duplicates", {"names: [c1, c2]": "names: [c2]"}, r"c2 is alone: .* message 3"),
        ("slow-member-duplicates", {"{message: 3}": "{message: 3, after: effect}"}, r"slow at its work.*\n.*use take"),
        ("share-group-lock-timeout-duplicates", {"chaos:\n": "chaos:\n  - {fault: crash, target: c2, at: {message: 3, after: effect}}\n"}, r"crash strikes c2 over message 3 as well.*\n.*another message"),
        ("slow-member-duplicates", {"fault: slow": "fault: lost-ack", "{message: 3}": "{message: 3, after: effect}"}, r"lost-ack is not supported yet for members that are not static"),
        ("slow-member-duplicates", {"kafka-group": "share-group", "partitions: 2": "partitions: 1"}, r"static applies to members.*share-group"),
        ("slow-member-duplicates", {"static: false": "static: false, on_refusal: release"}, r"static: false is supported only for one consumer group"),
        ("amqp-redelivery-reorders", {"fault: crash": "fault: slow"}, r"waits for a consumer as long as its connection lives"),
        ("position-with-row", {"names: [c1]": "names: [c1], static: false"}, r"positions in Postgres do not follow the group"),
    ],
)  # fmt: skip
def test_a_slow_fault_that_cannot_work_is_refused_with_a_hint(
    name: str, changes: dict[str, str], expected: str, tmp_path: Path
) -> None:
    text = refusal(name, changes, tmp_path)
    assert re.search(expected, text), text


@pytest.mark.parametrize("name", ["share-group-lock-timeout", "slow-member"])
def test_the_twins_differ_only_in_the_remedy(name: str) -> None:
    naive = load(find(f"{name}-duplicates"))
    remedy = load(find(f"{name}-{'idempotent' if name.startswith('share') else 'transactional'}"))
    assert (naive.chaos, naive.input, naive.oracle, naive.claim) == (
        remedy.chaos,
        remedy.input,
        remedy.oracle,
        remedy.claim,
    )
    one, other = naive.pipeline.consumers, remedy.pipeline.consumers
    assert one is not None and other is not None
    if name == "slow-member":
        assert other.model_copy(update={"acknowledge": one.acknowledge}) == one and one != other
    else:
        assert one == other
        assert naive.pipeline.prepare.sql == remedy.pipeline.prepare.sql.replace(" PRIMARY KEY", "")


def test_only_the_slow_consumer_has_a_short_poll_interval() -> None:
    layout = layouts.of_scenario(load(find("slow-member-duplicates")))
    assert not layout.static and layout.outlasted == {"c2"}
    queues = object.__new__(GroupQueues)
    queues._layout, queues._tables = layout, None
    stack: Any = SimpleNamespace(kafka=SimpleNamespace(client_bootstrap="127.0.0.1:1"))
    queues._stack = stack
    given = {name: queues.environment(name, "mark") for name in ("c1", "c2")}
    assert {name: env["ONCEPROOF_POLL_INTERVAL_MS"] for name, env in given.items()} == {"c1": "600000", "c2": "1000"}
    assert [env["ONCEPROOF_MARK"] for env in given.values()] == ["000-c1", "001-c2"], (
        "the assignor orders members by these names"
    )
    assert not any("ONCEPROOF_MEMBER" in env for env in given.values())


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (KafkaError.UNKNOWN_MEMBER_ID, {"lost": True, "fenced": True}),
        (KafkaError.ILLEGAL_GENERATION, {"lost": True, "fenced": True}),
        (KafkaError._TIMED_OUT, {"lost": True}),
    ],
)
def test_a_refused_acknowledgement_is_reported_differently_from_a_lost_one(code: int, fields: dict[str, bool]) -> None:
    failed = kafka_client.as_lost(KafkaException(KafkaError(code)))
    assert isinstance(failed, AcknowledgementRefused) is ("fenced" in fields) and isinstance(failed, Lost)

    class MessageSource:
        def acknowledge(self, _taken: object) -> None:
            raise failed

    source: Any = MessageSource()
    effect: Any = None
    taken: Any = SimpleNamespace(message="m3")
    did = Worker(Client(source, effect), "after-effect", "again").do("acknowledge", taken)
    assert did == {"step": "acknowledge", "message": "m3", **fields}


class FakeGroup:
    """Queues that a broker assigns like the range assignor, and the members that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def await_rebalance(self, members: list[str]) -> dict[str, tuple[str, ...]]:
        self.asked.append(list(members))
        return assign_ranges(("q0", "q1"), members)


def test_no_member_takes_during_the_rebalances_when_a_slow_member_leaves_and_returns() -> None:
    one, slow, group = (
        ConsumerState("c1", "g", ("q0",)),
        ConsumerState("c2", "g", ("q1",), holds=Message(3, "q1")),
        FakeGroup(),
    )
    queues: Any = group
    slow_consumers = SlowConsumers([one, slow], queues)
    assert slow_consumers.may_take(one) and not slow_consumers.any_held and not slow_consumers.rebalance_due
    slow_consumers.hold(slow)
    assert slow_consumers.any_held and slow_consumers.rebalance_due and not slow_consumers.may_take(one)
    one.holds = Message(2, "q0")
    slow_consumers.rebalance()
    assert group.asked == [], "a member that has a message does not poll"
    one.holds = None
    slow_consumers.rebalance()
    assert (group.asked, one.queues, slow.queues) == ([["c1"]], ("q0", "q1"), ()) and slow_consumers.may_take(one)
    assert (
        slow_consumers.slow_holder("g", Message(3, "q1")) is slow
        and slow_consumers.slow_holder("g", Message(4, "q1")) is None
    )
    slow.held_back, slow.holds = False, None
    slow_consumers.finished(slow)
    assert not slow_consumers.may_take(one), "it joins again and gets its partition back"
    slow_consumers.rebalance()
    assert (one.queues, slow.queues, group.asked[-1]) == (("q0",), ("q1",), ["c1", "c2"])


def test_in_a_share_group_any_free_member_takes_the_message_of_the_slow_one() -> None:
    one, slow = ConsumerState("c1", "g", ("q",)), ConsumerState("c2", "g", ("q",), holds=Message(3, "q"))
    queues: Any = object()
    slow_consumers = SlowConsumers([one, slow], queues)
    slow_consumers.hold(slow)
    assert slow_consumers.any_held and slow_consumers.may_take(one) and not slow_consumers.rebalance_due
