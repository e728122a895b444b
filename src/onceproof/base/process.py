"""This process: how often its threads take turns, its peak memory, which errors are problems of the disk; and its machine."""

from __future__ import annotations

import errno
import os
import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def attentive() -> Iterator[None]:
    """Let Python's threads take turns every half millisecond instead of every five.

    Between the creation of ``commits/N``'s temporary file and its rename are about 30 ms, and between the file event and
    the kill the watcher's thread has to wait for its turn several times.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def peak_rss_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def is_disk_trouble(failure: BaseException) -> bool:
    """Whether the error means that the disk is full, read-only or not writable for this user."""
    return isinstance(failure, OSError) and failure.errno in _DISK_TROUBLE


def machine() -> dict[str, str]:
    """This machine as reports show it: its system, processor, cores and memory. No name and no address."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": str(os.cpu_count() or "unknown"),
        "memory": f"{memory / 2**30:.1f} GiB",
    }
