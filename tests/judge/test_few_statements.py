"""Judging a small history takes few statements, and what is not needed is not made; the tables of differences are there all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceproof.history import statements
from onceproof.judge.checker import checkers
from onceproof.judge.findings import Outcome
from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge
from onceproof.values import documents, nested, tolerance

from .conftest import StoredRun

#: A correct run with a table and a topic takes 128 today.
_MOST = 150


def test_a_correct_run_takes_few_calls_of_duckdb(clean_run: StoredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    interruptible = statements.interruptible

    def counted(db: object, call: Callable[[], object]) -> object:
        calls.append(call)
        return interruptible(db, call)  # type: ignore[arg-type,unused-ignore]

    monkeypatch.setattr(statements, "interruptible", counted)
    assert judge(clean_run.save()).outcome is Outcome.HELD
    assert len(calls) <= _MOST


def test_without_a_difference_all_tables_of_differences_are_empty(clean_run: StoredRun) -> None:
    with open_case(clean_run.save()) as case:
        for name in checkers.names():
            assert list(checkers.get(name)().check(case)) == []
        assert not case.differs
        for table in ("suspects", "counts", "tally", "missing", "lost", "remaining", "dirty", "misplaced"):
            assert case.number(f"SELECT count(*) FROM judge.{table}") == 0, table
        assert not case.is_made("changes")


def test_with_a_difference_they_are_not(clean_run: StoredRun) -> None:
    clean_run.tables["output"].pop()
    with open_case(clean_run.save()) as case:
        case.compare()
        assert case.differs
        assert case.number("SELECT count(*) FROM judge.missing") == 1


def test_a_function_that_a_view_of_the_input_names_outlives_that_view(clean_run: StoredRun) -> None:
    """DuckDB crashes if a function was made on a cursor that is closed."""
    with open_case(clean_run.save()) as case:
        view = case.inputs.seen()
        made = view.sql(f"SELECT {documents.IS_JSON}('[1]'), {documents.IS_JSON}('[1')").fetchall()
        assert made == [(True, False)]
        view.close()
        assert case.inputs.sql(f"SELECT {documents.IS_JSON}('{{}}')").fetchall() == [(True,)]


def test_every_function_is_made_when_it_is_named(clean_run: StoredRun) -> None:
    every = {**nested.FUNCTIONS, **documents.FUNCTIONS, **tolerance.FUNCTIONS}
    found = (
        "SELECT count(DISTINCT function_name) FROM duckdb_functions() WHERE function_name IN (SELECT unnest($names))"
    )
    with open_case(clean_run.save()) as case:
        before = case.number(found, {"names": list(every)})
        for name in every:
            case.sql(f"SELECT 1 AS {name}")
        assert before < case.number(found, {"names": list(every)}) == len(every) == 7
