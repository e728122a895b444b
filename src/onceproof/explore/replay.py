"""`onceproof replay`: executes the stored schedule of a run again, a given number of times, and judges each execution.

Services stay up between executions, and are clean for each of them (`onceproof.stack.sharing`). Executions with the same findings are
removed; one with other findings is kept, with its verdict.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from onceproof.base.errors import HistoryError, UsageError
from onceproof.base.masking import hiding, of_environment
from onceproof.base.signals import uninterrupted
from onceproof.base.timeline import EVENTS, Timeline
from onceproof.base.words import times
from onceproof.faults.contract import needs_proxy
from onceproof.history import run_files
from onceproof.history.execution import Execution
from onceproof.history.run_directory import RunDir, locked, private_files
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.unobserved import unobserved
from onceproof.judge.verdict import judge, write_verdict
from onceproof.kinds.contract import Services, Start, WarmsUp, kind_of
from onceproof.reports import commands
from onceproof.run import observe
from onceproof.scenario.model import Scenario
from onceproof.stack.processes.owner import Owner
from onceproof.stack.sharing.shared import SharedStack

Say = Callable[[str], None]


@dataclass(frozen=True)
class ComparedResult:
    """The result of an execution, as far as it must be the same each time."""

    outcome: Outcome
    anomalies: tuple[tuple[str, str, int | None], ...]
    """Anomaly, output, rows, of what the claim does not allow. Rows are None if the kind of pipeline does not repeat exactly."""
    hit: tuple[bool, ...]
    """For each fault, whether it hit."""
    order: tuple[tuple[str, str], ...] | None
    """Output and content of each row, in their order; None if the kind of pipeline does not repeat exactly."""


@dataclass(frozen=True)
class Replay:
    """How often the replays had the same findings."""

    run: str
    times: int
    same: int
    verdicts: dict[str, int]
    seconds: tuple[float, ...]
    """For each execution, the time including judging, without the start of shared services."""
    start_s: float
    """The time to start services that executions share, in total; 0 if each starts its own."""
    starts: int
    """How often shared services were started: more than once if a fault damaged them, or they could not be cleaned."""
    different: tuple[str, ...]
    """Run directories of executions with other findings."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def stored_scenario(run_dir: Path) -> Scenario:
    """Return the scenario of a run, as it was run. Raises `HistoryError` if it cannot be used."""
    return RunRecord.read(run_dir).scenario.parsed(run_dir)


def folder_of_scenario(run_dir: Path) -> Path:
    """Return ``{here}`` of a stored run."""
    return Path(RunRecord.read(run_dir).scenario_path or run_dir).resolve().parent


def replayable(run_dir: Path) -> Scenario:
    """Return the scenario of a run that can be executed again and compared. Raises `UsageError` and `HistoryError`."""
    scenario = stored_scenario(run_dir)
    run = RunRecord.read(run_dir)
    if not run.observed:  # there is nothing to compare with
        (why,) = unobserved(run_dir, run).reasons
        raise HistoryError(
            f"{run_dir} has no whole history to compare a replay with: {why}",
            hint="run the scenario again, and replay that run",
        )
    if (stack := commands.stack_of(run)) is not None:
        raise UsageError(
            f"{run_dir} used the stack {stack}, and run.json does not store how to reach it",
            hint=f"run its scenario again: {commands.run_again(run)}",
        )
    for secret in scenario.pipeline.secrets:
        if secret not in os.environ:
            raise UsageError(
                f"secret {secret!r}: no environment variable of that name is set",
                hint=f"export {secret}=..., then run this command again",
            )
    return scenario


def replay(run_dir: Path, *, times: int, report: Say, fresh_stack: bool = False) -> Replay:
    """Execute the schedule of ``run_dir`` ``times`` times, with ``fresh_stack`` each on services of its own.

    Raises as a run does, and `HistoryError` for a run without a history.
    """
    scenario = replayable(run_dir)
    with private_files(), hiding(of_environment(scenario.pipeline.secrets)), locked(run_dir, "replay or shrink"):
        return _replay(run_dir, scenario, times, report, fresh_stack)


