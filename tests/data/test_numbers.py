from __future__ import annotations

import json
from collections import defaultdict

import pytest
from pydantic import ValidationError

from onceproof.data.numbers import Numbers, NumbersOptions


def make(seed: int = 7, *, rows: int = 1_000, keys: int = 30, payload_bytes: int = 50) -> Numbers:
    return Numbers(NumbersOptions(rows=rows, keys=keys, payload_bytes=payload_bytes), seed=seed)


def test_sequence_numbers_of_a_key_have_no_gap() -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    for record in make().records(0, 1_000):
        row = json.loads(record.value)
        assert record.key == row["key"].encode()
        seen[row["key"]].append(row["seq"])
    assert len(seen) == 30
    assert all(numbers == list(range(len(numbers))) for numbers in seen.values())


def test_chunks_agree_with_the_whole() -> None:
    numbers = make()
    whole = list(numbers.records(0, 1_000))
    assert [r for start in range(0, 1_000, 77) for r in numbers.records(start, min(start + 77, 1_000))] == whole
    assert [json.loads(r.value)["id"] for r in whole] == list(range(1_000))


def test_records_depend_only_on_the_seed() -> None:
    assert list(make(1).records(0, 200)) == list(make(1).records(0, 200))
    assert list(make(1).records(0, 200)) != list(make(2).records(0, 200))


@pytest.mark.parametrize("size", [0, 1, 64, 65, 1_000])
def test_payload_has_the_chosen_size(size: int) -> None:
    assert {len(json.loads(r.value)["payload"]) for r in make(payload_bytes=size).records(0, 10)} == {size}


def test_one_key_works() -> None:
    assert [json.loads(r.value)["seq"] for r in make(keys=1).records(0, 5)] == [0, 1, 2, 3, 4]


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValidationError):
        NumbersOptions.model_validate({"key": 3})
