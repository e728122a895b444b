"""Reads from ``/proc`` what psutil does not offer: session ids, and start times that do not depend on the wall clock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Stat:
    """The fields of ``/proc/PID/stat`` that identify a process, its parent and its session (proc(5))."""

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int
    """Clock ticks since boot. With the boot id and the pid it identifies a process uniquely; psutil's create time is
    wall-clock time and changes when the clock is set."""

    @property
    def is_zombie(self) -> bool:
        return self.state in "ZX"


def stat(pid: int) -> Stat | None:
    """The fields of one process; None if it does not exist."""
    try:
        line = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in brackets and may contain brackets and spaces: the other fields follow the last bracket.
    fields = line[line.rindex(")") + 2 :].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def table() -> dict[int, Stat]:
    """Every process by its pid, including zombies."""
    seen = (stat(int(name)) for name in (entry.name for entry in _PROC.iterdir()) if name.isdigit())
    return {one.pid: one for one in seen if one is not None}


def family(sessions: set[int]) -> list[Stat]:
    """All live processes of these sessions and their descendants.

    A descendant that called setsid (as each Postgres backend does) is in a session of its own, with its own descendants.
    Such sessions are **added** to ``sessions``, so that a second call still finds them when their parent is gone.
    """
    processes = table()
    found: set[int] = set()
    while True:
        more = {p.pid for p in processes.values() if p.session in sessions or p.parent in found} - found
        if not more:
            return [processes[pid] for pid in sorted(found) if not processes[pid].is_zombie]
        found |= more
        sessions |= {processes[pid].session for pid in more}


def is_stopped(pid: int) -> bool:
    """Whether no thread of the process runs or can run: all are stopped or traced, or the process is gone.

    One thread takes the signal and then stops the others: on a busy machine these run on until it is scheduled.
    A thread in an uninterruptible wait (D) counts as stopped, because it takes the signal before its next step. Its wait
    may not end: a parent waits for its ``vfork`` child, which was itself stopped before it could call exec.
    """
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
        lines = [(task / "stat").read_text(errors="replace") for task in tasks]
    except (FileNotFoundError, ProcessLookupError):
        return stat(pid) is None or is_stopped(pid)  # a thread or the whole process has ended meanwhile
    return all(line[line.rindex(")") + 2] in "TtZXD" for line in lines)


def tcp_sockets(net: Path) -> Iterator[list[str]]:
    """The fields of each TCP socket of a network namespace, from its folder ``/proc/PID/net``.

    proc(5): 3 is the state, in hexadecimal, and 9 the inode.
    """
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            yield from (line.split() for line in (net / name).read_text().splitlines()[1:])


def marked(name: str, value: str) -> list[Stat]:
    """Live processes of this user that were started with ``name=value`` in their environment."""
    mark = f"{name}={value}".encode()
    found = []
    for process in table().values():
        if process.is_zombie or process.pid == os.getpid():
            continue
        folder = _PROC / str(process.pid)
        try:
            if folder.stat().st_uid == os.getuid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(process)
        except OSError:  # gone, or not readable for this user
            continue
    return found


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
