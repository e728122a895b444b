"""Statements that a signal can end.

DuckDB's Python client looks for signals only between some tasks of `execute`, and never in a fetch: what a handler
raises comes late (measured: minutes), and as ``RuntimeError: Query interrupted`` instead of itself. So each
call runs in another thread, while the calling thread waits in Python, where a handler's exception is raised at once. That
thread is kept for the next call: a new one each time was a third of what judging a small history costs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

import duckdb

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until

T = TypeVar("T")
Row = tuple[Any, ...]

# DuckDB heeds an interrupt between two chunks: milliseconds. Who still has not stopped then is left to itself.
_STOP_S = 2.0


class Rows:
    """The result of one statement, fetched as it is asked for."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self._db = db

    @property
    def columns(self) -> list[str]:
        return [column[0] for column in self._db.description or []]

    def fetchone(self) -> Row | None:
        return interruptible(self._db, self._db.fetchone)

    def fetchmany(self, size: int) -> list[Row]:
        return interruptible(self._db, lambda: self._db.fetchmany(size))

    def fetchall(self) -> list[Row]:
        return interruptible(self._db, self._db.fetchall)


def execute(db: duckdb.DuckDBPyConnection, query: str, values: dict[str, Any] | None) -> Rows:
    """Run one statement. Raises `duckdb.Error`, and what a signal handler raises, as soon as it is raised."""
    interruptible(db, lambda: db.execute(query, values))
    return Rows(db)


def interruptible(db: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """The result of ``call``, which is busy in ``db``; ends it if this thread is told to end."""
    done: Future[T] = Future()

    def work() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    def stopped() -> bool:
        db.interrupt()  # again and again: one that comes before the statement has begun is forgotten
        return done.done()

    worker = None
    try:
        worker = _Worker.take()
        worker.calls.put(work)
        wait([done])
    except BaseException:
        # The signal may also have come before the call was begun: then it is kept from beginning.
        if not done.cancel():
            with suppress(WaitTimeout):
                wait_until("the statement to end", stopped, deadline_s=_STOP_S)
        raise
    finally:
        if worker is not None and done.done():
            _Worker.idle.append(worker)
    return done.result()


class _Worker(threading.Thread):
    """Runs one call after the other. A daemon: a statement that heeds no interrupt does not hold up the exit."""

    idle: ClassVar[list[_Worker]] = []
    """Those that wait for a call. One whose statement could not be ended never comes back here."""

    def __init__(self) -> None:
        super().__init__(name="idle judge", daemon=True)
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()

    @classmethod
    def take(cls) -> _Worker:
        with suppress(IndexError):
            return cls.idle.pop()
        worker = cls()
        worker.start()
        return worker

    def run(self) -> None:
        while True:
            call = self.calls.get()
            self.name = "judge statement"
            call()
            self.name = "idle judge"
            del call  # it holds the connection, and the result of its statement


# Threads do not come along into a forked process.
os.register_at_fork(after_in_child=_Worker.idle.clear)
