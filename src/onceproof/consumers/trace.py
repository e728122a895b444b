"""What happened in a run of consumers, move by move: who held which message when. Read from the run's timeline."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from onceproof.base.errors import HistoryError
from onceproof.base.timeline import Event

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
]
"""``crash``: a fault killed the consumer; ``end``: it ended by itself; ``refuse``: the output said no to an
effect; ``release``: given back unprocessed; ``retry``: put into the retry topic; ``lost``: no answer came to
a step, an acknowledgement mostly; ``lapse``: another is given what a consumer that is only slow still works on;
``fenced``: the broker refused an acknowledgement, for the message is another's; ``cut``: a fault broke its
connection, and it lives; ``commit``: also one without an answer, once the broker is known to have it."""
_PREFIX = "consumers."


@dataclass(frozen=True)
class Move:
    """One step of somebody. ``tick`` is of the schedule's clock, ``at`` seconds of the run's."""

    kind: Kind
    tick: int
    at: float = 0.0
    consumer: str = ""
    message: int = 0
    """Its number in the data set, from 1; 0 where it is about none."""
    queue: str = ""
    redelivered: bool = False
    group: str = ""
    """The consumer's, where there are several: each has copies of its own of all messages."""

    def event(self) -> dict[str, Any]:
        """What goes into the timeline beside ``at`` and ``kind``."""
        fields = asdict(self)
        return {name: fields[name] for name in ("tick", "consumer", "message", "queue", "redelivered", "group")}


def event_kind(move: Move) -> str:
    return f"{_PREFIX}{move.kind}"


def of_event(event: Event) -> Move | None:
    if not event.kind.startswith(_PREFIX):
        return None
    return Move(kind=event.kind.removeprefix(_PREFIX), at=event.at, **event.data)  # type: ignore[arg-type]


def of_run(run_dir: Path) -> tuple[Move, ...]:
    """The moves of a stored run. Raises `HistoryError` for a timeline that cannot be read."""
    path = run_dir / "events.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            return tuple(_moves(lines))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise HistoryError(f"{path} cannot be read: {error}", hint="run the scenario again") from error


def _moves(lines: Iterable[str]) -> Iterator[Move]:
    for line in lines:
        said = json.loads(line)
        at, kind = said.pop("at"), said.pop("kind")
        if (move := of_event(Event(at, kind, said))) is not None:
            yield move


def holder(moves: Iterable[Move], message: int) -> list[str]:
    """Who has ever held the message, in order."""
    return [move.consumer for move in moves if move.kind == "take" and move.message == message]
