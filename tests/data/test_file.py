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


def test_rows_with_only_fields_of_records_are_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"key": "k", "value": {"id": 1}, "timestamp_ms": 5}', '{"value": "text"}')
    assert records(path)[0] == Record(b"k", b'{"id":1}', 5)
    assert records(path)[1].value == b"text"


def test_a_field_value_among_others_is_an_ordinary_field(tmp_path: Path) -> None:
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
    ("lines", "key", "message"),
    [
        ((), None, "holds no records"),
        (('{"id": 1}', "{oops"), None, ":2: not JSON: .*'{oops'"),
        (('{"id": 1}', "[1]"), None, ":2: .* is not a JSON object"),
        (('{"id": 1}', '{"c": 2}'), "id", ":2: the row has no field 'id'"),
        (('{"value": null}',), None, "record 1 of .* has no value"),
    ],
)
def test_an_invalid_row_is_refused_with_its_line(
    tmp_path: Path, lines: tuple[str, ...], key: str | None, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        records(write(tmp_path / "a.jsonl", *lines), key)


def test_a_changed_file_is_counted_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 1}')
    assert len(records(path)) == 1
    assert len(records(write(path, '{"id": 1}', '{"id": 2}'))) == 2


def records_of(path: Path, *lines: str, **options: object) -> list[Record]:
    path.write_text("".join(f"{line}\n" for line in lines))
    return list(open_dataset("file", {"file": str(path), **options}, seed=0).records(0, len(lines)))


def test_records_have_key_headers_and_timestamp(tmp_path: Path) -> None:
    found = records_of(
        tmp_path / "s.jsonl",
        '{"key": "k1", "headers": {"trace": "a1", "empty": null}, "timestamp": "2024-05-01T12:00:00Z", "value": {"id": 1.50}}',
        '{"key": {"a": 1}, "headers": [["h", "1"], ["h", "2"]], "timestamp": 1714564800001, "value": "text"}',
        '{"value_base64": "AAE="}',
        form="records",
    )
    assert found == [
        Record(b"k1", b'{"id":1.50}', 1_714_564_800_000, (("trace", b"a1"), ("empty", None))),
        Record(b'{"a":1}', b"text", 1_714_564_800_001, (("h", b"1"), ("h", b"2"))),
        Record(None, b"\x00\x01", 1_704_067_200_002),
    ]


def test_form_decides_whether_rows_are_values_or_records(tmp_path: Path) -> None:
    line = '{"key":"k1","value":2}'
    assert records_of(tmp_path / "s.jsonl", line, form="values")[0].value == line.encode()
    assert records_of(tmp_path / "s.jsonl", line)[0].value == b"2", "without a form, the fields decide"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"key": "k"}', "s.jsonl:1: the record has no value"),
        ('{"value": 1, "topic": "x"}', "a record has no field 'topic'"),
        ('{"value": 1, "timestamp": "yesterday"}', "timestamp 'yesterday' is neither ISO 8601 nor milliseconds"),
        ('{"value": 1, "timestamp": true}', "timestamp 'True' is neither"),
        ('{"value": 1, "headers": "x"}', "headers must be {name: text} or a list of [name, text], not x"),
        ('{"value": 1, "headers": [["a"]]}', "headers must be {name: text}"),
    ],
)
def test_an_invalid_record_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        records_of(tmp_path / "s.jsonl", line, form="records")
    assert message in str(refused.value)


def test_form_records_refuses_the_option_key(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="the key is in each record"):
        records_of(tmp_path / "s.jsonl", '{"value": 1}', form="records", key="id")
