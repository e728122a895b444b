"""A slice of a history shows its finding with the same witness, and nothing that the run does not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceproof.expectation.decode import decode_topics
from onceproof.history.run_directory import RunDir
from onceproof.judge.findings import Finding, Outcome, Verdict
from onceproof.judge.open import open_case
from onceproof.judge.slices import cut
from onceproof.judge.slices.cut import name_of
from onceproof.judge.slices.excerpt import Excerpt, Part
from onceproof.judge.verdict import check, judge, judge_case, judge_sought
from onceproof.scenario.model import Scenario


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / "history" / f"{table}.parquet").to_pylist()
    return found


def sliced(run: Any, anomaly: str, output: str | None = None) -> tuple[Path, Finding, Verdict]:
    """The slice of the only finding of that anomaly (in that output), the finding, and the verdict on the slice."""
    whole = check(run.save())
    assert not any("Error" in why for why in whole.not_evaluated.values()), whole.not_evaluated
    (finding,) = [f for f in whole.findings if f.anomaly == anomaly and output in (None, f.output)]
    assert name_of(finding) in whole.slices, whole
    folder = run.path / whole.slices[name_of(finding)]
    verdict = judge(folder)
    (same,) = [
        f for f in verdict.findings if (f.anomaly, f.output, f.source) == (anomaly, finding.output, finding.source)
    ]
    assert same.allowed is None and all(witness in finding.witnesses for witness in same.witnesses)
    assert set(verdict.anomalies()) <= set(whole.anomalies())
    return folder, finding, verdict


def test_a_duplicate_is_shown_by_one_record_and_its_two_effects(clean_run: Any) -> None:
    clean_run.record("events", {"p": 0, "o": 5, "k": "k1", "n": 11})
    folder, _, verdict = sliced(clean_run, "duplicate")
    assert verdict.anomalies() == {"duplicate": 1}
    assert [(r["partition"], r["offset"]) for r in rows(folder, "input")] == [(0, 5)]
    assert [r["output"] for r in rows(folder, "output")] == ["events", "events"]
    assert rows(folder, "snapshot") == [] and rows(folder, "commits") == []
    document = json.loads((folder / "run.json").read_text())
    assert document["slice"]["of"] == clean_run.path.name
    assert document["slice"]["identity"] == {"p": "0", "o": "5"}
    assert document["scenario"]["expect"] == {"verdict": "violated", "anomalies": ["duplicate"]}
    assert not list(folder.parent.glob(".*"))


def test_a_slice_is_not_sliced(clean_run: Any) -> None:
    clean_run.record("events", {"p": 0, "o": 5, "k": "k1", "n": 11})
    folder, _, verdict = sliced(clean_run, "duplicate")
    again = check(folder)
    assert again.anomalies() == verdict.anomalies() and again.slices == {}
    assert not (folder / "slices").exists()


def test_a_clean_run_has_no_slices(clean_run: Any) -> None:
    assert check(clean_run.save()).slices == {}
    assert not (clean_run.path / "slices").exists()


def test_judge_sought_gives_the_whole_verdict_or_none(clean_run: Any) -> None:
    clean_run.record("events", {"p": 0, "o": 5, "k": "k1", "n": 11})
    with open_case(clean_run.save()) as case:
        whole = judge_case(case)
    with open_case(clean_run.path) as case:
        assert judge_sought(case, "duplicate", lambda found: found in whole.findings) == whole
    with open_case(clean_run.path) as case:
        assert judge_sought(case, "duplicate", lambda found: found.total == 0) is None
    with open_case(clean_run.path) as case:
        assert judge_sought(case, "lost-write", lambda _found: True) is None, "there is no such finding, only others"
    with open_case(clean_run.path) as case:
        assert judge_sought(case, "named-otherwise", lambda found: found.anomaly == "duplicate") == whole


def lose(run: Any, output: str, p: int, o: int) -> None:
    """Remove every write of one record's effect."""
    for table in ("output", "snapshot"):
        run.tables[table] = [
            r
            for r in run.tables[table]
            if r["output"] != output
            or not (f'"p": {p}, "o": {o},' in r["content"] or f'"p":"{p}","o":"{o}",' in r["content"])
        ]


def test_a_lost_write_keeps_its_input_and_the_recorded_progress(clean_run: Any) -> None:
    lose(clean_run, "rows", 1, 4)
    folder, _, verdict = sliced(clean_run, "lost-write")
    assert verdict.anomalies() == {"lost-write": 1}
    assert [(r["partition"], r["offset"]) for r in rows(folder, "input")] == [(1, 4)]
    assert rows(folder, "output") == []


def test_a_disagreement_keeps_both_outputs(clean_run: Any) -> None:
    lose(clean_run, "rows", 1, 4)
    folder, _, verdict = sliced(clean_run, "sink-disagreement")
    assert set(verdict.anomalies()) == {"lost-write", "sink-disagreement"}
    assert [r["output"] for r in rows(folder, "output")] == ["events"]
    assert len(rows(folder, "input")) == 1


