from __future__ import annotations

import itertools
import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from onceproof.data import Record, datasets
from onceproof.data.flights import ROWS, Flights, FlightsOptions

flights = Flights(FlightsOptions(), seed=0)


@pytest.fixture(scope="module")
def every() -> list[Record]:
    return list(flights.records(0, ROWS))


@pytest.fixture(scope="module")
def rows(every: list[Record]) -> list[dict[str, Any]]:
    return [json.loads(record.value, parse_constant=lambda name: pytest.fail(f"{name} in JSON")) for record in every]


def test_is_registered_with_its_number_of_rows(every: list[Record]) -> None:
    assert datasets.get("flights") is Flights
    assert flights.rows() == len(every) == 336_776


def test_flights_without_a_tail_number_have_a_null_key(every: list[Record], rows: list[dict[str, Any]]) -> None:
    assert sum(record.key is None for record in every) == 2_512
    for record, row in zip(every, rows, strict=True):
        assert record.key == (None if row["tailnum"] is None else row["tailnum"].encode())


def test_event_time_is_the_scheduled_departure_in_new_york(every: list[Record], rows: list[dict[str, Any]]) -> None:
    zone = ZoneInfo("America/New_York")
    for record, row in zip(every, rows, strict=True):
        hour, minute = divmod(row["sched_dep_time"], 100)
        local = datetime(row["year"], row["month"], row["day"], hour, minute, tzinfo=zone)
        assert record.timestamp_ms == local.timestamp() * 1000
        assert datetime.fromisoformat(row["sched_dep"]) == local


def test_order_is_total_and_by_event_time_carrier_flight_origin(rows: list[dict[str, Any]]) -> None:
    order = [(row["sched_dep"], row["carrier"], row["flight"], row["origin"]) for row in rows]
    assert all(before < after for before, after in itertools.pairwise(order))


def test_numbers_are_integers_and_unknown_is_null(rows: list[dict[str, Any]]) -> None:
    assert sum(row["dep_time"] is None for row in rows) == 8_255
    for row in rows[:5_000]:
        for column in ("dep_time", "dep_delay", "arr_delay", "air_time", "distance", "flight"):
            assert row[column] is None or type(row[column]) is int


def test_a_range_agrees_with_the_whole(every: list[Record]) -> None:
    assert list(flights.records(1_000, 3_500)) == every[1_000:3_500]


def test_static_tables() -> None:
    assert {name: Flights.table(name).num_rows for name in Flights.tables()} == {
        "planes": 3_322,
        "airports": 1_458,
        "weather": 26_115,
    }
    assert Flights.table("planes")["speed"].null_count == 3_299
    with pytest.raises(KeyError, match=r"no static table 'plane'; known: planes"):
        Flights.table("plane")
