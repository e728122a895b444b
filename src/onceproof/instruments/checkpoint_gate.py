"""The harness's end of the checkpoint file system: a socket on which a driver reports its checkpoint writes, and waits.

The driver's end is ``src/onceproof/instruments/jvm``; its ``Harness.java`` describes the protocol. A driver says hello, learns
at which writes to wait, and then reports each write of ``offsets/N`` and ``commits/N``. At a write for which a fault is armed
the driver waits, inside that create or rename, until the fault has struck. Of the state files of a batch all but the first
wait before their rename, so that the state is partly written when a fault strikes. If the harness dies, the kernel closes
its sockets and every driver continues.

Executors of a cluster connect too: they write the state. An executor belongs to the driver of its application. Where they may
be on other machines, the socket is a port, and each connection begins with a secret of the run.

A checkpoint in an object store is read through a local copy (`onceproof.instruments.checkpoint_mirror`), which is brought up to
date before a report of the driver is acted on.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import queue
import re
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from onceproof.base.line_server import LineServer
from onceproof.instruments.checkpoint_mirror import CheckpointMirror
from onceproof.instruments.checkpoint_places import PLACES, POINTS, lines_for, place_of, uncommitted
from onceproof.scenario.points import Point

#: Spark's setting for the manager of checkpoint files. A job that sets it uses a manager of its own.
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"

#: Points that the watcher reports too, since a file appears there.
_WATCHED = (Point.AFTER_OFFSET_LOG, Point.AFTER_COMMIT_LOG)

_TURN_S = 30.0
"""How long the other state files of a version wait for the first. Only a limit: Spark normally kills a task with its stage."""

_MEET_S = 5.0
"""How long the gate and the watcher wait for each other to report the same rename. It takes milliseconds."""

_LEAVING_S = 1.0
"""How long after a strike an executor's write waits to see whether its driver was killed. The kernel closes its connection at once."""

_GREETING_S = 10.0
"""How long a connection to a port may take to say hello."""

_HELLO = re.compile(rb"hello (?P<pid>\d+) (?P<application>\S+)(?: (?P<secret>\S+))?\n")
_HELLO_BYTES = 512
_NO_APPLICATION = "none"
"""What a JVM says in which Spark has not started."""
_LINE = re.compile(r"(\d+) (\w+)(?:-(\w+))? ([a-z][a-z0-9+.-]*://[^/]*)?(/.*)")


class _Meeting:
    """Where the gate and the watcher wait for each other: one log write of one attempt at a batch."""

    def __init__(self) -> None:
        self.watched = threading.Event()
        """Set once the watcher has seen the write."""
        self.struck = threading.Event()
        """Set once the faults armed there have struck."""


@dataclass(eq=False)
class _Driver:
    """One JVM's connection: that of a driver, or of an executor, which writes nothing but state."""

    connection: socket.socket
    pid: int
    application: str
    """Spark's name of it, which a driver and its executors share."""
    rules: frozenset[tuple[int, Point]]
    """Batches and points at which it waits."""
    first_state: dict[tuple[str, int], Path] = field(default_factory=dict)
    """Query and batch -> the state file that is written while the others wait."""
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Query and batch -> the number of this driver's attempt at the batch, from 1."""
    gone: threading.Event = field(default_factory=threading.Event)
    held: int = 0
    """How many of its writers wait for a fault to strike."""
    reply: Callable[[str], None] = lambda _line: None
    outcome: queue.SimpleQueue[str] | None = None
    """Where the answer to ``fence`` goes."""