def test_reordering_keeps_both_records(clean_run: Any) -> None:
    # The marker at offset 3 separates the batches: k0 is at offsets 0 and 4.
    events = [r for r in clean_run.tables["output"] if r["output"] == "events" and r["partition"] == 0]
    first, last = events[0], events[3]
    first["content"], last["content"] = last["content"], first["content"]
    folder, _, verdict = sliced(clean_run, "reordered")
    assert verdict.anomalies() == {"reordered": 1}
    assert [r["offset"] for r in rows(folder, "input")] == [0, 4]
    assert len(rows(folder, "output")) == 2


def test_no_set_of_parts_is_judged_twice_or_within_one_that_did_not_show_the_finding(
    clean_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[set[Part]] = []
    shows: list[bool] = []
    judged = cut._Search._judged

    def noted(search: Any, excerpt: Excerpt, keep: set[Part]) -> bool:
        tried.append(keep)
        shows.append(judged(search, excerpt, keep))
        return shows[-1]

    monkeypatch.setattr(cut._Search, "_judged", noted)
    test_reordering_keeps_both_records(clean_run)
    failed = [keep for keep, shown in zip(tried, shows, strict=True) if not shown]
    assert failed and len(tried) == len(set(map(frozenset, tried)))
    assert not [keep for keep in tried for other in failed if keep < other]


def test_a_wrong_value_of_a_sum_stores_the_expected_rows(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"sums": {"table": "sums", "kind": "upsert", "identity": ["k"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"sums": 'SELECT k, sum(n) AS n FROM "in" GROUP BY k'}}
    for number in range(30):
        run.send(f"k{number % 3}", {"k": f"k{number % 3}", "n": number})
    run.insert("sums", {"k": "k0", "n": 135}, {"k": "k1", "n": 999}, {"k": "k2", "n": 155})
    run.progress({0: 30})
    folder, finding, verdict = sliced(run, "wrong-value")
    assert verdict.anomalies() == {"wrong-value": 1}
    assert json.loads((folder / "run.json").read_text())["scenario"]["oracle"]["kind"] == "slice"
    assert [json.loads(r["content"])["k"] for r in rows(folder, "output")] == ["k1"]
    assert finding.witnesses[0].identity == {"k": "k1"}


def test_a_slice_of_a_changelog_keeps_its_states(stored_run: Any) -> None:
    run = stored_run
    states = 'SELECT k, sum(n) OVER (PARTITION BY k ORDER BY _offset) AS total, _partition, _offset, _key FROM "in"'
    run.scenario["outputs"] = {"log": {"topic": "log", "kind": "changelog", "identity": ["k"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"log": states}}
    for n, wrong in ((1, 0), (2, 0), (3, 5)):
        for k in ("a", "b"):
            run.send(k, {"k": k, "n": n})
            run.record("log", {"k": k, "total": n * (n + 1) // 2 + (wrong if k == "b" else 0)})
    run.progress({0: 6})
    folder, _, _ = sliced(run, "wrong-value")
    assert {json.loads(r["content"])["k"] for r in rows(folder, "output")} == {"b"}


def test_an_aborted_read_keeps_the_aborted_record(clean_run: Any) -> None:
    offset = clean_run.send("k9", {"k": "k9", "n": 77}, visibility="aborted")
    clean_run.record("events", {"p": 0, "o": offset, "k": "k9", "n": 77})
    folder, _, verdict = sliced(clean_run, "aborted-read")
    assert verdict.anomalies() == {"aborted-read": 1}
    assert [r["visibility"] for r in rows(folder, "input")] == ["aborted"]


def test_an_aborted_read_in_a_sum_keeps_the_aborted_record(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"sums": {"table": "sums", "kind": "upsert", "identity": ["k"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"sums": 'SELECT k, sum(n) AS n FROM "in" GROUP BY k'}}
    for n in (1, 2, 3):
        run.send("a", {"k": "a", "n": n})
        run.send("b", {"k": "b", "n": n})
    run.send("a", {"k": "a", "n": 100}, visibility="aborted")
    run.insert("sums", {"k": "a", "n": 106}, {"k": "b", "n": 6})
    run.progress({0: 7})
    folder, _, verdict = sliced(run, "aborted-read")
    assert verdict.anomalies() == {"aborted-read": 1}
    assert [r["visibility"] for r in rows(folder, "input")] == ["aborted"]
    assert len(rows(folder, "output")) == 1


def test_an_updated_row_keeps_all_its_changes(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"last": {"table": "last", "kind": "upsert", "identity": ["k"]}}
    query = 'SELECT k, max_by(n, _offset) AS n FROM "in" GROUP BY k'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"last": query}}
    for n in (1, 2):
        for k in ("a", "b"):
            run.send(k, {"k": k, "n": n})
    run.insert("last", {"k": "a", "n": 1}, {"k": "b", "n": 1})
    run.commit(
        "last", ("update", {"k": "a", "n": 1}, {"k": "a", "n": 2}), ("update", {"k": "b", "n": 1}, {"k": "b", "n": 2})
    )
    run.commit("last", ("update", {"k": "a", "n": 2}, {"k": "a", "n": 1}))
    run.progress({0: 4})
    folder, _, verdict = sliced(run, "wrong-value")
    assert verdict.not_evaluated.keys() == judge(run.path).not_evaluated.keys()
    assert [json.loads(r["content"])["n"] for r in rows(folder, "output")] == ["1", "2", "1"]
    assert len(rows(folder, "snapshot")) == 1 and len(rows(folder, "commits")) == 3


@pytest.mark.parametrize("count", [1, 40])
def test_the_size_of_a_slice_does_not_grow_with_the_run(clean_run: Any, count: int) -> None:
    for extra in range(count):
        clean_run.record("events", {"p": 7, "o": extra, "k": "k", "n": 1})
    folder, finding, _ = sliced(clean_run, "unexplained")
    assert finding.total == count
    assert len(rows(folder, "output")) == 1


WIRE = """
def decode(value):
    return {"k": value[:1].decode(), "n": value[1]}
"""


def test_a_slice_keeps_decoded_values(stored_run: Any, tmp_path: Path) -> None:
    run = stored_run
    (tmp_path / "wire_of_slice.py").write_text(WIRE)
    run.scenario["input"][0]["decode"] = "{here}/wire_of_slice.py:decode"
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["k"]}}
    query = 'SELECT k, n, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    for key, n in (("a", 1), ("b", 2), ("c", 3)):
        run.send(key, key.encode() + bytes([n]))
        run.record("out", {"k": key, "n": n + (key == "b")})
    run.progress({0: 3})
    directory = RunDir(run.save())
    directory.logs.mkdir()
    directory.update(**json.loads((run.path / "run.json").read_text()))
    decode_topics(Scenario.model_validate(run.scenario), tmp_path, directory)
    whole = check(run.path)
    folder = run.path / whole.slices["wrong-value/out"]
    assert judge(folder).anomalies() == whole.anomalies() == {"wrong-value": 1}
    assert [r["offset"] for r in rows(folder, "input")] == [1]
    assert json.loads((folder / "run.json").read_text())["scenario"]["oracle"]["kind"] == "sql"


def test_a_slice_keeps_the_static_tables_of_the_oracle(clean_run: Any) -> None:
    run = clean_run
    query = run.scenario["oracle"]["queries"]["rows"].replace('FROM "in"', 'FROM "in" SEMI JOIN planes USING (k)')
    run.scenario["oracle"]["queries"] = {"rows": query, "events": query}
    run.record("events", {"p": 0, "o": 5, "k": "k1", "n": 11})
    tables = run.path / "history" / "tables"
    tables.mkdir(parents=True)
    pq.write_table(pa.table({"k": ["k0", "k1", "k2"]}), tables / "planes.parquet")
    folder, _, verdict = sliced(run, "duplicate")
    assert verdict.anomalies() == {"duplicate": 1}
    assert (folder / "history" / "tables" / "planes.parquet").is_file()


def test_stored_expected_rows_keep_their_types(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"sums": {"table": "sums", "kind": "upsert", "identity": ["day"]}}
    query = """SELECT day::DATE AS day, sum(n)::DECIMAL(12, 2) AS total, max(n)::DOUBLE AS highest, list(n ORDER BY n) AS every,
                      max(day::TIMESTAMP) AS at, bool_and(n > 0) AS positive, NULL::BIGINT AS nothing FROM "in" GROUP BY day"""
    run.scenario["oracle"] = {"kind": "sql", "queries": {"sums": query}}
    for n in (1, 2, 3):
        for day in ("2013-01-01", "2013-01-02"):
            run.send(day, {"day": day, "n": n})
    row = {"total": "6.00", "highest": "3", "every": "[1,2,3]", "positive": "t", "nothing": None}
    right = {"day": "2013-01-01", **row, "at": "2013-01-01 00:00:00"}
    wrong = {**right, "day": "2013-01-02", "at": "2013-01-02 00:00:00", "total": "7.00"}
    run.insert("sums", right, wrong)
    run.progress({0: 6})
    _, finding, verdict = sliced(run, "wrong-value")
    assert finding.total == 1 and "in total" in finding.summary
    assert verdict.anomalies() == {"wrong-value": 1}


def test_the_verdict_is_kept_if_a_slice_cannot_be_made(clean_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr("onceproof.judge.slices.cut.export", full)
    clean_run.record("events", {"p": 0, "o": 0, "k": "k0", "n": 0})
    verdict = check(clean_run.save())
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.slices == {}
    assert "no space left on device" in verdict.not_evaluated["slices"]
