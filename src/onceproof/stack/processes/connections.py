"""The TCP connections of other processes: whether there is one, and cutting them as a kill does. Linux 5.6 and later."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_PIDFD_GETFD = 438
"""The number of pidfd_getfd(2), the same on every architecture."""
_LISTEN = "0A"

_libc = ctypes.CDLL(None, use_errno=True)


def cut(pid: int) -> int:
    """Shut down every TCP connection of a process, which should be stopped. Returns how many there were.

    What the process has sent still arrives; the other end then sees the end of the stream, and what it sends is reset, as after
    a kill. Sockets that listen stay. Raises `OSError` if the system does not allow it: nothing is cut then, or only a part.
    """
    inodes = _connections(pid)
    cut_off = 0
    process = os.pidfd_open(pid)
    try:
        for entry in Path("/proc", str(pid), "fd").iterdir():
            with suppress(FileNotFoundError):
                if str(entry.readlink()) in inodes:
                    taken = socket.socket(fileno=_take(process, int(entry.name)))
                    with taken, suppress(OSError):  # the other end may have closed it meanwhile
                        taken.shutdown(socket.SHUT_RDWR)
                    cut_off += 1
    finally:
        os.close(process)
    return cut_off


def is_connected(pids: Iterable[int], listener: str) -> bool:
    """Whether one of the processes has a connection to the listener, ``IP:PORT``."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if any(
                c.raddr and f"{c.raddr.ip.removeprefix('::ffff:')}:{c.raddr.port}" == listener
                for c in psutil.Process(pid).net_connections("tcp")
            ):
                return True
    return False


def _connections(pid: int) -> set[str]:
    """The links in ``/proc/PID/fd`` of its network namespace's TCP sockets that do not listen; proc(5): 3 state, 9 inode."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path("/proc", str(pid), "net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] != _LISTEN:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _take(process: int, fd: int) -> int:
    taken: int = _libc.syscall(_PIDFD_GETFD, process, fd, 0)
    if taken < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return taken
