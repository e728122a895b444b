"""What an exploration stores, when two outcomes are equal, and what follows from the results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceproof.api.exploration import Wanted, _begun, _resumed, explore
from onceproof.base.errors import UsageError
from onceproof.explore import matrix, real
from onceproof.explore.exploration import Confirmation, Directory, Plan, State, Verdicts
from onceproof.explore.outcome import digest
from onceproof.explore.real import verdicts_of
from onceproof.explore.result import Exploration
from onceproof.explore.schedules import ORDER, Place
from onceproof.explore.session import _covering
from onceproof.history.memory import MemoryTables
from onceproof.judge.findings import FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.scenario.points import Point
from onceproof.warm.attempts import Strike
from onceproof.warm.tier import Executed

FIRST, SECOND = Place(1, Point.AFTER_SINK_COMMIT), Place(2, Point.AFTER_OFFSET_LOG)
HELD = Verdicts("held")
DUPLICATE = Verdicts("violated", {"duplicate": 20}, "20 rows")


def executed(rows: list[tuple[int, str]], *, others: int = 0, starts: int = 2, **facts: Any) -> Executed:
    """An execution with these rows (commit, content), and other commits before each."""
    tables = MemoryTables()
    for number, (commit, content) in enumerate(rows):
        order = commit * (1 + others) + others
        tables.append(
            "output", [{"output": "o", "op": "insert", "offset": number, "commit_order": order, "content": content}]
        )
        tables.append("snapshot", [{"output": "o", "content": content}])
    for commit in sorted({commit for commit, _ in rows}):
        order = commit * (1 + others) + others
        tables.append(
            "commits", [{"commit_order": order, "xid": 700 + order, "commit_time_us": int((100 + commit) * 1e6)}]
        )
        batch = {"query": "q", "batch": commit, "planned_at": commit - 0.5, "committed_at": commit + 0.5}
        tables.append("batches", [{**batch, "partition": p, "committed_by": starts - 1} for p in (0, 1)])
    known = {"strikes": (Strike(1, Point.AFTER_SINK_COMMIT),), "fired": (1.2,), "points": ()}
    return Executed(
        number=1,
        starts=starts,
        errors=(),
        ended=True,
        tables=tables,
        outputs={},
        wall_start=100.0,
        seconds=0.1,
        query="q",
        **{**known, **facts},
    )


def test_equal_rows_in_equal_commits_and_batches_are_one_outcome_whatever_struck() -> None:
    one = executed([(0, "a"), (1, "b")])
    other = executed(
        [(0, "a"), (1, "b")], others=2, starts=3, strikes=(Strike(1, Point.AFTER_OFFSET_LOG),), fired=(0.9,)
    )
    assert digest(one, cause=False) == digest(other, cause=False)
    assert digest(one, cause=True) != digest(other, cause=True)  # what explains a finding may differ


@pytest.mark.parametrize(
    "rows",
    [
        [(0, "a"), (1, "b"), (1, "b")],  # a row twice
        [(0, "a")],  # a row less
        [(0, "a"), (0, "b")],  # in another commit
        [(0, "b"), (1, "a")],  # in another order
        [(0, "a"), (1, "B")],  # another value
    ],
)
def test_any_other_rows_are_another_outcome(rows: list[tuple[int, str]]) -> None:
    assert digest(executed([(0, "a"), (1, "b")]), cause=False) != digest(executed(rows), cause=False)


def test_a_query_that_did_not_end_is_another_outcome() -> None:
    ended, not_ended = executed([(0, "a")]), executed([(0, "a")])
    not_ended.ended = False
    assert digest(ended, cause=False) != digest(not_ended, cause=False)


def test_an_attempt_that_ended_without_a_commit_does_not_have_that_point() -> None:
    strikes = (Strike(1, Point.AFTER_SINK_COMMIT), Strike(1, Point.BEFORE_SINK_COMMIT, 2))
    first = [(1.0, str(Point.BEFORE_SINK_COMMIT), 1, 0), (1.2, str(Point.AFTER_SINK_COMMIT), 1, 0)]
    replay = (1.9, str(Point.AFTER_SINK_COMMIT), 1, 1)
    skipped = executed([(0, "a")], strikes=strikes, points=(*first, replay))
    assert not skipped.reached and skipped.passed(strikes[1])
    assert not executed([(0, "a")], strikes=strikes, points=tuple(first)).passed(strikes[1])  # the replay never ended
    missed = Strike(1, Point.AFTER_COMMIT_LOG, 2)
    assert not executed([(0, "a")], strikes=(strikes[0], missed), points=(*first, replay)).passed(missed)


@pytest.fixture
def plan() -> Plan:
    return Plan("s", "/s.yaml", "0", "pairs", 0, 7, (1, 2, 3), 30, "warm", points=ORDER, not_explored={"x": "why"})


def test_the_state_is_read_back_as_it_was_stored_also_after_half_a_line(tmp_path: Path, plan: Plan) -> None:
    directory = Directory.create(tmp_path, "s")
    directory.save(plan)
    directory.add_result((FIRST,), DUPLICATE)
    with (directory.path / "results.jsonl").open("a") as file:
        file.write('{"faults": [[1, "after')
    directory.add_result((FIRST, SECOND), HELD)
    directory.add_confirmation(Confirmation((FIRST,), DUPLICATE, DUPLICATE))
    again, stored = Directory.open(directory.path)
    assert stored == plan
    assert again.results() == {(FIRST,): DUPLICATE, (FIRST, SECOND): HELD}
    assert [one.agrees for one in again.confirmations()] == [True]


def test_a_violation_is_not_replaced_by_a_later_result(tmp_path: Path, plan: Plan) -> None:
    directory = Directory.create(tmp_path, "s")
    directory.save(plan)
    faults = (Place(1, Point.AFTER_SINK_COMMIT),)
    for verdict in ("inconclusive", "violated", "held"):
        directory.add_result(faults, Verdicts(verdict))
    assert directory.results()[faults].state is State.VIOLATED


@pytest.mark.parametrize(
    "line",
    [
        "3",
        "[]",
        "{}",
        '{"faults": 7, "verdict": "held"}',
        '{"faults": [[1, "nowhere"]], "verdict": "held"}',
        '{"faults": [["x", "after-sink-commit"]], "verdict": "held"}',
        '{"faults": [], "verdict": 3}',
        '{"faults": [], "verdict": "held", "anomalies": ["lost-write"]}',
        '{"faults": [], "verdict": "held", "more": 1}',
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, plan: Plan, line: str) -> None:
    directory = Directory.create(tmp_path, "s")
    directory.save(plan)
    directory.add_result((Place(1, Point.AFTER_SINK_COMMIT),), Verdicts("held"))
    with (directory.path / "results.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(UsageError, match=r"line 3 of .*results\.jsonl is damaged"):
        directory.results()


@pytest.mark.parametrize(
    "changed", [{"points": 3}, {"batch_numbers": ["x"]}, {"files": []}, {"scenario_path": 3}, {"x": 1}]
)
def test_a_damaged_plan_is_refused(tmp_path: Path, plan: Plan, changed: dict[str, Any]) -> None:
    directory = Directory.create(tmp_path, "s")
    directory.save(plan)
    file = directory.path / "exploration.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(UsageError, match=r"exploration\.json cannot be read"):
        Directory.open(directory.path)


def test_a_folder_without_an_exploration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no exploration\.json"):
        Directory.open(tmp_path)
    (tmp_path / "exploration.json").write_text('{"version": 99}')
    with pytest.raises(UsageError, match="its version is 99"):
        Directory.open(tmp_path)


def test_the_fewest_schedules_that_show_every_point_and_anomaly_are_confirmed() -> None:
    results = {(FIRST, SECOND): DUPLICATE, (FIRST,): DUPLICATE, (FIRST, FIRST): DUPLICATE, (SECOND,): HELD}
    assert _covering(results) == [(FIRST,), (FIRST, SECOND)]


@pytest.mark.parametrize(
    ("results", "confirmations", "wanted"),
    [
        ({(FIRST,): HELD}, [Confirmation((FIRST,), HELD, HELD)], Outcome.HELD),
        ({(FIRST,): HELD}, [], Outcome.INCONCLUSIVE),  # no ordinary run
        ({(FIRST,): HELD}, [Confirmation((FIRST,), HELD, DUPLICATE)], Outcome.VIOLATED),
        ({(FIRST,): DUPLICATE}, [], Outcome.INCONCLUSIVE),  # never reported without real kills
        ({(FIRST,): DUPLICATE}, [Confirmation((FIRST,), DUPLICATE, DUPLICATE)], Outcome.VIOLATED),
        ({(FIRST,): DUPLICATE}, [Confirmation((FIRST,), DUPLICATE, HELD)], Outcome.INCONCLUSIVE),
        ({(FIRST,): Verdicts("inconclusive", hit=False)}, [Confirmation((SECOND,), HELD, HELD)], Outcome.INCONCLUSIVE),
    ],
)
def test_the_outcome_is_held_or_violated_only_with_real_kills(
    tmp_path: Path,
    plan: Plan,
    results: dict[tuple[Place, ...], Verdicts],
    confirmations: list[Confirmation],
    wanted: Outcome,
) -> None:
    result = Exploration(
        plan, Directory(tmp_path), [(FIRST,)], results=results, confirmations=confirmations, baseline=HELD
    )
    assert result.outcome() is wanted
    text = matrix.as_text(result)
    assert ("results do not count for this job" in text) == bool(result.disagreements)
    assert matrix.as_json(result)["exit"] == wanted.exit_code
    assert "| point | batch 1 |" in matrix.as_markdown(result)


def test_a_schedule_that_was_not_exercised_is_never_held() -> None:
    assert Verdicts("held", hit=False).state is State.NOT_EXERCISED
    assert Verdicts("held", hit=False, absent=True).state is State.N_A


def test_a_violation_that_only_real_kills_show_is_listed_and_no_share_is_concluded(tmp_path: Path, plan: Plan) -> None:
    shown = replace(DUPLICATE, run="runs/one")
    result = Exploration(
        replace(plan, mode="random", number=2),
        Directory(tmp_path),
        [(FIRST,), (SECOND,)],
        results={(FIRST,): HELD, (SECOND,): DUPLICATE},
        confirmations=[Confirmation((FIRST,), HELD, shown), Confirmation((SECOND,), DUPLICATE, HELD)],
        baseline=HELD,
    )
    text = matrix.as_text(result)
    assert "violated: batch 1 after-sink-commit: 20 rows (run: runs/one)" in text
    assert "1 schedule violated in the warm tier; 0 of them confirmed" in text
    assert "interval" not in text and matrix.as_json(result)["interval"] is None
    trusted = replace(result, confirmations=[Confirmation((SECOND,), DUPLICATE, shown)])
    assert "violated: 1 of 2 (95 % interval" in matrix.as_text(trusted)


def test_a_violation_of_an_ordinary_run_counts_also_if_a_fault_missed_its_point(tmp_path: Path, plan: Plan) -> None:
    faults = tuple(FaultReport("crash", "driver", "q", n, "after-sink-commit", n == 1, n == 1, n == 1) for n in (1, 2))
    finding = Finding("duplicate", "o", 20, "20 rows", source="batch replay")
    seen = Verdict("s", Outcome.VIOLATED, StatedClaim(), ("duplicate in output o\nmore",), (finding,), faults)
    found = verdicts_of(seen, tmp_path)
    assert found.state is State.VIOLATED and not found.hit
    assert found.why == "duplicate in output o (1 of 2 faults hit)"
    plan = replace(plan, tier="real")
    result = Exploration(plan, Directory(tmp_path), [(FIRST, SECOND)], results={(FIRST, SECOND): found}, baseline=HELD)
    assert result.outcome() is Outcome.VIOLATED
    held = verdicts_of(replace(seen, outcome=Outcome.HELD, findings=()), tmp_path)
    assert held.state is State.NOT_EXERCISED and "hit" not in held.why


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"singles": True, "pairs": True, "random": None}, "--singles and --pairs"),
        ({"tier": "hot"}, "'hot' is not a tier"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Wanted.of(**{"singles": False, "pairs": False, "random": None, **options})


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A function with a helper, in a scenario with a base."""
    jobs = tmp_path / "jobs"
    (jobs / "parts").mkdir(parents=True)
    (jobs / "job.py").write_text("from parts import helper\n")
    (jobs / "parts" / "helper.py").write_text("")
    (jobs / ".venv").mkdir()
    (jobs / ".venv" / "installed.py").write_text("")
    base = "base: callable-append\npipeline: {callable: '{here}/jobs/job.py:build'}\n"
    (tmp_path / "base.yaml").write_text(base)
    path = tmp_path / "own.yaml"
    path.write_text("base: ./base.yaml\n")
    return path


