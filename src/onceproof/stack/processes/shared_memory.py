"""Finds, by its data folder, the System V shared memory segment that a killed Postgres leaves, and removes it.

A Postgres server has one small segment as a lock on its data folder, whatever its settings, and removes it when it ends
normally. The segment's key and id are in ``postmaster.pid``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SEGMENTS = Path("/proc/sysvipc/shm")
_IPC_RMID = 0
#: ``postmaster.pid`` is in the data folder, which is a temporary folder of the run or below one.
_PATTERNS = ("postmaster.pid", "*/postmaster.pid", "*/*/postmaster.pid")
#: Line numbers in ``postmaster.pid``, from 0 (src/include/utils/pidfile.h).
_PID_LINE, _SEGMENT_LINE = 0, 6
#: A key is a signed number in the kernel and an unsigned one in the file.
_32_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class Segment:
    key: int
    id: int
    creator: int
    """Process id."""
    attached: int
    """Number of processes attached to it."""
    owner: int
    """User id."""


def unused_segments(folder: Path) -> list[Segment]:
    """Segments of the Postgres data folders below ``folder`` that no process is attached to."""
    known = {(one.key, one.id): one for one in _segments()}
    found = []
    for pattern in _PATTERNS:
        for file in folder.glob(pattern):
            entry = _pidfile_entry(file)
            segment = known.get(entry[1:]) if entry is not None else None
            # Key, id and creator must match: the id alone may belong to another program's segment by now.
            if segment is not None and entry is not None and segment.creator == entry[0] and segment.attached == 0:
                found.append(segment)
    return found


def remove(folder: Path) -> None:
    """Remove the `unused_segments`, except those that are gone by then or that this user may not remove."""
    for segment in unused_segments(folder):
        if segment.owner in (os.geteuid(), 0) or os.geteuid() == 0:
            ctypes.CDLL(None, use_errno=True).shmctl(segment.id, _IPC_RMID, None)


def _pidfile_entry(file: Path) -> tuple[int, int, int] | None:
    """The server's pid, and the key and id of its segment; None if the file does not have them (yet)."""
    with suppress(OSError, ValueError, IndexError):
        lines = file.read_text(encoding="utf-8").splitlines()
        key, number = lines[_SEGMENT_LINE].split()
        return int(lines[_PID_LINE]), int(key) & _32_BITS, int(number)
    return None


def _segments() -> Iterator[Segment]:
    """Every segment that the kernel lists."""
    with suppress(OSError):
        names, *rows = _SEGMENTS.read_text(encoding="ascii").splitlines()
        columns = names.split()
        for row in rows:
            values = dict(zip(columns, map(int, row.split()), strict=False))
            yield Segment(values["key"] & _32_BITS, values["shmid"], values["cpid"], values["nattch"], values["uid"])
