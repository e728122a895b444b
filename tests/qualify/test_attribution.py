from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onceproof.faults.evidence.item import Evidence
from onceproof.judge.findings import Outcome, Verdict, Witness
from onceproof.qualify.attribution import attribute, unclaimed
from onceproof.qualify.cells import CellState
from onceproof.qualify.schedule import RunStep

On = Callable[..., Verdict]
GATE = {0: "checkpoint", 1: "checkpoint", 2: "checkpoint"}


def test_every_cell_of_a_run_that_held_is_held(three: RunStep, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three), GATE, "runs/x")
    assert [(c.state, c.verdict) for c in cells] == [(CellState.EXERCISED, Outcome.HELD)] * 3
    assert all(c.runs == ("runs/x",) and c.evidence for c in cells)


def test_a_window_is_the_struck_batch_and_the_next_one(three: RunStep, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"duplicate": {4: 30, 5: 2}, "lost-write": {7: 1}}), GATE, "r")
    assert [c.verdict for c in cells[:2]] == [Outcome.HELD, Outcome.VIOLATED]
    assert cells[1].anomalies == {"duplicate": 32}


def test_a_finding_after_a_violated_window_needs_a_run_alone(three: RunStep, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"wrong-value": {2: 3, 4: 3, 6: 3}}), GATE, "r")
    assert [(c.verdict, c.alone) for c in cells] == [(Outcome.VIOLATED, False), (None, True), (None, True)]
    assert "batch 2 of the shared run was violated before this fault" in str(cells[1].why)
    held = attribute(three, verdict_on(three, found={"duplicate": {2: 3}}), GATE, "r")
    assert [c.verdict for c in held] == [Outcome.VIOLATED, Outcome.HELD, Outcome.HELD], (
        "cells in clean windows are held"
    )
    missed = attribute(three, verdict_on(three, missed=(0,), found={"wrong-value": {2: 3, 4: 3}}), GATE, "r")
    assert [(c.verdict, c.alone) for c in missed] == [(None, True), (None, True), (Outcome.HELD, False)]


def test_copies_of_a_replay_after_a_violated_window_decide_their_cell(three: RunStep, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"duplicate": {2: 3, 4: 3}, "torn-batch": {4: 1}}), GATE, "r")
    assert [(c.verdict, c.alone) for c in cells] == [
        (Outcome.VIOLATED, False),
        (Outcome.VIOLATED, False),
        (Outcome.HELD, False),
    ]
    assert cells[1].anomalies == {"duplicate": 3, "torn-batch": 1}, "a torn batch comes with the copies"
    for other in ({"lost-write": {4: 1}}, {"torn-batch": {5: 1}}):
        cells = attribute(three, verdict_on(three, found={"duplicate": {2: 3, 4: 3}, **other}), GATE, "r")
        assert [(c.verdict, c.alone) for c in cells][1] == (None, True), other
    verdict = verdict_on(three, found={"duplicate": {2: 3, 4: 3}})
    unclear = replace(verdict, findings=(replace(verdict.findings[0], source="fault"),))
    assert attribute(three, unclear, GATE, "r")[1].alone, "only a replay shows that its batch is the cause"


def test_a_violated_shared_run_stays_violated_if_its_cells_hold_alone(
    three: RunStep, verdict_on: On, alone: Callable[[RunStep], RunStep]
) -> None:
    verdict = verdict_on(three, missed=(0,), found={"lost-write": {2: 4}})
    shared = attribute(three, verdict, GATE, "r")
    own = alone(three)
    (held,) = attribute(replace(own, cells=(shared[0],)), verdict_on(own), GATE, "s")
    assert held.verdict is Outcome.HELD
    assert unclaimed([held, *shared[1:]], {"r": verdict, "s": verdict_on(own)}) == {"r": {"lost-write": 4}}
    (shown,) = attribute(replace(own, cells=(shared[0],)), verdict_on(own, found={"lost-write": {2: 1}}), GATE, "s")
    assert unclaimed([shown, *shared[1:]], {"r": verdict}) == {}
    other = replace(shown, anomalies={"duplicate": 1})
    assert unclaimed([other, *shared[1:]], {"r": verdict}) == {"r": {"lost-write": 4}}


