"""`onceproof shrink RUN`: searches for the smallest schedule, and leaves ``RUN/shrunk``: the minimal scenario, and a run of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onceproof.base.errors import Interrupted, OnceproofError, UsageError
from onceproof.base.masking import hiding, of_environment
from onceproof.base.registry import suggest
from onceproof.base.signals import uninterrupted
from onceproof.explore.replay import (
    Say,
    SharedServices,
    execute_once,
    file_name,
    folder_of_scenario,
    replayable,
    shared_services,
)
from onceproof.explore.shrink import Executed, Shrink, Shrunk, to_json
from onceproof.history import run_files
from onceproof.history.run_directory import RunDir, locked, private_files
from onceproof.history.run_record import RunRecord, StoredScenario
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import check, judge
from onceproof.kinds.contract import kind_of
from onceproof.reports.picture import files as picture_files
from onceproof.scenario.model import WORKER, Scenario
from onceproof.scenario.schedule import Schedule, ShrinkHint, Whole
from onceproof.scenario_files import whole as scenario_text
from onceproof.scenario_files.checks import crosscheck
from onceproof.scenario_files.load import load

FOLDER = "shrunk"
_RUN = "run"
_RECORDS = "records.jsonl"


@dataclass(frozen=True)
class Minimal:
    """The result of `shrink_run`."""

    run: Path
    anomalies: tuple[str, ...]
    whole: Schedule
    shrunk: Shrunk
    scenario: Path
    """The minimal scenario, as YAML."""
    run_dir: Path | None
    """A run of it; None if the search ended before there was one."""
    confirmed: bool
    """Whether the run of that file showed the same anomalies."""
    seconds: float
    unconfirmed: str = ""
    """Why the file itself was not run."""

    @property
    def exit_code(self) -> int:
        if self.shrunk.interrupted:
            return Outcome.INTERRUPTED.exit_code
        return 0 if self.shrunk.minimal and self.confirmed else Outcome.INCONCLUSIVE.exit_code

    def to_json(self) -> dict[str, Any]:
        return to_json(
            self.shrunk,
            self.whole,
            run=str(self.run),
            anomalies=list(self.anomalies),
            scenario=str(self.scenario),
            run_dir=str(self.run_dir) if self.run_dir is not None else None,
            confirmed=self.confirmed,
            unconfirmed=self.unconfirmed or None,
            seconds=self.seconds,
        )

    def as_text(self) -> str:
        shrunk = self.shrunk
        lines = [
            f"{', '.join(self.anomalies)}: from {self.whole}",
            f"  to {shrunk.best}, in {shrunk.executions} executions ({self.seconds:.0f} s)",
        ]
        if shrunk.minimal:
            lines.append("nothing more can be removed:")
            lines += [f"  {line}" for line in _removal_lines(shrunk)]
        else:
            lines.append(f"not proved to be minimal: {shrunk.why_not}")
        if self.unconfirmed:
            lines.append(f"the scenario file itself was not run: {self.unconfirmed}")
        elif not shrunk.interrupted and not self.confirmed:
            lines.append(
                "the last run of it did not show the same anomalies: the schedule does not show them each time"
            )
        lines.append(f"scenario: {self.scenario}")
        lines += [f"run: {self.run_dir}"] if self.run_dir is not None else []
        return "\n".join(lines)


def shrink_run(run_dir: Path, *, anomaly: str | None, most: int, report: Say, fresh_stack: bool = False) -> Minimal:
    """Shrink the schedule of the stored run ``run_dir``, in at most ``most`` executions.

    With ``fresh_stack`` each of them starts services of its own.

    The result must show all anomalies of the run, or only ``anomaly``. Raises `UsageError` for a run without any, and as `replay` does.
    An interruption, or an execution that fails, ends the search; the best schedule found until then is still written.
    """
    scenario = replayable(run_dir)
    with private_files(), hiding(of_environment(scenario.pipeline.secrets)), locked(run_dir, "replay or shrink"):
        return _shrink(run_dir, scenario, anomaly, most, report, fresh_stack)


def _shrink(
    run_dir: Path, scenario: Scenario, anomaly: str | None, most: int, report: Say, fresh_stack: bool
) -> Minimal:
    began = time.monotonic()
    verdict = judge(run_dir)
    known = frozenset(verdict.anomalies())
    wanted = _wanted(known, anomaly, verdict)
    here = folder_of_scenario(run_dir)
    kind = kind_of(scenario)
    whole = kind.whole(scenario)
    hinted = kind.hinted_schedules(whole, run_dir, _shrink_hints(verdict, wanted))
    folder = run_dir / FOLDER
    with shared_services(scenario, run_dir / "logs" / "shrink", fresh_stack=fresh_stack) as services:
        run_files.remove(folder)
        executions = _Executions(whole, here, services, folder, most, report)
        # One execution is reserved for the run of the resulting file.
        search = Shrink(
            whole.schedule, wanted, known, executions.execute, most - 1, executions.keep, whole.execution_key
        )
        run, confirmed, unconfirmed = None, False, ""
        try:
            shrunk = search.run(hinted)
            path = _write(whole, shrunk.best, folder, here, sorted(wanted))
            try:
                if not shrunk.interrupted:
                    run, confirmed = executions.confirm(path, known, wanted)
            except Interrupted as interrupted:
                shrunk, unconfirmed = replace(shrunk, interrupted=True), interrupted.message
            except OnceproofError as failed:
                unconfirmed = failed.message
            if run is None:
                run = executions.best()
        finally:
            with uninterrupted("removing the executions of the search"):
                executions.clear()
        shrunk = replace(shrunk, executions=executions.number)
    seconds = round(time.monotonic() - began, 1)
    return Minimal(run_dir, tuple(sorted(wanted)), whole.schedule, shrunk, path, run, confirmed, seconds, unconfirmed)


def _wanted(known: frozenset[str], anomaly: str | None, verdict: Verdict) -> frozenset[str]:
    if not known:
        raise UsageError(
            f"the run is {verdict.outcome}: it has no finding that a smaller schedule could show",
            hint="shrink a run that is violated",
        )
    if anomaly is None:
        return known
    if anomaly not in known:
        raise UsageError(f"the run shows no {anomaly!r}; {suggest(anomaly, sorted(known))}")
    return frozenset([anomaly])


def _shrink_hints(verdict: Verdict, wanted: frozenset[str]) -> list[list[ShrinkHint]]:
    """Return for each anomaly what its witnesses name."""
    return [
        [
            ShrinkHint(witness.cause, witness.batch)
            for finding in verdict.findings
            if finding.anomaly == anomaly and finding.violates
            for witness in finding.witnesses
        ]
        for anomaly in sorted(wanted)
    ]


@dataclass
class _Executions:
    """Executes schedules, each in a folder of its own, and remembers the folder of the best."""

    _whole: Whole
    _here: Path
    _services: SharedServices
    _folder: Path
    _most: int
    _report: Say
    number: int = 0
    _directories: dict[Hashable, Path] = field(default_factory=dict)
    _best: tuple[Schedule, Path] | None = None

    def execute(self, schedule: Schedule) -> Executed | None:
        directory = self._directory(self.number + 1)
        scenario = self._whole.of(schedule, directory.with_suffix(".jsonl"))
        if crosscheck.of_schedule(scenario):
            return None
        self._execute_into(scenario, directory, self._here)
        verdict = judge(directory)
        summary = _one_line(verdict)
        self._report(f"{self.number} of at most {self._most}: {schedule}: {summary}")
        self._directories[self._whole.execution_key(schedule)] = directory
        return Executed(frozenset(verdict.anomalies()), summary)

    def keep(self, schedule: Schedule) -> None:
        self._best = schedule, self._directories[self._whole.execution_key(schedule)]

    def confirm(self, path: Path, known: frozenset[str], wanted: frozenset[str]) -> tuple[Path, bool]:
        """Run the scenario file as it was written; return its run directory, and whether it shows the same anomalies."""
        directory = self._folder / _RUN
        self._execute_into(load(path), directory, path.parent)
        verdict = check(directory)
        self._draw(directory)
        self._report(f"{self.number} of at most {self._most}: {path.name}: {_one_line(verdict)}")
        return directory, wanted <= verdict.anomalies().keys() <= known

    def best(self) -> Path | None:
        """Move the run of the best schedule to where a reader looks for it, and return its directory; None if there is none."""
        directory = self._folder / _RUN
        self._remove(directory)  # half an execution shows nothing
        if self._best is None:
            return None
        schedule, executed = self._best
        executed.rename(directory)
        if executed.with_suffix(".jsonl").exists():
            self._take_records(schedule, directory)
        check(directory)
        self._draw(directory)
        return directory

    def _take_records(self, schedule: Schedule, directory: Path) -> None:
        """Move the records of the run into its directory, so that it can be replayed: `clear` removes the file that it read."""
        run = RunDir(directory)
        run.run = RunRecord.read(directory)
        run.update(scenario=StoredScenario.of(self._whole.of(schedule, directory / _RECORDS)))

    def _draw(self, directory: Path) -> None:
        if kind_of(self._whole.scenario).has_picture:
            picture_files.write(directory)

    def clear(self) -> None:
        """Remove every execution, also an unfinished one, and the folder if it is then empty."""
        for number in range(1, self.number + 2):
            self._remove(self._directory(number))
        with suppress(OSError):
            self._folder.rmdir()

    def _directory(self, number: int) -> Path:
        return self._folder / f"{number:04d}"

    def _execute_into(self, scenario: Scenario, directory: Path, here: Path) -> None:
        self.number += 1
        run = RunDir.below(directory)
        execute_once(scenario, here, self._services.start, run, self.number, self._services.stack)

    def _remove(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.with_suffix(".jsonl").unlink(missing_ok=True)


def _removal_lines(shrunk: Shrunk) -> Iterator[str]:
    """Yield a line for each removal that was tried, with its result for each way to place the faults."""
    for without in dict.fromkeys(tried.without for tried in shrunk.tried):
        came_to = [tried.came_to for tried in shrunk.tried if tried.without == without]
        ways = f" ({len(came_to)} ways)" if len(came_to) > 1 else ""
        yield f"without {without}{ways}: {'; '.join(dict.fromkeys(came_to))}"


def _one_line(verdict: Verdict) -> str:
    shown = ", ".join(f"{anomaly} {count}" for anomaly, count in sorted(verdict.anomalies().items()))
    if shown:
        return shown
    reason = verdict.reasons[0].splitlines()[0] if verdict.reasons else ""
    return str(verdict.outcome) if verdict.outcome is Outcome.HELD else f"{verdict.outcome}: {reason}"


def _write(whole: Whole, best: Schedule, folder: Path, here: Path, anomalies: Sequence[str]) -> Path:
    """Write the scenario of ``best`` as a file that can be run, and next to it the records that it needs."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{file_name(whole.scenario.name)}-minimal.yaml"
    scenario = whole.of(best, path.with_suffix(".jsonl"))
    document = scenario.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if document["pipeline"]["command"] == WORKER:
        del document["pipeline"]["command"]
    document |= {
        "about": f"The smallest schedule found of {whole.scenario.name} that still shows {', '.join(anomalies)}: {best}.",
        "expect": {"verdict": "violated", "anomalies": list(anomalies)},
    }
    # The file is in another folder, and what it names is not.
    path.write_text(scenario_text.text(scenario_text.tree_of(document, here)), encoding="utf-8")
    return path
