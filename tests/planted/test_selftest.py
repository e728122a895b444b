"""What counts as caught, as quiet and as held; and the command `selftest`, with made-up verdicts."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceproof.api import runs
from onceproof.api.runs import Run
from onceproof.base.errors import EnvironmentProblem
from onceproof.base.version import __version__
from onceproof.cli.app import app
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import StoredScenario
from onceproof.history.schema import VERSION
from onceproof.judge.findings import FaultReport, Finding, Outcome, Verdict
from onceproof.planted import catalogue, match, mutants, results, table
from onceproof.planted.catalogue import Bug
from onceproof.planted.results import Attempt, BugResult
from onceproof.scenario_files.load import LoadedScenario

BUG = catalogue.read()["progress-first-two-transactions"]
"""commit-ahead-of-effect in batch 2, by crash-at-frame driver; lost-write may come with it."""


def verdict(
    outcome: Outcome = Outcome.VIOLATED,
    *found: tuple[str, dict[str, int]],
    hit: bool = True,
    fault: tuple[str, str] = ("crash-at-frame", "driver"),
    **more: Any,
) -> Verdict:
    findings = tuple(Finding(name, "table", max(1, sum(b.values())), "rows", batches=b, **more) for name, b in found)
    faults = (FaultReport(*fault, "flights", 2, "in-tasks", True, True, hit),)
    return Verdict("it", outcome, {}, ("why",), findings=findings, faults=faults)


AS_NAMED = (("commit-ahead-of-effect", {"flights/2": 7}),)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (verdict(Outcome.VIOLATED, *AS_NAMED), None),
        (verdict(Outcome.VIOLATED, *AS_NAMED, ("lost-write", {"flights/2": 7})), None),
        (verdict(Outcome.VIOLATED, ("lost-write", {"flights/2": 7})), "no commit-ahead-of-effect, but lost-write"),
        (
            verdict(Outcome.VIOLATED, ("commit-ahead-of-effect", {"flights/2": 7, "flights/3": 1})),
            "commit-ahead-of-effect in batches 2, 3, not in batch 2",
        ),
        (
            verdict(Outcome.VIOLATED, ("commit-ahead-of-effect", {})),
            "commit-ahead-of-effect in no known batch, not in batch 2",
        ),
        (
            verdict(Outcome.VIOLATED, *AS_NAMED, ("duplicate", {"flights/2": 7})),
            "also duplicate, which it does not name",
        ),
        (verdict(Outcome.VIOLATED, *AS_NAMED, hit=False), "it is not proven that crash-at-frame driver hit"),
        (
            verdict(Outcome.VIOLATED, *AS_NAMED, fault=("crash", "driver")),
            "it is not proven that crash-at-frame driver hit",
        ),
        (verdict(Outcome.HELD), "the run is held: why"),
        (verdict(Outcome.INCONCLUSIVE, *AS_NAMED), "the run is inconclusive: why"),
        (verdict(Outcome.VIOLATED, *AS_NAMED, allowed="by the claim"), "no commit-ahead-of-effect, but "),
    ],
)
def test_caught_means_exactly_what_was_named(found: Verdict, why: str | None) -> None:
    attempt = match.attempt(BUG, found, "run")
    assert attempt.passed is (why is None)
    assert attempt.why == (why or "commit-ahead-of-effect 7 in batch 2")


def test_a_finding_without_the_fault_is_vacuous_only_if_it_is_the_same() -> None:
    assert not match.vacuity(BUG, verdict(Outcome.VIOLATED, *AS_NAMED), "run").passed
    assert match.vacuity(BUG, verdict(Outcome.HELD), "run").passed
    other = match.vacuity(BUG, verdict(Outcome.VIOLATED, ("duplicate", {"flights/2": 7})), "run")
    assert other.passed and other.why == "violated: duplicate"
    in_another_batch = verdict(Outcome.VIOLATED, ("commit-ahead-of-effect", {"flights/3": 7}))
    assert match.vacuity(BUG, in_another_batch, "run").passed


def test_a_finding_without_the_fault_that_no_batch_sets_apart_is_the_same() -> None:
    of_consumers = catalogue.read()["ack-lost-duplicates"]
    assert of_consumers.batches == []
    same = match.vacuity(of_consumers, verdict(Outcome.VIOLATED, ("duplicate", {})), "run")
    assert not same.passed and same.why == "shows the same without the fault: duplicate 1 in no known batch"
    assert match.vacuity(of_consumers, verdict(Outcome.VIOLATED, ("lost-write", {})), "run").passed
    in_no_batch = verdict(
        Outcome.VIOLATED, ("commit-ahead-of-effect", {"flights/3": 7}), ("commit-ahead-of-effect", {})
    )
    assert not match.vacuity(BUG, in_no_batch, "run").passed
    allowed = verdict(Outcome.HELD, ("duplicate", {}), allowed="by the claim")
    assert match.vacuity(of_consumers, allowed, "run").passed


def test_a_batch_that_always_shows_it_is_not_what_the_fault_showed() -> None:
    behind = catalogue.read()["write-behind"]
    assert (behind.batches, behind.always) == ([2, 4], [4])
    assert match.vacuity(behind, verdict(Outcome.VIOLATED, ("lost-write", {"flights/4": 7})), "run").passed
    assert not match.vacuity(behind, verdict(Outcome.VIOLATED, ("lost-write", {"flights/2": 7})), "run").passed


def test_a_job_that_is_never_held_is_quiet_only_if_that_is_the_only_doubt() -> None:
    progress = catalogue.read()["async-progress"]
    reason = "query flights uses asynchronous progress tracking (asyncProgressTrackingEnabled)"
    quiet = replace(verdict(Outcome.INCONCLUSIVE), reasons=(reason,))
    assert match.vacuity(progress, quiet, "run").passed
    assert not match.vacuity(progress, replace(quiet, reasons=(reason, "the job died")), "run").passed
    assert not match.vacuity(progress, replace(quiet, reasons=()), "run").passed
    assert not match.vacuity(BUG, quiet, "run").passed, "it declares no such reason"


def test_a_remedy_is_held_and_every_fault_hits() -> None:
    assert match.control(BUG, verdict(Outcome.HELD), "run").passed
    assert not match.control(BUG, verdict(Outcome.HELD, hit=False), "run").passed
    assert not match.control(BUG, verdict(Outcome.VIOLATED, *AS_NAMED), "run").passed
    assert match.control(BUG, verdict(Outcome.INCONCLUSIVE), "run").why == "inconclusive; why"


def test_a_bug_that_shows_in_any_run_needs_no_fault_that_hit() -> None:
    bug = catalogue.read()["limited-batch"]
    found = {f"flights/{batch}": 1 for batch in bug.batches}
    assert match.attempt(bug, verdict(Outcome.VIOLATED, ("lost-write", found), hit=False), "run").passed


Made = dict[str, Verdict | Exception]


@pytest.fixture
def calls() -> list[str]:
    """The runs that were made: the job's file, `+` for a remedy by an option, and the number of faults."""
    return []


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> Made:
    """Verdict of each run, named as in ``calls``. What is not in it is held."""
    verdicts: Made = {}

    def run(loaded: LoadedScenario, *, runs_dir: Path, listeners: object) -> Run:
        scenario = loaded.scenario
        args = "+" if "--one-transaction" in scenario.pipeline.command else ""
        key = f"{Path(scenario.pipeline.command[1]).stem}{args} {len(scenario.chaos)}"
        calls.append(key)
        found = verdicts.get(key, verdict(Outcome.HELD))
        if isinstance(found, Exception):
            raise found
        folder = RunDir.create(runs_dir, scenario.name)
        folder.update(
            schema=VERSION, onceproof=__version__, scenario=StoredScenario.of(scenario), versions={"kafka": "4.3.1"}
        )
        return Run(scenario, found, folder.path)

    monkeypatch.setattr(runs, "run", run)
    monkeypatch.chdir(tmp_path)
    return verdicts


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["selftest", *words])
    return done.exit_code, done.output


