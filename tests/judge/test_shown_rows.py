"""The rows that the judge stores for reports: of witnesses only, few, short, and without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceproof.judge import shown_rows
from onceproof.judge.findings import MAX_WITNESSES
from onceproof.judge.shown_rows import InputRecord, ShownRow
from onceproof.judge.verdict import check

from .conftest import StoredRun


def test_a_clean_run_stores_no_rows(clean_run: StoredRun) -> None:
    run = clean_run.save()
    check(run)
    assert not (run / shown_rows.FILE).exists()
    assert shown_rows.read(run) == ()


def test_a_lost_and_an_unexplained_row_have_one_side(clean_run: StoredRun) -> None:
    lost = clean_run.tables["output"].pop(0)
    clean_run.insert("rows", {"p": 9, "o": 9, "k": "k9", "n": 9})
    run = clean_run.save()
    check(run)
    by_identity = {json.dumps(one.identity): one for one in shown_rows.read(run) if one.output == "rows"}
    missing, extra = by_identity['{"p": "0", "o": "0"}'], by_identity['{"p": "9", "o": "9"}']
    assert missing.found == () and missing.expected == (ShownRow(json.loads(lost["content"]), 1),)
    assert missing.input == InputRecord("in/0@0", "k0", '{"k": "k0", "n": 0}')
    assert extra.expected == () and extra.found == (
        ShownRow({"p": "9", "o": "9", "k": "k9", "n": "9"}, 1, ("rows xid 702",)),
    )
    assert extra.input is None


def test_a_secret_in_a_row_or_an_input_record_is_masked(clean_run: StoredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCESS", "s3cret-word")
    clean_run.scenario["pipeline"]["secrets"] = ["ACCESS"]
    row = clean_run.tables["output"][0]
    row["content"] = row["content"].replace('"k0"', '"s3cret-word"')
    run = clean_run.save()
    check(run)
    text = (run / shown_rows.FILE).read_text()
    assert "***" in text and "s3cret-word" not in text
    assert (run / shown_rows.FILE).stat().st_mode & 0o077 == 0


def test_many_rows_are_stored_for_the_witnesses_of_the_verdict_only(clean_run: StoredRun) -> None:
    long = "x" * 5000
    clean_run.insert("rows", *({"p": 9, "o": offset, "k": long, "n": 1} for offset in range(100)))
    run = clean_run.save()
    check(run)
    rows = [one for one in shown_rows.read(run) if one.output == "rows"]
    assert len(rows) == MAX_WITNESSES
    assert {len(str(one.found[0].content["k"])) for one in rows} == {2003}


def test_rows_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "witnesses").mkdir()
    (tmp_path / shown_rows.FILE).write_text('{"output": 1}')
    with pytest.raises(ValueError, match="valid array"):
        shown_rows.read(tmp_path)
