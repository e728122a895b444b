"""The TCP connections of another process: where they lead, and how to cut them, as the kernel does when the process is killed.

To cut them needs Linux 5.6 or later.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from onceproof.stack.processes.procfs import tcp_sockets

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


def peers(pid: int, *, established: bool = False) -> set[tuple[str, int]]:
    """Address and port at the other ends of a process's TCP connections, or only of the established ones.

    Empty if the process is gone. A JVM without preferIPv4Stack shows IPv4 mapped into IPv6: here it is IPv4.
    """
    with suppress(psutil.NoSuchProcess):
        return {
            (one.raddr.ip.removeprefix("::ffff:"), int(one.raddr.port))
            for one in psutil.Process(pid).net_connections("tcp")
            if one.raddr and (one.status == psutil.CONN_ESTABLISHED or not established)
        }
    return set()


def is_connected(pids: Iterable[int], listener: str) -> bool:
    """Whether one of the processes has a connection to the listener, ``IP:PORT``."""
    return any(f"{host}:{port}" == listener for pid in pids for host, port in peers(pid))


def _connections(pid: int) -> set[str]:
    """The links in ``/proc/PID/fd`` of its network namespace's TCP sockets that do not listen."""
    sockets = tcp_sockets(Path("/proc", str(pid), "net"))
    return {f"socket:[{fields[9]}]" for fields in sockets if fields[3] != _LISTEN}


def _take(process: int, fd: int) -> int:
    taken: int = _libc.syscall(_PIDFD_GETFD, process, fd, 0)
    if taken < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return taken
