"""A written history is read back completely or refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceproof.base.errors import HistoryError
from onceproof.history.reader import open_history
from onceproof.history.schema import TABLES, VERSION_KEY
from onceproof.history.writer import HistoryWriter


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps({"scenario": {}}))
    return tmp_path


def test_every_table_exists_after_close(run_dir: Path) -> None:
    HistoryWriter(run_dir).close()
    history = open_history(run_dir)
    assert set(history.tables) == set(TABLES)
    assert all(pq.read_metadata(path).num_rows == 0 for path in history.tables.values())


def test_rows_and_batches_keep_their_order(run_dir: Path) -> None:
    schema = TABLES["snapshot"]
    with HistoryWriter(run_dir) as writer:
        writer.append("snapshot", [{"output": "a", "content": "1"}])
        writer.append("snapshot", pa.RecordBatch.from_pylist([{"output": "a", "content": "2"}], schema=schema))
        writer.append("snapshot", [{"output": "a"}])
    table = pq.read_table(run_dir / "history" / "snapshot.parquet")
    assert table["content"].to_pylist() == ["1", "2", None]


def test_large_values_are_written_in_small_groups(run_dir: Path) -> None:
    with HistoryWriter(run_dir) as writer:
        for _ in range(20):
            writer.append("snapshot", [{"output": "a", "content": "x" * (1 << 20)}])
    metadata = pq.read_metadata(run_dir / "history" / "snapshot.parquet")
    assert metadata.num_rows == 20
    assert metadata.num_row_groups >= 5


def test_rows_of_several_threads_are_all_written(run_dir: Path) -> None:
    with HistoryWriter(run_dir) as writer:

        def write(number: int) -> None:
            for _ in range(500):
                writer.append("snapshot", [{"output": str(number), "content": "x"}])

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    outputs = pq.read_table(run_dir / "history" / "snapshot.parquet")["output"].to_pylist()
    assert {name: outputs.count(name) for name in set(outputs)} == {str(n): 500 for n in range(4)}


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("snapshots", {}, "no table 'snapshots'"),
        ("snapshot", {"contents": "x"}, "no column 'contents'"),
        ("snapshot", {"content": 5}, "does not fit its columns"),
    ],
)
def test_a_row_that_does_not_fit_its_table_is_refused(
    run_dir: Path, table: str, row: dict[str, object], message: str
) -> None:
    writer = HistoryWriter(run_dir)
    with pytest.raises(HistoryError, match=message):
        writer.append(table, [row])
        writer.close()


def test_append_after_close_is_refused(run_dir: Path) -> None:
    writer = HistoryWriter(run_dir)
    writer.close()
    writer.close()
    with pytest.raises(HistoryError, match="after the history was closed"):
        writer.append("snapshot", [])


def test_an_unfinished_history_is_reported_as_such(run_dir: Path) -> None:
    writer = HistoryWriter(run_dir)
    writer.append("input", [{"topic": "t"}])
    with pytest.raises(HistoryError, match=r"input\.parquet is missing") as error:
        open_history(run_dir)
    assert "killed before" in (error.value.hint or "")
    writer.close()


def test_the_history_of_a_failed_run_stays_incomplete(run_dir: Path) -> None:
    def fail() -> None:
        with HistoryWriter(run_dir) as writer:
            writer.append("input", [{"topic": "t"}])
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        fail()
    assert {path.suffix for path in (run_dir / "history").iterdir()} == {".part"}
    with pytest.raises(HistoryError, match="the history is incomplete"):
        open_history(run_dir)


def test_a_missing_table_is_refused(run_dir: Path) -> None:
    HistoryWriter(run_dir).close()
    (run_dir / "history" / "faults.parquet").unlink()
    with pytest.raises(HistoryError, match=r"faults\.parquet"):
        open_history(run_dir)


def test_a_truncated_table_is_refused(run_dir: Path) -> None:
    HistoryWriter(run_dir).close()
    file = run_dir / "history" / "commits.parquet"
    file.write_bytes(file.read_bytes()[:-6])
    with pytest.raises(HistoryError, match=r"commits\.parquet is damaged or cut off"):
        open_history(run_dir)


def test_another_version_is_refused(run_dir: Path) -> None:
    HistoryWriter(run_dir).close()
    file = run_dir / "history" / "input.parquet"
    pq.write_table(TABLES["input"].with_metadata({VERSION_KEY: b"99"}).empty_table(), file)
    with pytest.raises(HistoryError, match="history version 99; this onceproof reads version 2"):
        open_history(run_dir)


def test_other_columns_are_refused(run_dir: Path) -> None:
    HistoryWriter(run_dir).close()
    file = run_dir / "history" / "snapshot.parquet"
    schema = pq.read_schema(file).remove(1).append(pa.field("text", pa.int64()))
    pq.write_table(schema.empty_table(), file)
    with pytest.raises(HistoryError, match="content: string"):
        open_history(run_dir)


@pytest.mark.parametrize(("text", "message"), [("{", "cannot be read"), ("[]", "it has no scenario")])
def test_a_damaged_run_record_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(HistoryError, match=message):
        open_history(tmp_path)
