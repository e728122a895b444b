"""Leases of free ports, so that two runs at the same time never share one.

Another run could take a free port before the service binds it, or while a fault has killed the broker that uses it. So a
run *leases* each port: in addition to the bind test, it holds one advisory lock per port until it ends.
"""

from __future__ import annotations

import os
import random
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.base.paths import temporary
from onceproof.stack.processes.owner import Owner

#: Lower ports are used by the well-known services of a developer's machine.
_FIRST = 20_000
_RANGE_VARIABLE = "ONCEPROOF_PORTS"
_CONNECT_TIMEOUT_S = 2.0


class PortLease:
    """Some loopback ports, locked against other runs of this user until `release`."""

    def __init__(self, locks: dict[int, FileLock]) -> None:
        self._locks = locks
        self.ports = list(locks)

    @classmethod
    def take(cls, count: int) -> Self:
        """Lease ``count`` ports. Raises `EnvironmentProblem` if too few are free, `UsageError` for a bad range."""
        candidates = _candidates()
        folder = _lock_folder()
        # The locks are per user; with a random start two users seldom try the same port at the same moment.
        start = random.randrange(len(candidates))  # noqa: S311 - not a secret
        taken: dict[int, FileLock] = {}
        leased = in_use = 0
        for offset in range(len(candidates)):
            if len(taken) == count:
                break
            port = candidates[(start + offset) % len(candidates)]
            # thread_local=False: another thread may close the run.
            lock = FileLock(folder / f"{port}.lock", thread_local=False)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                leased += 1
                continue
            if _is_free(port):
                taken[port] = lock
            else:
                in_use += 1
                lock.release()
        lease = cls(taken)
        if len(taken) < count:
            lease.release()
            raise EnvironmentProblem(
                f"fewer than {count} free ports in {candidates[0]}-{candidates[-1]}: "
                f"{leased} leased by other runs, {in_use} in use, {len(taken)} free",
                hint=f"set {_RANGE_VARIABLE} to a larger range (FIRST-LAST), or end abandoned runs: onceproof cleanup",
            )
        return lease

    def release(self) -> None:
        """Release the ports. Idempotent."""
        for lock in self._locks.values():
            lock.release()


def lease(owner: Owner, count: int) -> list[int]:
    """Lease ``count`` free ports on 127.0.0.1, outside the ephemeral range, until the owner is closed."""
    taken = PortLease.take(count)
    owner.push(taken.release)
    return taken.ports


def accepts_connections(host: str, port: int) -> bool:
    """Whether a service accepts TCP connections there."""
    with suppress(OSError), socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S):
        return True
    return False


def _candidates() -> range:
    chosen = os.environ.get(_RANGE_VARIABLE)
    if chosen is not None:
        match = re.fullmatch(r"\s*(\d{1,5})\s*-\s*(\d{1,5})\s*", chosen)
        if match is None or not 1024 <= int(match[1]) <= int(match[2]) <= 65535:
            raise UsageError(
                f"{_RANGE_VARIABLE}={chosen!r} is not a range of ports",
                hint="write it as FIRST-LAST within 1024-65535, for example 21000-21999",
            )
        return range(int(match[1]), int(match[2]) + 1)
    # While a broker is down, a port of the ephemeral range could become the local end of any outgoing connection.
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    outside = range(_FIRST, low) or range(high + 1, 65536)
    if not outside:
        raise EnvironmentProblem(
            f"this kernel uses all ports from {low} to {high} for outgoing connections",
            hint=f"set {_RANGE_VARIABLE} to a range that is free here, for example {_RANGE_VARIABLE}=21000-21999",
        )
    return outside


def _lock_folder() -> Path:
    folder = temporary() / f"onceproof-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # Other users can guess the name and write to the parent: refuse a link, or a folder of another user.
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise EnvironmentProblem(
            f"{folder} is a link or belongs to another user", hint="remove it, or set TMPDIR to a folder of yours"
        )
    return folder


def _is_free(port: int) -> bool:
    """Whether a service could listen there now. Like the services it uses SO_REUSEADDR, which ignores TIME_WAIT."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True
