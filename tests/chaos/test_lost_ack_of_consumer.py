"""The lost acknowledgement of a consumer: when it is refused beforehand, and what proves that it hit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.chaos.consumers.lost_ack import LostAck, LostAckSpec
from onceproof.consumers.faults import StepDone
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.faults.contract import Proof
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Hit
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.plan import plan
from onceproof.scenario_files.shipped import find


def proof_of(fault: Any, before: list[TraceEvent], after: list[TraceEvent]) -> Proof:
    """The fault's proof from a trace in which it struck after ``before``."""
    proof: Proof = fault.prove(None, StepDone([*before, *after], len(before)))
    return proof


TEXT = resolved(find("ack-lost-duplicates"))
SPEC = LostAckSpec.model_validate({"fault": "lost-ack", "target": "c1", "at": {"message": 3, "after": "effect"}})


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("after: effect", "after: take", r"after take no acknowledgement comes next.*\n.*use effect"),
        ("names: [c1]", "names: [c1], acknowledge: before-effect", r"with acknowledge: before-effect\n.*use take"),
        ("broker: kafka-group", "broker: share-group", r"these consumers use share-group\n.*use crash after effect"),
        ("after: effect}", "after: effect}, lost: answer", r"only the answer to an AMQP commit.*\n.*use lost: request"),
        (
            "broker: kafka-group",
            "broker: amqp, acknowledge: before-effect",
            r"no acknowledgement comes next.*\n.*use take",
        ),
        ("message: 3,", "message: 5,", r"there is no message 5: they are numbered from 1 to 4"),
        ("target: c1", "target: c2", r"there is no consumer 'c2'"),
    ],
)
def test_a_lost_ack_that_cannot_work_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in TEXT
    path = tmp_path / "ack-lost-duplicates.yaml"
    path.write_text(TEXT.replace(old, new).replace("pipeline:", "stack: {amqp: {}}\n\npipeline:"))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert re.search(expected, str(refused.value)), str(refused.value)


def test_the_plan_names_the_instrument() -> None:
    (fault,) = plan(load(find("ack-lost-transactional"))).faults
    assert fault.placement.exactness == "exact" and "protocol proxy" in fault.placement.instrument


def trace_of(*kinds: Kind) -> list[TraceEvent]:
    return [TraceEvent(kind, 3, 0.0, "c1", 3, "orders") for kind in kinds]


def hit(**known: float) -> Hit:
    return Hit(Frame(b"", "OffsetCommit"), "client-1", "127.0.0.1:1", 0.0, **known)


def test_lost_ack_of_the_consumer_of_a_retry_topic_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "retry-topic-reorders.yaml"
    fault = "chaos:\n  - {fault: lost-ack, target: retrier, at: {message: 1, after: effect}}\n"
    path.write_text(resolved(find("retry-topic-reorders")).replace("chaos:\n", fault))
    with pytest.raises(ScenarioError, match=r"retrier takes from the retry topic.*\n.*name a consumer of the input"):
        load(path)


@pytest.mark.parametrize(
    ("hits", "after", "proved", "text"),
    [
        ([hit(), hit()], trace_of("lost", "return", "take"), True, "2 times"),
        ([], trace_of("acknowledge"), False, "no acknowledgement that could be lost"),
        ([hit(delivered_at=1.0)], trace_of("lost", "take"), False, "one was delivered"),
        ([hit()], trace_of("acknowledge"), False, "did not notice"),
        ([hit()], trace_of("lost", "return"), False, "never given out again"),
    ],
)
def test_lost_ack_hit_only_if_no_try_arrived_and_the_message_was_redelivered(
    hits: list[Hit], after: list[TraceEvent], proved: bool, text: str
) -> None:
    fault = LostAck(SPEC)
    fault._rules[0].hits.extend(hits)
    proof = proof_of(fault, trace_of("take", "effect"), after)
    assert proof.hit is proved and text in " ".join(proof.evidence)


def test_a_take_by_another_group_is_no_proof() -> None:
    fault = LostAck(SPEC)
    fault._rules[0].hits.append(hit())
    lost = [replace(event, group="billing") for event in trace_of("lost", "return")]
    other = TraceEvent("take", 4, 0.0, "c2", 3, "orders", group="shipping")
    proof = proof_of(fault, trace_of("take", "effect"), [*lost, other])
    assert not proof.hit and "never given out again" in proof.evidence[-1]
    ours = TraceEvent("take", 5, 0.0, "c1", 3, "orders", group="billing")
    assert proof_of(fault, trace_of("take", "effect"), [*lost, other, ours]).hit


def test_a_take_before_the_loss_is_no_proof() -> None:
    fault = LostAck(SPEC)
    fault._rules[0].hits.append(hit())
    assert not proof_of(fault, trace_of("take", "effect"), trace_of("take", "lost")).hit


AMQP = resolved(find("amqp-ack-lost-duplicates"))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (
            "after: take}",
            r"after take no acknowledgement comes next, with acknowledge: with-effect\n.*use effect or ack",
        ),
        ("after: effect}, lost: answer", r"after effect no commit comes next.*\n.*use acknowledge"),
    ],
)
def test_on_amqp_a_lost_ack_that_cannot_work_is_refused(tmp_path: Path, new: str, expected: str) -> None:
    path = tmp_path / "amqp-ack-lost-duplicates.yaml"
    path.write_text(AMQP.replace("names: [c1]", "names: [c1], acknowledge: with-effect").replace("after: effect}", new))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert re.search(expected, str(refused.value)), str(refused.value)


def answered(*, heard: bool) -> Hit:
    frame = Frame(b"", "tx.commit")
    # Without the answer itself: the proxy stores it only after it has cut the client off, which may be later than the proof.
    return Hit(frame, "amqp-c1", "127.0.0.1:1", 0.0, 1.0, answered_at=2.0 if heard else None)


@pytest.mark.parametrize(
    ("hits", "after", "proved", "text"),
    [
        ([answered(heard=True)], trace_of("lost"), True, "did not give message 3 out again"),
        ([answered(heard=False)], trace_of("lost"), False, "did not answer the tx.commit"),
        ([answered(heard=True)], trace_of("commit"), False, "did not notice"),
        ([answered(heard=True)], trace_of("lost", "take"), False, "but the broker gave it to c1"),
        ([], trace_of("commit"), False, "no acknowledgement that could be lost"),
    ],
)
def test_a_lost_answer_hit_only_if_the_broker_had_it(
    hits: list[Hit], after: list[TraceEvent], proved: bool, text: str
) -> None:
    fault = LostAck(SPEC.model_copy(update={"lost": "answer"}))
    fault._rules[0].hits.extend(hits)
    proof = proof_of(fault, trace_of("take", "effect", "acknowledge"), after)
    assert proof.hit is proved and text in " ".join(proof.evidence)
    assert fault.arrived() is (any(hit.answered_at for hit in hits) if hits else None)