class CheckpointGate:
    """Serves the socket at ``path``, or a port of ``host`` to those who know `secret` (see `LineServer`).

    The gate calls ``wanted()`` when a driver says hello, and ``on_point(query, batch, point, attempt)`` while the driver waits
    at that point. The driver continues when the call returns; if it returns an event, when that event is set. A query's name
    is its checkpoint's path below ``root``, as in the watcher. ``on_failure`` gets exceptions of the gate's own threads;
    ``on_query(query, "trigger", MS)`` each query whose trigger was shortened, with its own interval, and ``on_query(query, "mode",
    MODE)`` each that runs in a mode without a log entry before and after each batch (``Modes.java``).

    An attempt at a batch begins when the driver creates ``offsets/N``. A replay begins when a query opens its log and finds
    ``offsets/N`` without ``commits/N``: the driver waits there, and has reached ``after-offset-log`` once more.

    With a ``mirror`` the checkpoints are in an object store, and ``root`` is their local copy.
    """

    def __init__(
        self,
        path: Path,
        root: Path,
        *,
        wanted: Callable[[], Iterable[tuple[int, Point]]],
        on_point: Callable[[str, int, Point, int], threading.Event | None],
        on_failure: Callable[[BaseException], object],
        on_query: Callable[[str, str, str], object] = lambda *_: None,
        mirror: CheckpointMirror | None = None,
        host: str | None = None,
    ) -> None:
        self._on_query = on_query
        self.path = path
        self.secret = None if host is None else secrets.token_urlsafe(24)
        self._mirror = mirror
        self._root = Path(os.path.normpath(root.absolute()))  # without .., as `_handle` normalizes a driver's paths
        self._wanted = wanted
        self._on_point = on_point
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._drivers: set[_Driver] = set()
        self._driver_of: dict[str, _Driver] = {}
        self._batches: dict[str, int] = {}
        """Query -> the batch of its last log write."""
        self._attempts: dict[tuple[str, int], int] = {}
        self._meetings: dict[tuple[str, int, Point, int], _Meeting] = {}
        self._disk_full = False
        self._closing = threading.Event()
        self._server = LineServer(path if host is None else host, "checkpoint-gate", self._serve)

    @property
    def address(self) -> str:
        """Where JVMs connect: the path, or HOST:PORT."""
        return self._server.address

    def start(self) -> None:
        with self._lock:
            if not self._closing.is_set():
                self._server.start()

    def close(self) -> None:
        """Stop serving; drivers that are still connected continue. Idempotent."""
        with self._lock:
            self._closing.set()
        self._server.close()
        with self._lock:
            for driver in self._drivers:
                with contextlib.suppress(OSError):
                    driver.connection.shutdown(socket.SHUT_RDWR)

    def serves(self, query: str) -> bool:
        """Whether ``query`` writes its checkpoint through the checkpoint file system, in this or an earlier driver start."""
        with self._lock:
            return query in self._driver_of

    def attempt(self, query: str, batch: int) -> int | None:
        """The number of the latest attempt at the batch, from 1; None if none has begun or the query is not served."""
        with self._lock:
            return self._attempts.get((query, batch))

    def wait_for_strike(self, query: str, batch: int, point: Point) -> None:
        """Called by the watcher for a log write: returns once the faults armed at this point have struck.

        Code that waits for a batch must not see it committed before the fault that follows the commit has struck. And if a
        fault kills the driver, the watcher must have seen the write before the next driver starts.
        """
        with self._lock:
            driver = self._driver_of.get(query)
        if driver is None or (batch, point) not in driver.rules:
            return
        meeting = self._meeting(driver, query, batch, point)
        meeting.watched.set()
        for _ in range(int(_MEET_S / 0.05)):
            if meeting.struck.wait(0.05) or driver.gone.is_set():
                return

    # -- a JVM that outlives its driver ---------------------------------------------------------------------------

    def why_not_fenced(self, pid: int) -> str | None:
        """Why the driver with this JVM cannot be ended by `fence`; None if it can."""
        driver = self._driver_with(pid)
        with self._lock:
            queries = [query for query, by in self._driver_of.items() if by is driver]
        if driver is None or not driver.held:
            return "the kill is not at a write of the checkpoint, where the driver waits"
        if len(queries) > 1:
            return "the driver runs several queries, and only one of them waits"
        if self._mirror is not None:
            return "the checkpoint is in an object store"
        if any((self._root / query / "state").exists() or (self._root / "state").exists() for query in queries):
            return "the query keeps state"
        return None

    def fence(self, pid: int, log: Path) -> queue.SimpleQueue[str]:
        """End the driver with this JVM, but keep the JVM: its writers fail, now and later. Returns where its answer will be.

        Call it while the driver is held (`why_not_fenced`). The answer is ``kept PORT SECRET MIB`` or ``lost WHY``
        (``Harness.java``). ``log`` is the file for what the JVM prints from then on.
        """
        driver = self._driver_with(pid)
        outcome: queue.SimpleQueue[str] = queue.SimpleQueue()
        if driver is None:
            outcome.put("lost the JVM has ended")
        else:
            driver.outcome = outcome
            driver.reply(f"fence {log.absolute()}")
        return outcome

    def fill_disk(self, full: bool) -> None:
        """From now on no byte of a checkpoint file fits on the disk of any driver (ENOSPC), also of those that start later; or it has
        room again. Checkpoints in an object store are not on that disk."""
        with self._lock:
            self._disk_full = full
            drivers = list(self._drivers)
        for driver in drivers:
            driver.reply(f"disk {'full' if full else 'free'}")

    def _driver_with(self, pid: int) -> _Driver | None:
        with self._lock:
            return next((one for one in self._drivers if one.pid == pid and one.outcome is None), None)

    # -- messages of drivers --------------------------------------------------------------------------------------

    def _serve(self, connection: socketserver.StreamRequestHandler) -> None:
        rules = frozenset((batch, point) for batch, point in self._wanted() if point in PLACES)
        answers = threading.Lock()

        def reply(line: str) -> None:
            with answers, contextlib.suppress(OSError):  # the driver may have been killed meanwhile
                connection.wfile.write(f"{line}\n".encode())

        driver = _Driver(connection.connection, 0, "", rules, reply=reply)
        try:
            hello = self._greeted(connection)
            with self._lock:
                if self._closing.is_set() or hello is None:
                    return
                driver.pid, driver.application = int(hello["pid"]), hello["application"].decode()
                self._drivers.add(driver)
                full = self._disk_full
            if full:
                reply("disk full")
            for batch, point in sorted(driver.rules):
                for rule in lines_for(batch, point):
                    reply(rule)
            reply("go")
            for line in _lines(connection):
                if driver.outcome is not None and line.startswith((b"kept ", b"lost ")):
                    driver.outcome.put(line.decode(errors="replace").rstrip("\n"))
                    return
                if line.endswith(b"\n"):  # else the driver was killed in the middle of the line
                    self._handle(driver, line.decode().rstrip("\n"), reply)
        except BaseException as failure:
            self._on_failure(failure)
        finally:
            driver.gone.set()
            if driver.outcome is not None:
                driver.outcome.put("lost the JVM has ended")
            with self._lock:
                self._drivers.discard(driver)

    def _greeted(self, connection: socketserver.StreamRequestHandler) -> re.Match[bytes] | None:
        """The first line of a JVM; None if it is none, or lacks the secret."""
        try:
            if self.secret is None:
                return _HELLO.fullmatch(connection.rfile.readline())
            connection.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.connection.settimeout(_GREETING_S)
            hello = _HELLO.fullmatch(connection.rfile.readline(_HELLO_BYTES))
            connection.connection.settimeout(None)
        except OSError:
            return None
        known = hello is not None and hmac.compare_digest(hello["secret"] or b"", self.secret.encode())
        return hello if known else None

    def _driver_of_executor(self, jvm: _Driver) -> _Driver:
        """The driver for which a JVM works: it opens its logs before its executors get any task. A driver works for itself."""
        with self._lock:
            drivers = [one for one in self._driver_of.values() if one.application == jvm.application != _NO_APPLICATION]
        return drivers[0] if drivers and jvm not in drivers else jvm

    def _handle(self, jvm: _Driver, line: str, reply: Callable[[str], None]) -> None:
        driver = self._driver_of_executor(jvm)
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"a checkpoint file system sent {line!r}, which is not a message of its protocol")
        number, moment = int(match[1]), match[2]
        where = self._read(moment, match[4] or "", unquote(match[5], errors="surrogateescape"))
        if where is None:
            if number:
                reply(f"go {number}")
            return
        if moment == "open":
            query = self._query(where.parent)
            self._open(jvm, query, where, lambda: reply(f"go {number}"))
            return
        if moment in ("trigger", "mode"):
            if (query := self._query(where.parent)) is not None:
                self._on_query(query, moment, match[3])
            return
        checkpoint, log, batch = place_of(where)
        query = self._writer(driver, batch) if log == "_spark_metadata" else self._query(checkpoint)
        point = POINTS.get((log, moment))
        if query is not None and point is not None and log != "state":
            with self._lock:
                self._batches[query] = batch
            if point is Point.BEFORE_OFFSET_LOG:
                self._begin(driver, query, batch)
        if not number:
            return
        if query is None:
            reply(f"go {number}")
        elif point is not None:
            # In a thread of its own: this thread must go on reading what other queries of the driver report.
            _thread(self._hold, driver, query, batch, point, lambda: reply(f"go {number}"))
        elif driver.first_state.setdefault((query, batch), where) == where:
            reply(f"go {number}")
        else:
            _thread(self._wait_turn, driver, query, batch, jvm, number)

    def _read(self, moment: str, server: str, path: str) -> Path | None:
        """Where to read a file that a driver names; None if it is in an object store, and in no checkpoint of the run."""
        path = os.path.normpath(path)
        if not server:
            return Path(path)
        where = self._mirror.local(server + path) if self._mirror is not None else None
        if self._mirror is not None and where is not None and moment != "create":
            self._mirror.refresh()
        return where

    def _open(self, driver: _Driver, query: str | None, log: Path, go: Callable[[], None]) -> None:
        """A query starts: with a new batch, or with the replay of one that is planned and not committed."""
        batch = None
        if query is not None:
            with self._lock:
                self._driver_of[query] = driver
            batch = uncommitted(log.parent) if log.name == "offsets" else None
        if query is None or batch is None:
            go()
            return
        self._begin(driver, query, batch)
        if (batch, Point.AFTER_OFFSET_LOG) in driver.rules:
            _thread(functools.partial(self._hold, watched=False), driver, query, batch, Point.AFTER_OFFSET_LOG, go)
        else:
            go()

    def _begin(self, driver: _Driver, query: str, batch: int) -> None:
        with self._lock:
            attempt = self._attempts.get((query, batch), 0) + 1
            self._attempts[query, batch] = driver.attempts[query, batch] = attempt

    def _hold(
        self, driver: _Driver, query: str, batch: int, point: Point, go: Callable[[], None], *, watched: bool = True
    ) -> None:
        meeting = self._meeting(driver, query, batch, point)
        release: threading.Event | None = None
        try:
            if watched and point in _WATCHED:
                meeting.watched.wait(_MEET_S)
            with self._lock:
                driver.held += 1
            try:
                release = self._on_point(query, batch, point, driver.attempts.get((query, batch), 1))
            finally:
                with self._lock:
                    driver.held -= 1
        except BaseException as failure:
            self._on_failure(failure)
        finally:
            meeting.struck.set()  # the watcher need not wait while the driver is held: the file is already there
            while release is not None and not (release.wait(0.05) or driver.gone.is_set() or self._closing.is_set()):
                pass
            go()

    def _wait_turn(self, driver: _Driver, query: str, batch: int, jvm: _Driver, number: int) -> None:
        """Hold a state file before its rename until the faults have struck at the first state file of its version.

        An executor outlives its driver by a moment, in which it must not write what the driver's death has prevented.
        """
        struck = self._meeting(driver, query, batch, Point.STATE_PARTLY_COMMITTED).struck
        for _ in range(int(_TURN_S / 0.05)):
            if struck.wait(0.05) or driver.gone.is_set() or jvm.gone.is_set():
                break
        orphaned = jvm is not driver and driver.gone.wait(_LEAVING_S)
        jvm.reply(f"{'fail' if orphaned else 'go'} {number}")

    def _meeting(self, driver: _Driver, query: str, batch: int, point: Point) -> _Meeting:
        """The meeting of this attempt: one of an earlier attempt does not count."""
        with self._lock:
            attempt = driver.attempts.get((query, batch), 1)
            return self._meetings.setdefault((query, batch, point, attempt), _Meeting())

    def _writer(self, driver: _Driver, batch: int) -> str | None:
        """The driver's query at this batch, if there is exactly one: a file sink's log does not name its query."""
        with self._lock:
            queries = [query for query, served_by in self._driver_of.items() if served_by is driver]
            found = [query for query in queries if self._batches.get(query) == batch]
        return found[0] if len(found) == 1 else None

    def _query(self, checkpoint: Path) -> str | None:
        """The name of the query with this checkpoint; None if the checkpoint is not below ``root``."""
        if checkpoint == self._root:
            return self._root.name
        return str(checkpoint.relative_to(self._root)) if checkpoint.is_relative_to(self._root) else None


def _lines(connection: socketserver.StreamRequestHandler) -> Iterator[bytes]:
    """What a JVM says until its connection ends, however it ends: it may be killed, and on other machines the network may fail."""
    with contextlib.suppress(OSError):
        yield from connection.rfile


def _thread(work: Callable[..., None], *args: object) -> None:
    threading.Thread(target=work, args=args, name=f"parked-{args[1]}-{args[2]}", daemon=True).start()
