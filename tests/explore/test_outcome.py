"""From executed schedules to verdicts: which of them are judged, what the judge reads, and how much input there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from onceproof.base.timeline import Timeline
from onceproof.data import dataset_of
from onceproof.explore.outcome import Judge, Judged, _facts, digest, judged_run, reduced
from onceproof.explore.real import fault_specs
from onceproof.history.execution import Execution
from onceproof.history.memory import MemoryTables
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import OutputRecord
from onceproof.judge.findings import Outcome
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load_file
from onceproof.scenario_files.shipped import find
from onceproof.warm.attempts import Strike
from onceproof.warm.tier import Executed, WarmTier


def executed(**facts: Any) -> Executed:
    """An execution that wrote one row, and in which one fault struck."""
    tables = MemoryTables()
    row = {"output": "o", "op": "insert", "offset": 0, "commit_order": 0, "content": "a"}
    tables.append("output", [row])
    known = {
        "strikes": (Strike(1, Point.AFTER_SINK_COMMIT),),
        "fired": (1.2,),
        "starts": 2,
        "errors": (),
        "ended": True,
        "outputs": {},
        "wall_start": 100.0,
        "seconds": 0.1,
        "query": "q",
    }
    return Executed(number=1, tables=tables, **{**known, **facts})


class Input:
    """What the judge reads about the input: only its end."""

    ends = {"t": {0: 30}}  # noqa: RUF012


def facts(one: Executed) -> dict[str, Any]:
    return _facts(cast(WarmTier, Input()), one)


@pytest.mark.parametrize(
    ("gave_up", "fired", "stuck"), [(True, (1.2,), True), (True, (), False), (False, (1.2,), False)]
)
def test_a_job_that_never_recovers_from_a_fault_is_stuck(gave_up: bool, fired: tuple[float, ...], stuck: bool) -> None:
    one = executed(fired=fired, gave_up=gave_up, ended=False)
    assert facts(one)["stuck"] is stuck


def test_a_job_that_was_given_up_is_another_outcome_than_one_that_was_too_slow() -> None:
    slow, given_up = executed(ended=False), executed(ended=False, gave_up=True)
    assert digest(slow, cause=False) != digest(given_up, cause=False)


class Counting(Judge):
    """Judges nothing: every outcome held, and the run that shows it is named after the faults that struck."""

    def __init__(self, *, clean: bool = True) -> None:
        super().__init__(None, None, None, None)  # type: ignore[arg-type]
        self._clean = clean

    def _judge(self, executed: Executed) -> Judged:
        return Judged(
            Outcome.HELD,
            clean=self._clean,
            run=", ".join(str(strike.point) for strike in executed.strikes) or "no fault",
        )


def test_the_run_without_faults_is_not_what_is_shown_for_a_schedule_that_held() -> None:
    judge = Counting()
    plain = executed(strikes=(), fired=())
    struck = executed()
    other = executed(strikes=(Strike(1, Point.AFTER_OFFSET_LOG),))
    assert digest(plain, cause=False) == digest(struck, cause=False) == digest(other, cause=False)
    assert [judge.judge(one).run for one in (plain, struck, other)] == ["no fault", *2 * ["after-sink-commit"]]
    assert judge.distinct == 2


def test_what_the_claim_allows_in_a_struck_batch_is_judged_again_for_other_faults() -> None:
    """The same rows are missing, but the claim allows that only if a fault struck their batch."""
    judge = Counting(clean=False)
    struck, other = executed(), executed(strikes=(Strike(2, Point.AFTER_OFFSET_LOG),))
    assert digest(struck, cause=False) == digest(other, cause=False)
    assert [judge.judge(one).run for one in (struck, other, struck)] == [
        "after-sink-commit",
        "after-offset-log",
        "after-sink-commit",
    ]
    assert judge.distinct == 2


@pytest.mark.parametrize(
    ("has", "given", "rows", "chunks"),
    [
        (20, None, 30, (15, 20)),  # the whole data set
        (20, 20, 30, (15, 20)),
        (300, None, 30, (90, 120)),
        (300, 30, 30, (30, 40)),
        (300, None, 1, (3, 4)),
        (4, None, 30, (3, 4)),
    ],
)
def test_no_chunk_of_a_small_data_set_is_empty(has: int, given: int | None, rows: int, chunks: tuple[int, int]) -> None:
    scenario = load_file(find("callable-append")).scenario
    (spec,) = scenario.input
    small = spec.model_copy(update={"dataset": "numbers", "options": {"rows": has}, "rows": given, "chunks": 1})
    (made,) = reduced(scenario.model_copy(update={"input": [small]}), rows, 3).input
    ordinary = (made.rows or 0) * 4 // 3  # one chunk more, as `onceproof.explore.real` has it
    assert (made.chunks, made.rows, ordinary) == (3, *chunks) and ordinary <= has


class Fed:
    """What schedules have in common: an input of three records in one partition."""

    versions: dict[str, str] = {}  # noqa: RUF012
    ends = {"flights": {0: 3}}  # noqa: RUF012

    def __init__(self, scenario: Scenario) -> None:
        self.shared = MemoryTables()
        (spec,) = scenario.input
        for offset, record in enumerate(dataset_of(spec, scenario.seed).records(0, 3)):
            place = {"topic": "flights", "partition": 0, "offset": offset}
            value = {"key": record.key, "value": record.value, "timestamp_ms": record.timestamp_ms}
            self.shared.append("input", [{**place, **value, "visibility": "committed"}])
            self.shared.append("sent", [{**place, "seq": offset, "status": "acked"}])
        end = {"start_offset": 0, "stable_offset": 3, "end_offset": 3, "collected_ms": 0}
        self.shared.append("partitions", [{"topic": "flights", "partition": 0, **end}])


@pytest.mark.parametrize(("gave_up", "outcome"), [(True, Outcome.VIOLATED), (False, Outcome.INCONCLUSIVE)])
def test_the_judge_finds_what_a_job_that_never_recovers_leaves_undone(
    gave_up: bool, outcome: Outcome, tmp_path: Path
) -> None:
    scenario = load_file(find("callable-append")).scenario
    (spec,) = scenario.input
    one_partition = spec.model_copy(update={"rows": 3, "chunks": 3, "partitions": 1})
    scenario = reduced(scenario.model_copy(update={"input": [one_partition]}), 1, 3)
    directory = RunDir.below(tmp_path / "session")
    execution = Execution(scenario, find("callable-append"), directory, Timeline(directory.events))
    strike = Strike(1, Point.AFTER_OFFSET_LOG)
    columns = dict.fromkeys(("carrier", "flight", "tailnum", "origin", "dest", "sched_dep", "dep_delay"), "text")
    stuck = Executed(
        number=1,
        strikes=(strike,),
        fired=(1.2,),
        starts=9,
        errors=("the table is locked",) * 7,
        ended=False,
        tables=MemoryTables(),
        outputs={"departures_table": OutputRecord(columns=columns, note=None, rows=0)},
        wall_start=1_000.0,
        seconds=0.1,
        query="flights",
        gave_up=gave_up,
    )
    for batch, end in ((0, 0), (1, 1)):
        row = {"query": "flights", "batch": batch, "topic": "flights", "partition": 0}
        planned = {"start_offset": 0, "end_offset": end, "planned_at": batch + 0.1, "planned_by": 0}
        done = {"committed_at": 0.5, "committed_by": 0} if batch == 0 else {}
        stuck.tables.append("batches", [{**row, **planned, **done}])
    stuck.tables.append(
        "progress", [{"query": "flights", "batch": 0, "topic": "flights", "partition": 0, "end_offset": 0}]
    )
    faults = fault_specs(scenario, [strike], ())
    tier = cast(WarmTier, Fed(scenario))
    verdict = judged_run(tier, execution, stuck, faults, RunDir.below(tmp_path / "judged"))
    assert verdict.outcome is outcome, verdict.reasons
    assert ("stale-tail" in verdict.anomalies()) == gave_up
