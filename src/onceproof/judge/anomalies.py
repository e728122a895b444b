"""What each anomaly means, how it comes about and what stops it: the text of `onceproof explain` and of ``docs/anomalies.md``.

The text of an anomaly stands in its checker's own file, so that it is changed together with what it describes.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from onceproof.judge.checker import Checker, checkers

#: Kinds of output systems, as they are named where something holds for one of them only.
STORES = ("Kafka", "Postgres")


@dataclass(frozen=True)
class Explanation:
    """What a checker may say of its anomaly beyond ``meaning``, as its class attribute ``explanation``."""

    example: str
    """What somebody who uses the output would see, in a case small enough to follow."""
    causes: tuple[str, ...]
    """How it comes about in Spark, Kafka or Postgres, each with the fault that shows it."""
    decided: str
    """What in a history shows it, and what leaves it undecided."""
    stops: tuple[str, ...]
    """What a pipeline does so that it cannot happen. What helps only with one kind of output begins with its name, as in
    ``Kafka: ...`` (`STORES`)."""
    sources: tuple[str, ...]
    """Where to read on: a KIP, a ticket, a report, a chapter."""

    def stops_for(self, stores: Collection[str]) -> tuple[str, ...]:
        """What helps a pipeline whose outputs are of these kinds, e.g. ``{"Kafka"}``."""
        elsewhere = tuple(f"{store}:" for store in STORES if store not in stores)
        return tuple(text for text in self.stops if not text.startswith(elsewhere))


@dataclass(frozen=True)
class Anomaly:
    """One anomaly as it is explained."""

    name: str
    meaning: str
    explanation: Explanation
    detail: str
    """The checker's docstring: the exact rule."""

    def to_json(self) -> dict[str, Any]:
        return {"anomaly": self.name, "meaning": self.meaning, "rule": self.detail, **asdict(self.explanation)}


_NOTHING = Explanation(example="", causes=(), decided="", stops=(), sources=())


def anomalies() -> Iterator[Anomaly]:
    """All that are registered, by name; a checker of a third party may come without an explanation."""
    for name, checker in checkers.items():
        yield _anomaly(name, checker)


def anomaly(name: str) -> Anomaly:
    """Raises `KeyError` with a suggestion for a name that no checker has."""
    return _anomaly(name, checkers.get(name))


def _anomaly(name: str, checker: type[Checker]) -> Anomaly:
    explanation: Explanation = getattr(checker, "explanation", _NOTHING)
    return Anomaly(name, checker.meaning, explanation, inspect.cleandoc(checker.__doc__ or ""))


def sections(one: Anomaly) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Heading and paragraphs (several: a list), in the order in which they are read; empty ones are left out."""
    text = one.explanation
    yield "what it means", (f"{one.meaning[:1].upper()}{one.meaning[1:]}.",)
    for heading, paragraphs in (
        ("for example", (text.example,)),
        ("how it comes about", text.causes),
        ("how it is decided", (text.decided,)),
        ("what stops it", text.stops),
        ("read on", text.sources),
    ):
        if any(paragraphs):
            yield heading, paragraphs
