"""The System V shared memory segment that a killed Postgres leaves behind: found by its data folder, and removed.

A Postgres server keeps one small segment as a lock on its data folder, whatever its settings, and removes it when it ends
by itself. Its key and id are in ``postmaster.pid``.
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
#: ``postmaster.pid`` lies in the data folder; that is in a temporary folder of the run, or one below it.
_DEPTHS = ("postmaster.pid", "*/postmaster.pid", "*/*/postmaster.pid")
#: Of ``postmaster.pid``, from 0 (src/include/utils/pidfile.h).
_PID_LINE, _SEGMENT_LINE = 0, 6
#: A key is a signed number to the kernel, and an unsigned one in the file.
_32_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class Segment:
    key: int
    id: int
    creator: int
    """Process id."""
    attached: int
    """How many processes have it."""
    owner: int
    """User id."""


def left_by(folder: Path) -> list[Segment]:
    """Segments of the Postgres data folders below ``folder`` that no process is attached to."""
    known = {(one.key, one.id): one for one in _segments()}
    found = []
    for pattern in _DEPTHS:
        for file in folder.glob(pattern):
            noted = _noted(file)
            segment = known.get(noted[1:]) if noted is not None else None
            # The same key, id and creator: an id alone may be somebody else's segment by now.
            if segment is not None and noted is not None and segment.creator == noted[0] and segment.attached == 0:
                found.append(segment)
    return found


def remove(folder: Path) -> None:
    """Remove what `left_by` finds. One that is gone by then, or that is not ours to remove, is passed over."""
    for segment in left_by(folder):
        if segment.owner in (os.geteuid(), 0) or os.geteuid() == 0:
            ctypes.CDLL(None, use_errno=True).shmctl(segment.id, _IPC_RMID, None)


def _noted(file: Path) -> tuple[int, int, int] | None:
    """The server's pid, and key and id of its segment; None where it had none yet."""
    with suppress(OSError, ValueError, IndexError):
        lines = file.read_text(encoding="utf-8").splitlines()
        key, number = lines[_SEGMENT_LINE].split()
        return int(lines[_PID_LINE]), int(key) & _32_BITS, int(number)
    return None


def _segments() -> Iterator[Segment]:
    """Every segment of this machine, as the kernel lists them."""
    with suppress(OSError):
        names, *rows = _SEGMENTS.read_text(encoding="ascii").splitlines()
        columns = names.split()
        for row in rows:
            values = dict(zip(columns, map(int, row.split()), strict=False))
            yield Segment(
                values["key"] & _32_BITS,
                values["shmid"],
                values["cpid"],
                values["nattch"],
                values["uid"],
            )
