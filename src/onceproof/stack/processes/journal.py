"""The journal that lists everything a run has started, for ``onceproof cleanup`` after a SIGKILL of the harness."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import platformdirs

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.processes import procfs

#: Environment variable with the run's id in every process that a run starts.
RUN_MARK = "ONCEPROOF_RUN"


@dataclass(frozen=True)
class StartedSession:
    """One session that a run started: its leader's pid and start time (clock ticks since boot)."""

    name: str
    sid: int
    start_ticks: int


@dataclass(frozen=True, kw_only=True)
class OfHarness:
    """The part of a journal that says which process wrote it."""

    host: str
    boot: str
    harness_pid: int
    harness_start_ticks: int

    def is_of_this_host(self) -> bool:
        """Whether the run was started on this machine. Machines may share a home folder, but not their processes."""
        return self.host == socket.gethostname()

    def harness_is_alive(self) -> bool:
        """Whether the process that wrote the journal still runs; only for a run of this host."""
        if self.boot != procfs.boot_id():
            return False
        now = procfs.stat(self.harness_pid)
        return now is not None and not now.is_zombie and now.start_ticks == self.harness_start_ticks


def this_harness() -> dict[str, Any]:
    """The fields of `OfHarness` for this process."""
    me = procfs.stat(os.getpid())
    assert me is not None, "this process runs"
    return {
        "host": socket.gethostname(),
        "boot": procfs.boot_id(),
        "harness_pid": me.pid,
        "harness_start_ticks": me.start_ticks,
    }


@dataclass(frozen=True, kw_only=True)
class Entry(OfHarness):
    """The content of one journal."""

    run_id: str
    folders: tuple[str, ...] = ()
    sessions: tuple[StartedSession, ...] = ()
    daemon: str | None = None
    """Address of the container daemon that has containers of the run; empty if it started none. None: of an earlier version."""


def live_folder() -> Path:
    """The folder of the journals, one file per run, below ``ONCEPROOF_STATE_DIR`` or else the user's state folder."""
    chosen = os.environ.get("ONCEPROOF_STATE_DIR")
    return (Path(chosen) if chosen else platformdirs.user_state_path("onceproof", appauthor=False)) / "live"


class Journal:
    """The journal of this process's run. Each change is on disk when the call returns."""

    def __init__(self, run_id: str) -> None:
        self.path = live_folder() / f"{run_id}.json"
        self._entry = Entry(run_id=run_id, **this_harness(), daemon="")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600, exist_ok=False)
        except FileExistsError as taken:
            raise EnvironmentProblem(
                f"run {run_id!r} is still going on, or was killed: {self.path} exists",
                hint="if it was killed, `onceproof cleanup` removes what it left",
            ) from taken
        except OSError as refused:
            raise EnvironmentProblem(
                f"cannot write the journal of started processes: {refused}",
                hint="set ONCEPROOF_STATE_DIR to a folder that you can write to",
            ) from refused
        store(self.path, self._entry)

    def add_folder(self, folder: Path) -> None:
        self._change(folders=(*self._entry.folders, str(folder)))

    def add_session(self, session: StartedSession) -> None:
        self._change(sessions=(*self._entry.sessions, session))

    def set_daemon(self, address: str) -> None:
        self._change(daemon=address)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _change(self, **fields: Any) -> None:
        self._entry = replace(self._entry, **fields)
        store(self.path, self._entry)


def store(path: Path, entry: OfHarness) -> None:
    """Write a journal that only this user can read."""
    # Renamed into place: a harness killed in the middle of a write must not lose the earlier entries.
    draft = path.with_suffix(".draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(entry), file)
    draft.replace(path)


def read(path: Path) -> Entry | None:
    """Read a journal; None if the file is not one: empty, incomplete, or of another version."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        sessions = tuple(StartedSession(**one) for one in raw.pop("sessions"))
        return Entry(**{**raw, "folders": tuple(raw["folders"]), "sessions": sessions})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
