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
    decoder = json.JSONDecoder(parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    return [decoder.decode(record.value.decode()) for record in every]


def test_flights_are_registered_with_their_number_of_rows(every: list[Record]) -> None:
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


def test_static_tables_are_those_of_the_package() -> None:
    assert {name: Flights.table(name).num_rows for name in Flights.tables()} == {
        "planes": 3_322,
        "airports": 1_458,
        "weather": 26_115,
    }
    assert Flights.table("planes")["speed"].null_count == 3_299
    with pytest.raises(KeyError, match=r"no static table 'plane'; known: planes"):
        Flights.table("plane")


def test_closing_records_come_after_the_first_flights_and_thirty_days_later(every: list[Record]) -> None:
    closed = Flights(FlightsOptions(first=100, closing=12), seed=0)
    records = list(closed.records(0, closed.rows()))
    assert closed.rows() == len(records) == 112
    assert records[:100] == every[:100]
    assert {record.timestamp_ms - records[99].timestamp_ms for record in records[100:]} == {30 * 86_400_000}
    assert len({record.key for record in records[100:]}) == 12
    assert [r for start in range(0, 112, 9) for r in closed.records(start, start + 9)] == records


def test_a_closing_record_is_a_departed_flight_with_all_its_columns(every: list[Record]) -> None:
    (record,) = Flights(FlightsOptions(first=3, closing=1), seed=0).records(3, 4)
    row = json.loads(record.value)
    assert row.pop("closing") is True
    assert row.keys() == json.loads(every[0].value).keys()
    assert row["dep_time"] is not None
    assert record.key == row["tailnum"].encode()
    assert datetime.fromisoformat(row["sched_dep"]).timestamp() * 1000 == record.timestamp_ms


def test_stragglers_come_later_and_all_others_keep_their_order(every: list[Record]) -> None:
    late = Flights(FlightsOptions(first=1_000, late_every=10, late_by=200), seed=0)
    records = list(late.records(0, 1_000))
    assert sorted(r.value for r in records) == sorted(r.value for r in every[:1_000])
    place = {record.value: number for number, record in enumerate(records)}
    stragglers = {number for number in range(0, 1_000, 10) if number + 200 < 1_000}
    kept = [place[record.value] for number, record in enumerate(every[:1_000]) if number not in stragglers]
    assert kept == sorted(kept)
    for number in stragglers:
        before = [place[every[n].value] for n in range(number + 200) if n not in stragglers]
        assert place[every[number].value] > max(before)
    assert [r for start in range(0, 1_000, 77) for r in late.records(start, start + 77)] == records
