from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onceproof.faults.evidence.item import Evidence
from onceproof.judge.findings import Outcome, Verdict, Witness
from onceproof.qualify.attribution import attribute, unclaimed
from onceproof.qualify.cells import State
from onceproof.qualify.schedule import Step

On = Callable[..., Verdict]
GATE = {0: "checkpoint", 1: "checkpoint", 2: "checkpoint"}


def test_all_held(three: Step, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three), GATE, "runs/x")
    assert [(c.state, c.verdict) for c in cells] == [(State.EXERCISED, Outcome.HELD)] * 3
    assert all(c.runs == ("runs/x",) and c.evidence for c in cells)


def test_a_finding_is_its_windows_and_the_next_batch_is_still_in_it(three: Step, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"duplicate": {4: 30, 5: 2}, "lost-write": {7: 1}}), GATE, "r")
    assert [c.verdict for c in cells[:2]] == [Outcome.HELD, Outcome.VIOLATED]
    assert cells[1].anomalies == {"duplicate": 32}


def test_what_damage_leaves_behind_is_not_the_next_cells(three: Step, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"wrong-value": {2: 3, 4: 3, 6: 3}}), GATE, "r")
    assert [(c.verdict, c.alone) for c in cells] == [(Outcome.VIOLATED, False), (None, True), (None, True)]
    assert "batch 2 of the shared run was violated before this fault" in str(cells[1].why)
    held = attribute(three, verdict_on(three, found={"duplicate": {2: 3}}), GATE, "r")
    assert [c.verdict for c in held] == [Outcome.VIOLATED, Outcome.HELD, Outcome.HELD], "what is right is kept"
    missed = attribute(three, verdict_on(three, missed=(0,), found={"wrong-value": {2: 3, 4: 3}}), GATE, "r")
    assert [(c.verdict, c.alone) for c in missed] == [(None, True), (None, True), (Outcome.HELD, False)]


def test_a_run_that_violates_the_claim_stays_violated_whatever_its_cells_do_alone(
    three: Step, verdict_on: On, alone: Callable[[Step], Step]
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


def test_effects_of_which_nobody_knows_the_batch_may_be_anybodys(three: Step, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"duplicate": {4: 30}}, unplaced=5), GATE, "r")
    assert [c.verdict for c in cells] == [None, Outcome.VIOLATED, None]
    assert [(c.state, c.alone) for c in cells] == [
        (State.PENDING, True),
        (State.EXERCISED, False),
        (State.PENDING, True),
    ]
    assert cells[0].why == "the batch of 5 rows with duplicate in last_seen is not known"


def test_a_finding_before_the_first_fault_is_in_no_window(three: Step, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, found={"duplicate": {1: 3}}), GATE, "r")
    assert all(c.state is State.PENDING and c.alone for c in cells)
    assert "before the first fault" in str(cells[0].why)


def test_a_fault_that_did_not_hit_has_a_run_of_its_own_once(
    three: Step, verdict_on: On, alone: Callable[[Step], Step]
) -> None:
    cells = attribute(three, verdict_on(three, missed=(0,)), GATE, "r")
    assert (cells[0].state, cells[0].alone, cells[0].verdict) == (State.PENDING, True, None)
    assert [c.verdict for c in cells[1:]] == [Outcome.HELD, Outcome.HELD]
    own = alone(three)
    (again,) = attribute(own, verdict_on(own, missed=(0,)), GATE, "s")
    assert (again.state, again.verdict) == (State.NOT_REACHED, None)
    assert again.why == "it was put in place, and is not proven to have hit: it was seen"


def test_a_run_that_tells_nothing_of_its_batches_decides_nothing(three: Step, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three, conclusive=False), GATE, "r")
    assert all(c.state is State.PENDING and c.alone for c in cells)


