"""A signal ends the judging at once, whatever statement is running, with the error that the handler raised."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from onceproof.base.errors import Interrupted
from onceproof.base.waiting import wait_until
from onceproof.history.statements import execute
from onceproof.judge.checker import Checker, checkers
from onceproof.judge.verdict import check

# Some hundred times longer than a test may take: if a signal is ignored, the test fails by its outcome, not by a clock.
LONG = "SELECT count(*) AS n FROM range(100000) a, range(60000) b WHERE (a.range * b.range) % 7 = 3"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Install a handler of SIGINT that raises, as a run does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted("interrupted by SIGINT")

    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_the_next_statement() -> None:
    def send() -> None:
        wait_until(
            "a statement", lambda: any(t.name == "judge statement" for t in threading.enumerate()), deadline_s=20
        )
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("query", [LONG, f"CREATE TABLE t AS {LONG}", f"CREATE TABLE t AS FROM ({LONG}) ORDER BY ALL"])
def test_a_signal_interrupts_a_running_statement(query: str) -> None:
    db = duckdb.connect()
    interrupt_the_next_statement()
    with pytest.raises(Interrupted):
        execute(db, query, None).fetchall()
    # It has really ended: the connection accepts another statement.
    assert execute(db, "SELECT 1", None).fetchall() == [(1,)]


class Slow(Checker):
    meaning = "it takes its time"

    def check(self, case: Any) -> list[Any]:
        interrupt_the_next_statement()
        case.rows(LONG)
        return []


@pytest.mark.usefixtures("interruptible")
def test_interrupted_judging_gives_no_verdict(clean_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checkers.names()
    monkeypatch.setattr(checkers, "_items", {("slow",): Slow})
    folder = clean_run.save()
    with pytest.raises(Interrupted):
        check(folder)
    assert not (folder / "verdict.json").exists()
    assert not list(folder.glob(".judge-*"))


@pytest.mark.usefixtures("interruptible")
def test_a_signal_interrupts_the_oracle(clean_run: Any) -> None:
    query = f"SELECT n AS p, n AS o FROM ({LONG})"
    clean_run.scenario["oracle"]["queries"] = {"rows": query, "events": query}
    folder = clean_run.save()
    interrupt_the_next_statement()
    with pytest.raises(Interrupted):
        check(folder)
    assert not list(folder.glob(".judge-*"))


def test_interruptible_passes_on_results_and_errors() -> None:
    db = duckdb.connect()
    with pytest.raises(duckdb.CatalogException, match="nowhere"):
        execute(db, "FROM nowhere", None)
    rows = execute(db, "SELECT $a AS a, 2 AS b", {"a": 1})
    assert rows.columns == ["a", "b"]
    assert rows.fetchone() == (1, 2)
    assert rows.fetchone() is None
