"""Runs one qualification: a run without faults, then further runs until every cell is decided or no run fits the budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from onceproof.base import duration
from onceproof.base.errors import EnvironmentProblem, Interrupted, OnceproofError, UsageError
from onceproof.base.registry import suggest
from onceproof.base.signals import uninterrupted
from onceproof.base.timeline import Event, read_events
from onceproof.base.version import __version__
from onceproof.data import rows_of
from onceproof.faults import survey
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Outcome, Verdict
from onceproof.kinds.contract import kind_of
from onceproof.qualify import attribution, console, windows
from onceproof.qualify.cells import Cell, CellState, cells
from onceproof.qualify.cells import kinds as known_kinds
from onceproof.qualify.cells import outcome as outcome_of
from onceproof.qualify.directory import Directory, QualificationProgress, digest_of
from onceproof.qualify.finished_run import (
    after_cut_off,
    after_failure,
    decides_about,
    fired_by,
    read_verdict,
    violated_runs,
    with_witness_per_batch,
)
from onceproof.qualify.scenario_file import Template, named_files
from onceproof.qualify.schedule import (
    Pace,
    RunStep,
    fault_of,
    needed_s,
    next_step,
    repeat_step,
    retry_where_nothing_was_in_danger,
    step,
)
from onceproof.qualify.strongest import Strongest, strongest
from onceproof.qualify.unclear import unclear_cells, unclear_runs
from onceproof.run import Result as RunResult
from onceproof.run import run
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load_file
from onceproof.stack.external.profile import StackProfile
from onceproof.stack.sharing.shared import SharedStack

_LEAST_DEADLINE_S = 60.0
"""The least time that a run gets to feed and drain, even if the budget ends sooner: half a run shows nothing."""
_A_CELL_S = 30.0
"""Seconds added to the user's own deadline for each cell: three times as long as a restart and two batches took on two loaded cores."""
_CELL_OF_BASE = 0.6
"""The time of a cell as a part of the time of the run without faults, on a busy machine: the first guess on a slow machine."""
_MARGIN = 1.15
"""Factor on the time that a cell took, to estimate the next ones."""
_FAILURES = 2
"""If the harness could not finish this many runs in a row, the cause is the machine and not the cells."""


class ProgressListener(Protocol):
    """Is notified of the progress of a qualification. A class that inherits from it ignores what it does not define."""

    def starts(self) -> None:
        """The budget's clock starts now."""
        return

    def begins(self, what: str) -> None:
        return

    def event(self, event: Event) -> None:
        return

    def print(self, line: str) -> None:
        return


@dataclass(frozen=True)
class Qualification:
    """The result of a qualification."""

    scenario: Scenario
    directory: Directory
    progress: QualificationProgress
    cells: tuple[Cell, ...]
    """The cells of ``progress``; one that is still pending is *not reached*, or what a shared run showed of it."""
    first: Verdict
    """The verdict on the run without faults. If it did not hold, no fault was tried."""
    strongest: Strongest | None
    outcome: Outcome
    budget_s: float
    unclaimed: dict[str, dict[str, int]] = field(default_factory=dict)
    """What runs show and no cell does: run directory, below that of the qualification -> anomaly -> number of rows or records."""
    unclear: tuple[str, ...] = ()
    """Why runs prove nothing, in a way that no inconclusive cell shows: with any such reason, cells that held are in doubt."""

    @property
    def unfinished(self) -> bool:
        return any(cell.state is CellState.PENDING for cell in self.progress.cells)


