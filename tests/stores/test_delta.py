"""A Delta table as an output, read from its log: what each version adds and removes, and which tables are refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceproof.base.errors import HistoryError
from onceproof.base.timeline import Timeline
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.kinds import stores_of
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.stores.contract import ReadBack, jars, stores
from onceproof.stores.files.folder import data_files

DELTA = stores.get("delta")
Action = dict[str, Any]


def a_file(table: Path, name: str, ids: list[int]) -> str:
    table.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids}), table / name)
    return name


def add(path: str, **more: Any) -> Action:
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "dataChange": True, **more}}


def remove(path: str, **more: Any) -> Action:
    return {"remove": {"path": path, "dataChange": True, **more}}


def a_version(table: Path, number: int, *actions: Action) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{number:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


def _specs(outputs: dict[str, dict[str, Any]]) -> dict[str, OutputSpec]:
    """Each output as the model of its store."""
    return {name: stores_of(output)[0].Spec.model_validate(output) for name, output in outputs.items()}


def read_back(tmp_path: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """What ``run.json`` holds about output ``out``, and the tables of the history."""
    scenario = cast(Scenario, SimpleNamespace(outputs=_specs({"out": {"delta": "out", "identity": ["id"]}}), input=[]))
    timeline = Timeline(tmp_path / "events.jsonl")
    with HistoryWriter(tmp_path) as writer:
        record = DELTA.read_back(
            ReadBack(scenario, cast(Any, SimpleNamespace(files=tmp_path / "files")), writer, timeline)
        )
    timeline.close()
    tables = ("output", "snapshot", "commits")
    return record["out"].to_json(), {t: pq.read_table(tmp_path / f"history/{t}.parquet").to_pylist() for t in tables}


def changes(rows: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    return [(row["xid"], row["op"], json.loads(row["content"] or row["before"])["id"]) for row in rows]


def test_each_version_is_a_commit(tmp_path: Path) -> None:
    table = tmp_path / "files/out"
    a_version(table, 0, {"protocol": {"minReaderVersion": 1}}, {"metaData": {"configuration": {}}})
    a_version(table, 1, {"txn": {"appId": "app", "version": 4}}, add(a_file(table, "a.parquet", [1, 2])))
    a_version(table, 2, {"txn": {"appId": "app", "version": 5}}, add(a_file(table, "b.parquet", [1])))
    a_file(table, "never-committed.parquet", [9])
    record, history = read_back(tmp_path)
    assert changes(history["output"]) == [(1, "insert", "1"), (1, "insert", "2"), (2, "insert", "1")]
    assert [(c["commit_order"], c["xid"], c["changes"]) for c in history["commits"]] == [
        (0, 0, 0),
        (1, 1, 2),
        (2, 2, 1),
    ]
    assert (record["rows"], record["txn"], len(history["snapshot"])) == (3, {"app": 5}, 3)


def test_rewritten_rows_are_deleted_and_inserted(tmp_path: Path) -> None:
    table = tmp_path / "files/out"
    a_version(table, 0, add(a_file(table, "a.parquet", [1, 2])))
    a_version(table, 1, remove("a.parquet"), add(a_file(table, "b.parquet", [2, 3])))
    _, history = read_back(tmp_path)
    assert changes(history["output"])[2:] == [
        (1, "delete", "1"),
        (1, "delete", "2"),
        (1, "insert", "2"),
        (1, "insert", "3"),
    ]
    assert sorted(json.loads(row["content"])["id"] for row in history["snapshot"]) == ["2", "3"]


def test_moved_rows_stay_with_the_version_that_wrote_them(tmp_path: Path) -> None:
    table = tmp_path / "files/out"
    a_version(table, 0, add(a_file(table, "a.parquet", [1])), add(a_file(table, "b.parquet", [2])))
    moved = [remove(name, dataChange=False) for name in ("a.parquet", "b.parquet")]
    a_version(table, 1, *moved, add(a_file(table, "c.parquet", [1, 2]), dataChange=False))
    _, history = read_back(tmp_path)
    assert changes(history["output"]) == [(0, "insert", "1"), (0, "insert", "2")]
    assert len(history["snapshot"]) == 2


def test_partition_columns_come_from_the_log(tmp_path: Path) -> None:
    table = tmp_path / "files/out"
    a_file(table / "day=a b", "a.parquet", [1])
    a_version(table, 0, add("day=a%20b/a.parquet", partitionValues={"day": "a b"}))
    _, history = read_back(tmp_path)
    assert json.loads(history["snapshot"][0]["content"]) == {"id": "1", "day": "a b"}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (add("a.parquet", deletionVector={"storageType": "u"}), "deletes rows by a deletion vector"),
        ({"metaData": {"configuration": {"delta.columnMapping.mode": "name"}}}, "maps columns"),
    ],
)
def test_unsupported_features_are_refused(tmp_path: Path, action: Action, message: str) -> None:
    a_version(tmp_path / "files/out", 0, action)
    with pytest.raises(HistoryError, match=message):
        read_back(tmp_path)


def test_a_log_without_its_first_version_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "files/out"
    a_version(table, 1, add(a_file(table, "a.parquet", [1])))
    with pytest.raises(HistoryError, match="lacks version 0: the log was cleaned up"):
        read_back(tmp_path)


def test_a_missing_table_is_an_empty_output(tmp_path: Path) -> None:
    record, history = read_back(tmp_path)
    assert record["note"] == "there is no Delta table 'out': the job never created it"
    assert history["snapshot"] == []


def test_its_state_is_its_version(tmp_path: Path) -> None:
    stack = cast(Any, SimpleNamespace(files=tmp_path / "files"))
    assert DELTA.state(stack, None) == {}
    a_version(tmp_path / "files/out", 0)
    a_version(tmp_path / "files/out", 1)
    assert DELTA.state(stack, None) == {"delta table out": "version 1"}
    assert data_files(tmp_path / "files/out") == [], "its log is not data"


def test_statistics_with_line_separators_of_unicode(tmp_path: Path) -> None:
    table = tmp_path / "files/out"
    a_version(table, 0, add(a_file(table, "a.parquet", [1])))
    action = json.dumps(add(a_file(table, "b.parquet", [2]), stats="x\u2028y\u0085z"), ensure_ascii=False)
    (table / "_delta_log" / f"{1:020}.json").write_text(action + "\n", encoding="utf-8")
    _, history = read_back(tmp_path)
    assert changes(history["output"]) == [(0, "insert", "1"), (1, "insert", "2")]


def test_other_outputs_need_no_jars() -> None:
    files = _specs({"out": {"files": "out", "identity": ["id"]}, "topic": {"topic": "t", "identity": ["id"]}})
    assert jars(cast(Scenario, SimpleNamespace(outputs=files))) == ()
