"""The tier *kept*: a kill ends the driver's Python for real; its JVM is fenced, cleared, and used by the next driver.

For screening only: what lives in the JVM's memory (class initializers, caches of libraries) survives, which no real crash
allows. A kill is real, of the JVM too, wherever something is not known to be the same: see `Keeper.keep`.
"""

from __future__ import annotations

import os
import queue
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_gate import CheckpointGate
from onceproof.pipeline.tiers import spark_home
from onceproof.pipeline.tiers.launcher import CONNECTION_FILE, JvmStart, Request
from onceproof.scenario.tiers import Tier
from onceproof.stack.processes import connections
from onceproof.stack.processes.owner import Owner, Service

MOST_USES = 25
"""Restarts after which a JVM is replaced: whatever a cycle leaves behind must not add up."""
_GROWTH_MIB = 64
"""How much the heap in use may grow over all restarts of one JVM."""
_START_S = 120.0
_READY_S = 10.0
"""How long the JVM may take to end its queries and its context. It takes a few hundred milliseconds."""
_OWN_JARS = ("--jars", "--packages", "--driver-class-path", "--py-files", "--archives", "--files")
_OWN_JARS_CONF = ("spark.jars", "spark.driver.extraClassPath", "spark.plugins", "spark.submit.pyFiles")
"""Beginnings of names: ``spark.jars.packages`` too."""


@dataclass(frozen=True)
class Tiers:
    """How the JVMs of a job are to be started."""

    wanted: Tier
    folder: Path
    """A private folder with a short path, which does not exist yet."""
    gate: CheckpointGate
    never: str | None = None
    """Why no JVM of this job is kept, whatever it does."""


@dataclass(eq=False)
class _Jvm:
    process: Service
    request: Request
    port: int
    secret: str
    stdin: int
    """The JVM ends when this end of its input is closed: also if the harness dies."""
    user: int | None
    """The pid of the program that joined, while a driver uses the JVM."""
    outcome: queue.SimpleQueue[str] | None = None
    uses: int = 0
    first_mib: int | None = None