def test_what_is_found_in_a_run_of_its_own_is_the_cells(
    three: Step, verdict_on: On, alone: Callable[[Step], Step]
) -> None:
    own = alone(three)
    (cell,) = attribute(own, verdict_on(own, found={"duplicate": {2: 4}}, unplaced=5), GATE, "r")
    assert (cell.state, cell.verdict, cell.anomalies) == (State.EXERCISED, Outcome.VIOLATED, {"duplicate": 9})
    (unproven,) = attribute(own, verdict_on(own, missed=(0,), found={"lost-write": {2: 4}}), GATE, "r")
    assert (unproven.state, unproven.verdict) == (State.NOT_REACHED, Outcome.VIOLATED)
    (unclear,) = attribute(own, verdict_on(own, conclusive=False), GATE, "r")
    assert (unclear.state, unclear.verdict, unclear.why) == (State.EXERCISED, Outcome.INCONCLUSIVE, "first reason")


def test_what_only_the_watcher_saw_is_approximate(three: Step, verdict_on: On) -> None:
    cells = attribute(three, verdict_on(three), {**GATE, 1: "watcher"}, "r")
    assert [c.state for c in cells] == [State.EXERCISED, State.APPROXIMATE, State.EXERCISED]


def test_the_reason_of_a_miss_is_kept_however_much_is_said_before_it(
    three: Step, verdict_on: On, alone: Callable[[Step], Step]
) -> None:
    own = alone(three)
    verdict = verdict_on(own, missed=(0,))
    said = ("one", "two", "three", "four", "five: the reason")
    verdict = replace(verdict, faults=(replace(verdict.faults[0], seen=tuple(map(Evidence, said))),))
    (cell,) = attribute(own, verdict, GATE, "r")
    assert cell.evidence == said
    assert cell.why == f"it was put in place, and is not proven to have hit: {'; '.join(said)}"


def test_a_fault_that_hit_keeps_what_the_shared_run_showed(
    three: Step, verdict_on: On, alone: Callable[[Step], Step]
) -> None:
    titles = [cell.title() for cell in three.cells]
    behind = attribute(three, verdict_on(three, found={"wrong-value": {2: 3, 4: 5}}), GATE, "r")
    shared = behind[1].shared
    assert shared is not None and behind[0].shared is behind[2].shared is None
    assert (shared.hit, shared.others, dict(shared.anomalies)) == (True, (titles[0],), {"wrong-value": 5})
    anybody = attribute(three, verdict_on(three, found={"duplicate": {4: 30}}, unplaced=5), GATE, "r")
    assert anybody[0].shared is not None and anybody[0].shared.others == (titles[1], titles[2])
    assert dict(anybody[0].shared.anomalies) == {"duplicate": 5}
    missed = attribute(three, verdict_on(three, missed=(1,), found={"duplicate": {4: 30}}), GATE, "r")[1]
    assert missed.shared is not None and not missed.shared.hit and dict(missed.shared.anomalies) == {"duplicate": 30}
    own = replace(alone(three), cells=(behind[1],))
    (held,) = attribute(own, verdict_on(own), GATE, "s")
    assert held.verdict is Outcome.HELD and held.shared is None
    (again,) = attribute(own, verdict_on(own, missed=(0,)), GATE, "s")
    assert again.shared == shared, "a run that decides nothing takes nothing back"


def test_a_witness_is_of_the_cells_own_batches(three: Step, verdict_on: On) -> None:
    verdict = verdict_on(three, found={"duplicate": {2: 1, 4: 1, 6: 1}})
    rows = (
        Witness({"id": 1}, "so", batch=2, positions=("t xid 1", "t xid 2")),
        Witness({"id": 2, "of": "a"}, "so", cause="in/0@7", batch=4),
    )
    verdict = replace(verdict, findings=(replace(verdict.findings[0], witnesses=rows),))
    cells = attribute(three, verdict, GATE, "r")
    assert cells[0].witnesses == {"duplicate": "id=1 (batch 2; output t xid 1, t xid 2)"}
    second, third = cells[1].shared, cells[2].shared
    assert second is not None and second.witnesses == {"duplicate": "id=2, of=a (batch 4; input in/0@7)"}
    assert third is not None and third.witnesses == {}, "none of them is of its batch"
