"""Data set ``scans``: telegrams of barcode scanners, which send some of them twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from onceproof.data import Record, WithoutTables, datasets

_FIRST_MS = 1_714_550_400_000  # 2024-05-01T08:00:00Z


class ScansOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    parcels: PositiveInt = Field(1_000, description="number of parcels")
    repeat_every: PositiveInt = Field(5, description="the scan of every n-th parcel is sent twice")


@datasets.register("scans")
class Scans(WithoutTables):
    """One scan per parcel, ``P000042|DOCK-3|1250``, keyed by the parcel. A repeated scan comes right after the first one."""

    about: ClassVar[str] = "scans of parcels as text, some of them sent twice"
    Options: ClassVar[type[BaseModel]] = ScansOptions

    def __init__(self, options: ScansOptions, *, seed: int) -> None:
        self._options = options
        self._seed = seed

    def rows(self) -> int:
        return self._options.parcels + self._options.parcels // self._options.repeat_every

    def records(self, start: int, stop: int) -> Iterator[Record]:
        period = self._options.repeat_every + 1  # n parcels are n + 1 scans
        for number in range(start, min(stop, self.rows())):
            rounds, place = divmod(number, period)
            parcel = rounds * self._options.repeat_every + min(place, self._options.repeat_every - 1)
            yield Record(f"P{parcel:06d}".encode(), self._telegram(parcel), _FIRST_MS + 1_000 * number)

    def _telegram(self, parcel: int) -> bytes:
        chosen = random.Random(f"{self._seed}/{parcel}")  # the same for both scans of a parcel
        return f"P{parcel:06d}|DOCK-{chosen.randint(1, 9)}|{chosen.randint(100, 30_000)}".encode()
