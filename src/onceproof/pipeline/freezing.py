"""Stops a driver (SIGSTOP) at a moment when no service owes it an answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.stack.processes import procfs

#: How often a driver is stopped again because an answer was on its way. It awaits one for about half of its time.
_MOST_STOPS = 30
#: An answer of a broker on loopback takes a few milliseconds, on a busy machine about ten. A slower one goes unnoticed.
_ARRIVES_S = 0.08
#: A running driver reads an answer that it waits for within milliseconds.
_READS_S = 0.3


class Job(Protocol):
    """What is needed of `onceproof.pipeline.supervisor.Pipeline`."""

    def frozen(self) -> AbstractContextManager[None]: ...

    def pids(self) -> list[int]: ...


@contextmanager
def between_requests(job: Job) -> Iterator[None]:
    """Stop the driver's whole session while the block runs, as ``job.frozen()`` does, but when it awaits no answer.

    Spark asks the sources of a query for their end offsets one after the other. A driver stopped in between has the old end
    of one topic and gets the new end of the other, so records sent to both meanwhile would become two batches. If an answer
    arrives unread at the stopped driver, the driver is resumed and stopped again, at most `_MOST_STOPS` times.
    """
    idle: dict[str, int] = {}  # bytes that stay unread while the driver runs: it does not wait for them
    for attempt in range(_MOST_STOPS):
        with job.frozen():
            fresh = {socket: n for socket, n in _unread_bytes(job).items() if idle.get(socket) != n}
            if not fresh or attempt == _MOST_STOPS - 1:
                yield
                return

        def taken(fresh: dict[str, int] = fresh) -> bool:
            now = procfs.unread(job.pids())
            return all(now.get(socket) != n for socket, n in fresh.items())

        try:
            wait_until("the driver to read its answers", taken, deadline_s=_READS_S, every_s=0.005)
        except WaitTimeout:
            idle |= procfs.unread(job.pids())


def _unread_bytes(job: Job) -> dict[str, int]:
    """Socket -> bytes that the stopped driver has not read, once no more arrive."""
    pids = job.pids()
    seen, since = procfs.unread(pids), time.monotonic()

    def settled() -> bool:
        nonlocal seen, since
        now = procfs.unread(pids)
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= _ARRIVES_S

    with suppress(WaitTimeout):
        wait_until("answers on their way to arrive", settled, deadline_s=10 * _ARRIVES_S, every_s=0.005)
    return seen
