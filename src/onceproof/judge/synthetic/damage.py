"""One way to break a right history, so that one anomaly is there, and exactly where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from onceproof.judge.synthetic.world import MODELS, Identity, World

T = TypeVar("T")

Named = dict[tuple[str, str], Counter[Identity]]
"""(anomaly, output) -> how many effects of each identity must be found: exactly these."""


class Choices(Protocol):
    """What a damage leaves open, so that it is tried in many places. Each gives the world up where there is nothing to choose from."""

    def one(self, items: Sequence[T]) -> T: ...

    def some(self, items: Sequence[T], most: int = 4) -> list[T]:
        """One or several, in their order."""
        ...

    def number(self, low: int, high: int) -> int:
        """Both ends included."""
        ...

    def need(self, condition: object) -> None:
        """Give this world up unless the condition is true: the damage has no place in it."""
        ...


@dataclass(frozen=True)
class Damage:
    """How to break a world, and what must then be found."""

    plant: Callable[[World, Choices], Named]
    """Changes the world. Its name is the damage's."""
    about: str
    """What is broken, for ``docs/implications.md``."""
    only: tuple[str, ...] = tuple(MODELS)
    """A world that is broken so has no other outputs."""
    outputs: int | None = None
    """How many it has; None: one or two."""
    restarted: bool = False
    """Some batch with data was planned by one start of the driver and committed by the next."""

    @property
    def name(self) -> str:
        return self.plant.__name__.replace("_", "-")