def stored(file: str = "stored.json") -> dict[str, BugResult]:
    return results.read(Path(file))


def test_the_command(made: Made, calls: list[str]) -> None:
    name = "progress-first-two-transactions"
    made["progress_first 1"] = verdict(Outcome.VIOLATED, *AS_NAMED)
    code, output = command("--full", "--times", "2", "--store", "stored.json", name)
    assert code == 0, output
    assert calls == [*["progress_first 1"] * 2, "progress_first 0", "progress_first+ 1"]
    assert "1 of 1 planted bug caught; 1 of 1 held with their remedy; 1 of 1 quiet without their fault" in output
    result = stored()[name]
    assert (result.caught, len(result.attempts), result.versions) == (2, 2, {"kafka": "4.3.1"})
    assert result.vacuity is not None and result.control is not None and result.passed
    (own,) = Path("onceproof-runs").glob("selftest-*/selftest.json")
    assert results.read(own) == stored()


def test_a_bug_that_is_not_caught_fails_the_command_and_is_stored(made: Made) -> None:
    code, output = command("--store", "stored.json", "naive-append", "memory-dedupe")
    assert code == 1
    assert "naive-append, not caught: the run is held: why" in output
    assert "0 of 2 planted bugs caught" in output
    assert [result.caught for result in stored().values()] == [0, 0]


