"""Decides how each JVM of a job is started: by Spark's scripts, directly, or not at all because one is kept.

Spark's scripts start a JVM only to learn with which words and environment to start the driver's JVM: a fifth of the CPU time
of a restart. They see nothing but their arguments, the folder, the environment and Spark's configuration files. So when all
of these are as they were at the job's first start, the first JVM's own command line and environment are the answer.
"""

from __future__ import annotations

import json
import os
import re
import socketserver
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from onceproof.base.errors import WaitTimeout
from onceproof.base.line_server import LineServer
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.pipeline.tiers import spark_home
from onceproof.scenario.tiers import Tier

#: PySpark's variable with the path where it waits for the JVM; new in each start.
CONNECTION_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_MAIN = b"org.apache.spark.deploy.SparkSubmit"
_SCRIPTS_S = 60.0
"""How long Spark's scripts may take until the JVM runs. They take one CPU second."""
_FOREIGN_OPTIONS = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")
_COLLECTOR = re.compile(r"-XX:[+-]Use\w*GC\b")
#: On two cores the concurrent threads of the default collector take CPU time from the job, which lives only for seconds.
_SERIAL = "-XX:+UseSerialGC"


@dataclass(frozen=True)
class Request:
    """What ``spark-submit`` was called with."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    pid: int
    files: tuple[tuple[str, int, int], ...]
    """Spark's configuration files: name, size, time of the last change."""

    @classmethod
    def parse(cls, line: bytes) -> Request:
        """Raises `ValueError`, `KeyError` or `TypeError` for anything but a request of `onceproof.pipeline.tiers.shim`."""
        sent = json.loads(line)
        env = dict(sent["env"])
        return cls(tuple(sent["argv"]), str(sent["cwd"]), env, int(sent["pid"]), _conf_files(env))

    def difference(self, first: Request) -> str | None:
        """Why a JVM that ``first`` started need not be what this request would start. Names variables, shows no value."""
        if self.argv != first.argv:
            return "the job's Spark configuration is not that of its first start"
        if self.cwd != first.cwd:
            return f"the job calls spark-submit in {self.cwd}, and at its first start in {first.cwd}"
        ours, theirs = dict(self.env), dict(first.env)
        for env in (ours, theirs):
            env.pop(CONNECTION_FILE, None)
        differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
        if differing:
            return f"the job's environment is not that of its first start: {', '.join(differing)}"
        if self.files != first.files:
            return "Spark's configuration files are not those of the job's first start"
        return None


@dataclass(frozen=True)
class JvmStart:
    """How one JVM of the job was started. Stored in ``run.json``."""

    start: int
    """Which start of the driver, from 0."""
    tier: Tier
    how: Literal["scripts", "direct", "kept"]
    why: str | None = None
    """Why not in the tier that was asked for, or why not directly."""


class Keeper(Protocol):
    """What the launcher needs of `onceproof.pipeline.tiers.kept`."""

    def join(self, request: Request) -> tuple[dict[str, Any], JvmStart]:
        """The answer for a start, and what it is. Waits for a JVM. The answer is ``scripts`` if the job cannot be kept."""

    def left(self, request: Request) -> None:
        """The program that had joined has ended, and with it the driver."""


class Launcher:
    """Answers the job's ``spark-submit``. ``folder``: a private one with a short path, which must not exist."""

    def __init__(
        self, folder: Path, timeline: Timeline, *, start_of_driver: Callable[[], int], keeper: Keeper | None = None
    ) -> None:
        folder.mkdir(mode=0o700)
        self.home = spark_home.make(folder / "spark", folder / "submit")
        self.starts: list[JvmStart] = []
        self._timeline = timeline
        self._start_of_driver = start_of_driver
        self._keeper = keeper
        self._lock = threading.Lock()
        self._first: Request | None = None
        self._jvm: tuple[list[str], dict[str, str]] | None = None
        """Command line and environment of the first JVM, as Spark's scripts made them."""
        self._server = LineServer(folder / "submit", "launcher", self._serve)

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def _serve(self, connection: socketserver.StreamRequestHandler) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):  # the program that asks then runs Spark's own scripts
            request = Request.parse(connection.rfile.readline())
            answer, start = self._keeper.join(request) if self._keeper is not None else ({"do": "scripts"}, None)
            if answer["do"] == "scripts":
                answer, direct = self._without_keeping(request)
                start = direct if start is None else replace(direct, why=start.why or direct.why)
            assert start is not None
            try:
                connection.wfile.write(json.dumps(answer).encode() + b"\n")
                connection.wfile.flush()
                self.starts.append(start)
                why = {} if start.why is None else {"why": start.why}
                self._timeline.emit("driver.jvm", start=start.start, tier=start.tier, how=start.how, **why)
                if answer["do"] == "join":
                    connection.rfile.read()  # until the program has ended
            finally:
                if answer["do"] == "join" and self._keeper is not None:
                    self._keeper.left(request)

    def _without_keeping(self, request: Request) -> tuple[dict[str, Any], JvmStart]:
        number = self._start_of_driver()
        with self._lock:
            first, jvm = self._first, self._jvm
            if first is None:
                self._first = request
        if first is None:
            threading.Thread(target=self._learn, args=(request,), name="first-jvm", daemon=True).start()
            return {"do": "scripts"}, JvmStart(number, "real", "scripts")
        why = request.difference(first) if jvm is not None else "the command line of the job's first JVM is not known"
        if why is not None:
            return {"do": "scripts"}, JvmStart(number, "real", "scripts", why)
        assert jvm is not None
        argv, env = jvm
        return {"do": "start", "argv": quick(argv, env), "env": env}, JvmStart(number, "real", "direct")

    def _learn(self, request: Request) -> None:
        """Wait until the process that asked has become the JVM, and keep how it was started."""
        gone = f"{Path('/proc') / str(request.pid)} is gone"

        def found() -> tuple[list[str], dict[str, str]] | None:
            folder = Path("/proc", str(request.pid))
            words = folder.joinpath("cmdline").read_bytes().split(b"\0")[:-1]
            # Before it is the JVM, it is a script of Spark's whose words name the same class.
            if _MAIN not in words or not (words[0].startswith(b"/") and words[0].endswith(b"/java")):
                return None
            variables = folder.joinpath("environ").read_bytes().split(b"\0")
            pairs = (os.fsdecode(one).partition("=") for one in variables if b"=" in one)
            return [os.fsdecode(word) for word in words], {name: value for name, _, value in pairs}

        with suppress(WaitTimeout, OSError):  # it has ended, or is not a JVM: Spark's scripts start the next ones
            jvm = wait_until(f"the JVM, or {gone}", found, deadline_s=_SCRIPTS_S, every_s=0.1)
            with self._lock:
                self._jvm = jvm


def quick(argv: list[str], env: Mapping[str, str]) -> list[str]:
    """The command line with the serial collector, unless the job chooses a collector itself."""
    chosen = [*argv, *(env.get(name, "") for name in _FOREIGN_OPTIONS)]
    if any(_COLLECTOR.search(word) or word.startswith(("@", "-XX:Flags=")) for word in chosen):
        return argv
    return [argv[0], _SERIAL, *argv[1:]]


def _conf_files(env: Mapping[str, str]) -> tuple[tuple[str, int, int], ...]:
    """Spark's configuration files: they decide with which options its scripts start the JVM."""
    folder = Path(env.get("SPARK_CONF_DIR") or spark_home.pyspark() / "conf")
    found = []
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            state = entry.stat()
            found.append((entry.name, state.st_size, state.st_mtime_ns))
    return tuple(found)
