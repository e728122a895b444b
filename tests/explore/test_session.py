"""What an exploration does next: tiers, real kills, resuming. Runs and the warm tier are made up; no process is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import EnvironmentProblem, Interrupted, WaitTimeout
from onceproof.explore import matrix, real
from onceproof.explore.exploration import State, Verdicts
from onceproof.explore.schedules import ORDER, Drawn, Place
from onceproof.explore.session import CUT_OFF
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import write_verdict
from onceproof.scenario.points import Point
from onceproof.warm import session as warm_session
from onceproof.warm.attempts import Strike
from onceproof.warm.tier import Unavailable

from .made_up import MadeUpRuns, MadeUpTier, Quiet, Work

FIRST = (Strike(1, Point.AFTER_SINK_COMMIT),)
FAULTS = (Place(1, Point.AFTER_SINK_COMMIT),)
REAL = "foreign-psycopg-upsert"
COMMIT = [
    {"at": 1.5, "kind": "frame.seen", "service": "postgres", "frame": "commit", "writes": ["INSERT INTO last_seen"]}
]


# -- the run without faults ---------------------------------------------------------------------------------------


def test_a_job_that_only_the_session_shows_as_violated_without_faults_is_explored_with_real_kills(
    work: Work, runs: MadeUpRuns, tier: MadeUpTier
) -> None:
    tier.violated.add(())
    result = work()
    assert tier.executed == [()]
    assert result.plan.tier == "real" and "three rows too many" in result.plan.tier_reason
    assert len(runs.faults) == 1 + len(result.wanted) and runs.faults[0] == []
    assert result.outcome() is not Outcome.VIOLATED
    assert result.baseline.run is not None and "run-1" in result.baseline.run


def test_a_job_that_an_ordinary_run_shows_as_violated_without_faults_is_violated(
    work: Work, runs: MadeUpRuns, tier: MadeUpTier
) -> None:
    tier.violated.add(())
    runs.violated.add(1)
    result = work()
    assert result.outcome() is Outcome.VIOLATED and len(runs.faults) == 1
    assert "run-1" in matrix.as_text(result)


def test_a_run_without_faults_that_fails_raises_and_is_tried_again(
    work: Work, runs: MadeUpRuns, tmp_path: Path
) -> None:
    for failure in (EnvironmentProblem("port taken"), WaitTimeout("too slow")):
        runs.raising[len(runs.faults) + 1] = failure
        with pytest.raises(type(failure)):
            work(REAL)
    runs.inconclusive.add(len(runs.faults) + 1)
    runs.events = COMMIT
    inconclusive = work(REAL)
    assert inconclusive.outcome() is Outcome.INCONCLUSIVE and not inconclusive.wanted
    again = work(go_on=inconclusive)
    assert again.outcome() is Outcome.HELD and len(again.results) == len(again.wanted)


# -- what could not be executed -----------------------------------------------------------------------------------


def test_a_run_that_fails_is_not_executed_and_is_tried_again(work: Work, runs: MadeUpRuns) -> None:
    runs.events = COMMIT
    runs.raising[3] = EnvironmentProblem("disk full")
    first = work(REAL)
    missing = len(first.wanted) - first.executed
    assert missing == 1 and first.count()[State.NOT_EXECUTED] == 1
    assert first.outcome() is Outcome.INCONCLUSIVE
    text = matrix.as_text(first)
    assert f"{first.executed} of {len(first.wanted)} schedules executed" in text
    assert "not executed: batch 1 after-offset-log: disk full" in text
    before = len(runs.faults)
    again = work(go_on=first)
    assert len(runs.faults) == before + 1 and again.executed == len(again.wanted)
    assert again.outcome() is Outcome.HELD


@pytest.mark.parametrize(
    "fields",
    [
        {"failed": "no schema"},
        {"ended": False, "errors": (CUT_OFF,)},
        {"ended": False, "errors": (CUT_OFF,), "fired": ()},
    ],
)
def test_a_schedule_that_the_session_did_not_finish_is_tried_again(
    work: Work, tier: MadeUpTier, fields: dict[str, object]
) -> None:
    tier.changed[FIRST] = fields
    first = work()
    assert first.results[FAULTS].state is State.NOT_EXECUTED
    tier.changed.clear()
    tier.executed.clear()
    again = work(go_on=first)
    assert tier.executed == [(), FIRST]
    assert again.results[FAULTS].state is State.HELD


def test_a_violation_of_a_schedule_that_was_cut_off_stays_one(work: Work, tier: MadeUpTier) -> None:
    tier.changed[FIRST] = {"ended": False, "errors": (CUT_OFF,)}
    tier.violated.add(FIRST)
    assert work().results[FAULTS].state is State.VIOLATED


def test_the_session_says_of_a_query_that_it_stopped_what_is_looked_for() -> None:
    assert f'"{CUT_OFF}"' in Path(str(warm_session.__file__)).read_text(encoding="utf-8")


# -- before the sink's commit -------------------------------------------------------------------------------------


def at(runs: MadeUpRuns, point: Point) -> list[dict[str, object]]:
    """The faults at this point, without ``at``."""
    return [
        {name: value for name, value in fault.items() if name != "at"}
        for faults in runs.faults
        for fault in faults
        if fault["at"]["point"] == point
    ]


def test_a_driver_is_crashed_at_the_commit_if_no_sink_of_ours_waits(work: Work, runs: MadeUpRuns) -> None:
    runs.events = COMMIT
    result = work(REAL)
    (fault, *others) = at(runs, Point.BEFORE_SINK_COMMIT)
    assert fault["fault"] == "crash-at-frame" and fault["service"] == "postgres" and others == [fault] * 2
    assert result.outcome() is Outcome.HELD


def test_a_driver_is_crashed_where_a_sink_of_ours_waits(work: Work, runs: MadeUpRuns) -> None:
    runs.events = [{"at": 1.5, "kind": "point", "point": "before-sink-commit", "query": "q", "sink": "postgres"}]
    work(REAL)
    assert [fault["fault"] for fault in at(runs, Point.BEFORE_SINK_COMMIT)] == ["crash"] * 3


def test_a_commit_that_cannot_be_found_is_not_explored(work: Work, runs: MadeUpRuns) -> None:
    result = work(REAL)
    assert at(runs, Point.BEFORE_SINK_COMMIT) == []
    assert Point.BEFORE_SINK_COMMIT not in result.plan.points
    assert "not explored: before-sink-commit" in matrix.as_text(result)


def test_an_exploration_that_is_continued_uses_the_same_fault_before_the_commit(
    work: Work, runs: MadeUpRuns, tier: MadeUpTier
) -> None:
    tier.raising = Unavailable("the session has ended")
    runs.events = COMMIT
    runs.raising[4] = Interrupted("stop")
    first = work()
    assert first.ended == "interrupted" and first.plan.tier == "real"
    again = work(go_on=first)
    faults = at(runs, Point.BEFORE_SINK_COMMIT)
    assert len(faults) == 4 and all(fault == faults[0] for fault in faults)
    assert faults[0]["fault"] == "crash-at-frame" and again.executed == len(again.wanted)


def test_the_warm_tier_stores_the_fault_of_its_comparisons(work: Work, runs: MadeUpRuns, tier: MadeUpTier) -> None:
    assert work().plan.before_commit["fault"] == "crash-at-frame"
    tier.instruments = {"failpoint"}
    assert work().plan.before_commit["fault"] == "crash"


# -- comparisons with real kills ----------------------------------------------------------------------------------


def test_a_comparison_without_a_verdict_is_repeated_and_counted_once(
    work: Work, runs: MadeUpRuns, tier: MadeUpTier
) -> None:
    tier.violated.add(FIRST)
    runs.raising[1] = EnvironmentProblem("port taken")
    first = work()
    assert [one.decided for one in first.repeated].count(False) == 1
    runs.violated.add(len(runs.faults) + 1)
    again = work(go_on=first)
    assert len(again.confirmations) == len(again.repeated) + 1
    assert all(one.decided for one in again.repeated)
    assert matrix.as_json(again)["agreement"] == {"repeated": 3, "decided": 3, "agree": 3}
    text = matrix.as_text(again)
    assert "1 schedule violated in the warm tier; 1 of them confirmed" in text and "no verdict" not in text
    assert again.outcome() is Outcome.VIOLATED


def test_a_violation_that_real_kills_have_shown_stays_one_if_the_session_cannot_go_on(
    work: Work, runs: MadeUpRuns, tier: MadeUpTier
) -> None:
    tier.violated.add(FIRST)
    runs.violated.add(1)
    first = work()
    tier.changed[()] = {"ended": False, "errors": ("it fails now",)}
    again = work(go_on=first)
    assert again.plan.tier == "real" and again.count()[State.VIOLATED] == 0
    assert again.outcome() is Outcome.VIOLATED
    assert f"violated: batch 1 after-sink-commit: a reason (run: {first.directory.runs / 'run-1'})" in matrix.as_text(
        again
    )


def test_a_violation_that_real_kills_have_shown_stays_one_if_the_run_without_faults_holds_no_longer(
    work: Work, runs: MadeUpRuns, tier: MadeUpTier
) -> None:
    tier.violated.add(FIRST)
    runs.violated.add(1)
    again = work()
    again.baseline = Verdicts("inconclusive", {}, "it did not drain", None, False)
    assert again.outcome() is Outcome.VIOLATED
    text = matrix.as_text(again)
    assert "without faults it is inconclusive: it did not drain" in text and "no fault was tried" not in text
    assert "violated: batch 1 after-sink-commit" in text


def test_an_interruption_at_the_start_of_a_continued_exploration_counts_the_wanted_schedules(
    work: Work, tier: MadeUpTier
) -> None:
    first = work()
    tier.changed[()] = {}
    tier.raising = None

    def interrupted(*_: object) -> None:
        raise Interrupted("stop")

    tier.execute = interrupted  # type: ignore[method-assign, assignment]
    again = work(go_on=first)
    assert again.ended == "interrupted" and again.outcome() is Outcome.INTERRUPTED
    assert f"{len(first.results)} of {len(first.wanted)} schedules executed" in matrix.as_text(again)


# -- random schedules ---------------------------------------------------------------------------------------------


def test_random_schedules_are_drawn_before_the_tier_starts_and_stored(work: Work, tier: MadeUpTier) -> None:
    heard = Quiet()
    result = work(mode="random", number=20, seed=7, listener=heard)
    assert len(result.wanted) == len(result.results) == 20
    assert heard.lines.index("drawing 20 schedules") < heard.lines.index("starting the services and the Spark session")
    stored = result.directory.path / "drawn.json"
    other = json.loads(stored.read_text())
    other["schedules"] = other["schedules"][:20][::-1]  # as another version of Hypothesis would draw them
    stored.write_text(json.dumps(other))
    heard = Quiet()
    assert work(go_on=result, listener=heard).wanted == result.wanted[::-1]
    assert "drawing 20 schedules" not in heard.lines


def test_schedules_with_a_point_that_the_job_does_not_reach_are_left_out(work: Work, tier: MadeUpTier) -> None:
    tier.points = tuple(point for point in ORDER if point is not Point.BEFORE_SINK_COMMIT)
    result = work(mode="random", number=300, seed=7)
    assert len(result.wanted) == 300 and not result.undrawn
    assert all(place.point is not Point.BEFORE_SINK_COMMIT for faults in result.wanted for place in faults)


def test_drawing_ends_with_its_part_of_the_budget_and_goes_on_when_the_exploration_is_continued(
    work: Work, runs: MadeUpRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    portion = Drawn.more

    def slow(*args: Any) -> Drawn:
        runs.now += 10
        return portion(*args)

    monkeypatch.setattr(Drawn, "more", slow)
    first = work(mode="random", number=400, seed=7, budget_s=40)
    assert first.undrawn > 0 and first.ended == "budget" and len(first.wanted) == 400 - first.undrawn
    assert first.outcome() is Outcome.INCONCLUSIVE
    assert f"{first.undrawn} of 400 are missing" in matrix.as_text(first)
    again = work(go_on=first)
    assert len(again.wanted) == len(again.results) == 400 and not again.undrawn
    assert again.wanted[: len(first.wanted)] == first.wanted


# -- interrupted after a verdict ----------------------------------------------------------------------------------


@pytest.fixture
def interrupted_after_verdict(runs: MadeUpRuns, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of the runs after whose verdict a signal comes, as while the report is written."""
    numbers: set[int] = set()
    made_up = runs.run

    def run(*args: Any, **kwargs: Any) -> Any:
        done = made_up(*args, **kwargs)
        write_verdict(done.run_dir, done.verdict)
        if len(runs.faults) in numbers:
            raise Interrupted("stop")
        return done

    monkeypatch.setattr(real, "run", run)
    return numbers


