"""The note a run leaves of all it started, so that ``onceproof cleanup`` finds it after a SIGKILL of the harness."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import platformdirs

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.processes import procfs

#: In the environment of everything that a run starts.
RUN_MARK = "ONCEPROOF_RUN"


@dataclass(frozen=True)
class Session:
    """One session that a run started: its leader's pid, and when that started (ticks since boot)."""

    name: str
    sid: int
    start_ticks: int


@dataclass(frozen=True)
class Entry:
    """What one journal says."""

    run_id: str
    host: str
    boot: str
    harness_pid: int
    harness_start_ticks: int
    folders: tuple[str, ...] = ()
    sessions: tuple[Session, ...] = field(default=())

    def is_of_this_host(self) -> bool:
        """A home folder may be shared: of a run on another machine nothing can be said here."""
        return self.host == socket.gethostname()

    def harness_is_alive(self) -> bool:
        """For a run of this host: whether the process that wrote the journal still runs."""
        if self.boot != procfs.boot_id():
            return False
        now = procfs.stat(self.harness_pid)
        return now is not None and not now.is_zombie and now.start_ticks == self.harness_start_ticks


def live_folder() -> Path:
    """Where journals lie, one file a run: ``ONCEPROOF_STATE_DIR``, else the user's state folder."""
    chosen = os.environ.get("ONCEPROOF_STATE_DIR")
    return (Path(chosen) if chosen else platformdirs.user_state_path("onceproof", appauthor=False)) / "live"


class Journal:
    """The journal of this process's run. Each change is on disk when the call returns."""

    def __init__(self, run_id: str) -> None:
        me = procfs.stat(os.getpid())
        assert me is not None
        self.path = live_folder() / f"{run_id}.json"
        self._entry = Entry(run_id, socket.gethostname(), procfs.boot_id(), me.pid, me.start_ticks)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600, exist_ok=False)
        except FileExistsError as taken:
            raise EnvironmentProblem(
                f"run {run_id!r} is still going on, or was killed: {self.path} exists",
                hint="if no such run is going on, `onceproof cleanup` removes what it left",
            ) from taken
        except OSError as refused:
            raise EnvironmentProblem(
                f"cannot write the journal of started processes: {refused}",
                hint="set ONCEPROOF_STATE_DIR to a folder that you may write to",
            ) from refused
        self._write()

    def add_folder(self, folder: Path) -> None:
        self._entry = replace(self._entry, folders=(*self._entry.folders, str(folder)))
        self._write()

    def add_session(self, session: Session) -> None:
        self._entry = replace(self._entry, sessions=(*self._entry.sessions, session))
        self._write()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        # Renamed into place: a harness killed in the middle of a write must not lose the sessions it had noted before.
        draft = self.path.with_suffix(".draft")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(self._entry), file)
        draft.replace(self.path)


def read(path: Path) -> Entry | None:
    """None if the file is not a journal: empty, torn, or of another version."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        sessions = tuple(Session(**one) for one in raw.pop("sessions"))
        return Entry(**{**raw, "folders": tuple(raw["folders"]), "sessions": sessions})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