@pytest.mark.parametrize("name", ["own.yaml", "base.yaml", "jobs/job.py", "jobs/parts/helper.py"])
@pytest.mark.parametrize("gone", [False, True])
def test_an_exploration_of_other_code_is_not_continued(scenario: Path, tmp_path: Path, name: str, gone: bool) -> None:
    _, directory, plan = _begun(scenario, Wanted(), tmp_path / "runs")
    assert _resumed(directory.path)[2] == plan
    file = tmp_path / name
    if gone:
        file.unlink()
    else:
        file.write_text(file.read_text() + "# another\n")
    why = f"{file} has changed, or is gone" if not gone or "helper" in name else "does not exist"
    with pytest.raises(UsageError, match=why):
        _resumed(directory.path)


def test_a_package_on_the_python_path_of_the_job_is_compared_too(scenario: Path, tmp_path: Path) -> None:
    code = tmp_path / "src/shop/job.py"
    code.parent.mkdir(parents=True)
    code.write_text("def build(spark, **_): ...\n")
    own = "pipeline: {callable: 'shop.job:build', env: {PYTHONPATH: '{here}/src'}}\n"
    scenario.write_text(f"base: callable-append\n{own}")
    _, directory, plan = _begun(scenario, Wanted(), tmp_path / "runs")
    assert str(code.resolve()) in plan.files
    code.write_text("def build(spark, **_): ... # broken\n")
    with pytest.raises(UsageError, match=r"job\.py has changed"):
        _resumed(directory.path)
    scenario.write_text(f"base: callable-append\n{own.replace('/src', '/elsewhere')}")
    with pytest.raises(UsageError, match="there is no module shop on the job's Python path"):
        _begun(scenario, Wanted(), tmp_path / "runs")


