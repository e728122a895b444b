"""A slow network to the database: when it is refused beforehand, and what proves that it hit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.chaos.consumers.bandwidth import Bandwidth, BandwidthSpec
from onceproof.consumers.faults import StepDone
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.faults.contract import Proof
from onceproof.run import Result
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.plan import plan
from onceproof.scenario_files.shipped import find

from ..gate import assert_as_expected

NAIVE = "slow-network-duplicates"
REMEDY = "slow-network-idempotent"
SPEC = BandwidthSpec.model_validate({"fault": "bandwidth", "target": "c1", "kb_per_s": 25, "at": {"message": 3}})


def event(kind: Kind, *, of: str = "c1") -> TraceEvent:
    return TraceEvent(kind, 5, 0.0, of, 3, "orders")


def slow(before_ms: float, during_ms: float, took_ms: float | None) -> Bandwidth:
    fault = Bandwidth(SPEC)
    fault._before_ms, fault._during_ms, fault._took_ms = before_ms, during_ms, took_ms
    return fault


def proof_of(fault: Any, *after: TraceEvent) -> Proof:
    proof: Proof = fault.prove(None, StepDone([*after], 0))
    return proof


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("kb_per_s: 25", "kb_per_s: 1", r"kb_per_s"),
        ("message: 3", "message: 3, after: effect", r"while c1 writes the effect of message 3\n.*use take"),
    ],
)
def test_one_that_cannot_work_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = resolved(find(NAIVE))
    assert old in text
    path = tmp_path / "changed.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert re.search(expected, str(refused.value)), refused.value


def test_the_plan_says_what_will_prove_it() -> None:
    (row,) = plan(load(find(NAIVE))).faults
    assert "a statement of 12 KB" in row.placement.proof


def test_the_network_was_slow_if_a_large_statement_and_the_effect_took_as_long_as_they_need() -> None:
    proof = proof_of(slow(2, 504, 3100), event("effect"))
    assert proof.hit and proof.evidence == (
        "a statement of 12 KB took 2 ms before, and 504 ms meanwhile",
        "the effect of message 3 took 3100 ms from then on",
    )
    assert not proof_of(slow(2, 3, 3100), event("effect")).hit, "the network was not slow"
    assert not proof_of(slow(400, 504, 3100), event("effect")).hit, "it was slow before"
    assert not proof_of(slow(2, 504, 20), event("effect")).hit, "its requests were small"
    assert not proof_of(slow(2, 504, None), event("end")).hit, "it ended"
    waiting = slow(2, 504, None)
    assert not waiting.is_over([event("effect", of="c2")]) and waiting.is_over([event("effect")])


def test_a_delay_while_the_quick_network_is_measured_does_not_make_it_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = iter([2000.0, 2.0, 3.0, 504.0])
    fault: Any = Bandwidth(SPEC)
    monkeypatch.setattr(fault, "_measured_ms", lambda _queues: next(measured))
    monkeypatch.setattr(fault, "_slow", lambda _queues: None)
    fault.strike(SimpleNamespace(queues=None), StepDone([], 0))
    fault._took_ms = 3100
    proof = proof_of(fault, event("effect"))
    assert proof.hit and proof.evidence[0] == "a statement of 12 KB took 2 ms before, and 504 ms meanwhile"


@pytest.mark.real
@pytest.mark.services
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [NAIVE, REMEDY])
def test_looking_before_writing_again_does_not_help_and_a_unique_key_does(
    run_once: Callable[[str | Path], Result], name: str
) -> None:
    result = run_once(name)
    assert_as_expected(name, result.verdict, result.run_dir)