def test_a_violation_before_a_signal_is_not_lost(
    work: Work, runs: MadeUpRuns, interrupted_after_verdict: set[int]
) -> None:
    runs.violated.add(3)
    interrupted_after_verdict.add(3)
    first = work(REAL)
    assert first.ended == "interrupted" and first.count()[State.VIOLATED] == 1
    again = work(go_on=first)
    (violated,) = [faults for faults, one in again.results.items() if one.state is State.VIOLATED]
    assert violated == first.wanted[1] and "run-3" in again.results[violated].run
    assert again.outcome() is Outcome.VIOLATED and len(runs.faults) == 1 + len(again.wanted)


def test_a_violation_of_a_killed_command_is_found_when_it_is_continued(
    work: Work, runs: MadeUpRuns, interrupted_after_verdict: set[int]
) -> None:
    runs.violated.add(3)
    first = work(REAL)
    results = first.directory.path / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if "run-3" not in line))
    again = work(go_on=first)
    assert again.results == first.results and len(runs.faults) == 1 + len(again.wanted)


def test_a_comparison_that_was_violated_before_a_signal_is_not_lost(
    work: Work, runs: MadeUpRuns, tier: MadeUpTier, interrupted_after_verdict: set[int]
) -> None:
    tier.violated.add(FIRST)
    runs.violated.add(1)
    interrupted_after_verdict.add(1)
    first = work()
    assert first.ended == "interrupted" and [one.faults for one in first.confirmed()] == [FAULTS]
    again = work(go_on=first)
    assert again.outcome() is Outcome.VIOLATED and [one.faults for one in again.confirmed()] == [FAULTS]