class Keeper:
    """Starts the JVM of a job, and keeps it over kills. Implements `onceproof.pipeline.tiers.launcher.Keeper`."""

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        gate: CheckpointGate,
        *,
        driver_of: Callable[[int], Service | None],
        start_of_driver: Callable[[], int],
        log_of: Callable[[int], Path],
    ) -> None:
        """``driver_of(session)``: the driver whose Python leads that session. ``log_of(start)``: its log file."""
        self._folder = folder
        self._owner = owner
        self._gate = gate
        self._driver_of = driver_of
        self._start_of_driver = start_of_driver
        self._log_of = log_of
        self._lock = threading.RLock()
        self._jvm: _Jvm | None = None
        self._why: str | None = None
        """Why the last kill was real."""
        self._number = 0

    def join(self, request: Request) -> tuple[dict[str, Any], JvmStart]:
        start = self._start_of_driver()
        with self._lock:
            why = cannot_be_kept(request)
            driver = None
            with suppress(ProcessLookupError):
                driver = self._driver_of(os.getsid(request.pid))
            if driver is None:
                why = why or "a process that is not the driver's starts a JVM"
            if self._jvm is not None and self._jvm.user is not None and self._jvm.process.is_running():
                why = why or "two drivers run at the same time"
            if why is not None or driver is None:
                return {"do": "scripts"}, JvmStart(start, "real", "scripts", why)
            if self._take_over(request, driver):
                jvm, how = self._jvm, JvmStart(start, "kept", "kept")
            else:
                try:
                    jvm = self._start(request, driver)
                except (EnvironmentProblem, WaitTimeout) as failed:  # the job then starts one itself
                    self._why = None
                    return {"do": "scripts"}, JvmStart(start, "real", "scripts", f"no JVM to keep: {failed.message}")
                how, self._why = JvmStart(start, "real", "scripts", self._why), None
            assert jvm is not None
            return {"do": "join", "port": jvm.port, "secret": jvm.secret}, how

    def left(self, request: Request) -> None:
        """The driver has ended by itself: its JVM gets the end of its input, as without the harness."""
        with self._lock:
            jvm = self._jvm
            if jvm is not None and jvm.user == request.pid:
                self._jvm = None
                os.close(jvm.stdin)
                self._why = self._why or "the driver ended by itself"  # or why its kill was real

    def keep(self, driver: Service, *, held_elsewhere: bool) -> bool:
        """Kill this driver but not its JVM. False, and nothing is killed, if the kill must be real; the next start says why.

        ``held_elsewhere``: a fault holds the driver stopped. The order matters. Everything is stopped; Python and its workers
        are killed; the JVM's connections are cut while it is stopped, so that no thread of its tasks sends anything more;
        only then it learns that its writes must fail, and runs on.
        """
        with self._lock:
            jvm = self._jvm
            if jvm is None or self._driver_of(driver.pid) is not driver or jvm.user is None:
                return False
            self._why = self._gate.why_not_fenced(jvm.process.pid)
            if jvm.uses >= MOST_USES:
                self._why = f"the JVM has served {MOST_USES} restarts"
            if held_elsewhere:
                self._why = "a fault holds the driver stopped"
            if self._why is not None:
                return False
            try:
                driver.freeze()
                connections.cut(jvm.process.pid)
            except (OSError, WaitTimeout) as refused:
                self._why = f"the JVM's connections cannot be cut from outside: {refused}"
                return False
            jvm.user = None
            driver.release(jvm.process)
            driver.kill()
            for member in jvm.process.members():
                if member.pid != jvm.process.pid:  # Python workers
                    with suppress(ProcessLookupError):
                        os.kill(member.pid, signal.SIGKILL)
            jvm.outcome = self._gate.fence(jvm.process.pid, self._log_of(self._start_of_driver() + 1))
            jvm.process.thaw()
            return True

    def stop(self) -> None:
        """End the JVM. Idempotent."""
        with self._lock:
            self._end()

    def _take_over(self, request: Request, driver: Service) -> bool:
        """Whether ``driver`` can use the JVM of the one before it; if not, that JVM has ended, and `_why` says why."""
        jvm = self._jvm
        if jvm is None or jvm.outcome is None:
            self._end()
            return False
        outcome, jvm.outcome = jvm.outcome, None
        try:
            word, _, rest = outcome.get(timeout=_READY_S).partition(" ")
        except queue.Empty:
            word, rest = "lost", f"the JVM was not ready within {_READY_S:.0f} s"
        if word != "kept":
            self._why = rest
        else:
            port, secret, mib = rest.split()
            jvm.port, jvm.secret, jvm.uses = int(port), secret, jvm.uses + 1
            jvm.first_mib = int(mib) if jvm.first_mib is None else jvm.first_mib
            grown = int(mib) - jvm.first_mib
            self._why = request.difference(jvm.request)
            if grown > _GROWTH_MIB:
                self._why = f"the JVM's heap grew by {grown} MiB in {jvm.uses} restarts"
        if self._why is not None:
            self._end()
            return False
        jvm.user = request.pid
        driver.adopt(jvm.process)
        return True

    def _start(self, request: Request, driver: Service) -> _Jvm:
        """Start a JVM by Spark's own scripts. Raises `EnvironmentProblem` or `WaitTimeout` if it does not start."""
        self._number += 1
        file = self._folder / f"jvm-{self._number}"
        process: Service | None = None
        with _pipe() as (read, write):
            try:
                process = self._owner.start(
                    f"jvm-{self._number}",
                    [spark_home.pyspark() / spark_home.SUBMIT, *request.argv],
                    log=driver.log,
                    env={**request.env, CONNECTION_FILE: str(file)},
                    cwd=Path(request.cwd),
                    stdin=read,
                )
                driver.adopt(process)
                port, secret = self._connection_of(process, driver, file)
            except BaseException:
                os.close(write)
                if process is not None:
                    driver.release(process)
                    process.kill()
                raise
        self._jvm = _Jvm(process, request, port, secret, write, request.pid)
        return self._jvm

    def _connection_of(self, jvm: Service, driver: Service, file: Path) -> tuple[int, str]:
        """The port and the secret that the JVM writes to ``file``. Raises `EnvironmentProblem` or `WaitTimeout`."""

        def abandon() -> None:
            if not (jvm.is_running() and driver.is_running()):
                raise EnvironmentProblem("the JVM or its driver has ended")

        wait_until("the driver's JVM", file.is_file, deadline_s=_START_S, abandon=abandon)
        sent = file.read_bytes()
        file.unlink()
        return struct.unpack(">i", sent[:4])[0], sent[8:].decode()

    def _end(self) -> None:
        jvm, self._jvm = self._jvm, None
        if jvm is not None:
            os.close(jvm.stdin)
            jvm.process.kill()


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    try:
        yield read, write
    finally:
        os.close(read)


def cannot_be_kept(request: Request) -> str | None:
    """Why a job that starts its JVM like this cannot have it kept; None if it can, as far as its arguments show."""
    settings = [word for flag, word in zip(request.argv, request.argv[1:], strict=False) if flag in ("--conf", "-c")]
    own = [word for word in request.argv if word.partition("=")[0] in _OWN_JARS]
    own += [word.partition("=")[0] for word in settings if word.startswith(_OWN_JARS_CONF)]
    if own:
        return f"the job brings files or jars of its own ({own[0]})"
    if request.argv[-1:] != ("pyspark-shell",):
        return "the job's spark-submit starts something else than a JVM for PySpark"
    masters = [word for flag, word in zip(request.argv, request.argv[1:], strict=False) if flag == "--master"]
    masters += [word.partition("=")[2] for word in settings if word.startswith("spark.master=")]
    masters += [request.env["MASTER"]] if "MASTER" in request.env else []
    elsewhere = [master for master in masters if not master.startswith("local")]
    return f"its tasks run on a cluster ({elsewhere[0]})" if elsewhere else None
