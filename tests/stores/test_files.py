"""A folder of files as an output: files that Spark's file sink lists count, other files do not."""

from __future__ import annotations

import json
import os
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
from onceproof.stores.contract import ReadBack, stores

FILES = stores.get("files")
UUID = "0b1c{:04d}-0000-4000-8000-000000000000"


def a_file(folder: Path, write: int, ids: list[int], *, at: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-00000-{UUID.format(write)}-c000.snappy.parquet"
    pq.write_table(pa.table({"id": ids, "note": [f"n{i}" for i in ids]}), path)
    os.utime(path, (1_700_000_000 + (at or write), 1_700_000_000 + (at or write)))
    return path


def an_entry(folder: Path, name: str, *files: Path) -> None:
    (folder / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": path.as_uri(), "size": 1, "isDir": False, "action": "add"}) for path in files]
    (folder / "_spark_metadata" / name).write_text("\n".join(["v1", *lines]))


def _specs(outputs: dict[str, dict[str, Any]]) -> dict[str, OutputSpec]:
    """Each output as the model of its store."""
    return {name: stores_of(output)[0].Spec.model_validate(output) for name, output in outputs.items()}


def read_back(tmp_path: Path, **output: Any) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """What ``run.json`` holds about output ``out``, and the tables of the history."""
    outputs = _specs({"out": {"files": "out", "identity": ["id"], **output}})
    scenario = cast(Scenario, SimpleNamespace(outputs=outputs, input=[]))
    timeline = Timeline(tmp_path / "events.jsonl")
    with HistoryWriter(tmp_path) as writer:
        stack = cast(Any, SimpleNamespace(files=tmp_path / "files"))
        record = FILES.read_back(ReadBack(scenario, stack, writer, timeline))
    timeline.close()
    tables = ("output", "snapshot", "commits")
    return record["out"].to_json(), {t: pq.read_table(tmp_path / f"history/{t}.parquet").to_pylist() for t in tables}


def ids(rows: list[dict[str, Any]], visibility: str = "committed") -> list[tuple[int | None, str]]:
    return [(r["xid"], json.loads(r["content"])["id"]) for r in rows if r["visibility"] == visibility]


def test_without_a_log_every_file_counts_and_each_write_is_a_commit(tmp_path: Path) -> None:
    folder = tmp_path / "files/out"
    a_file(folder, 7, [1, 2], at=1)
    a_file(folder, 3, [1, 2], at=2)  # a smaller id, but written later
    a_file(folder / "_temporary/0", 9, [99])
    record, history = read_back(tmp_path)
    assert ids(history["output"]) == [(1, "1"), (1, "2"), (2, "1"), (2, "2")]
    assert [(c["commit_order"], c["xid"], c["changes"]) for c in history["commits"]] == [(0, 1, 2), (1, 2, 2)]
    assert len(history["snapshot"]) == record["rows"] == 4
    assert record["note"] is None


def test_files_that_the_log_does_not_list_are_not_committed(tmp_path: Path) -> None:
    folder = tmp_path / "files/out"
    a_file(folder, 1, [1])  # from the attempt that was killed
    an_entry(folder, "0", a_file(folder, 2, [1]))
    (folder / f"part-00001-{UUID.format(3)}-c000.snappy.parquet").write_bytes(b"PAR1half")
    record, history = read_back(tmp_path)
    assert ids(history["output"]) == [(0, "1")]
    assert ids(history["output"], "aborted") == [(None, "1")]
    assert len(history["snapshot"]) == 1
    assert record["note"] == (
        "folder out holds 2 files that its log does not list (1 row, 1 unreadable): a reader that ignores the log reads them "
        "(reader: listing)"
    )


def test_a_reader_that_lists_the_folder_reads_unlisted_files(tmp_path: Path) -> None:
    folder = tmp_path / "files/out"
    a_file(folder, 1, [1])
    an_entry(folder, "0", a_file(folder, 2, [1]))
    _, history = read_back(tmp_path, reader="listing")
    assert ids(history["output"]) == [(1, "1"), (2, "1")]


def test_a_compacted_entry_repeats_those_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "files/out"
    one, two, three = (a_file(folder, n, [n]) for n in (1, 2, 3))
    an_entry(folder, "8", one)
    an_entry(folder, "9.compact", one, two)
    an_entry(folder, "10", three)
    _, history = read_back(tmp_path)
    assert ids(history["output"]) == [(8, "1"), (9, "2"), (10, "3")]


def test_a_listed_file_that_is_gone_has_no_rows(tmp_path: Path) -> None:
    folder = tmp_path / "files/out"
    one, two = (a_file(folder, n, [n]) for n in (1, 2))
    an_entry(folder, "0", one, two)
    one.unlink()
    record, history = read_back(tmp_path)
    assert ids(history["output"]) == [(0, "2")]
    assert record["note"] == f"the log lists 1 file that is missing, the first is {one.name}"


def test_missing_files_and_files_that_are_not_listed_are_both_noted(tmp_path: Path) -> None:
    folder = tmp_path / "files/out"
    one, two = (a_file(folder, n, [n]) for n in (1, 2))
    an_entry(folder, "0", one, two)
    one.unlink()
    a_file(folder, 3, [3])
    record, _ = read_back(tmp_path)
    first, second = record["note"].split("; ")
    assert first == f"the log lists 1 file that is missing, the first is {one.name}"
    assert second.startswith("folder out holds 1 file that its log does not list (1 row)")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["message"] for event in events if event["kind"] == "warning"] == [first, second]


def test_columns_in_the_names_of_folders_are_read(tmp_path: Path) -> None:
    a_file(tmp_path / "files/out/day=2013-01-03/key=a%2Fb", 1, [1])
    a_file(tmp_path / "files/out/day=__HIVE_DEFAULT_PARTITION__/key=c", 2, [2])
    _, history = read_back(tmp_path)
    assert [json.loads(row["content"]) for row in history["snapshot"]] == [
        {"id": "1", "note": "n1", "day": "2013-01-03", "key": "a/b"},
        {"id": "2", "note": "n2", "day": None, "key": "c"},
    ]


def test_files_that_spark_passes_over_and_partitions_by_a_column_with_an_underscore(tmp_path: Path) -> None:
    a_file(tmp_path / "files/out/_day=1", 1, [1])
    a_file(tmp_path / "files/out/_temporary", 2, [2])
    a_file(tmp_path / "files/out/.hidden=1", 3, [3])
    (tmp_path / "files/out/part-9.parquet._COPYING_").write_bytes(b"")
    _, history = read_back(tmp_path)
    assert [json.loads(row["content"]) for row in history["snapshot"]] == [{"id": "1", "note": "n1", "_day": "1"}]


def test_an_empty_entry_of_the_log_is_an_error(tmp_path: Path) -> None:
    an_entry(tmp_path / "files/out", "0", a_file(tmp_path / "files/out", 1, [1]))
    (tmp_path / "files/out/_spark_metadata/1").write_text("")
    with pytest.raises(HistoryError, match="_spark_metadata/1 is empty"):
        read_back(tmp_path)


def test_json_lines_keep_their_digits(tmp_path: Path) -> None:
    folder = tmp_path / "files/out"
    folder.mkdir(parents=True)
    (folder / f"part-00000-{UUID.format(1)}-c000.json").write_text('{"id":1,"mean":1.50}\n{"id":2}\n')
    _, history = read_back(tmp_path, format="json")
    assert [json.loads(row["content"]) for row in history["snapshot"]] == [{"id": "1", "mean": "1.50"}, {"id": "2"}]


def test_a_missing_folder_is_an_empty_output(tmp_path: Path) -> None:
    record, history = read_back(tmp_path)
    assert record["note"] == "there is no folder 'out': the job never wrote to it"
    assert history["snapshot"] == []


def test_a_damaged_committed_file_is_an_error(tmp_path: Path) -> None:
    path = a_file(tmp_path / "files/out", 1, [1])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(HistoryError, match="output folder 'out' cannot be read back"):
        read_back(tmp_path)


def test_its_state_changes_with_its_files_and_with_its_log(tmp_path: Path) -> None:
    stack = cast(Any, SimpleNamespace(files=tmp_path / "files"))
    assert FILES.state(stack, None) == {}
    folder = tmp_path / "files/out"
    one = a_file(folder, 1, [1])
    assert FILES.state(stack, None) == {"folder out": "1 file"}
    an_entry(folder, "0", one)
    assert FILES.state(stack, list(_specs({"out": {"files": "out", "identity": ["id"]}}).values())) == {
        "folder out": "1 file, 1 entry in its log"
    }
