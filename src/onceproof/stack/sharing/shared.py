"""One stack that serves several executions, one after the other.

Services start for the first execution and stay up. After each one everything that it left is removed, and that is checked
(`onceproof.stack.sharing.isolation`). A stack that a fault damaged, that fails a check, or that served an execution which failed, is
stopped, and the next execution gets a fresh one: the timeline says why.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from onceproof.base.errors import OnceproofError
from onceproof.base.signals import uninterrupted
from onceproof.base.timeline import Timeline
from onceproof.scenario.stack import StackSpec
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch.components import Components
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.sharing.isolation import NotIsolated, isolate


@dataclass(frozen=True)
class StackRequest:
    """What an execution needs of a stack."""

    spec: StackSpec
    components: Components
    object_store: Path | None
    """The program of the object store."""
    protocol_proxy: bool
    """Whether a fault, or a survey, reads frames."""

    def start(self, owner: Owner, folder: Path, timeline: Timeline) -> EmbeddedStack:
        """Start a stack for it; logs go to ``folder/logs``. Raises `ServiceFailed`."""
        return EmbeddedStack.start(
            self.spec,
            owner,
            folder,
            self.components,
            timeline,
            read_frames=self.protocol_proxy,
            object_store=self.object_store,
        )


@dataclass(frozen=True)
class StackUse:
    """How an execution used a shared stack, for ``run.json``."""

    served_before: int
    """Executions that the same services had served before."""
    protocol_proxy: bool


@dataclass
class _Running:
    stack: EmbeddedStack
    request: StackRequest
    owner: Owner
    logs: Path
    served: int = 0
    read_to: dict[Path, int] = field(default_factory=dict)
    """Log file -> its size when the present execution began."""


class SharedStack:
    """Lends a stack to one execution at a time. A context manager; at its end no service runs."""

    def __init__(self, *, protocol_proxy: bool = False) -> None:
        """``protocol_proxy``: give every stack the protocol proxy, so that it serves executions with and without a need for it."""
        self._protocol_proxy = protocol_proxy
        self._running: _Running | None = None
        self._lent = False
        self._why_gone = ""
        self._lock = threading.Lock()
        self.starts = 0
        """How many stacks were started."""
        self.start_s = 0.0
        """Seconds that these starts took together."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the services. Idempotent; another `lend` starts new ones."""
        self._stop("")

    def lend(self, request: StackRequest, files: Path, timeline: Timeline) -> EmbeddedStack:
        """The stack, for one execution, which must be inside `taken_back`; its outputs that are files go to ``files``.

        Starts one if none runs that fits. Raises `ServiceFailed` if it cannot be started, and `RuntimeError` while another
        execution has the stack.
        """
        with self._lock:
            if self._lent:
                raise RuntimeError("the shared stack is in use: it serves one execution at a time")
            self._lent = True
        running = self._running
        if running is not None and (why := _unfit(running, request)) is not None:
            self._stop(why)
        if self._running is None:
            if self._why_gone:
                timeline.emit("stack.replaced", reason=self._why_gone)
            self._running = self._start(request, files.parent, timeline)
        running = self._running
        running.stack.serve(files, timeline)
        timeline.emit("stack.shared", **asdict(self.use()))
        return running.stack

    def services(self) -> list[Service]:
        """The services that run now."""
        running = self._running
        return [] if running is None else running.owner.services()

    def use(self) -> StackUse:
        """How the execution that has the stack uses it."""
        assert self._running is not None, "it is lent"
        return StackUse(self._running.served, self._running.stack.frames is not None)

    @property
    def is_lent(self) -> bool:
        return self._lent

    @contextmanager
    def taken_back(self, logs: Path, timeline: Timeline) -> Iterator[None]:
        """Around an execution: when it ends, its processes included, take the stack back, and clean or replace it.

        What the services logged meanwhile is copied to ``logs``.
        """
        try:
            yield
            why = self._clean(timeline)
        except BaseException as failure:
            with uninterrupted("stopping the services of the execution that failed"):
                self._end(logs, timeline, f"an execution on it ended with {type(failure).__name__}")
            raise
        self._end(logs, timeline, why)

    def _clean(self, timeline: Timeline) -> str | None:
        """Clean the stack; return why it must not be used again, if so."""
        if not self._lent or self._running is None:
            return None
        began = time.monotonic()
        try:
            removed = isolate(self._running.stack)
        except NotIsolated as left:
            return left.message
        timeline.emit("stack.cleaned", seconds=round(time.monotonic() - began, 3), **asdict(removed))
        return None

    def _end(self, logs: Path, timeline: Timeline, why: str | None) -> None:
        if not self._lent:
            return
        self._lent = False
        running = self._running
        if running is None:  # it could not be started
            return
        running.served += 1
        copied = False
        try:
            _copy_logs(running, logs)
            copied = True
            if why is not None:
                timeline.emit("stack.used-up", reason=why, served=running.served)
        finally:
            if why is not None or not copied:
                self._stop(why or "the logs of its last execution could not be copied")

    def _start(self, request: StackRequest, folder: Path, timeline: Timeline) -> _Running:
        request = replace(request, protocol_proxy=request.protocol_proxy or self._protocol_proxy)
        began = time.monotonic()
        owner = Owner()
        own = owner.scratch / "stack"
        logs = own / "logs"
        try:
            logs.mkdir(parents=True)
            stack = request.start(owner, own, timeline)
        except BaseException:
            with suppress(OSError):  # the cause of the failure counts, not that its logs cannot be copied
                shutil.copytree(logs, folder / "logs", dirs_exist_ok=True, ignore_dangling_symlinks=True)
            owner.close()
            raise
        self.starts += 1
        self.start_s += time.monotonic() - began
        return _Running(stack, request, owner, logs)

    def _stop(self, why: str) -> None:
        self._why_gone = why
        running, self._running = self._running, None
        if running is not None:
            running.owner.close()


def _unfit(running: _Running, request: StackRequest) -> str | None:
    """Why the stack cannot serve the execution; None if it can."""
    has = running.request
    if (_services(has.spec), has.object_store) != (_services(request.spec), request.object_store):
        return "the next execution needs another stack"
    if has.components != request.components:
        return "the next execution needs other jars"
    if request.protocol_proxy and not has.protocol_proxy:
        return "the next execution needs the protocol proxy"
    try:
        running.stack.check_health()
    except OnceproofError as failed:
        return failed.message.splitlines()[0]
    return None


def _services(spec: StackSpec) -> StackSpec:
    """The part of a specification that says what an embedded stack starts."""
    return StackSpec(kafka=spec.kafka, postgres=spec.postgres, spark=spec.spark, object_store=spec.object_store)


def _copy_logs(running: _Running, to: Path) -> None:
    """Copy what the services logged since the last copy. An executor's log is in a folder of its application, and is whole."""
    for path in sorted(running.logs.rglob("*")):
        if path.is_dir():
            continue
        start, size = running.read_to.get(path, 0), path.stat().st_size
        running.read_to[path] = size
        if size > start:
            copy = to / path.relative_to(running.logs)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, copy.open("ab") as target:
                source.seek(start)
                shutil.copyfileobj(source, target)
