"""The directory of a qualification: its state, in one JSON file that is replaced after each run, and all of its runs.

::

    qualification.json   the state, from which `onceproof qualify --continue DIR` continues
    scenario.yaml        the user's scenario as it was when the qualification began, without faults
    steps/               the scenario of each run, with a deadline within the budget
    cells/               a scenario with one fault for each cell that was run alone, is violated or is not decided yet
    runs/                a run directory for each run
    lock                 locked while a command works in the directory; empty
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from onceproof.base.errors import UsageError
from onceproof.base.paths import absolute
from onceproof.base.version import __version__
from onceproof.history import run_files
from onceproof.history.run_directory import locked, run_dir_problem
from onceproof.judge.findings import Outcome
from onceproof.qualify.cells import Cell, outcome
from onceproof.qualify.reported import as_reported
from onceproof.qualify.strongest import Strongest

FILE = "qualification.json"
VERSION = 1
_SCENARIO = "scenario.yaml"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class QualificationProgress:
    """The state of a qualification. Frozen: each run makes a new one."""

    scenario: str
    """The name of the scenario."""
    scenario_path: str
    digest: str
    """SHA-256 of the scenario's file when the qualification began."""
    seed: int
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the scenario names by ``{here}`` (its job, for example): path from there -> SHA-256 when the qualification began."""
    copy: str = ""
    """SHA-256 of the directory's own copy of the scenario, which the runs use."""
    onceproof: str = ""
    """The version of onceproof that began it."""
    stack: str | None = None
    """The stack that ``--stack`` named. Its profile is read again by ``--continue``, because it holds secrets."""
    kinds: tuple[str, ...] = ()
    """The kinds of faults that ``--kinds`` named; none: those that need not be named."""
    replaced: int = 0
    """Number of the scenario's own faults, which are not used."""
    first: str | None = None
    """Directory of the run without faults, once there is one; like all run directories, below that of the qualification."""
    cells: tuple[Cell, ...] = ()
    decided: tuple[str, ...] = ()
    """Runs whose findings say something about the job: the first one, and those whose faults hit."""
    steps: int = 0
    spent_s: float = 0.0
    cell_s: float | None = None
    """How long a cell takes in a shared run, as learned so far."""
    fault_s: Mapping[str, float] = field(default_factory=dict)
    """The same for each kind and target that was run alone."""
    first_s: float | None = None
    ended: str | None = None
    """Why no more cells were tried: ``done``, ``budget``, or what ended the qualification. None while it goes on."""
    outcome: str | None = None
    """The result that the command reported when it ended. It may be worse than that of the cells: a run without a cell may be
    violated, and a run may prove nothing."""

    strongest: Strongest | None = None
    """The strongest claim that held; None before the qualification has ended, and if no cell was exercised."""
    shortage: str | None = None
    """Why no further run was made; None before the qualification has ended."""
    unclaimed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What runs show and no cell does: run directory, below that of the qualification -> anomaly -> number of rows or records."""

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    def result(self) -> Outcome:
        """The result as far as it is known: never held before the qualification has ended."""
        if self.outcome is not None:
            return Outcome(self.outcome)
        of_cells = outcome(self.cells) if self.cells else Outcome.INCONCLUSIVE
        return Outcome.INCONCLUSIVE if of_cells is Outcome.HELD and self.ended is None else of_cells

    def settled(self) -> tuple[Cell, ...]:
        """The cells as they are reported. Once no further run is made, one that is pending is what a shared run showed of it."""
        return self.cells if self.shortage is None else tuple(as_reported(cell, self.shortage) for cell in self.cells)

    def with_cells(self, changed: list[Cell]) -> QualificationProgress:
        """Return the state with these cells instead of those of the same names."""
        new = {cell.name: cell for cell in changed}
        return replace(self, cells=tuple(new.get(cell.name, cell) for cell in self.cells))


_PROGRESS = TypeAdapter(QualificationProgress)


class Directory:
    """The folder of one qualification."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"
        self.cells = path / "cells"
        self.steps = path / "steps"
        self.scenario = path / _SCENARIO

    @classmethod
    def create(cls, runs_dir: Path, scenario: str) -> Directory:
        """Create a folder below ``runs_dir``. Raises `EnvironmentProblem` if it cannot be written."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        made = cls(absolute(runs_dir / f"qualify-{scenario}-{stamp}-{secrets.token_hex(2)}"))
        try:
            for folder in (made.path, made.runs, made.cells, made.steps):
                folder.mkdir(parents=True)
        except OSError as refused:
            raise run_dir_problem(refused, runs_dir) from refused
        return made

    @classmethod
    def open(cls, path: Path) -> tuple[Directory, QualificationProgress]:
        """Open the folder of a qualification to continue it. Raises `UsageError` if it holds none, or one of another version."""
        file = path / FILE
        hint = "the report of a qualification names its directory; to begin a new one: onceproof qualify SCENARIO"
        try:
            stored = json.loads(run_files.read_text(file))
        except FileNotFoundError:
            raise UsageError(
                f"{str(path)!r} is not the directory of a qualification: it has no {FILE}", hint=hint
            ) from None
        except (OSError, ValueError, RecursionError) as damaged:
            raise UsageError(f"{file} cannot be read: {damaged}", hint=hint) from None
        if not isinstance(stored, dict) or stored.get("version") != VERSION:
            found = stored.get("version") if isinstance(stored, dict) else None
            raise UsageError(
                f"{file} has version {found}, and this onceproof reads version {VERSION}",
                hint="begin a new one: onceproof qualify SCENARIO",
            )
        try:
            progress = _PROGRESS.validate_python({name: each for name, each in stored.items() if name != "version"})
            progress.result()  # an unknown result is refused here, where the message names the file
        except ValueError as damaged:
            raise UsageError(f"{file} is damaged: {type(damaged).__name__}: {damaged}", hint=hint) from None
        return cls(absolute(path)), progress

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands out, until the block or this process ends.

        Raises `UsageError` if another one works in the directory: each would replace what the other one has found.
        """
        with locked(self.path, "qualify"):
            yield

    def refuse_changes(self, progress: QualificationProgress) -> None:
        """Raises `UsageError` if the scenario, a file that it names, or the version of onceproof is another than at the beginning."""
        original = Path(progress.scenario_path)
        hint = f"what was found may no longer be true; begin a new one: onceproof qualify {original}"
        if progress.onceproof != __version__:
            began = progress.onceproof or "an earlier version"
            message = f"onceproof {began} began the qualification in {self.path}, and this is {__version__}"
            raise UsageError(message, hint=hint)
        files = {original: progress.digest, self.scenario: progress.copy}
        files |= {original.resolve().parent / name: digest for name, digest in progress.files.items()}
        for file, digest in files.items():
            # A missing file has not changed: the directory has a copy of the scenario, and a run reports any other missing file.
            with suppress(OSError):
                if file.is_file() and digest_of(file) != digest:
                    raise UsageError(f"{file} has changed since the qualification in {self.path} began", hint=hint)

    def save(self, progress: QualificationProgress) -> None:
        """Replace the state in one step: a reader, or `--continue` after a crash, finds the old state or the new one."""
        try:
            run_files.write_text(self.path / FILE, json.dumps(progress.to_json(), indent=2, default=str) + "\n")
        except OSError as refused:
            raise run_dir_problem(refused, self.path) from refused

    def write(self, file: Path, text: str) -> Path:
        """Write a file of the directory. Raises `UsageError` for one that is not in it: the state may come from anyone."""
        if ".." in file.parts or not file.is_relative_to(self.path):
            raise UsageError(
                f"{self.path / FILE} names {file}, which leads out of {self.path}",
                hint="begin a new one: onceproof qualify SCENARIO",
            )
        try:
            run_files.write_text(file, text)
        except OSError as refused:
            raise run_dir_problem(refused, self.path) from refused
        return file

    def command_of(self, cell: Cell, stack: str | None = None) -> str:
        """Return the command that runs the cell alone, on that stack."""
        words = ["onceproof", "run", f"{self.cells / cell.name}.yaml", *(["--stack", stack] if stack else [])]
        return shlex.join(words)


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
