"""A damage: one way to break a correct history, and where exactly which anomaly must then be found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from onceproof.judge.synthetic.world import MODELS, Identity, World

T = TypeVar("T")

Named = dict[tuple[str, str], Counter[Identity]]
"""(anomaly, output) -> how many effects of each identity must be found, no more and no fewer."""


class Choices(Protocol):
    """Makes a damage's choices, so that it is tried in many places. Skips a world if there is nothing to choose from."""

    def one(self, items: Sequence[T]) -> T: ...

    def some(self, items: Sequence[T], most: int = 4) -> list[T]:
        """One or several items, in their order."""
        ...

    def number(self, low: int, high: int) -> int:
        """A number, both ends included."""
        ...

    def need(self, condition: object) -> None:
        """Skip this world unless the condition is true: the damage cannot be applied to it."""
        ...


@dataclass(frozen=True)
class Damage:
    """A way to break a world, and what must then be found."""

    apply: Callable[[World, Choices], Named]
    """The function that changes the world. Its name is the damage's name."""
    about: str
    """What is broken, for ``docs/implications.md``."""
    only: tuple[str, ...] = tuple(MODELS)
    """The outputs that a world for this damage may have."""
    outputs: int | None = None
    """The number of outputs; None: one or two."""
    restarted: bool = False
    """Whether the world must have a batch with data that one driver start planned and the next one committed."""
    crowded: bool = False
    """Whether the world must have batches with several records of one key."""

    @property
    def name(self) -> str:
        return self.apply.__name__.replace("_", "-")
