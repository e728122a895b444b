"""Which process runs a task: whose is the connection that a frame came over, and what dies with it.

A Python task runs in a worker that PySpark's daemon has forked, a child of the executor's JVM; in local mode the executor is
the driver's own JVM. A process is named by pid and start time, which no other process ever has.
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

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_DAEMON, _WORKER = "pyspark.daemon", "pyspark.worker"
_GONE_S = 5.0
"""SIGKILL acts at once, but on a process in uninterruptible disk sleep."""

Role = Literal["driver", "driver-jvm", "executor", "python-worker"]
"""``driver``: its Python, or whatever else is no JVM of Spark's. In local mode tasks run in ``driver-jvm``."""


@dataclass(frozen=True)
class TaskProcess:
    """A process that sent something, and what it is to Spark."""

    role: Role
    pid: int
    start_ticks: int
    executor: str | None
    """Spark's id of the executor that it is, or that it works for; None where the driver itself runs the tasks."""
    jvm: int
    """Pid of that executor's JVM, or of the driver's; its own where it is neither's."""

    def describe(self) -> str:
        of = (
            f"executor {self.executor} (pid {self.jvm})"
            if self.executor is not None
            else f"the driver (pid {self.jvm})"
        )
        return {
            "driver": f"the driver's own program (pid {self.pid})",
            "driver-jvm": f"the driver's JVM (pid {self.pid})",
            "executor": of,
            "python-worker": f"Python worker {self.pid} of {of}",
        }[self.role]


def sender(client: str, pids: Iterable[int], to: str) -> TaskProcess | None:
    """Which of these processes holds the connection from ``client`` to ``to`` (``host:port``); None if none of them."""
    for pid in pids:
        if _has(pid, client, to):
            with suppress(psutil.Error):
                return _who(psutil.Process(pid))
    return None


def holds(process: TaskProcess, client: str, to: str) -> bool:
    """Whether it is there and still holds that connection."""
    stat = procfs.stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks and _has(process.pid, client, to)


def _has(pid: int, client: str, to: str) -> bool:
    # Both ends: another connection may have the same port here, to a service elsewhere.
    ports = tuple(int(end.rpartition(":")[2]) for end in (client, to))
    with suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections("tcp")
        return any((c.laddr.port, c.raddr.port) == ports for c in connections if c.laddr and c.raddr)
    return False


def _who(process: psutil.Process) -> TaskProcess | None:
    stat = procfs.stat(process.pid)
    if stat is None:
        return None
    above = [process, *process.parents()]
    words = {p.pid: _command(p) for p in above}
    executor = next((p for p in above if _EXECUTOR in words[p.pid]), None)
    # The daemon's forks keep its command line: the daemon itself is the one whose parent has another.
    forked = _DAEMON in words[process.pid] and len(above) > 1 and _DAEMON in words[above[1].pid]
    works = forked or (_WORKER in words[process.pid] and _DAEMON not in words[process.pid])
    jvm = executor or next((p for p in above[1:] if works and _DAEMON not in words[p.pid]), process)
    if works:
        role: Role = "python-worker"
    elif process is executor:
        role = "executor"
    else:
        role = "driver-jvm" if _SUBMIT in words[process.pid] else "driver"
    return TaskProcess(
        role,
        process.pid,
        stat.start_ticks,
        _option(words[executor.pid], "--executor-id") if executor else None,
        jvm.pid,
    )


def _command(process: psutil.Process) -> list[str]:
    words: list[str] = []
    with suppress(psutil.Error):
        words = process.cmdline()
    return words


def _option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@dataclass(frozen=True)
class Tree:
    """A process and its descendants, as they were when it was frozen."""

    stats: tuple[procfs.Stat, ...]

    @classmethod
    def freeze(cls, pid: int) -> Tree:
        """SIGSTOP it and all below it, until nothing new is found: nothing of it runs then, nothing can be forked."""
        frozen: dict[int, procfs.Stat] = {}
        try:
            while more := [stat for stat in _below(pid) if stat.pid not in frozen]:
                for stat in more:
                    _signal(stat, signal.SIGSTOP)
                    frozen[stat.pid] = stat
                # It is delivered when the kernel comes to it: only one that is seen stopped does nothing any more.
                wait_until("the processes to stop", lambda: _stopped(frozen), deadline_s=_GONE_S, every_s=0.005)
        except BaseException:  # nobody knows of the tree then, who could let it go on
            cls(tuple(frozen.values())).thaw()
            raise
        return cls(tuple(frozen.values()))

    def thaw(self) -> None:
        for stat in self.stats:
            _signal(stat, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL all of it; returns when each process is gone."""
        for stat in self.stats:
            _signal(stat, signal.SIGKILL)
        wait_until("the processes to be gone after SIGKILL", lambda: not self.alive(), deadline_s=_GONE_S, every_s=0.01)

    def awake(self) -> list[int]:
        """Those that are not stopped (any more): somebody else has let them go on."""
        return [pid for pid in self.alive() if not procfs.is_stopped(pid)]

    def alive(self) -> list[int]:
        return [stat.pid for stat in self.stats if _is_same(stat)]


def _below(pid: int) -> list[procfs.Stat]:
    """The process and its descendants, without those that are dead and not waited for."""
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