def test_a_run_that_fails_is_not_caught_and_the_others_still_run(made: Made) -> None:
    made["naive_append 1"] = EnvironmentProblem("the broker did not start\nlog")
    crash = verdict(Outcome.VIOLATED, ("duplicate", {"flights/2": 7}), fault=("crash", "driver"))
    made["memory_dedupe 1"] = crash
    code, output = command("--store", "stored.json", "naive-append", "memory-dedupe")
    assert code == 1 and "1 of 2 planted bugs caught" in output
    (failed,) = stored()["naive-append"].attempts
    assert (failed.outcome, failed.why) == ("error", "the broker did not start")


def test_a_vacuous_bug_and_a_remedy_that_does_not_hold_fail_the_command(made: Made) -> None:
    name = "progress-first-two-transactions"
    for key in ("progress_first 1", "progress_first 0", "progress_first+ 1"):
        made[key] = verdict(Outcome.VIOLATED, *AS_NAMED)
    code, output = command("--full", "--times", "1", name)
    assert code == 1
    assert "without the fault: shows the same without the fault: commit-ahead-of-effect 7 in batch 2" in output
    assert "the remedy: violated: commit-ahead-of-effect" in output


def test_bugs_with_one_job_or_one_remedy_share_their_controls(made: Made, calls: list[str]) -> None:
    for key in ("memory_dedupe 1", "uuid_key 1"):
        made[key] = verdict(Outcome.VIOLATED, ("duplicate", {"flights/2": 7}), fault=("crash", "driver"))
    assert command("--full", "--times", "1", "memory-dedupe", "uuid-key")[0] == 0
    assert calls.count("position_is_key 1") == 1


def test_new_results_replace_old_ones_and_keep_what_was_not_run_again(made: Made) -> None:
    name = "progress-first-two-transactions"
    made["progress_first 1"] = verdict(Outcome.VIOLATED, *AS_NAMED)
    command("--full", "--times", "1", "--store", "stored.json", name)
    del made["progress_first 1"]
    command("--store", "stored.json", name)
    assert stored()[name].caught == 0 and stored()[name].control is not None


@pytest.mark.parametrize("changed", ["named", "onceproof", "digest"])
def test_results_of_other_code_or_about_another_finding_are_not_kept(changed: str) -> None:
    held = Attempt(passed=True, why="held", outcome="held")
    same = {"named": "crash driver: duplicate in 2", "onceproof": "1", "digest": "a"}
    old = BugResult(**same, date="2026-01-01", attempts=[held], control=held)
    new = BugResult(**same, date="2026-01-02", attempts=[held])
    assert results.merged({"a": old}, {"a": new})["a"].control == held
    new = new.model_copy(update={changed: "another"})
    assert results.merged({"a": old}, {"a": new}) == {"a": new}
    unknown = {"digest": ""}
    older = new.model_copy(update=unknown)
    assert results.merged({"a": old.model_copy(update=unknown)}, {"a": older}) == {"a": older}