@pytest.mark.parametrize("name", ["jobs/helper.py", "shared/common.py"])
def test_the_modules_next_to_the_script_of_a_command_are_compared_too(
    scenario: Path, tmp_path: Path, name: str
) -> None:
    for file in ("jobs/helper.py", "shared/common.py", "elsewhere/other.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    own = "command: ['{python}', '{here}/jobs/job.py'], env: {PYTHONPATH: '{here}/shared'}"
    scenario.write_text(f"base: foreign-psycopg-upsert\npipeline: {{{own}}}\n")
    _, directory, plan = _begun(scenario, Wanted(), tmp_path / "runs")
    assert _resumed(directory.path)[2] == plan
    (tmp_path / "elsewhere/other.py").write_text("# another\n")
    assert _resumed(directory.path)[2] == plan
    (tmp_path / name).write_text("# another\n")
    with pytest.raises(UsageError, match=rf"{name} has changed"):
        _resumed(directory.path)


def test_the_functions_of_a_package_are_compared_too(scenario: Path, tmp_path: Path) -> None:
    scenario.write_text("base: callable-append\npipeline: {callable: 'onceproof.sinks.postgres:build'}\n")
    _, _, plan = _begun(scenario, Wanted(), tmp_path / "runs")
    assert str(Path(real.__file__).resolve()) in plan.files


def test_an_exploration_is_not_continued_by_another_onceproof_and_ignores_what_is_no_code_of_the_user(
    scenario: Path, tmp_path: Path
) -> None:
    _, directory, plan = _begun(scenario, Wanted(), tmp_path / "runs")
    (tmp_path / "jobs" / ".venv" / "installed.py").write_text("# another\n")
    _resumed(directory.path)
    directory.save(replace(plan, onceproof="0.0.1"))
    with pytest.raises(UsageError, match=r"onceproof 0\.0\.1 began"):
        _resumed(directory.path)


@pytest.mark.parametrize(
    ("pipeline", "why"),
    [
        ("env: {DATABASE_URL: '{postgres}'}", "variable DATABASE_URL uses {postgres}"),
        ("env: {STATE: '{checkpoint}/x'}", "variable STATE uses {checkpoint}"),
        ("args: {host: '{postgres.host}'}", "--host={postgres.host} uses {postgres.host}"),
        ("env: {PASSWORD: '{postgres.password}'}", ""),
    ],
)
def test_what_leads_past_the_schema_of_a_schedule_is_explored_with_real_kills(
    tmp_path: Path, pipeline: str, why: str
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"base: callable-append\npipeline: {{{pipeline}}}\n")
    _, _, plan = _begun(path, Wanted(), tmp_path / "runs")
    assert (plan.tier == "real") == bool(why) and plan.tier_reason.startswith(why)


def test_consumers_cannot_be_explored(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="describes consumers"):
        explore("fan-out", runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
