"""Starts every process of a run, finds it by its session, and ends it with the run.

Processes are found by *session id*, not by process group: PySpark's daemon creates its own group for its workers but
stays in the session of the driver that started it.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Self

import psutil

from onceproof.base.errors import EnvironmentProblem, ServiceFailed, WaitTimeout
from onceproof.base.paths import temporary
from onceproof.base.signals import uninterrupted
from onceproof.base.waiting import wait_until
from onceproof.stack.processes import procfs, shared_memory
from onceproof.stack.processes.journal import RUN_MARK, Journal, StartedSession

#: How the names of temporary folders begin.
SCRATCH_PREFIX = "onceproof-"

_log = logging.getLogger(__name__)

#: SIGKILL acts at once, except on a process in uninterruptible disk sleep: these seconds are for that.
_GONE_DEADLINE_S = 5.0
#: After Ctrl-C everything must be gone within 10 s: this is for stop signals, the rest for killing and removing folders.
_CLOSE_GRACE_S = 6.0
#: For one group of services started together; a JVM that still runs then is killed.
_GROUP_GRACE_S = 3.0
#: A process that was killed while it wrote may still add a file to a folder that is being removed.
_REMOVE_DEADLINE_S = 2.0
#: ENOSPC, as C, Java and Python spell it.
_DISK_FULL = "No space left on device"

_KILLED = (
    "no fault of the run did this, so the run shows nothing about the pipeline; `dmesg` lists the processes that the kernel "
    "killed because memory was short"
)


class Service:
    """One started process and everything in its session. Created by `Owner.start`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, stop_signal: signal.Signals) -> None:
        self.name = name
        self.pid = process.pid
        self.log = log
        stat = procfs.stat(process.pid)
        assert stat is not None, "a child exists until its parent has waited for it"
        self.start_ticks = stat.start_ticks
        self._process = process
        self._stop_signal = stop_signal
        self._adopted: dict[int, int] = {}
        self._in_container = False
        self._gone = False

    def adopt(self, other: Service | procfs.Stat) -> None:
        """Let the session of which ``other`` is the leader count as this one's: it is stopped, resumed and killed with it."""
        self._adopted[other.pid] = other.start_ticks
        self._in_container = isinstance(other, procfs.Stat)

    def release(self, other: Service) -> None:
        """Undo `adopt`."""
        self._adopted.pop(other.pid, None)

    @property
    def returncode(self) -> int | None:
        """The leader's return code, as in `subprocess`: negative for a signal, None while it runs."""
        code = self._process.poll()
        # `docker run` reports a signal as a shell does.
        return 128 - code if self._in_container and code is not None and code > 128 else code

    def is_running(self) -> bool:
        """Whether the leader runs; members may outlive it (a JVM outlives the Python that started it by seconds)."""
        return self.returncode is None

    def members(self) -> list[psutil.Process]:
        """All live processes of the session, and descendants that have started a session of their own."""
        found = []
        for stat in procfs.family(self._sessions()):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(stat.pid))
        return found

    def kill(self) -> None:
        """SIGKILL every member, whatever group it is in, and return when all are gone.

        The session is stopped first. That takes well under a millisecond, so its processes do nothing after the moment of
        the crash, and none can fork while the members are listed.
        """
        self._signal_session(signal.SIGSTOP)
        kill_sessions(self._sessions(), self.name)
        self._process.wait()
        self._gone = True

    def freeze(self) -> None:
        """SIGSTOP every member, and return when all are stopped: nothing of the session runs until `thaw`.

        Raises `WaitTimeout` if a member cannot be stopped; the session is then continued.
        """

        def stopped() -> bool:
            sessions = self._sessions()
            running = [
                one.pid for one in procfs.table().values() if one.session in sessions and not procfs.is_stopped(one.pid)
            ]
            if running:
                self._signal_session(signal.SIGSTOP)  # again, for processes forked since the last signal
            return not running

        self._signal_session(signal.SIGSTOP)
        try:
            wait_until(
                f"every thread of {self.name} to be stopped", stopped, deadline_s=_GONE_DEADLINE_S, every_s=0.002
            )
        except BaseException:
            self.thaw()
            raise

    def thaw(self) -> None:
        """SIGCONT every member."""
        self._signal_session(signal.SIGCONT)

    def stop(self, timeout_s: float = 5.0, *, by: signal.Signals | None = None) -> None:
        """Ask the leader to stop (with the signal ``by``, else with its own stop signal), then kill what still runs."""
        self.ask_to_stop(by)
        self.wait(timeout_s)
        self.kill()

    def ask_to_stop(self, by: signal.Signals | None = None) -> None:
        """Send the stop signal, without waiting. Also send SIGCONT: a process that a fault has stopped could not react."""
        if self.is_running():
            self._process.send_signal(by or self._stop_signal)
            self._signal_session(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int | None:
        """The leader's return code, or None if it still runs after ``timeout_s``."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.returncode

    def check_running(self) -> None:
        """Raise `ServiceFailed`, with its last log lines, if it has ended."""
        if not self.is_running():
            full = _DISK_FULL in self.log_tail(400)
            hint = "the disk is full: free some space, or choose other folders (--runs, TMPDIR)" if full else None
            message = f"{self.name} ended with exit code {self.returncode}"
            if (code := self.returncode) is not None and code < 0:
                message += f" ({signal.strsignal(-code)})"
                hint = hint or _KILLED
            raise ServiceFailed(message, hint=hint, log_tail=self.log_tail())

    def check_starting(self, name: str, address: str) -> None:
        """Raise `ServiceFailed`, with its last log lines, if it has ended before it was ready at ``address``."""
        if not self.is_running():
            raise ServiceFailed(
                f"{name} ended with code {self.returncode} while starting on {address}",
                hint=f"its complete log: {self.log}",
                log_tail=self.log_tail(),
            )

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log; empty if it wrote none."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as file:
                return "".join(deque(file, maxlen=lines))
        except FileNotFoundError:
            return ""

    def _sessions(self) -> set[int]:
        """The ids of this service's sessions, without those that have ended and whose id may belong to another.

        The kernel does not reuse a pid that is still the id of a session, so a leader with another start time means that
        this session has ended.
        """
        known = {} if self._gone else {self.pid: self.start_ticks, **self._adopted}
        leaders = [(pid, procfs.stat(pid), ticks) for pid, ticks in known.items()]
        return {pid for pid, leader, ticks in leaders if leader is None or leader.start_ticks == ticks}

    def _signal_session(self, number: signal.Signals) -> None:
        if sessions := self._sessions():
            for pid in psutil.pids():
                with suppress(ProcessLookupError, PermissionError):
                    if os.getsid(pid) in sessions:
                        os.kill(pid, number)

    def __repr__(self) -> str:
        return f"<Service {self.name} pid={self.pid} returncode={self.returncode}>"


class Owner:
    """Owns everything that one run started. Closes it in reverse order; services started in a row are stopped in parallel.

    Use as a context manager. A journal also lists what it owns, for `onceproof.stack.cleanup`. A signal is deferred while a
    process or folder is created and entered in the journal, and until `close` has finished.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self.run_id = run_id or secrets.token_hex(6)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.run_id):
            raise ValueError(
                f"run id {self.run_id!r} names a file: it may contain only letters, digits, '.', '_' and '-'"
            )
        self._owned: list[Service | Callable[[], object]] = []
        self._folders: list[Path] = []
        self._lock = threading.Lock()
        self._closed = False
        with uninterrupted("creating the journal of the run"):
            self._journal = Journal(self.run_id)
            _open.add(self)
        self.scratch = self.temporary_folder()

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | int | None = None,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> Service:
        """Start ``argv`` as the leader of a new session; append its stdout and stderr to ``log``.

        ``env`` is the complete environment, as in `subprocess`; None inherits the harness's. ``stdin`` is what the process
        reads (suitable for secrets), or a file descriptor, which stays open here; None is an empty input. ``user`` (root only) runs it as that user, without the
        harness's groups. ``stop_signal`` asks it to stop; SIGKILL for a process that has nothing worth saving.
        Raises `EnvironmentProblem` if the program does not exist or may not be executed.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with uninterrupted(f"starting {name}"), self._lock, log.open("ab") as output, _as_stdin(stdin) as source:
            if self._closed:
                raise RuntimeError(f"cannot start {name}: run {self.run_id} is closing")
            try:
                process = subprocess.Popen(
                    [str(word) for word in argv],
                    stdin=source,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**(os.environ if env is None else env), RUN_MARK: self.run_id},
                    cwd=cwd,
                    start_new_session=True,
                    user=user,
                    extra_groups=None if user is None else [],
                )
            except OSError as refused:
                raise EnvironmentProblem(f"cannot start {name} ({argv[0]}): {refused.strerror or refused}") from refused
            service = Service(name, process, log, stop_signal)
            self._owned.append(service)
            self._journal.add_session(StartedSession(name, service.pid, service.start_ticks))
        return service

    def push(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` on close, in reverse order with the services. An error that it raises is logged."""
        with self._lock:
            self._owned.append(callback)

    def temporary_folder(self) -> Path:
        """A new private (0700) folder under the system's temporary folder, removed on close."""
        folder = temporary() / f"{SCRATCH_PREFIX}{secrets.token_hex(4)}"
        with uninterrupted("creating a temporary folder"), self._lock:
            if self._closed:
                raise RuntimeError(f"cannot create a folder: run {self.run_id} is closing")
            self._folders.append(folder)
            # Before mkdir: a harness killed between the two must not leave a folder that no journal lists.
            self._journal.add_folder(folder)
            folder.mkdir(mode=0o700)
        return folder

    def uses_daemon(self, address: str) -> None:
        """Enter the container daemon in the journal, before the run starts its first container there."""
        self._journal.set_daemon(address)

    def services(self) -> list[Service]:
        """Every service that this owner has started, including those that have ended."""
        with self._lock:
            return [one for one in self._owned if isinstance(one, Service)]

    def close(self) -> None:
        """Stop and remove everything, within about eight seconds. Idempotent; a part that fails does not stop the others.

        The journal is removed last, and only if everything else was: `onceproof cleanup` can then try again.
        """
        with uninterrupted(self._describe_close):
            with self._lock:
                if self._closed:
                    return
                self._closed = True
            done = self._close_in_reverse(time.monotonic() + _CLOSE_GRACE_S)
            done += [self._attempt(f"kill {service.name}", service.kill) for service in self.services()]
            done.append(self._attempt("kill processes that left their session", partial(kill_marked, self.run_id)))
            done += [self._attempt(f"remove {folder}", partial(remove_folder, folder)) for folder in self._folders]
            if all(done):
                self._journal.remove()
            else:
                _log.warning("run %s left something behind: onceproof cleanup removes it", self.run_id)
            _open.discard(self)

    def _describe_close(self) -> str:
        # Without the lock: a signal handler calls this, in a thread that may hold the lock.
        running = [one.name for one in list(self._owned) if isinstance(one, Service) and one.is_running()]
        what = ", ".join(running) or "what is left of the run"
        return f"stopping {what}; then its temporary folders are removed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_in_reverse(self, deadline: float) -> list[bool]:
        done = []
        for are_services, group in groupby(reversed(self._owned), lambda one: isinstance(one, Service)):
            if are_services:
                _stop_together([one for one in group if isinstance(one, Service)], deadline)
                continue
            for callback in group:
                assert not isinstance(callback, Service)
                done.append(self._call(callback, deadline))
        return done

    def _call(self, callback: Callable[[], object], deadline: float) -> bool:
        """Call it in a new thread: a clean-up that hangs on a dead service must not prevent others from being stopped."""
        done: list[bool] = []
        name = getattr(callback, "__qualname__", repr(callback))
        attempt = partial(self._attempt, f"run {name}", callback)
        thread = threading.Thread(target=lambda: done.append(attempt()), daemon=True, name=f"close {name}")
        thread.start()
        # The minimum is for releasing a lease or closing a file when the services have used up all the time.
        thread.join(max(0.2, deadline - time.monotonic()))
        if thread.is_alive():
            _log.warning("clean-up %s of run %s did not end in time", name, self.run_id)
        return done == [True]

    def _attempt(self, what: str, act: Callable[[], object]) -> bool:
        """Call ``act``, log an error, and return whether it succeeded."""
        try:
            act()
        except Exception:
            _log.warning("clean-up of run %s: could not %s", self.run_id, what, exc_info=True)
            return False
        return True