def begin(
    path: Path, *, runs_dir: Path, seed: int | None, profile: StackProfile | None = None, kinds: tuple[str, ...] = ()
) -> tuple[Directory, QualificationProgress]:
    """Begin a qualification of the scenario at ``path``. Raises `UsageError` if it cannot be qualified.

    ``profile``: the stack to run it on; None: services of its own. ``kinds``: the kinds of faults to try, and no others; none:
    those that need not be named.
    """
    _check_kinds(kinds)
    scenario = load_file(path, profile, runs=False).scenario  # its own faults are not used
    _check(scenario)
    directory = Directory.create(runs_dir, scenario.name)
    template = Template(path)
    about = f"{scenario.about.strip()} (Without faults: the run that `onceproof qualify` begins with.)".strip()
    directory.write(directory.scenario, template.text(about=about, faults=[], seed=seed))
    progress = QualificationProgress(
        scenario=scenario.name,
        scenario_path=str(path.absolute()),
        digest=digest_of(path),
        copy=digest_of(directory.scenario),
        onceproof=__version__,
        files={name: digest_of(file) for name, file in named_files(path).items()},
        seed=scenario.seed if seed is None else seed,
        kinds=kinds,
        replaced=len(scenario.chaos),
        stack=None if profile is None else profile.name,
    )
    directory.save(progress)
    return directory, progress


def resume(path: Path) -> tuple[Directory, QualificationProgress]:
    """Open the qualification in ``path`` to continue it.

    Raises `UsageError` as `Directory.refuse_changes`, and `HistoryError` if one of its runs is gone.
    """
    directory, progress = Directory.open(path)
    directory.refuse_changes(progress)
    for decided in progress.decided:  # check that they can be read now, not after the whole budget
        read_verdict(directory.path / decided)
    runs = (*progress.decided, *violated_runs(directory, progress))
    return directory, replace(
        progress, decided=runs, ended=None, outcome=None, strongest=None, shortage=None, unclaimed={}
    )


def _check_kinds(named: tuple[str, ...]) -> None:
    for kind in named:
        if kind not in (known := known_kinds()):
            raise UsageError(f"--kinds: qualify tries no kind {kind!r}", hint=suggest(kind, known))


def check_has_batches(scenario: Scenario) -> None:
    """Raises `UsageError` for a scenario of consumers."""
    if not kind_of(scenario).micro_batches:
        raise UsageError(
            f"{scenario.name} describes consumers, not a Spark job: they have no batches at which to put faults",
            hint="use onceproof run and onceproof replay for consumers",
        )


def _check(scenario: Scenario) -> None:
    check_has_batches(scenario)
    most = max(rows_of(spec, scenario.seed) for spec in scenario.input)
    if most < 2:
        message = (
            f"the input of {scenario.name} is a single record: it makes one batch, and a fault needs one before it"
        )
        raise UsageError(message, hint="give it more rows, or a larger sample")