def test_the_digest_changes_with_the_job(tmp_path: Path) -> None:
    shutil.copytree(catalogue.folder().parent, tmp_path / "all")
    folder = tmp_path / "all" / "planted"

    def digest() -> str:
        (bug,) = catalogue.load([catalogue.read(folder)["check-without-lock"]], folder)
        return bug.digest()

    before = digest()
    assert digest() == before
    (job,) = (tmp_path / "all").rglob("check_without_lock.py")
    job.write_text(job.read_text() + "# changed")
    assert digest() != before


def test_two_selftests_at_once_store_all_their_results(tmp_path: Path) -> None:
    result = BugResult(named="x", onceproof="1", date="2026-01-01")
    names = [f"bug-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: results.store(tmp_path / "new" / "stored.json", {name: result}), names))
    assert sorted(results.read(tmp_path / "new" / "stored.json")) == sorted(names)


def test_a_catalogue_without_bugs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Made) -> None:
    """A selftest that runs nothing must not pass."""
    monkeypatch.setattr(catalogue, "folder", lambda: tmp_path / "gone")
    code, output = command()
    assert code == 2 and "there is no planted bug in" in output


def test_controls_alone_keep_the_stored_attempts(made: Made, calls: list[str]) -> None:
    name = "progress-first-two-transactions"
    made["progress_first 1"] = verdict(Outcome.VIOLATED, *AS_NAMED)
    command("--store", "stored.json", name)
    code, output = command("--full", "--times", "0", "--store", "stored.json", name)
    assert code == 0 and calls == ["progress_first 1", "progress_first 0", "progress_first+ 1"]
    assert "1 of 1 held with their remedy; 1 of 1 quiet without their fault" in output
    assert stored()[name].caught == 1 and stored()[name].control is not None
    assert command("--times", "0", name)[0] == 2


def test_lists_and_json(made: Made) -> None:
    code, output = command("--list", "naive-append")
    assert code == 0 and "Structured Streaming is exactly-once." in output and "duplicate, batch 2" in output
    listed = json.loads(command("--list", "--json")[1])
    assert [each["name"] for each in listed] == list(catalogue.read())
    done = CliRunner().invoke(app, ["selftest", "--json", "naive-append"])
    assert json.loads(done.stdout)["naive-append"]["attempts"][0]["passed"] is False


def test_wrong_input_is_refused_before_anything_runs(made: Made) -> None:
    code, output = command("no-such-bug")
    assert code == 2 and "unknown planted bug 'no-such-bug'" in output
    Path("stored.json").write_text('{"naive-append": {"date": 3}}')
    code, output = command("--store", "stored.json", "naive-append")
    assert code == 2 and "stored.json does not hold results of a selftest: naive-append.named: Field required" in output
    assert not Path("onceproof-runs").exists()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("kafka.py", "kafka.py holds 0 times the text 'gone'"),
        ("gone.py", "cannot read the sinks' gone.py: No such file"),
    ],
)
def test_a_mutant_that_does_not_fit_is_refused_before_anything_runs(
    made: Made, calls: list[str], monkeypatch: pytest.MonkeyPatch, file: str, message: str
) -> None:
    known = mutants.mutants()
    title = "kafka:transactional-id-random"
    stale = {title: replace(known[title], file=file, old="gone")}
    monkeypatch.setattr(mutants, "mutants", lambda: known | stale)
    code, output = command("naive-append", "kafka-random-id")
    assert code == 2 and f"mutant {title}: {message}" in " ".join(output.split())
    assert calls == [] and not Path("onceproof-runs").exists()


def test_the_cells_of_a_row() -> None:
    bug, anytime = catalogue.read()["naive-append"], catalogue.read()["two-actions"]
    held = Attempt(passed=True, why="held", outcome="held")
    lost = Attempt(passed=False, why="held", outcome="held")
    result = BugResult(named="", onceproof="1", date="2026-01-01", attempts=[held, lost], vacuity=held, control=held)
    assert table.cells(bug, None)[3:] == ("not run", "not run", "not run")
    assert table.cells(bug, result) == ("naive-append", "crash driver", "duplicate, batch 2", "1 of 2", "held", "held")
    assert table.cells(anytime, result)[4] == "-"
    assert not result.passed and isinstance(bug, Bug)
