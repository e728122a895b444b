"""What ``/proc`` tells about processes and psutil does not: session ids, and start times that no clock step moves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Stat:
    """The part of ``/proc/PID/stat`` that tells whose process it is (proc(5))."""

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int
    """Clock ticks since boot. With the boot id and the pid it names a process for good; psutil's create time is
    wall-clock and moves when the clock is stepped."""

    @property
    def is_zombie(self) -> bool:
        return self.state in "ZX"


def stat(pid: int) -> Stat | None:
    """None if there is no such process."""
    try:
        line = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name stands in brackets and may itself hold brackets and spaces: count from the last one.
    fields = line[line.rindex(")") + 2 :].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def table() -> dict[int, Stat]:
    """Every process, zombies included."""
    seen = (stat(int(name)) for name in (entry.name for entry in _PROC.iterdir()) if name.isdigit())
    return {one.pid: one for one in seen if one is not None}


def family(sessions: set[int]) -> list[Stat]:
    """All live processes of these sessions and their descendants.

    A descendant that called setsid (each Postgres backend does) is in a session of its own, and whatever else is in
    that session descends from it: such sessions are **added** to ``sessions``, so that a second look still finds them
    when the link through their parent is gone.
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
    """Whether no thread of the process runs or will: it was stopped, is traced, or is gone.

    A signal is taken by one thread, which then stops the others: until it gets its turn on a busy machine they run on.
    A thread in an uninterruptible wait (D) counts as stopped: the signal is taken before its next step. It may wait for as
    long as we do, for a child of ``vfork`` that was itself stopped before it could become another program.
    """
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
        lines = [(task / "stat").read_text(errors="replace") for task in tasks]
    except (FileNotFoundError, ProcessLookupError):
        return stat(pid) is None or is_stopped(pid)  # a thread that ended meanwhile, or all of it
    return all(line[line.rindex(")") + 2] in "TtZXD" for line in lines)


def unread(pids: Iterable[int]) -> dict[str, int]:
    """TCP sockets of these processes with bytes that have arrived and were not read: the socket's inode -> how many."""
    pids = list(pids)
    theirs: set[str] = set()
    tables: dict[str, Path] = {}
    for pid in pids:
        with suppress(OSError):
            tables[str((_PROC / str(pid) / "ns/net").readlink())] = _PROC / str(pid) / "net"
            for entry in (_PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    theirs.add(str(entry.readlink()))
    found: dict[str, int] = {}
    for table_of in tables.values():
        for name in ("tcp", "tcp6"):
            with suppress(OSError):
                for line in (table_of / name).read_text().splitlines()[1:]:
                    fields = line.split()  # proc(5): 4 is the lengths of the queues, in hexadecimal, and 9 the inode
                    waiting = int(fields[4].partition(":")[2], 16)
                    if waiting and f"socket:[{fields[9]}]" in theirs:
                        found[fields[9]] = waiting
    return found


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
        except OSError:  # gone, or not ours to read
            continue
    return found


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
