from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from onceproof.data import Record, datasets
from onceproof.data.telemetry import BEGIN, Telemetry, TelemetryOptions

MINUTE = timedelta(minutes=1)


def make(seed: int = 7, **options: int) -> Telemetry:
    return Telemetry(TelemetryOptions(**{"devices": 20, "minutes": 5} | options), seed=seed)


def every(telemetry: Telemetry) -> list[tuple[Record, dict[str, Any]]]:
    return [(record, json.loads(record.value)) for record in telemetry.records(0, telemetry.rows())]


def time(reading: dict[str, Any], name: str) -> datetime:
    return datetime.fromisoformat(reading[f"{name}_at"])


def true_time(record: Record) -> datetime:
    return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)


def minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def test_telemetry_is_registered_and_keyed_by_device() -> None:
    assert datasets.get("telemetry") is Telemetry
    readings = every(make())
    assert len(readings) == make().rows() == 20 * 5 * 6
    assert all(record.key == reading["device"].encode() for record, reading in readings)
    assert {reading["errors"] for _record, reading in readings} == set(range(10))


def test_right_clocks_show_the_true_time_and_each_minute_is_a_chunk() -> None:
    readings = every(make())
    for number, (record, reading) in enumerate(readings):
        assert time(reading, "measured") == true_time(record)
        assert minute(true_time(record)) == minute(time(reading, "received")) == BEGIN + MINUTE * (number // 120)


def test_every_nth_clock_is_wrong_by_at_least_a_minute_and_always_by_the_same_time() -> None:
    ahead: dict[str, set[timedelta]] = defaultdict(set)
    for record, reading in every(make(wrong_every=4, wrong_by_s=200)):
        ahead[reading["device"]].add(time(reading, "measured") - true_time(record))
    assert all(len(found) == 1 for found in ahead.values())
    found = {device: next(iter(one)) for device, one in ahead.items()}
    wrong = {device: one for device, one in found.items() if one}
    assert set(wrong) == {f"d{number:04d}" for number in range(0, 20, 4)}
    assert all(MINUTE <= abs(one) <= timedelta(seconds=200) for one in wrong.values())
    assert min(wrong.values()) < timedelta(0) < max(wrong.values())


def test_the_three_times_give_the_true_minute() -> None:
    shifted = 0
    for record, reading in every(make(wrong_every=3, held_s=90)):
        corrected = time(reading, "measured") + (time(reading, "received") - time(reading, "sent"))
        assert minute(corrected) == minute(true_time(record))
        assert time(reading, "sent") >= time(reading, "measured")
        shifted += minute(time(reading, "measured")) != minute(corrected)
    assert shifted == 7 * 5 * 6, "each reading of a wrong clock is in another minute"


def test_records_are_in_the_order_in_which_they_are_received() -> None:
    readings = [reading for _record, reading in every(make(held_s=90))]
    assert all(time(one, "received") <= time(other, "received") for one, other in pairwise(readings))
    assert any(time(one, "measured") > time(other, "measured") for one, other in pairwise(readings))
    assert set(Counter((one["device"], one["seq"]) for one in readings).values()) == {1}


def test_chunks_agree_with_the_whole_and_the_seed_decides() -> None:
    whole = list(make(held_s=30).records(0, 600))
    assert [r for start in range(0, 600, 77) for r in make(held_s=30).records(start, min(start + 77, 600))] == whole
    assert whole != list(make(8, held_s=30).records(0, 600))


@pytest.mark.parametrize("options", [{"wrong_by_s": 59}, {"devices": 10_000, "minutes": 10_000}, {"device": 1}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        TelemetryOptions.model_validate(options)