def _replay(run_dir: Path, scenario: Scenario, times: int, report: Say, fresh_stack: bool) -> Replay:
    wanted = _result(run_dir, scenario, judge(run_dir))
    here = folder_of_scenario(run_dir)
    folder = run_dir / "replays"
    verdicts: Counter[str] = Counter()
    seconds: list[float] = []
    different: list[str] = []
    with shared_services(scenario, run_dir / "logs" / "replay", fresh_stack=fresh_stack) as services:
        run_files.remove(folder)  # results of an earlier replay, kept until this one can start
        for number in range(1, times + 1):
            began, starting = time.monotonic(), services.start_s
            directory = RunDir.below(folder / f"{number:04d}")
            try:
                execute_once(scenario, here, services.start, directory, number, services.stack)
                verdict = judge(directory.path)
            except BaseException:
                with uninterrupted("removing the replay that did not end"):  # half a replay shows nothing
                    shutil.rmtree(directory.path if different else folder, ignore_errors=True)
                raise
            result = _result(directory.path, scenario, verdict)
            seconds.append(round(time.monotonic() - began - (services.start_s - starting), 3))
            verdicts[verdict.outcome.value] += 1
            if result == wanted:
                shutil.rmtree(directory.path)
            else:
                write_verdict(directory.path, verdict)
                different.append(str(directory.path))
            comparison = "the same" if result == wanted else f"NOT the same: {directory.path}"
            report(f"replay {number} of {times}: {verdict.outcome.value}, {comparison} ({seconds[-1]:.1f} s)")
    if not different:
        shutil.rmtree(folder, ignore_errors=True)
    same = times - len(different)
    start_s, starts = round(services.start_s, 3), services.starts
    return Replay(str(run_dir), times, same, dict(verdicts), tuple(seconds), start_s, starts, tuple(different))


@dataclass(frozen=True)
class SharedServices:
    """What gives all executions of a command the same services."""

    start: Start | None = None
    """None: each execution starts its own."""
    stack: SharedStack | None = None
    """What cleans them after each execution; None if executions do so themselves."""
    took_s: float = 0.0

    @property
    def start_s(self) -> float:
        """Seconds that starts of shared services took until now."""
        return self.took_s if self.stack is None else self.stack.start_s

    @property
    def starts(self) -> int:
        return int(self.took_s > 0) if self.stack is None else self.stack.starts


@contextmanager
def shared_services(scenario: Scenario, folder: Path, *, fresh_stack: bool = False) -> Iterator[SharedServices]:
    """Yield what gives executions of ``scenario``, or of parts of it, the same services; not with ``fresh_stack``.

    The logs of services that executions do not log themselves go below ``folder``.
    """
    kind = kind_of(scenario)
    if fresh_stack:
        yield SharedServices()
    elif kind.shares_services:
        start = kind.fetch(scenario, survey=False)
        with Owner() as owner:
            began = time.monotonic()
            services = start_services(start, owner, folder)
            yield SharedServices(lambda *_: services, took_s=time.monotonic() - began)
    else:
        # A part of the scenario may need no protocol proxy: the stack has one if the whole needs it.
        with SharedStack(protocol_proxy=needs_proxy(scenario)) as stack:
            yield SharedServices(kind.fetch(scenario, survey=False, shared=stack), stack)


def start_services(start: Start, owner: Owner, folder: Path) -> Services:
    run_files.fresh_folder(folder)
    (folder / "logs").mkdir()
    timeline = Timeline(folder / EVENTS)
    try:
        services = start(owner, folder, timeline)
        if isinstance(services, WarmsUp):
            services.warm_up()
        return services
    finally:
        timeline.close()


def execute_once(
    scenario: Scenario,
    here: Path,
    start: Start | None,
    directory: RunDir,
    number: int,
    shared: SharedStack | None = None,
) -> None:
    """Execute the schedule and write its history to ``directory``.

    ``number`` makes the names of consumers unique on shared services; ``shared`` cleans those of other kinds afterwards.
    """
    timeline = Timeline(directory.events)
    try:
        path = here / f"{file_name(scenario.name)}.yaml"
        observe(Execution(scenario, path, directory, timeline, shared=shared, number=number), start)
    finally:
        timeline.close()


def file_name(scenario: str) -> str:
    """Return the name of a scenario as part of a file name: a stored name may hold any characters, also those of a path."""
    return re.sub(r"[^\w.-]+", "-", scenario)[:100]


def _result(run_dir: Path, scenario: Scenario, verdict: Verdict) -> ComparedResult:
    exactly = kind_of(scenario).repeats_exactly
    found = {(f.anomaly, f.output, f.total if exactly else None) for f in verdict.findings if f.violates}
    columns = ["output", "content"]
    rows = pq.read_table(run_dir / "history" / "output.parquet", columns=columns).to_pylist() if exactly else None
    return ComparedResult(
        verdict.outcome,
        tuple(sorted(found, key=repr)),
        tuple(fault.hit for fault in verdict.faults),
        None if rows is None else tuple((row["output"], row["content"] or "") for row in rows),
    )


def as_text(done: Replay) -> str:
    counted = ", ".join(f"{outcome} {count}" for outcome, count in sorted(done.verdicts.items()))
    slowest, typical = max(done.seconds), sorted(done.seconds)[len(done.seconds) // 2]
    lines = [
        f"{done.same} of {done.times} replays had the same findings ({counted})",
        f"a replay took {typical:.1f} s, the longest {slowest:.1f} s",
    ]
    if done.starts:
        lines.append(f"they shared services, with {times(done.starts, 'start')} of {done.start_s:.1f} s in total")
    return "\n".join([*lines, *(f"not the same: {path}" for path in done.different)])
