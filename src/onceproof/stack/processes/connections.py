"""The TCP connections of another process: where they lead, and how to cut them, as the kernel does when the process is killed.

To cut them needs Linux 5.6 or later.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onceproof.stack.processes.procfs import tcp_sockets

_PIDFD_GETFD = 438
"""The number of pidfd_getfd(2), the same on every architecture."""
_LISTEN, _ESTABLISHED = "0A", "01"

_libc = ctypes.CDLL(None, use_errno=True)


def cut(pid: int) -> int:
    """Shut down every TCP connection of a process, which should be stopped. Returns how many there were.

    What the process has sent still arrives; the other end then sees the end of the stream, and what it sends is reset, as after
    a kill. Sockets that listen stay. Raises `OSError` if the system does not allow it: nothing is cut then, or only a part.
    """
    inodes = _sockets(pid)
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


@dataclass(frozen=True)
class Connection:
    """A TCP connection of a process, in whichever network it is: that of a container too, which psutil does not look into."""

    here: tuple[str, int]
    there: tuple[str, int]
    """Address and port of each end. A JVM without preferIPv4Stack shows IPv4 mapped into IPv6: here it is IPv4."""
    established: bool


def connections(pid: int) -> list[Connection]:
    """Those that do not listen. Empty if the process is gone. Raises `PermissionError` for a process of another user."""
    held = _links(pid)
    with suppress(FileNotFoundError, ProcessLookupError):
        return [
            Connection(_place(fields[1]), _place(fields[2]), fields[3] == _ESTABLISHED)
            for fields in tcp_sockets(Path("/proc", str(pid), "net"))
            if fields[3] != _LISTEN and f"socket:[{fields[9]}]" in held
        ]
    return []


def _links(pid: int) -> set[str]:
    """Where the open files of a process lead; of a socket, ``socket:[INODE]``."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in Path("/proc", str(pid), "fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(entry.readlink()))
    return found


def _place(text: str) -> tuple[str, int]:
    """``0100007F:1F90`` as address and port: words of four bytes in the machine's order, and the port in the usual one."""
    words, _, port = text.partition(":")
    raw = b"".join(int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(words), 8))
    host = str(ipaddress.ip_address(raw)) if len(raw) == 4 else _unmapped(ipaddress.IPv6Address(raw))
    return host, int(port, 16)


def _unmapped(address: ipaddress.IPv6Address) -> str:
    return str(address.ipv4_mapped or address)


def peers(pid: int, *, established: bool = False) -> set[tuple[str, int]]:
    """Address and port at the other ends of a process's TCP connections, or only of the established ones.

    Empty if the process is gone. Raises as `connections`.
    """
    return {one.there for one in connections(pid) if one.established or not established}


def is_connected(pids: Iterable[int], listener: str) -> bool:
    """Whether one of the processes has a connection to the listener, ``IP:PORT``."""
    return any(f"{host}:{port}" == listener for pid in pids for host, port in peers(pid))


def _sockets(pid: int) -> set[str]:
    """The links in ``/proc/PID/fd`` of its network namespace's TCP sockets that do not listen."""
    sockets = tcp_sockets(Path("/proc", str(pid), "net"))
    return {f"socket:[{fields[9]}]" for fields in sockets if fields[3] != _LISTEN}


def _take(process: int, fd: int) -> int:
    taken: int = _libc.syscall(_PIDFD_GETFD, process, fd, 0)
    if taken < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return taken
