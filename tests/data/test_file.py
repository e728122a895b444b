from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from onceproof.data import Record, open_dataset


def records(path: Path, key: str | None = None) -> list[Record]:
    options = {"file": str(path), **({"key": key} if key else {})}
    dataset = open_dataset("file", options, seed=0)
    return list(dataset.records(0, dataset.rows()))


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_each_line_is_a_value_with_its_digits_kept(tmp_path: Path) -> None:
    found = records(write(tmp_path / "a.jsonl", '{"id": 1, "price": 1.10}', "", '{"id": 2, "price": 2e3}'))
    assert [r.value for r in found] == [b'{"id":1,"price":1.10}', b'{"id":2,"price":2e3}']
    assert [r.key for r in found] == [None, None]
    assert found[1].timestamp_ms - found[0].timestamp_ms == 1


def test_a_field_gives_the_key_and_null_gives_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 1, "c": "x"}', '{"id": 2, "c": null}', '{"id": 3, "c": 7}')
    assert [r.key for r in records(path, "c")] == [b"x", None, b"7"]


def test_rows_with_nothing_but_what_records_have_are_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"key": "k", "value": {"id": 1}, "timestamp_ms": 5}', '{"value": "text"}')
    assert records(path)[0] == Record(b"k", b'{"id":1}', 5)
    assert records(path)[1].value == b"text"


def test_a_field_value_beside_others_is_a_field(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"sensor": 1, "value": 2.5}')
    assert json.loads(records(path)[0].value) == {"sensor": 1, "value": 2.5}


def test_parquet_and_chunks_agree_with_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list(range(100)), "c": ["a", "b"] * 50}), path)
    dataset = open_dataset("file", {"file": str(path), "key": "c"}, seed=0)
    whole = list(dataset.records(0, 100))
    assert [r for start in range(0, 100, 7) for r in dataset.records(start, min(start + 7, 100))] == whole
    assert whole[3] == Record(b"b", b'{"id":3,"c":"b"}', whole[3].timestamp_ms)


@pytest.mark.parametrize(
    ("lines", "key", "said"),
    [
        ((), None, "holds no record"),
        (('{"id": 1}', "{oops"), None, ":2: not JSON: .*'{oops'"),
        (('{"id": 1}', "[1]"), None, ":2: .* no JSON object"),
        (('{"id": 1}', '{"c": 2}'), "id", ":2: there is no field 'id'"),
        (('{"value": null}',), None, "record 1 of .* has no value"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_line(
    tmp_path: Path, lines: tuple[str, ...], key: str | None, said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        records(write(tmp_path / "a.jsonl", *lines), key)


def test_a_file_that_changes_is_counted_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 1}')
    assert len(records(path)) == 1
    assert len(records(write(path, '{"id": 1}', '{"id": 2}'))) == 2
