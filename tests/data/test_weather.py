from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from onceproof.data import Record, datasets
from onceproof.data.flights import Flights, FlightsOptions
from onceproof.data.weather import ROWS, Weather, WeatherOptions


def make(**options: int) -> Weather:
    return Weather(WeatherOptions(**options), seed=0)


def rows(weather: Weather) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in weather.records(0, weather.rows())]


@pytest.fixture(scope="module")
def every() -> list[Record]:
    return list(make().records(0, ROWS))


def test_weather_is_registered_with_its_number_of_rows(every: list[Record]) -> None:
    assert datasets.get("weather") is Weather
    assert make().rows() == len(every) == 26_115


def test_each_airport_and_hour_comes_once_and_in_order(every: list[Record]) -> None:
    order = [(record.timestamp_ms, record.key) for record in every]
    assert all(before < after for before, after in pairwise(order))


def test_hours_are_those_of_the_flights(every: list[Record]) -> None:
    """The hours have the same form as those of the flights, so that the two can be joined."""
    hours = {(row["origin"], row["time_hour"]) for row in (json.loads(record.value) for record in every)}
    flights = [json.loads(r.value) for r in Flights(FlightsOptions(), seed=0).records(0, 5_000)]
    found = sum((row["origin"], row["time_hour"]) in hours for row in flights)
    assert 4_900 < found <= 5_000


def test_every_nth_hour_can_be_left_out() -> None:
    whole, thinned = rows(make(first=100)), rows(make(first=90, drop_every=10))
    assert thinned == [row for number, row in enumerate(whole, 1) if number % 10]


def test_closing_records_come_last_and_thirty_days_later() -> None:
    weather = make(first=50, closing=7)
    records = list(weather.records(0, weather.rows()))
    assert weather.rows() == len(records) == 57
    assert len({record.key for record in records[50:]}) == 7
    assert {record.timestamp_ms - records[49].timestamp_ms for record in records[50:]} == {30 * 86_400_000}
    assert [json.loads(record.value).get("closing") for record in records] == [None] * 50 + [True] * 7


def test_chunks_agree_with_the_whole() -> None:
    weather = make(first=200, drop_every=7, closing=30)
    whole = list(weather.records(0, weather.rows()))
    assert [r for start in range(0, 230, 27) for r in weather.records(start, start + 27)] == whole


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValidationError):
        WeatherOptions.model_validate({"rows": 3})