def test_effects_of_an_unknown_batch_may_belong_to_any_cell(three: RunStep, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"duplicate": {4: 30}}, unplaced=5), GATE, "r")
    assert [c.verdict for c in cells] == [None, Outcome.VIOLATED, None]
    assert [(c.state, c.alone) for c in cells] == [
        (CellState.PENDING, True),
        (CellState.EXERCISED, False),
        (CellState.PENDING, True),
    ]
    assert cells[0].why == "the batch of 5 rows with duplicate in last_seen is not known"


def test_a_finding_before_the_first_fault_lies_in_no_window(three: RunStep, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"duplicate": {1: 3}}), GATE, "r")
    assert all(c.state is CellState.PENDING and c.alone for c in cells)
    assert "before the first fault" in str(cells[0].why)


def test_a_fault_that_missed_gets_one_run_alone(
    three: RunStep, verdict_on: On, alone: Callable[[RunStep], RunStep]
) -> None:
    cells = attribute(three, verdict_on(three, missed=(0,)), GATE, "r")
    assert (cells[0].state, cells[0].alone, cells[0].verdict) == (CellState.PENDING, True, None)
    assert [c.verdict for c in cells[1:]] == [Outcome.HELD, Outcome.HELD]
    own = alone(three)
    (again,) = attribute(own, verdict_on(own, missed=(0,)), GATE, "s")
    assert (again.state, again.verdict) == (CellState.NOT_REACHED, None)
    assert again.why == "it was put in place, and is not proven to have hit: it was seen"


def test_a_run_with_inconclusive_batches_decides_no_cell(three: RunStep, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, conclusive=False), GATE, "r")
    assert all(c.state is CellState.PENDING and c.alone for c in cells)


def test_all_findings_of_a_run_alone_belong_to_its_cell(
    three: RunStep, verdict_on: On, alone: Callable[[RunStep], RunStep]
) -> None:
    own = alone(three)
    (cell,) = attribute(own, verdict_on(own, found={"duplicate": {2: 4}}, unplaced=5), GATE, "r")
    assert (cell.state, cell.verdict, cell.anomalies) == (CellState.EXERCISED, Outcome.VIOLATED, {"duplicate": 9})
    (unproven,) = attribute(own, verdict_on(own, missed=(0,), found={"lost-write": {2: 4}}), GATE, "r")
    assert (unproven.state, unproven.verdict) == (CellState.NOT_REACHED, Outcome.VIOLATED)
    (unclear,) = attribute(own, verdict_on(own, conclusive=False), GATE, "r")
    assert (unclear.state, unclear.verdict, unclear.why) == (CellState.EXERCISED, Outcome.INCONCLUSIVE, "first reason")


def test_a_point_that_only_the_watcher_saw_is_approximate(three: RunStep, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three), {**GATE, 1: "watcher"}, "r")
    assert [c.state for c in cells] == [CellState.EXERCISED, CellState.APPROXIMATE, CellState.EXERCISED]


def test_the_reason_of_a_miss_holds_all_of_its_evidence(
    three: RunStep, verdict_on: On, alone: Callable[[RunStep], RunStep]
) -> None:
    own = alone(three)
    verdict = verdict_on(own, missed=(0,))
    evidence = ("one", "two", "three", "four", "five: the reason")
    verdict = replace(verdict, faults=(replace(verdict.faults[0], seen=tuple(map(Evidence, evidence))),))
    (cell,) = attribute(own, verdict, GATE, "r")
    assert cell.evidence == evidence
    assert cell.why == f"it was put in place, and is not proven to have hit: {'; '.join(evidence)}"


