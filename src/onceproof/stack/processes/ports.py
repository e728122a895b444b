"""Free ports that two runs side by side never share.

A port that was free when somebody looked may be taken before the service binds it, and a broker's port stays free
while a fault has killed it. So a port is *leased*: besides the bind test, an advisory lock a port, held as long as the
run lives.
"""

from __future__ import annotations

import os
import random
import re
import socket
import tempfile
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.stack.processes.owner import Owner

#: Below it stand the well-known services of a developer's machine.
_FIRST = 20_000
_RANGE_VARIABLE = "ONCEPROOF_PORTS"


class PortLease:
    """Some loopback ports, locked against other runs of this user until `release`."""

    def __init__(self, locks: dict[int, FileLock]) -> None:
        self._locks = locks
        self.ports = list(locks)

    @classmethod
    def take(cls, count: int) -> Self:
        """Lease ``count`` ports. Raises `EnvironmentProblem` if there are not so many, `UsageError` for a bad range."""
        candidates = _candidates()
        folder = _lock_folder()
        # Each user has locks of their own; from a random start two users seldom try the same port at the same moment.
        start = random.randrange(len(candidates))  # noqa: S311 - nothing secret about it
        taken: dict[int, FileLock] = {}
        leased = in_use = 0
        for offset in range(len(candidates)):
            if len(taken) == count:
                break
            port = candidates[(start + offset) % len(candidates)]
            # thread_local=False: the run that took the lease may be closed from another thread.
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
                f"no {count} free ports in {candidates[0]}-{candidates[-1]}: "
                f"{leased} leased by other runs, {in_use} in use, {len(taken)} free",
                hint=f"widen {_RANGE_VARIABLE} (FIRST-LAST), or `onceproof cleanup` to end abandoned runs",
            )
        return lease

    def release(self) -> None:
        """Give them back. Idempotent."""
        for lock in self._locks.values():
            lock.release()


def lease(owner: Owner, count: int) -> list[int]:
    """``count`` free ports on 127.0.0.1, below the ephemeral range, that are the owner's until it is closed."""
    taken = PortLease.take(count)
    owner.push(taken.release)
    return taken.ports


def _candidates() -> range:
    chosen = os.environ.get(_RANGE_VARIABLE)
    if chosen is not None:
        match = re.fullmatch(r"\s*(\d{1,5})\s*-\s*(\d{1,5})\s*", chosen)
        if match is None or not 1024 <= int(match[1]) <= int(match[2]) <= 65535:
            raise UsageError(
                f"{_RANGE_VARIABLE}={chosen!r} is not a range of ports",
                hint="give it as FIRST-LAST within 1024-65535, for example 21000-21999",
            )
        return range(int(match[1]), int(match[2]) + 1)
    # A port inside the ephemeral range may become the local end of any outgoing connection while its broker is down.
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    usual = range(_FIRST, low) or range(high + 1, 65536)
    if not usual:
        raise EnvironmentProblem(
            f"this kernel gives all ports from {low} to {high} to outgoing connections",
            hint=f"name a range that is free here in {_RANGE_VARIABLE}, for example {_RANGE_VARIABLE}=21000-21999",
        )
    return usual


def _lock_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"onceproof-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # The name can be guessed and the parent is everybody's: a folder or link that another user put there is not used.
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise EnvironmentProblem(
            f"{folder} belongs to somebody else", hint="remove it, or set TMPDIR to a folder of yours"
        )
    return folder


def _is_free(port: int) -> bool:
    """Whether a service could listen there now. With SO_REUSEADDR as all of ours: TIME_WAIT does not stop them."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True
