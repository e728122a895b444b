"""The trace of a run of consumers: which consumer held which message when. Stored in the run's timeline, and read from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from onceproof.base.errors import HistoryError
from onceproof.base.timeline import EVENTS, Event, read_events

Kind = Literal[
    "publish",
    "take",
    "effect",
    "acknowledge",
    "commit",
    "start",
    "crash",
    "return",
    "end",
    "refuse",
    "release",
    "retry",
    "lost",
    "lapse",
    "fenced",
    "cut",
    "dead-letter",
    "stop",
    "resume",
    "delete",
    "skip",
]
"""``crash``: a fault killed the consumer; ``end``: it ended by itself; ``refuse``: the output refused its effect;
``return``: the broker took the message back; ``release``: the consumer gave it back unprocessed; ``retry``: it put the message
into the retry topic; ``lost``: a step, usually an acknowledgement, got no answer; ``lapse``: the broker gives another consumer
the message that a slow one still works on; ``fenced``: the broker refused an acknowledgement because the message now belongs to
another consumer; ``cut``: a fault broke the connection of a living consumer; ``dead-letter``: it put a message that its output refuses into the
topic for dead letters; ``stop`` and ``resume``: a fault stopped the consumer and resumed it; ``delete``: the log deleted a
message that the group had not been given; ``skip``: it was given a later one of the same partition instead; ``commit``: a transaction was committed; also one
whose answer was lost, once the broker is known to have it."""

#: After a consumer has taken a message, one of these says that its effect is done, or will not be.
EFFECT_DONE = ("effect", "refuse", "lost", "end")
_PREFIX = "consumers."


@dataclass(frozen=True)
class TraceEvent:
    """One step of a consumer, or something that happened to it. ``tick``: the schedule's clock; ``at``: seconds of the run."""

    kind: Kind
    tick: int
    at: float = 0.0
    consumer: str = ""
    message: int = 0
    """Its number in the data set, from 1; 0: the event is about no message."""
    queue: str = ""
    redelivered: bool = False
    group: str = ""
    """The consumer's group, where there are several: each group has its own copy of every message."""
    output: str = ""
    """Of an effect: where it went, if its consumer says so."""

    @property
    def timeline_kind(self) -> str:
        return f"{_PREFIX}{self.kind}"

    def timeline_data(self) -> dict[str, Any]:
        """Its fields in the timeline, besides ``at`` and ``kind``."""
        fields = asdict(self)
        output = {"output": self.output} if self.output else {}
        return {
            **{name: fields[name] for name in ("tick", "consumer", "message", "queue", "redelivered", "group")},
            **output,
        }


def from_timeline(event: Event) -> TraceEvent | None:
    """The event as part of a trace; None if it is not about consumers."""
    if not event.kind.startswith(_PREFIX):
        return None
    return TraceEvent(kind=event.kind.removeprefix(_PREFIX), at=event.at, **event.data)  # type: ignore[arg-type]


def read_trace(run_dir: Path) -> tuple[TraceEvent, ...]:
    """The trace of a stored run. Raises `HistoryError` for a timeline that cannot be read."""
    try:
        return tuple(event for event in map(from_timeline, read_events(run_dir)) if event is not None)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise HistoryError(f"{run_dir / EVENTS} cannot be read: {error}", hint="run the scenario again") from error


def holders(trace: Iterable[TraceEvent], message: int) -> list[str]:
    """The consumers that took the message, in order."""
    return [event.consumer for event in trace if event.kind == "take" and event.message == message]
