"""In continuous processing, a fault before an epoch's end is recorded hits if rows of that epoch are in an output."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.faults.contract import Occurrence, Proof
from onceproof.faults.evidence.unrecorded import UnrecordedRows
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.points import Point

OUTPUTS = {"copies": OutputSpec.model_validate({"topic": "copies", "identity": ["id"]})}


def struck(
    monkeypatch: pytest.MonkeyPatch,
    *held: str | Exception,
    mode: str = "continuous",
    queries: tuple[str, ...] = ("q",),
    attempt: int = 1,
) -> tuple[Proof, list[str]]:
    """The proof of a fault before ``offsets/3``, and the warnings.

    ``held``: the output after ``commits/2``, and then at each attempt to write ``offsets/3``. ``attempt``: the one that was struck.
    """
    states = iter(held)

    def look(_stack: object, outputs: list[OutputSpec]) -> dict[str, str]:
        assert outputs == list(OUTPUTS.values())
        state = next(states)
        if isinstance(state, Exception):
            raise state
        return {"topic copies": state}

    monkeypatch.setattr("onceproof.faults.evidence.unrecorded.output_state", look)
    warnings: list[str] = []
    context: Any = SimpleNamespace(
        modes={"q": mode},
        stack=None,
        scenario=SimpleNamespace(outputs=OUTPUTS),
        checkpoint=SimpleNamespace(queries=lambda: dict.fromkeys(queries)),
        timeline=SimpleNamespace(emit=lambda _kind, message: warnings.append(message)),
    )
    rows = UnrecordedRows(frozenset({0, 3}))
    assert rows.points() == [(2, Point.AFTER_COMMIT_LOG), (3, Point.BEFORE_OFFSET_LOG)]
    rows.reached(context, Occurrence("q", 2, Point.AFTER_COMMIT_LOG, "checkpoint", attempt=1))
    for made in range(1, max(len(held), 2)):  # each attempt is one of a driver of its own
        rows.reached(context, Occurrence("q", 3, Point.BEFORE_OFFSET_LOG, "checkpoint", attempt=made))
    return rows.check(
        Occurrence("q", 3, Point.BEFORE_OFFSET_LOG, "checkpoint", attempt=attempt), Proof(True, ("killed",))
    ), warnings


def test_rows_that_no_log_records_were_in_danger(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, _ = struck(monkeypatch, "150 records", "300 records")
    assert proof.hit
    sentence = "between commits/2 and offsets/3, outputs received rows: topic copies: 150 records -> 300 records"
    assert proof.evidence == ("killed", sentence)


def test_an_epoch_without_rows_endangers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, _ = struck(monkeypatch, "150 records", "150 records")
    assert not proof.hit
    assert proof.evidence[-1] == "no output received anything between commits/2 and offsets/3, so nothing was in danger"


def test_what_the_next_driver_writes_in_the_epoch_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, _ = struck(monkeypatch, "150 records", "150 records", "300 records")
    assert not proof.hit
    assert proof.evidence[-1] == "no output received anything between commits/2 and offsets/3, so nothing was in danger"


def test_a_fault_in_a_later_attempt_counts_what_that_attempt_left(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, _ = struck(monkeypatch, "150 records", "150 records", "300 records", attempt=2)
    assert proof.hit


def test_what_the_first_epoch_left_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Occurrence("q", 0, Point.BEFORE_OFFSET_LOG, "checkpoint", attempt=1)
    proof = UnrecordedRows(frozenset({0})).check(seen, Proof(True, ("killed",)))
    assert not proof.hit
    assert proof.evidence[-1] == "what the outputs received before offsets/0 is not known; choose a later epoch"


def test_an_output_that_another_query_may_have_written_to_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, _ = struck(monkeypatch, queries=("q", "other"))
    assert not proof.hit
    assert proof.evidence[-1] == "what the outputs received between commits/2 and offsets/3 is not known"


def test_an_output_that_cannot_be_read_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, warnings = struck(monkeypatch, "150 records", OSError("the broker is down"))
    assert not proof.hit
    assert warnings == [
        "the outputs could not be read when epoch 3 of query q reached before-offset-log: the broker is down"
    ]


def test_the_outputs_are_not_read_for_a_query_that_runs_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, _ = struck(monkeypatch, mode="realtime")  # an attempt to read would fail: there are no states
    assert not proof.hit
