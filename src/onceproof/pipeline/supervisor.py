"""Supervises the system under test, any command, as a cluster would: a driver that exits is started again.

A job that dies before any fault is a broken job, not a finding: it is not restarted, and the end of its log is kept.
"""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from onceproof.base.masking import masked
from onceproof.base.timeline import Timeline
from onceproof.pipeline import connect
from onceproof.pipeline.failure import causes, foreign_address, missing_module
from onceproof.pipeline.program import Program
from onceproof.pipeline.tiers import spark_home
from onceproof.pipeline.tiers.kept import Keeper, Tiers
from onceproof.pipeline.tiers.launcher import JvmStart, Launcher
from onceproof.stack.processes import procfs
from onceproof.stack.processes.owner import Owner, Service

if TYPE_CHECKING:
    from onceproof.pipeline.image import JobImage  # with the daemon's client, which few runs need

_POLL_S = 0.05
_LOG_LINES = 2000
"""How many lines at the end of a log are searched for the cause of a failure. Each query that ends writes its plan and a stack
trace, of 100 to 200 lines."""
#: Spark's progress bar: it redraws one line, and clears it with blanks.
_PROGRESS_BAR = re.compile(r"\[Stage \d+:|\s*$")
_LEAVE_S = 6.0
"""How long a driver's other processes may run after its first one has ended: a JVM outlived its Python by a measured 3.3 s."""


@dataclass(frozen=True)
class Failure:
    """Why the job failed, from its own log."""

    causes: list[str]
    """Exceptions, the deepest first."""
    foreign_address: str | None
    """The address that it could not reach, if that is not a service of the run."""
    log: str
    """The path of its log, below the run directory."""
    hint: str | None = None
    """What the user can do about the cause."""


@dataclass(frozen=True)
class Exit:
    start: int
    """Which start of the driver, from 0."""
    code: int | None
    at: float
    killed: bool = False
    """Whether the harness ended it, by SIGKILL or SIGTERM: by a fault, or to restart a job that made no progress."""


