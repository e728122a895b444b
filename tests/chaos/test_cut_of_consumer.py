"""The cut connection of a consumer: when it is refused beforehand, and what proves that it hit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.chaos.consumers.cut import Cut, CutSpec
from onceproof.consumers.faults import StepDone
from onceproof.consumers.routes import Disconnects
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Proof
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.plan import plan
from onceproof.scenario_files.shipped import find


def proof_of(fault: Any, before: list[TraceEvent], after: list[TraceEvent]) -> Proof:
    """The fault's proof from a trace in which it struck after ``before``."""
    proof: Proof = fault.prove(None, StepDone([*before, *after], len(before)))
    return proof


TEXT = resolved(find("amqp-cut-reorders"))
SPEC = CutSpec.model_validate({"fault": "cut", "target": "c2", "at": {"message": 3}})
TAKE = TraceEvent("take", 2, 0.0, "c2", 3, "orders")
CUT, BACK = TraceEvent("cut", 2, 0.0, "c2", 3), TraceEvent("return", 2, 0.0, "c2", 3, "orders")
LOST, AGAIN = TraceEvent("lost", 4, 0.0, "c2", 3, "orders"), TraceEvent("take", 4, 0.0, "c1", 3, "orders", True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"names: [c1, c2]": "broker: kafka-group\n    names: [c1, c2]"},
            r"these consumers use kafka-group.*\n.*amqp",
        ),
        (
            {"message: 3, while": "message: 3, after: acknowledge, while"},
            r"after acknowledge exercises nothing.*\n.*use",
        ),
        ({"message: 3, while": "message: 9, while"}, r"there is no message 9"),
    ],
)
def test_a_cut_that_cannot_work_is_refused(tmp_path: Path, changes: dict[str, str], expected: str) -> None:
    text = TEXT
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "amqp-cut-reorders.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert re.search(expected, str(refused.value)), str(refused.value)


def test_the_plan_names_the_instrument() -> None:
    (fault,) = plan(load(find("amqp-cut-reorders"))).faults
    assert fault.placement.exactness == "exact" and "protocol proxy" in fault.placement.instrument


def test_the_twins_differ_only_in_the_queues() -> None:
    naive, remedy = load(find("amqp-cut-reorders")), load(find("amqp-cut-queue-per-consumer"))
    assert (naive.chaos, naive.claim, naive.oracle) == (remedy.chaos, remedy.claim, remedy.oracle)
    assert naive.pipeline.consumers is not None and remedy.pipeline.consumers is not None
    assert naive.pipeline.consumers.model_copy(update={"queues": "own"}) == remedy.pipeline.consumers


@pytest.mark.parametrize(
    ("connections", "after", "proved", "text"),
    [
        (1, [CUT, BACK, LOST, AGAIN], True, "c2 lived, and its next step, at tick 4, failed"),
        (0, [CUT, BACK, LOST, AGAIN], False, "no connection that could be cut"),
        (1, [CUT, BACK, LOST], False, "message 3 was never given out again"),
        (1, [CUT, BACK, AGAIN], False, "c2 did not notice"),
        (
            1,
            [CUT, BACK, TraceEvent("end", 3, 0.0, "c2"), TraceEvent("start", 4, 0.0, "c2"), LOST, AGAIN],
            False,
            "while it lived",
        ),
    ],
)
def test_cut_hit_only_if_the_consumer_lived_and_the_message_was_redelivered(
    connections: int, after: list[TraceEvent], proved: bool, text: str
) -> None:
    fault = Cut(SPEC)
    fault._reset = connections
    proof = proof_of(fault, [TAKE], after)
    assert proof.hit is proved and text in " ".join(proof.evidence), proof.evidence
    assert isinstance(fault, Disconnects) and fault.disconnects() is (connections > 0)
