"""Finds the process that runs a task by its connection, and stops or kills it together with its descendants.

A Python task runs in a worker that PySpark's daemon forks; the daemon is a child of the executor's JVM. In local mode the
driver's own JVM is the executor. Pid and start time together identify a process, since pids are reused.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import psutil

from onceproof.base.waiting import wait_until
from onceproof.stack.processes import procfs
from onceproof.stack.processes.connections import connections

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_DAEMON, _WORKER = "pyspark.daemon", "pyspark.worker"
_GONE_S = 5.0
"""SIGKILL acts at once, except on a process in uninterruptible disk sleep."""

Role = Literal["driver", "driver-jvm", "executor", "python-worker"]
"""``driver``: the driver's Python process, or any other that is not a JVM of Spark. In local mode ``driver-jvm`` runs tasks."""


@dataclass(frozen=True)
class TaskProcess:
    """A process that holds a connection, and its role in Spark."""

    role: Role
    pid: int
    start_ticks: int
    executor: str | None
    """Spark's id of the executor that it is, or that it works for; None if the driver itself runs the tasks."""
    jvm: int
    """Pid of the JVM of that executor or of the driver; for a process of neither, its own pid."""

    def describe(self) -> str:
        owner = f"{'the driver' if self.executor is None else f'executor {self.executor}'} (pid {self.jvm})"
        return {
            "driver": f"the driver's own program (pid {self.pid})",
            "driver-jvm": f"the driver's JVM (pid {self.pid})",
            "executor": owner,
            "python-worker": f"Python worker {self.pid} of {owner}",
        }[self.role]


def sender(client: str, pids: Iterable[int], to: str) -> TaskProcess | None:
    """The process among ``pids`` that holds the connection from ``client`` to ``to`` (``host:port``); None if none does."""
    for pid in pids:
        if _has_connection(pid, client, to):
            with suppress(psutil.Error):
                return _identify(psutil.Process(pid))
    return None


def holds(process: TaskProcess, client: str, to: str) -> bool:
    """Whether the process lives and still holds that connection."""
    stat = procfs.stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks and _has_connection(process.pid, client, to)


def _has_connection(pid: int, client: str, to: str) -> bool:
    # Compare both ends: another connection may use the same local port, to another service or in another container.
    with suppress(PermissionError):
        return any(
            (f"{one.here[0]}:{one.here[1]}", f"{one.there[0]}:{one.there[1]}") == (client, to)
            for one in connections(pid)
        )
    return False


def _identify(process: psutil.Process) -> TaskProcess | None:
    stat = procfs.stat(process.pid)
    if stat is None:
        return None
    above = [process, *process.parents()]
    words = {p.pid: _command(p) for p in above}
    executor = next((p for p in above if _EXECUTOR in words[p.pid]), None)
    # The daemon's forks keep its command line: the daemon itself is the one whose parent has another one.
    forked = _DAEMON in words[process.pid] and len(above) > 1 and _DAEMON in words[above[1].pid]
    is_worker = forked or (_WORKER in words[process.pid] and _DAEMON not in words[process.pid])
    jvm = executor or next((p for p in above[1:] if is_worker and _DAEMON not in words[p.pid]), process)
    if is_worker:
        role: Role = "python-worker"
    elif process is executor:
        role = "executor"
    else:
        role = "driver-jvm" if _SUBMIT in words[process.pid] else "driver"
    return TaskProcess(
        role,
        process.pid,
        stat.start_ticks,
        words[executor.pid][words[executor.pid].index("--executor-id") + 1] if executor else None,
        jvm.pid,
    )


def _command(process: psutil.Process) -> list[str]:
    words: list[str] = []
    with suppress(psutil.Error):
        words = process.cmdline()
    return words


@dataclass(frozen=True)
class Tree:
    """A process and its descendants, as they were when it was frozen."""

    stats: tuple[procfs.Stat, ...]

    @classmethod
    def freeze(cls, pid: int) -> Tree:
        """SIGSTOP the process and its descendants, until no new ones are found: then none of them runs or forks any more."""
        frozen: dict[int, procfs.Stat] = {}
        try:
            while more := [stat for stat in _below(pid) if stat.pid not in frozen]:
                for stat in more:
                    _signal(stat, signal.SIGSTOP)
                    frozen[stat.pid] = stat
                # The kernel delivers SIGSTOP some time later: only a process that is seen stopped no longer runs.
                wait_until("the processes to stop", lambda: _stopped(frozen), deadline_s=_GONE_S, every_s=0.005)
        except BaseException:  # the caller gets no tree that it could thaw
            cls(tuple(frozen.values())).thaw()
            raise
        return cls(tuple(frozen.values()))

    def thaw(self) -> None:
        for stat in self.stats:
            _signal(stat, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL all processes; returns when they are gone."""
        for stat in self.stats:
            _signal(stat, signal.SIGKILL)
        wait_until("the processes to be gone after SIGKILL", lambda: not self.alive(), deadline_s=_GONE_S, every_s=0.01)

    def awake(self) -> list[int]:
        """Pids of the processes that are no longer stopped: something else has resumed them."""
        return [pid for pid in self.alive() if not procfs.is_stopped(pid)]

    def alive(self) -> list[int]:
        return [stat.pid for stat in self.stats if _is_same(stat)]


def _below(pid: int) -> list[procfs.Stat]:
    """The process and its descendants, without zombies."""
    table = procfs.table()
    found = {pid} & table.keys()
    while more := {p.pid for p in table.values() if p.parent in found} - found:
        found |= more
    return [table[one] for one in sorted(found) if not table[one].is_zombie]


def _stopped(frozen: dict[int, procfs.Stat]) -> bool:
    return all(procfs.is_stopped(stat.pid) for stat in frozen.values() if _is_same(stat))


def _is_same(stat: procfs.Stat) -> bool:
    now = procfs.stat(stat.pid)
    return now is not None and now.start_ticks == stat.start_ticks and not now.is_zombie


def _signal(stat: procfs.Stat, number: signal.Signals) -> None:
    if _is_same(stat):
        with suppress(ProcessLookupError):
            os.kill(stat.pid, number)