def test_a_cell_keeps_what_its_shared_run_showed_until_a_run_alone_decides(
    three: RunStep, verdict_on: On, alone: Callable[[RunStep], RunStep]
) -> None:
    titles = [cell.title() for cell in three.cells]
    after_damage = attribute(three, verdict_on(three, found={"wrong-value": {2: 3, 4: 5}}), GATE, "r")
    shared = after_damage[1].shared
    assert shared is not None and after_damage[0].shared is after_damage[2].shared is None
    assert (shared.hit, shared.others, dict(shared.anomalies)) == (True, (titles[0],), {"wrong-value": 5})
    unplaced = attribute(three, verdict_on(three, found={"duplicate": {4: 30}}, unplaced=5), GATE, "r")
    assert unplaced[0].shared is not None and unplaced[0].shared.others == (titles[1], titles[2])
    assert dict(unplaced[0].shared.anomalies) == {"duplicate": 5}
    missed = attribute(three, verdict_on(three, missed=(1,), found={"duplicate": {4: 30}}), GATE, "r")[1]
    assert missed.shared is not None and not missed.shared.hit and dict(missed.shared.anomalies) == {"duplicate": 30}
    own = replace(alone(three), cells=(after_damage[1],))
    (held,) = attribute(own, verdict_on(own), GATE, "s")
    assert held.verdict is Outcome.HELD and held.shared is None
    (again,) = attribute(own, verdict_on(own, missed=(0,)), GATE, "s")
    assert again.shared == shared, "an inconclusive run does not take back the finding"


def test_a_repetition_takes_nothing_back_and_counts_its_hits(three: RunStep, verdict_on: On) -> None:
    held = attribute(three, verdict_on(three), GATE, "r")
    assert [c.hits for c in held] == [(batch,) for batch in three.batches] and held[0].counted == "1/1"
    again = replace(three, cells=tuple(held), batches=tuple(batch + 1 for batch in three.batches))
    missed = attribute(again, verdict_on(again, missed=(0,)), GATE, "s")
    assert (missed[0].verdict, missed[0].state, missed[0].counted) == (Outcome.HELD, CellState.EXERCISED, "1/2")
    assert (missed[0].alone, missed[0].why) == (False, None)
    assert missed[1].hits == (three.batches[1], three.batches[1] + 1)
    violated = attribute(again, verdict_on(again, found={"duplicate": {again.batches[1]: 7}}), GATE, "s")
    assert [(c.verdict, c.counted) for c in violated] == [
        (Outcome.HELD, "2/2"),
        (Outcome.VIOLATED, "2/2"),
        (Outcome.HELD, "2/2"),
    ]
    unclear = attribute(again, verdict_on(again, found={"wrong-value": {3: 1, 5: 1}}), GATE, "s")[1]
    assert (unclear.state, unclear.verdict, unclear.alone) == (CellState.PENDING, None, True), "it may be its own"


def test_a_cell_shows_only_witnesses_of_its_own_batches(three: RunStep, verdict_on: On) -> None:
    verdict = verdict_on(three, found={"wrong-value": {2: 1, 4: 1, 6: 1}})
    rows = (
        Witness({"id": 1}, "so", batch=2, positions=("t xid 1", "t xid 2")),
        Witness({"id": 2, "of": "a"}, "so", cause="in/0@7", batch=4),
    )
    verdict = replace(verdict, findings=(replace(verdict.findings[0], witnesses=rows),))
    cells = attribute(three, verdict, GATE, "r")
    assert cells[0].witnesses == {"wrong-value": "id=1 (batch 2; output t xid 1, t xid 2)"}
    second, third = cells[1].shared, cells[2].shared
    assert second is not None and second.witnesses == {"wrong-value": "id=2, of=a (batch 4; input in/0@7)"}
    assert third is not None and third.witnesses == {}, "no witness is from its batch"
