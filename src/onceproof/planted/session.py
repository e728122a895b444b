"""Runs planted bugs one after the other: each with its fault, and in a full selftest without it, and its remedy with it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from onceproof.api.runs import Run
from onceproof.api.scenarios import with_chaos
from onceproof.base.errors import OnceproofError
from onceproof.base.version import __version__
from onceproof.history.run_directory import run_dir_problem
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Verdict
from onceproof.planted import match
from onceproof.planted.catalogue import Bug, PlantedBug
from onceproof.planted.results import FILE, Attempt, BugResult, Results, write
from onceproof.scenario_files.load import LoadedScenario

#: Runs a scenario and judges it. The text says what the run is for.
Execute = Callable[[LoadedScenario, str], Run]
_Judge = Callable[[Bug, Verdict, str], Attempt]


def create_folder(runs_dir: Path) -> Path:
    """Make the folder of a selftest below ``runs_dir``. Raises `EnvironmentProblem`."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = (runs_dir / f"selftest-{stamp}-{secrets.token_hex(2)}").absolute()
    try:
        folder.mkdir(parents=True)
    except OSError as refused:
        raise run_dir_problem(refused, runs_dir) from refused
    return folder


class Session:
    """One selftest. ``selftest.json`` in its folder is written again after each bug."""

    def __init__(
        self,
        folder: Path,
        execute: Execute,
        *,
        times: int = 1,
        full: bool = False,
        report: Callable[[str, BugResult], None] = lambda _name, _result: None,
    ) -> None:
        """``full``: also run each bug without its fault, and its remedy. ``report`` gets each result as it comes."""
        self._folder = folder
        self._execute = execute
        self._times = times
        self._full = full
        self._report = report
        #: What was run -> its verdict: bugs of one job, or with one remedy, share it.
        self._done: dict[str, tuple[Verdict, str] | OnceproofError] = {}
        self._versions: dict[str, str] = {}

    def work(self, planted: Sequence[PlantedBug]) -> Results:
        """Run them all. A run that fails counts as not caught, and the others still run."""
        results: Results = {}
        for each in planted:
            results[each.bug.name] = self._result(each)
            write(self._folder / FILE, results)
            self._report(each.bug.name, results[each.bug.name])
        return results

    def _result(self, planted: PlantedBug) -> BugResult:
        bug, name = planted.bug, planted.bug.name
        self._versions = {}
        broken = planted.broken(self._folder / "mutants")
        attempts = [self._attempt(bug, broken, name, match.attempt) for _ in range(self._times)]
        vacuity = control = None
        if self._full and not bug.shows_without_fault:
            vacuity = self._attempt(bug, with_chaos(broken, []), f"{name} without its fault", match.vacuity, share=True)
        if self._full:
            control = self._attempt(bug, planted.remedy, f"the remedy of {name}", match.control, share=True)
        return BugResult(
            named=bug.named,
            onceproof=__version__,
            date=datetime.now(UTC).date().isoformat(),
            digest=planted.digest(),
            versions=self._versions,
            attempts=attempts,
            vacuity=vacuity,
            control=control,
        )

    def _attempt(self, bug: Bug, loaded: LoadedScenario, what: str, judge: _Judge, *, share: bool = False) -> Attempt:
        began = time.monotonic()
        done = self._done.get(key := _key(loaded)) if share else None
        if done is None:
            done = self._run(loaded, what)
        if share:
            self._done[key] = done
        if isinstance(done, OnceproofError):
            why = done.message.partition("\n")[0]
            run = "" if done.run_dir is None else done.run_dir.name
            seconds = round(time.monotonic() - began, 1)
            return Attempt(passed=False, why=why, outcome="error", seconds=seconds, run=run)
        return judge(bug, *done)

    def _run(self, loaded: LoadedScenario, what: str) -> tuple[Verdict, str] | OnceproofError:
        try:
            run = self._execute(loaded, what)
        except OnceproofError as error:
            return error
        versions = RunRecord.read(run.run_dir).versions or {}
        self._versions = {name: str(version) for name, version in sorted(versions.items())}
        return run.verdict, run.run_dir.name


def _key(loaded: LoadedScenario) -> str:
    """Equal for scenarios whose runs are alike."""
    named = ("name", "about", "expect")
    return json.dumps({key: value for key, value in loaded.scenario.to_json().items() if key not in named})