class Session:
    """Runs a qualification and saves its state after each run."""

    def __init__(
        self,
        directory: Directory,
        progress: QualificationProgress,
        *,
        budget_s: float,
        listener: ProgressListener,
        clock: Callable[[], float] = time.monotonic,
        tries: int,
        profile: StackProfile | None = None,
        shared: SharedStack | None = None,
    ) -> None:
        """``profile``: that of ``progress.stack``. ``tries``: at how many batches a cell is tried. ``shared`` lends services to all runs."""
        self._tries = tries
        self._profile = profile
        self._shared = shared
        self._directory = directory
        self._progress = progress
        self._listener = listener
        self._clock = clock
        self._budget_s = budget_s
        self._template = Template(directory.scenario)
        loaded = load_file(directory.scenario, profile, runs=False).scenario
        self._scenario = loaded.model_copy(update={"name": progress.scenario})
        self._rows = {spec.topic: rows_of(spec, self._scenario.seed) for spec in self._scenario.input}
        self._began = clock()
        self._spent_before = progress.spent_s
        self._first_batches: Mapping[str | None, int] = {}
        self._failed_cells: list[tuple[Cell, ...]] = []
        """For each of the last runs in a row that the harness could not finish: the cells as they were before that run."""

    @property
    def left_s(self) -> float:
        return self._budget_s - (self._clock() - self._began)

    def work(self) -> Qualification:
        """Run until every cell is decided or no run fits the budget.

        Raises `Interrupted`, and the error of a run that another run would not get past.
        """
        try:
            # Before the clock starts: what is fetched once does not count as time of the qualification.
            kind_of(self._scenario).fetch(self._scenario, survey=True, profile=self._profile)
            self._began = self._clock()
            self._listener.starts()
            return self._work()
        except Interrupted:
            with uninterrupted("saving what was found until now"):
                self._save()
            raise Interrupted(
                f"interrupted: {self._describe_kept()}",
                hint=f"continue with: onceproof qualify --continue {self._directory.path}",
            ) from None
        except OnceproofError:
            self._save()
            raise

    def _work(self) -> Qualification:
        if (first := self._run_without_faults()).outcome is not Outcome.HELD:
            return self._result(first, ended="the job does not hold without faults")
        job = survey.read(self._directory.path / str(self._progress.first), self._scenario)
        self._first_batches = job.first_batches()
        if not self._progress.cells:
            self._save(cells=tuple(cells(job, self._scenario, self._profile, self._progress.kinds)))
        unplaced = sum(cell.why in job.gaps.values() for cell in self._progress.cells)
        reachable = sum(cell.reachable for cell in self._progress.cells) - unplaced
        gaps = f", {unplaced} cannot be placed: {job.no_commit()}" if unplaced else ""
        self._listener.print(f"{console.describe_job(job)}; {reachable} cells of the matrix can be reached{gaps}")
        while (chosen := self._next_step()) is not None:
            self._run_step(chosen)
        left = any(cell.state is CellState.PENDING for cell in self._progress.cells)
        return self._result(first, ended="budget" if left else "done")

    # -- runs -----------------------------------------------------------------------------------------------------

    def _run_without_faults(self) -> Verdict:
        if self._progress.first is not None:
            verdict = read_verdict(self._directory.path / self._progress.first)
            if verdict.outcome in (Outcome.HELD, Outcome.VIOLATED):  # a violation is never retried away
                return verdict
        self._listener.begins("run 1: without faults")
        began = self._clock()
        text = self._template.text(about="Without faults.", faults=[], deadline_s=self._deadline_s(0))
        file = self._directory.write(self._directory.steps / "01-without-faults.yaml", text)
        done = self._run(file, survey_frames=True)
        name = self._relative_name(done)
        others = (run for run in self._progress.decided if run != self._progress.first)
        self._save(first=name, decided=(*others, name), steps=1, first_s=round(self._clock() - began, 1))
        return done.verdict

    def _next_step(self) -> RunStep | None:
        """Return the next run: cells that were never decided come before repetitions."""
        cells, rows, first = self._progress.cells, self._rows, self._first_batches
        pace, left_s = self._pace(), self.left_s
        undecided = next_step(cells, rows, pace=pace, left_s=left_s, first=first)
        return undecided or repeat_step(cells, rows, tries=self._tries, pace=pace, left_s=left_s, first=first)

    def _pace(self) -> Pace:
        known = Pace()
        base_s = self._progress.first_s or known.base_s
        cell_s = self._progress.cell_s or max(known.cell_s, _CELL_OF_BASE * base_s)
        return Pace(base_s, cell_s, self._progress.fault_s)

    def _run_step(self, chosen: RunStep) -> None:
        number = self._progress.steps + 1
        titles = [f"{cell.title()}, batch {batch}" for cell, batch in zip(chosen.cells, chosen.batches, strict=True)]
        self._listener.begins(f"run {number}: {'; '.join(titles)}")
        file = self._write_step(chosen, number)
        began = self._clock()
        try:
            done = self._run(file)
        except OnceproofError as failure:
            self._handle_failure(chosen, failure, number)
            return
        self._failed_cells = []
        took = self._clock() - began
        events = read_events(done.run_dir)
        seen = windows.windows(events, chosen)
        verdict = with_witness_per_batch(done.verdict, done.run_dir)
        changed = attribution.attribute(chosen, verdict, fired_by(events), self._relative_name(done), seen)
        changed = retry_where_nothing_was_in_danger(chosen, changed, done.verdict)
        cut_off = self.left_s <= 0 and not RunRecord.read(done.run_dir).drained
        if cut_off:
            changed = [after_cut_off(*both) for both in zip(chosen.cells, changed, strict=True)]
            self._listener.print("the budget ended this run before it had drained: it shows only what is violated")
        for cell in changed:
            if cell.verdict is Outcome.VIOLATED or cell.state is CellState.PENDING:
                self._write_cell(cell, chosen)
            self._listener.print(console.describe_cell(cell))
        pace, fault_s = self._pace(), dict(self._progress.fault_s)
        cell_s = round(max(took - pace.base_s, 1.0) / len(changed) * _MARGIN, 1)
        if cut_off:  # learn nothing from this run: the cells of the next budget would seem not to fit
            cell_s = pace.cell_s
        elif not chosen.shared:
            fault_s[fault_of(chosen.cells[0])] = cell_s
            cell_s = pace.cell_s
        decides = done.verdict.outcome is Outcome.VIOLATED or any(map(decides_about, chosen.cells, changed))
        decided = [self._relative_name(done)] if decides else []
        self._progress = self._progress.with_cells(changed)
        self._save(steps=number, cell_s=cell_s, fault_s=fault_s, decided=(*self._progress.decided, *decided))

    def _write_step(self, chosen: RunStep, number: int) -> Path:
        if not chosen.shared:
            self._write_cell(chosen.cells[0], chosen)
        faults = [cell.fault(batch) for cell, batch in zip(chosen.cells, chosen.batches, strict=True)]
        text = self._template.text(
            about=f"{len(faults)} cells of a qualification in one run." if chosen.shared else _about(chosen.cells[0]),
            faults=faults,
            chunks=chosen.chunks,
            deadline_s=self._deadline_s(len(faults)),
        )
        name = f"{len(faults)}-faults" if chosen.shared else chosen.cells[0].name
        return self._directory.write(self._directory.steps / f"{number:02d}-{name}.yaml", text)

    def _write_cell(self, cell: Cell, ran: RunStep) -> Path:
        """Write the scenario with this fault alone, which repeats it. The scenario of a step also has a deadline within the budget.

        Where the cell held at other batches before, it strikes the batch that it struck in ``ran``.
        """
        alone = step([cell], self._rows, self._first_batches)
        batch, chunks = alone.batches[0], alone.chunks
        for before, struck in zip(ran.cells, ran.batches, strict=True):
            if before.name == cell.name and before.hits:
                batch, chunks = struck, ran.chunks
        text = self._template.text(about=_about(cell), faults=[cell.fault(batch)], chunks=chunks)
        return self._directory.write(self._directory.cells / f"{cell.name}.yaml", text)

    def _run(self, file: Path, *, survey_frames: bool = False) -> RunResult:
        return run(
            load_file(file, self._profile),
            runs_dir=self._directory.runs,
            listeners=[self._listener.event],
            survey=survey_frames,
            shared=self._shared,
        )

    def _handle_failure(self, chosen: RunStep, failure: OnceproofError, number: int) -> None:
        """Handle a run that the harness could not finish: its cells get another run, unless it is the second one in a row."""
        self._failed_cells.append(chosen.cells)
        self._listener.print(f"the run failed: {failure.message.splitlines()[0]}")
        logs = f" (logs: {failure.run_dir / 'logs'})" if failure.run_dir is not None else ""
        why = f"the harness could not finish its run: {failure.message.splitlines()[0]}{logs}"
        again = [after_failure(cell, why, shared=chosen.shared) for cell in chosen.cells]
        self._progress = self._progress.with_cells(again)
        if len(self._failed_cells) < _FAILURES:
            self._save(steps=number)
            return
        for before in self._failed_cells:  # nothing is known of these cells: --continue tries them again
            self._progress = self._progress.with_cells([replace(cell, alone=True) for cell in before])
        self._save(steps=number)
        raise EnvironmentProblem(
            f"{len(self._failed_cells)} runs in a row failed, the last with: {failure.message}",
            hint=f"{failure.hint or f'the logs are in {self._directory.runs}'}; {self._describe_kept()}; then continue with: "
            f"onceproof qualify --continue {self._directory.path}",
        ) from failure

    def _describe_kept(self) -> str:
        """Return what is kept for `--continue`, as words of a message."""
        if not self._progress.cells:
            return "no run without faults was finished yet" if self._progress.first is None else "the first run is kept"
        decided = sum(cell.reachable and cell.state is not CellState.PENDING for cell in self._progress.cells)
        reachable = sum(cell.reachable for cell in self._progress.cells)
        return f"the results of {decided} of {reachable} cells are kept"

    def _deadline_s(self, faults: int) -> float:
        allowed = self._template.deadline_s + _A_CELL_S * faults
        return round(max(_LEAST_DEADLINE_S, min(allowed, self.left_s)), 0)

    # -- state ----------------------------------------------------------------------------------------------------

    def _save(self, **fields: object) -> None:
        spent = round(self._spent_before + self._clock() - self._began, 1)
        self._progress = replace(self._progress, spent_s=spent, **fields)  # type: ignore[arg-type]
        self._directory.save(self._progress)

    def _relative_name(self, done: RunResult) -> str:
        return str(done.run_dir.relative_to(self._directory.path))

    def _result(self, first: Verdict, *, ended: str) -> Qualification:
        self._save(ended=ended, shortage=self._why_not_tried())
        settled = self._progress.settled()
        right = first.outcome is Outcome.HELD
        verdicts = {name: read_verdict(self._directory.path / name) for name in self._progress.decided} if right else {}
        of_runs = unclear_runs(settled, verdicts, self._directory.path, self._scenario)
        doubts = [*unclear_cells(settled), *of_runs]
        unclaimed = attribution.unclaimed(settled, verdicts)
        exercised = any(cell.exercised for cell in settled)
        outcome = _outcome(settled, doubts, unclaimed) if right else first.outcome
        held = strongest(verdicts.values(), self._scenario, doubts) if exercised else None
        self._save(outcome=outcome.value, strongest=held, unclaimed=unclaimed)
        return Qualification(
            scenario=self._scenario,
            directory=self._directory,
            progress=self._progress,
            cells=settled,
            first=first,
            strongest=held,
            outcome=outcome,
            budget_s=self._budget_s,
            unclaimed=unclaimed,
            unclear=tuple(of_runs),
        )

    def _why_not_tried(self) -> str:
        """Return why the cells that are still pending were not tried."""
        left, budget = self.left_s, duration.clock(self._budget_s)
        needed = needed_s(self._progress.cells, self._pace())
        if needed is None or left <= 0:
            return f"the budget of {budget} was used up"
        needs, remains = duration.clock(math.ceil(needed)), duration.clock(left)
        more = "a little more than" if needs == remains else f"about {needs}, more than"
        return f"the shortest run that remains needs {more} the {remains} left of the budget of {budget}"


def _about(cell: Cell) -> str:
    return f"One cell of a qualification: {cell.title()}."


def _outcome(settled: tuple[Cell, ...], doubts: list[str], unclaimed: Mapping[str, object]) -> Outcome:
    """Return the outcome of the cells, of violated runs that no cell explains, and of runs that prove nothing."""
    outcome = Outcome.VIOLATED if unclaimed else outcome_of(settled)
    return Outcome.INCONCLUSIVE if outcome is Outcome.HELD and doubts else outcome
