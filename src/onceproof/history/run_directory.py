"""The run directory: everything needed to judge a run again, on this machine or another."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.base.masking import masked_value
from onceproof.base.timeline import EVENTS
from onceproof.history.run_record import FILE, RunRecord

#: Fields of ``run.json`` that are stored unmasked, because a replay needs them as they are.
_GIVEN = frozenset(("scenario", "scenario_path", "stack_profile", "versions"))


P = ParamSpec("P")


def _fields_of(
    record: Callable[P, RunRecord],
) -> Callable[[Callable[..., None]], Callable[Concatenate[RunDir, P], None]]:
    """Gives the method, for type checkers, the parameters of the record."""
    return lambda method: method


class RunDir:
    """One run's folder: ``run.json``, ``events.jsonl``, ``history/``, ``logs/``, ``checkpoint/``, ``verdict.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.history = path / "history"
        self.tables = path / "history" / "tables"
        self.checkpoint = path / "checkpoint"
        self.events = path / EVENTS
        self.run = RunRecord()
        """What ``run.json`` holds."""

    @classmethod
    def create(cls, runs_dir: Path, scenario: str) -> RunDir:
        """Make a directory below ``runs_dir`` and point ``latest`` at it. Raises `EnvironmentProblem` if it is not writable."""
        run = cls(_new_name(runs_dir, scenario))
        with _writing(runs_dir):
            run._make()
            run._point_latest()
        return run

    @classmethod
    def below(cls, path: Path) -> RunDir:
        """Make a directory at ``path``, inside another run's. Raises `EnvironmentProblem` if it is not writable."""
        run = cls(path)
        with _writing(path):
            run._make()
        return run

    def settle(self, runs_dir: Path, scenario: str) -> RunDir:
        """Move a directory that `below` made, and that is complete, to ``runs_dir``, and point ``latest`` at it."""
        run = RunDir(_new_name(runs_dir, scenario))
        with _writing(runs_dir):
            self.path.rename(run.path)
            run._point_latest()
        run.run = self.run
        return run

    @_fields_of(RunRecord)
    def update(self, **fields: Any) -> None:
        """Merge fields of a `RunRecord` into ``run.json``, atomically: even after a crash it is the old record or the new one.

        Texts from the job and from services are masked (`onceproof.base.masking`).
        """
        self.run = self.run.with_(fields, lambda name, value: value if name in _GIVEN else masked_value(value))
        draft = self.path / f".{FILE}"
        draft.write_text(json.dumps(self.run.to_json(), indent=2, default=str) + "\n", encoding="utf-8")
        draft.replace(self.path / FILE)

    def _make(self) -> None:
        for folder in (self.path, self.logs, self.history, self.tables, self.checkpoint):
            folder.mkdir(mode=0o700, parents=True)
        self.update(interrupted=False)

    def _point_latest(self) -> None:
        draft = self.path.parent / f".latest-{os.getpid()}"
        draft.unlink(missing_ok=True)
        draft.symlink_to(self.path.name)
        draft.replace(self.path.parent / "latest")


@contextmanager
def private_files() -> Iterator[None]:
    """Files made in here, also by started processes, are readable by their owner only: logs hold whatever the job wrote."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _writing(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as refused:
        raise run_dir_problem(refused, where) from refused


def _new_name(runs_dir: Path, scenario: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return (runs_dir / f"{scenario}-{stamp}-{secrets.token_hex(2)}").absolute()


def run_dir_problem(refused: OSError, where: Path) -> EnvironmentProblem:
    """The error for a run directory that cannot be written: a full disk, read-only, or owned by another user."""
    return EnvironmentProblem(
        f"cannot write the run directory {where}: {refused.strerror or refused}",
        hint="free some space, or name a writable folder with --runs DIR",
    )


@contextmanager
def locked(folder: Path, command: str) -> Iterator[None]:
    """Keep other commands out of a folder of many runs, until the block or this process ends. ``command``: its name.

    Raises `UsageError` if another one works there: each would replace what the other one has found. For a run's directory,
    which `replay` and `shrink` write to, ``command`` names both.
    """
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as refused:
        raise run_dir_problem(refused, folder) from refused
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another onceproof {command} works in {folder}",
                hint="wait until it has ended, or end it with Ctrl-C; what it has found is kept",
            ) from None
        except OSError:
            pass  # some network file systems have no locks
        yield
    finally:
        os.close(lock)
