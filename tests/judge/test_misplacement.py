"""Which differences remain, and which effects are really lost, after subtracting dirty reads and misplaced effects."""

from __future__ import annotations

from typing import Any

from onceproof.judge.open import open_case
from onceproof.judge.relations import misplacement

ROW = {"p": 0, "o": 99, "k": "k2", "n": 12}  # the content for in/0@6, under an unexplained identity


def differences(run: Any) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The remaining (output, wrong, extra, unexplained), and the outputs of lost effects."""
    with open_case(run.save()) as case:
        misplacement.create(case)
        misplacement.create(case)  # a second call does nothing
        remaining = case.sql("""SELECT output, wrong, extra, unexplained FROM judge.remaining
                                WHERE wrong + extra + unexplained > 0 ORDER BY ALL""").fetchall()
        return remaining, case.sql("SELECT output FROM judge.lost ORDER BY ALL").fetchall()


def drop(run: Any, output: str, text: str) -> None:
    run.tables["output"] = [c for c in run.tables["output"] if c["output"] != output or text not in c["content"]]


def test_nothing_remains_of_a_clean_run(clean_run: Any) -> None:
    assert differences(clean_run) == ([], [])


def test_a_row_in_another_place_is_not_lost(clean_run: Any) -> None:
    drop(clean_run, "events", '"n": 12}')
    assert differences(clean_run) == ([], [("events",)])
    clean_run.record("events", ROW)
    assert differences(clean_run) == ([], [])


def test_with_two_candidate_rows_neither_is_misplaced(clean_run: Any) -> None:
    drop(clean_run, "events", '"n": 12}')
    for offset in (98, 99):
        clean_run.record("events", {**ROW, "o": offset})
    assert differences(clean_run) == ([("events", 0, 0, 1), ("events", 0, 0, 1)], [("events",)])


def test_rows_with_only_nulls_are_not_misplaced(clean_run: Any) -> None:
    """Rows that hold nothing except their identity are all alike."""
    query = 'SELECT _partition AS p, _offset AS o, NULL::VARCHAR AS k, NULL::INT AS n, _partition, _offset FROM "in"'
    clean_run.scenario["outputs"] = {"nulls": {"topic": "nulls", "identity": ["p", "o"]}}
    clean_run.scenario["oracle"] = {"kind": "sql", "queries": {"nulls": query}}
    clean_run.tables["output"].clear()
    for record in clean_run.tables["input"][1:]:
        clean_run.record("nulls", {"p": record["partition"], "o": record["offset"], "k": None, "n": None})
    clean_run.record("nulls", {"p": 7, "o": 7, "k": None, "n": None})
    assert differences(clean_run) == ([("nulls", 0, 0, 1)], [("nulls",)])


def test_effect_of_aborted_input_is_explained(clean_run: Any) -> None:
    offset = clean_run.send("k0", {"k": "k0", "n": 50}, visibility="aborted")
    clean_run.record("events", {"p": 0, "o": offset, "k": "k0", "n": 50})
    clean_run.record("events", {"p": 0, "o": 77, "k": "k0", "n": 50})
    assert differences(clean_run) == ([("events", 0, 0, 1)], [])


def test_an_effect_in_an_open_transaction_is_not_misplaced(clean_run: Any) -> None:
    for record in clean_run.tables["output"]:
        if record["output"] == "events" and '"n": 12}' in record["content"]:
            record["visibility"] = "open"
    clean_run.record("events", ROW)
    assert differences(clean_run) == ([("events", 0, 0, 1)], [("events",)])
