"""DuckDB statements that a signal can interrupt.

DuckDB's Python client checks for signals only between some tasks of `execute`, and never in a fetch: an exception of a
signal handler comes late (measured: minutes), and as ``RuntimeError: Query interrupted`` instead of itself. So each
call runs in another thread, while the calling thread waits in Python, where the handler's exception is raised at once.
The thread is kept for the next call: starting one per call took a third of the time of judging a small history.
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

# DuckDB stops between two chunks, within milliseconds. A statement that still runs after this time is left running.
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
    """Run one statement. Raises `duckdb.Error`, and at once whatever a signal handler raises."""
    interruptible(db, lambda: db.execute(query, values))
    return Rows(db)


def fetch(db: duckdb.DuckDBPyConnection, query: str, values: dict[str, Any] | None) -> tuple[list[str], list[Row]]:
    """Run one statement; return the names of its columns, and all rows, which must be few. Raises what `execute` raises."""

    def call() -> tuple[list[str], list[Row]]:
        rows = db.execute(query, values).fetchall()
        return [column[0] for column in db.description or []], rows

    return interruptible(db, call)


def interruptible(db: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """The result of ``call``, which uses ``db``. An exception in this thread interrupts it."""
    done: Future[T] = Future()

    def work() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    def stopped() -> bool:
        db.interrupt()  # repeated, because DuckDB forgets an interrupt from before the statement began
        return done.done()

    worker = None
    try:
        worker = _Worker.take()
        worker.calls.put(work)
        wait([done])
    except BaseException:
        # If the signal came before the call began, the call is cancelled and never begins.
        if not done.cancel():
            with suppress(WaitTimeout):
                wait_until("the statement to end", stopped, deadline_s=_STOP_S)
        raise
    finally:
        if worker is not None and done.done():
            _Worker.idle.append(worker)
    return done.result()


class _Worker(threading.Thread):
    """Runs one call after the other. A daemon thread, so a statement that ignores interrupts does not delay the exit."""

    idle: ClassVar[list[_Worker]] = []
    """Threads that wait for a call. A thread whose statement could not be stopped never returns here."""

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
            del call  # it keeps the connection and the result of its statement alive


# A forked process has none of these threads.
os.register_at_fork(after_in_child=_Worker.idle.clear)
