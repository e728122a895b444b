"""Made-up readings of devices, each with three times: measured and sent by the device's clock, received by the server's.

Source: Martin Kleppmann, Designing Data-Intensive Applications, chapter 11: "Whose clock are you using, anyway?"
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, model_validator

from onceproof.data import DatasetOptions, Record, WithoutTables, as_iso, as_json, datasets

#: The time of the first reading.
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
#: Seconds between two readings of a device.
EVERY_S = 10
#: A device reads at most this many seconds after the first one, and a message travels at most `_TRAVELS_S`: together they are
#: shorter than `EVERY_S`, so that no reading is received in a later minute only because it travelled.
_PHASE_S = 4
_TRAVELS_S = 2
_PER_MINUTE = 60 // EVERY_S
_MOST = 1_000_000


class TelemetryOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    devices: Annotated[int, Field(ge=1, le=10_000, description="number of devices")] = 100
    minutes: Annotated[int, Field(ge=1, le=10_000, description="minutes that they measure, six readings in each")] = 6
    wrong_every: Annotated[int, Field(ge=0, description="every n-th device has a wrong clock (0: none)")] = 0
    wrong_by_s: Annotated[
        int, Field(ge=60, le=86_400, description="... which is wrong by one minute to this many seconds, fast or slow")
    ] = 300
    held_s: Annotated[
        int, Field(ge=0, le=3_600, description="the longest time that a device holds a reading before it sends it")
    ] = 0

    @model_validator(mode="after")
    def _fits_into_memory(self) -> TelemetryOptions:
        if (readings := self.devices * self.minutes * _PER_MINUTE) > _MOST:
            raise ValueError(
                f"these are {readings:,} readings, and at most {_MOST:,} are made: fewer devices or minutes"
            )
        return self


@datasets.register("telemetry")
class Telemetry(WithoutTables):
    """One record per reading: ``{"device", "seq", "errors", "measured_at", "sent_at", "received_at"}``, keyed by device.

    ``errors`` is a number from 0 to 9. The first two times are those of the device's clock, ``received_at`` is that of the
    server's, which is right. The record's own timestamp in Kafka is the true time of the reading, which no device knows: it is
    for oracles. The records are in the order in which they are received. If no reading is held back, each minute has the same
    number of records, ``devices`` * 6, one minute after the other.
    """

    about: ClassVar[str] = (
        "seeded readings of devices, some with wrong clocks: measured, sent, received; keyed by device"
    )
    Options: ClassVar[type[BaseModel]] = TelemetryOptions
    _options: TelemetryOptions

    def rows(self) -> int:
        return self._options.devices * self._options.minutes * _PER_MINUTE

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Readings [start, stop) in the order in which they are received."""
        for _received, _device, _seq, reading, at_ms in self._readings[start:stop]:
            yield Record(reading["device"].encode(), as_json(reading), at_ms)

    @cached_property
    def _readings(self) -> list[tuple[str, int, int, dict[str, Any], int]]:
        """All readings, sorted: what orders them, the value, and the true time (ms)."""
        return sorted(
            (reading["received_at"], device, reading["seq"], reading, at_ms)
            for device in range(self._options.devices)
            for reading, at_ms in self._of(device)
        )

    def _of(self, device: int) -> Iterator[tuple[dict[str, Any], int]]:
        """The readings of one device, independent of those of other devices, and the true time of each (ms)."""
        options = self._options
        chooser = random.Random(f"{self._seed}/{device}")  # noqa: S311 - variety, not secrecy
        wrong = options.wrong_every > 0 and device % options.wrong_every == 0
        ahead = timedelta(seconds=chooser.choice((-1, 1)) * chooser.randint(60, options.wrong_by_s) if wrong else 0)
        phase = chooser.randint(0, _PHASE_S)
        for seq in range(options.minutes * _PER_MINUTE):
            at = BEGIN + timedelta(seconds=EVERY_S * seq + phase)
            sent = at + timedelta(seconds=chooser.randint(0, options.held_s))
            received = sent + timedelta(seconds=chooser.randint(0, _TRAVELS_S))
            reading = {
                "device": f"d{device:04d}",
                "seq": seq,
                "errors": chooser.randint(0, 9),
                "measured_at": as_iso(at + ahead),
                "sent_at": as_iso(sent + ahead),
                "received_at": as_iso(received),
            }
            yield reading, int(at.timestamp() * 1000)