class Pipeline:
    """Starts, watches, kills and restarts the job. Thread-safe.

    ``may_restart()`` returns whether a fault has fired: before that, an exit with an error is final. ``progress()`` is a number
    that grows with every committed batch. After more than ``limit`` restarts in a row without progress, the supervisor gives
    up on the job. Only restarts while ``calm()`` count: a job cannot be expected to start while a fault is in progress.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        owner: Owner,
        timeline: Timeline,
        logs: Path,
        cwd: Path,
        limit: int,
        may_restart: Callable[[], bool],
        progress: Callable[[], int],
        calm: Callable[[], bool],
        tiers: Tiers | None = None,
        first: Program | None = None,
        image: JobImage | None = None,
    ) -> None:
        """``tiers``: how its JVMs are started; None: by Spark's own scripts. ``first``: what is started until `upgrade`.
        ``image``: of the containers in which the driver is started; None: it is a process like any other."""
        self._program = Program(list(command), dict(env))
        self._first = None if first is None else Program(list(first.command), dict(first.env))
        self._image = image
        self._owner = owner
        self._timeline = timeline
        self._logs = logs
        self._cwd = cwd
        self._limit = limit
        self._may_restart = may_restart
        self._progress = progress
        self._calm = calm
        self._freezes: Counter[Service] = Counter()
        """How many `frozen` blocks hold each driver."""
        self._starting = threading.RLock()
        """Held while a driver is started. Taken before `_lock`."""
        self._lock = threading.RLock()
        self._service: Service | None = None
        self._replaced: list[Service] = []
        """Drivers whose successor has taken over."""
        self._stopped: list[Service] = []
        """Those of them that the takeover stopped."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._starts = 0
        self._killed = False
        self._asked_to_end = False
        self._launcher: Launcher | None = None
        self._keeper: Keeper | None = None
        self.exits: list[Exit] = []
        self.died_before_fault = False
        self.given_up = False
        self.failure: BaseException | None = None
        if tiers is not None:
            self._prepare(tiers)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._launcher is not None:
            self._launcher.start()
        self._launch()
        self._thread.start()

    def stop(self) -> None:
        """End the job for good, with all processes that it started. Idempotent."""
        self._stopping.set()
        with self._lock:  # a launch that has begun completes first and is stopped here; none begins afterwards
            service = self._service
            replaced = list(self._replaced)
        for zombie in replaced:
            zombie.kill()
        if service is not None:
            service.stop(timeout_s=1.0)
        if self._thread.is_alive():
            self._thread.join(10)
        if self._keeper is not None:
            self._keeper.stop()
        if self._launcher is not None:
            self._launcher.close()

    @property
    def starts(self) -> int:
        """How often the driver has been started so far."""
        return self._starts

    @property
    def current_start(self) -> int:
        return max(self._starts - 1, 0)

    def is_running(self) -> bool:
        with self._lock:
            return self._service is not None and self._service.is_running()

    def pids(self) -> list[int]:
        """Every live process of the current driver."""
        with self._lock:
            return [p.pid for p in self._service.members()] if self._service is not None else []

    def kill_driver(self) -> int:
        """SIGKILL the driver: the JVM, the Python process, and all others of its session. Returns which start it was.

        The whole session is stopped before it is killed, since the next log write may be only milliseconds away.
        """
        with self._lock:  # a launch in a container has adopted the driver's processes
            start, service = self.current_start, self._service
        if service is not None:
            self._timeline.emit("job.kill", start=start)
            self._killed = self._killed or service.is_running()  # a driver that ended by itself was not killed
            held = self._freezes[service] > 0
            if self._keeper is None or not self._keeper.keep(service, held_elsewhere=held):
                service.kill()
        return start

    def connected(self, role: str) -> list[procfs.Stat]:
        """The live processes of a job of Spark Connect that are its ``client``, or its ``server``; the oldest first."""
        return connect.processes(self.pids(), role)

    def kill_connected(self, role: str) -> int:
        """SIGKILL the ``client``, or the ``server``, which is the driver; the other runs on. Returns which start it was."""
        start = self.current_start
        self._timeline.emit("job.kill", start=start, part=role)
        self._killed = self._killed or (role == connect.SERVER and self.is_running())
        connect.kill(self.pids, role)
        return start

    def upgrade(self) -> None:
        """Start the job as its scenario says from the next start on, no longer as ``first`` said."""
        with self._lock:
            self._first = None

    def executes(self) -> Program | None:
        """What the current driver's first process executes, as the kernel reports it; None if it is gone."""
        with self._lock:
            service = self._service
        try:
            process = psutil.Process(service.pid) if service is not None else None
            return None if process is None else Program(process.cmdline(), process.environ())
        except psutil.Error:
            return None

    def ask_driver_to_end(self) -> int:
        """Send SIGTERM to the driver's first process, as a cluster does before a deployment. Returns which start it was.

        Its other processes have `_LEAVE_S` once the first one has ended; then they are killed.
        """
        with self._lock:
            start, service = self.current_start, self._service
        if service is not None:
            self._timeline.emit("job.terminate", start=start)
            self._asked_to_end = True
            service.ask_to_stop(signal.SIGTERM)
        return start

    def take_over(self, *, stopped: bool) -> tuple[int, Service]:
        """Start the next driver next to this one, like a cluster that took a pause for a death, or started the job twice.

        With ``stopped`` this driver is stopped first (SIGSTOP). Returns its start number and its processes. The caller may
        resume them (`Service.thaw`), and must end them; otherwise `stop` does.
        """
        with self._starting, self._lock:
            start, service = self.current_start, self._service
            assert service is not None, "a driver that reached a point was started"
            if stopped:
                service.freeze()
                self._stopped.append(service)
            self._replaced.append(service)
            self._launch()
        return start, service

    @contextmanager
    def no_start(self) -> Iterator[None]:
        """Start no driver while the block runs. A fault that kills the driver reads in it what that one left behind: otherwise the
        next one may write more before the fault's thread has read it."""
        with self._starting:
            yield

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the driver's whole session (SIGSTOP) while the block runs.

        Whatever the block arms or places is in effect before the batch continues, however fast the batch is.
        """
        with self._lock:
            service = self._service
            if service is not None:
                self._freezes[service] += 1
        if service is None:
            yield
            return
        try:
            service.freeze()
            yield
        finally:
            # Two faults may overlap: the last one resumes the driver, except one that a takeover stopped.
            with self._lock:
                self._freezes[service] -= 1
                if not self._freezes[service]:
                    del self._freezes[service]
                    if service not in self._stopped:
                        service.thaw()

    def restarted_since(self, start: int) -> bool:
        return self.current_start > start

    def failed_since(self, at: float) -> Exit | None:
        """The first exit with an error after ``at`` (seconds of the run's clock) that the harness did not cause by a kill."""
        return next((e for e in list(self.exits) if e.at >= at and e.code != 0 and not e.killed), None)

    def log_contains(self, words: str, lines: int = 400) -> bool:
        """Whether the last ``lines`` of the current driver's output contain these words."""
        with self._lock:
            return self._service is not None and words in self._service.log_tail(lines)

    def log_end(self, lines: int = 40) -> str:
        """The end of the job's output, or its traceback if there is one, with the values of secrets masked."""
        with self._lock:
            text = self._service.log_tail(400) if self._service is not None else ""
        rows = [row for row in text.splitlines() if not _PROGRESS_BAR.match(row)]
        traceback = next((i for i, row in enumerate(rows) if row.startswith("Traceback (most recent call last)")), None)
        chosen = rows[traceback:] if traceback is not None else rows[-lines:]
        if len(chosen) > lines:
            chosen = [*chosen[: lines // 2], "    ...", *chosen[-lines // 2 :]]
        return masked("\n".join(chosen))

    def why_it_failed(self, addresses: Sequence[str]) -> Failure:
        """The causes in the log of the current driver start. ``addresses``: texts with the run's own services' addresses."""
        with self._lock:
            text = masked(self._service.log_tail(_LOG_LINES)) if self._service is not None else ""
        found, log = causes(text), f"logs/driver-{self.current_start}.log"
        python = None if self._image is not None else self._program.command[0]
        return Failure(found, foreign_address(text, addresses), log, missing_module(found, python))

    # -- how its JVMs are started ---------------------------------------------------------------------------------

    def jvms(self) -> list[JvmStart]:
        """How each of its JVMs was started, as far as the harness was asked."""
        return [] if self._launcher is None else list(self._launcher.starts)

    def _prepare(self, tiers: Tiers) -> None:
        """Put the harness's own ``spark-submit`` in the place of Spark's, where that is possible."""
        kept = tiers.wanted == "kept"
        programs = [self._program, *([self._first] if self._first is not None else [])]
        reasons = (spark_home.why_not(list(one.command), one.env, tiers.folder.parent) for one in programs)
        why = next((reason for reason in reasons if reason is not None), None)
        if why is None:
            if kept and tiers.never is None:
                self._keeper = Keeper(
                    tiers.folder,
                    self._owner,
                    tiers.gate,
                    driver_of=self._driver_of,
                    start_of_driver=lambda: self.current_start,
                    log_of=self._log_of,
                )
            self._launcher = Launcher(
                tiers.folder, self._timeline, start_of_driver=lambda: self.current_start, keeper=self._keeper
            )
            home = {"SPARK_HOME": str(self._launcher.home)}
            self._program = replace(self._program, env={**self._program.env, **home})
            if self._first is not None:
                self._first = replace(self._first, env={**self._first.env, **home})
        if kept and self._keeper is None:
            self._timeline.emit("warning", message=f"tier kept is not used, every kill is real: {why or tiers.never}")

    def _driver_of(self, session: int) -> Service | None:
        service = self._service
        return service if service is not None and service.pid == session else None

    def _log_of(self, start: int) -> Path:
        return self._logs / f"driver-{start}.log"

    # -- supervision ----------------------------------------------------------------------------------------------

    def _launch(self, *, after: Service | None = None) -> None:
        """Start the next driver; with ``after``, unless a takeover has already started one in that one's place."""
        # A fault may hold it for longer than `stop` waits for this thread, which then has nothing to start any more.
        while not self._starting.acquire(timeout=_POLL_S):
            if self._stopping.is_set():
                return
        try:
            with self._lock:
                if self._stopping.is_set() or after not in (None, self._service):
                    return
                number, program = self._starts, self._first or self._program
                if self._image is not None:
                    program = self._image.in_container(number, program)
                self._service = self._owner.start(
                    f"driver-{number}", program.command, log=self._log_of(number), env=program.env, cwd=self._cwd
                )
                self._killed = self._asked_to_end = False
                self._starts += 1
                if self._image is not None:  # before any fault can strike it
                    self._image.adopt(number, self._service, self._stopping.is_set)
        finally:
            self._starting.release()
        self._timeline.emit("job.started", start=number, pid=self._service.pid)

    def _supervise(self) -> None:
        try:
            without_progress, before = 0, self._progress()
            while not self._stopping.is_set():
                start, service = self._wait_for_exit()
                if self._stopping.is_set():
                    return
                code, killed = service.returncode, self._killed or self._asked_to_end
                ended = self._timeline.emit("job.exited", start=start, code=code, killed=killed)
                self.exits.append(Exit(start, code, ended.at, killed))
                self._end_leftovers(service)
                if code != 0 and not killed and not self._may_restart():
                    self.died_before_fault = True
                    return
                now = self._progress()
                if now != before:
                    without_progress, before = 0, now
                elif self._calm():
                    without_progress += 1
                if without_progress > self._limit:
                    self.given_up = True
                    return
                self._launch(after=service)
        except BaseException as failure:  # the feed loop raises it: a dead supervisor must not look like an idle one
            self.failure = failure

    def _wait_for_exit(self) -> tuple[int, Service]:
        while True:
            with self._lock:  # again each time: a successor may have taken over
                start, service = self.current_start, self._service
            assert service is not None
            ended = self._stopping.is_set() or not service.is_running()
            if ended and service is self._service:  # else its successor took over while this thread was delayed
                return start, service
            service.wait(_POLL_S)

    def _end_leftovers(self, service: Service) -> None:
        """End the old driver's processes before a restart, as a cluster does, which restarts a driver in a new container."""
        gone_by = self._timeline.now() + _LEAVE_S
        while service.members() and self._timeline.now() < gone_by and not self._killed:
            self._stopping.wait(_POLL_S)
        service.kill()
