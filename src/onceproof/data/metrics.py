"""Made-up measurements of web services, as agents next to them send them: how long each request took, and whether it failed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from onceproof.data import DatasetOptions, Record, WithoutTables, as_json, datasets

#: The time of the first request.
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
SERVICES = ("basket", "checkout", "login", "payment", "search", "stock")
CLOSING = (
    "closing records after the real ones, a day later in event time, of a service 'closing': with more of them than a chunk holds, "
    "the watermark has closed every window of the real ones before the last chunk"
)
#: Closing records are this much later in event time than the last real one.
_CLOSING_AFTER = timedelta(days=1)
_TYPICAL_MS = 80
#: In an incident requests take this many times longer, or this part of them fails; otherwise one of `_SELDOM` does.
_SLOWER = 6
_FAILING = 0.3
_SELDOM = 0.01


class MetricsOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    rows: PositiveInt = Field(12_000, description="number of measurements")
    per_minute: PositiveInt = Field(240, description="measurements per minute of event time, of all services together")
    agents: PositiveInt = Field(4, description="agents per service")
    late_ms: NonNegativeInt = Field(
        5_000, description="a measurement comes at most this much later than its event time, in ms"
    )
    incidents: float = Field(
        0.2, ge=0, le=1, description="share of the minutes of a service in which it is slow or fails"
    )
    closing: NonNegativeInt = Field(0, description=CLOSING)


@datasets.register("metrics")
class Metrics(WithoutTables):
    """Measurement i, from 0: ``{"id": i, "measured_at": ..., "service": ..., "agent": ..., "response_ms": ..., "status": 200 or 500}``.

    The key is the agent. ``measured_at`` is the event time in UTC (ISO 8601 with milliseconds). Records are in the order of their arrival,
    which is at an even pace; ``measured_at`` is up to ``late_ms`` before that. Whether a service has an incident depends on its minute.
    """

    about: ClassVar[str] = (
        "seeded response times and failures of six services, keyed by agent, with slow and failing minutes"
    )
    Options: ClassVar[type[BaseModel]] = MetricsOptions
    _options: MetricsOptions

    def rows(self) -> int:
        return self._options.rows + self._options.closing

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Measurements [start, stop), closing ones last. Each depends on its number and the seed only."""
        options = self._options
        for number in range(start, min(stop, self.rows())):
            if number >= options.rows:
                yield _record(number, self._arrival(options.rows) + _CLOSING_AFTER, "closing", "closing-0", 1, 200)
                continue
            chooser = random.Random(f"{self._seed}/{number}")  # noqa: S311 - variety, not secrecy
            arrival = self._arrival(number)
            at = max(BEGIN, arrival - timedelta(milliseconds=chooser.randint(0, options.late_ms)))
            service = chooser.choice(SERVICES)
            agent = f"{service}-{chooser.randrange(options.agents)}"
            incident = self._incident(service, at)
            failing = _FAILING if incident == "failing" else _SELDOM
            response_ms = self._response_ms(chooser) * (_SLOWER if incident == "slow" else 1)
            yield _record(number, at, service, agent, response_ms, 500 if chooser.random() < failing else 200)

    def _arrival(self, number: int) -> datetime:
        return BEGIN + timedelta(milliseconds=number * 60_000 // self._options.per_minute)

    def _incident(self, service: str, at: datetime) -> str | None:
        """``slow``, ``failing`` or None, the same for a whole minute of a service."""
        chooser = random.Random(f"{self._seed}/{service}/{at:%Y-%m-%dT%H:%M}")  # noqa: S311 - variety, not secrecy
        return chooser.choice(("slow", "failing")) if chooser.random() < self._options.incidents else None

    @staticmethod
    def _response_ms(chooser: random.Random) -> int:
        """Milliseconds: most near `_TYPICAL_MS`, a few several times as long."""
        return round(_TYPICAL_MS * chooser.lognormvariate(0, 0.4)) + 1


def _record(number: int, at: datetime, service: str, agent: str, response_ms: int, status: int) -> Record:
    measurement = {
        "id": number,
        "measured_at": at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z",
        "service": service,
        "agent": agent,
        "response_ms": response_ms,
        "status": status,
    }
    return Record(agent.encode(), as_json(measurement), round(at.timestamp() * 1000))
