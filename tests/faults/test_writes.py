"""In a batch without input, a fault hits only if the batch writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Proof, faults
from onceproof.faults.controller import FaultController
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.model import At, FaultSpec
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.points import Point


class Hits:
    """A fault that does nothing and reports a hit."""

    def __init__(self, spec: FaultSpec) -> None:
        self._spec = spec

    def matches(self, seen: Occurrence) -> bool:
        return seen.point is self._spec.at.point

    def strike(self, _context: FaultContext, _seen: Occurrence) -> None: ...

    def prove(self, _context: FaultContext, _seen: Occurrence) -> Proof:
        return Proof(True, ("seen",))

    def heal(self, _context: FaultContext) -> None: ...


@pytest.fixture
def conduct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FaultSpec], FaultController]]:
    timeline = Timeline(tmp_path / "events.jsonl")

    def make(spec: FaultSpec) -> FaultController:
        monkeypatch.setattr(faults, "get", lambda *_key: Hits)
        controller = FaultController([spec], timeline)
        job = SimpleNamespace(masked=lambda text: text)
        controller.arm(FaultContext(cast(Any, None), cast(Any, job), cast(Any, NoInput()), timeline))
        return controller

    yield make
    timeline.close()


def spec() -> FaultSpec:
    return FaultSpec(fault="hits", target="driver", at=At(batch=2, point=Point.AFTER_SINK_COMMIT))


def settle(controller: FaultController) -> None:
    wait_until("its proof", lambda: controller.quiet and all(a.proof for a in controller.armed), deadline_s=5)


class NoInput:
    """A checkpoint in which batch 2 reads no input."""

    def batch(self, query: str, batch: int) -> Batch:
        return Batch(query, batch, {"t": {0: 7}}, {"t": {0: 7 + 7 * (batch != 2)}}, None, 0.0, 0)

    def reads_nothing(self, query: str, batch: int) -> bool:
        return batch == 2

    def batches(self) -> list[Batch]:
        return []


class TwoQueries(NoInput):
    """The same, with a batch of another query open all the time."""

    def batches(self) -> list[Batch]:
        return [Batch("other", 5, {}, {}, None, 0.0, 0)]


def without_input(
    conduct: Callable[[FaultSpec], FaultController],
    monkeypatch: pytest.MonkeyPatch,
    *held: str,
    checkpoint: NoInput | None = None,
    query: str | None = None,
    table: str = "totals",
) -> dict[str, Any]:
    """The row of a fault in batch 2, whose output holds the first of ``held`` at its plan and the next at its commit."""
    states = iter(held)
    monkeypatch.setattr(
        "onceproof.faults.evidence.writes.output_state", lambda _stack, _outputs: {"table totals": next(states)}
    )
    controller = conduct(spec())
    context = controller._context
    assert context is not None
    context.checkpoint = cast(Any, checkpoint or NoInput())
    output = {"table": table, "identity": ["id"], "query": query}
    context.scenario = cast(Any, SimpleNamespace(outputs={"totals": OutputSpec.model_validate(output)}))
    controller.on_log("checkpoint", 2, Point.AFTER_OFFSET_LOG)
    controller.on_log("checkpoint", 2, Point.AFTER_COMMIT_LOG)
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    settle(controller)
    return controller.rows()[0]


def test_a_fault_hits_in_a_batch_that_reads_nothing_and_writes(
    conduct: Callable[[FaultSpec], FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = without_input(conduct, monkeypatch, "3 rows", "5 rows")
    assert row["hit"] is True
    assert row["evidence"].splitlines()[-1] == "batch 2 read no input, but wrote: table totals: 3 rows -> 5 rows"


def test_a_fault_misses_in_a_batch_that_neither_reads_nor_writes(
    conduct: Callable[[FaultSpec], FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = without_input(conduct, monkeypatch, "3 rows", "3 rows")
    assert row["hit"] is False
    assert "batch 2 read no input and wrote nothing: nothing was in danger; choose another batch" in row["evidence"]


class Input(NoInput):
    """A checkpoint in which every batch reads input."""

    def batch(self, query: str, batch: int) -> Batch:
        return Batch(query, batch, {"t": {0: 7}}, {"t": {0: 14}}, None, 0.0, 0)

    def reads_nothing(self, query: str, batch: int) -> bool:
        return False


@pytest.mark.parametrize(("after", "hit"), [("3 rows", False), ("5 rows", True)])
def test_after_the_sinks_commit_a_batch_that_reads_must_also_write(
    conduct: Callable[[FaultSpec], FaultController], monkeypatch: pytest.MonkeyPatch, after: str, hit: bool
) -> None:
    row = without_input(conduct, monkeypatch, "3 rows", after, checkpoint=Input())
    assert row["hit"] is hit
    assert ("batch 2 read input and wrote nothing to any output: nothing was in danger" in row["evidence"]) is not hit


def test_a_table_that_was_never_found_is_not_taken_for_unchanged(
    conduct: Callable[[FaultSpec], FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = without_input(conduct, monkeypatch, "3 rows", "3 rows", checkpoint=Input(), table="s2.totals")
    assert row["hit"] is True and "nothing was in danger" not in row["evidence"]
    row = without_input(conduct, monkeypatch, "3 rows", "3 rows", table="s2.totals")
    assert row["hit"] is False and "table s2.totals was not found, neither before" in row["evidence"]


@pytest.mark.parametrize(("query", "hit"), [(None, False), ("checkpoint", True)])
def test_a_write_that_may_be_another_querys_is_a_miss(
    conduct: Callable[[FaultSpec], FaultController], monkeypatch: pytest.MonkeyPatch, query: str | None, hit: bool
) -> None:
    row = without_input(conduct, monkeypatch, "3 rows", "5 rows", checkpoint=TwoQueries(), query=query)
    assert row["hit"] is hit
    doubt = (
        "queries checkpoint, other had batches open at the same time, and which of them wrote to totals is not known"
    )
    assert (doubt in row["evidence"]) is not hit


def test_a_fault_hits_in_a_batch_whose_write_was_stopped_or_refused(
    conduct: Callable[[FaultSpec], FaultController],
) -> None:
    controller = conduct(spec())
    context = controller._context
    assert context is not None
    context.checkpoint = cast(Any, NoInput())
    context.attempted_writes["checkpoint", 2] = "postgres refused what it sent"
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    settle(controller)
    assert controller.rows()[0]["hit"] is True
    assert "batch 2 read no input, but postgres refused what it sent" in controller.rows()[0]["evidence"]


def test_outputs_that_cannot_be_read_at_the_commit_are_read_later(
    conduct: Callable[[FaultSpec], FaultController], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that hides a refusal has its batch committed while Postgres is still stopped."""
    looks = 0

    def look(_stack: object, _outputs: object) -> dict[str, str]:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ConnectionError("refused")
        return {"table totals": f"{looks} rows"}

    monkeypatch.setattr("onceproof.faults.evidence.writes.output_state", look)
    controller = conduct(spec())
    assert controller._context is not None
    totals = OutputSpec.model_validate({"table": "totals", "identity": ["id"]})
    controller._context.scenario = cast(Any, SimpleNamespace(outputs={"totals": totals}))
    for point in (Point.AFTER_OFFSET_LOG, Point.AFTER_COMMIT_LOG):
        controller.on_log("checkpoint", 2, point)
    assert controller.wrote("checkpoint", 2) is None
    controller.on_log("checkpoint", 2, Point.AFTER_SINK_COMMIT)
    settle(controller)
    assert controller.rows()[0]["evidence"].endswith("wrote: table totals: 1 rows -> 3 rows"), "read again"