_open: set[Owner] = set()
"""Owners that are not closed yet."""


@atexit.register
def _close_the_rest() -> None:
    """Close owners whose ``with`` block was never entered (a signal came just before), or whose thread is a daemon."""
    for owner in list(_open):
        owner.close()


# An owner belongs to the process that created it: a fork that exits must not close it.
os.register_at_fork(after_in_child=_open.clear)


def remove_folder(folder: Path) -> None:
    """Remove a temporary folder of a run whose processes are gone, and the shared memory that they left. Idempotent.

    Raises `OSError` if something cannot be removed.
    """
    shared_memory.remove(folder)

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    try:
        wait_until(f"{folder} to be removed", gone, deadline_s=_REMOVE_DEADLINE_S)
    except WaitTimeout:
        shutil.rmtree(folder)  # raises the error that names the obstacle


def kill_sessions(sessions: set[int], name: str) -> None:
    """SIGKILL every process of these sessions and its descendants until none is left."""
    known = set(sessions)
    wait_until(
        f"every process of {name} (session {', '.join(map(str, sessions))}) to be gone after SIGKILL",
        lambda: _kill(procfs.family(known)),
        deadline_s=_GONE_DEADLINE_S,
        every_s=0.01,
        explain=lambda: f"still running: {[stat.pid for stat in procfs.family(known)]}",
    )


def kill_marked(run_id: str) -> None:
    """SIGKILL this user's processes that have the run's mark in their environment until none is left."""
    wait_until(
        f"all processes of run {run_id} to be gone",
        lambda: _kill(procfs.marked(RUN_MARK, run_id)),
        deadline_s=_GONE_DEADLINE_S,
        every_s=0.01,
    )


def _kill(left: list[procfs.Stat]) -> bool:
    """SIGKILL these processes; whether there was none."""
    for stat in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(stat.pid, signal.SIGKILL)
    return not left


def _stop_together(services: list[Service], deadline: float) -> None:
    for service in services:
        service.ask_to_stop()
    deadline = min(deadline, time.monotonic() + _GROUP_GRACE_S)
    for service in services:
        service.wait(max(0.0, deadline - time.monotonic()))
    for service in services:
        service.kill()


@contextmanager
def _as_stdin(content: bytes | int | None) -> Iterator[int]:
    """A file descriptor from which a process reads ``content``; in memory only, because it may be a password."""
    if isinstance(content, int):
        yield content
        return
    fd = os.open(os.devnull, os.O_RDONLY) if content is None else os.memfd_create("stdin")
    try:
        if content is not None:
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(content)
            os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
