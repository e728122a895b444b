"""A scenario's schedule as a value from which parts can be taken away. What its parts are, its kind of pipeline says."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from onceproof.scenario.model import Scenario

#: Ways to place several faults again multiply; more than these are not even listed.
MOST_WAYS = 256

ScheduleT = TypeVar("ScheduleT")


class Schedule(Protocol):
    """Compared by value, and shown by `str`."""

    def __hash__(self) -> int: ...

    @property
    def faults(self) -> Sequence[object]: ...

    @property
    def parts(self) -> Sequence[int]:
        """What can be left out many at a time; empty where nothing can."""

    def only(self, parts: Sequence[int]) -> Self:
        """With these parts, and the faults that need no other."""

    def calm(self) -> Self:
        """The same without its faults."""

    def smaller(self) -> Iterator[Removal[Self]]:
        """Everything that can be taken away alone."""

    def sizes(self) -> Mapping[str, int]:
        """What there is of -> how many."""


@dataclass(frozen=True)
class Removal(Generic[ScheduleT]):
    """Something that can be taken away alone."""

    without: str
    ways: list[ScheduleT]
    """What the schedule may be without it: each way to place its faults again."""
    cut: bool = False
    """There are more ways than these."""


@dataclass(frozen=True)
class ShrinkHint:
    """What a witness of a finding names: where a shrink begins."""

    cause: str | None
    """``topic/partition@offset`` of the input."""
    batch: int | None


class Whole(Protocol):
    """The scenario that is made smaller."""

    @property
    def scenario(self) -> Scenario: ...

    @property
    def schedule(self) -> Any:
        """All of it."""

    def of(self, schedule: Any, records_file: Path) -> Scenario:
        """The scenario with that schedule. Records that its data set cannot make are written to ``records_file``."""

    def alike(self, schedule: Any) -> Hashable:
        """The same for schedules of which one need not be executed when the other was."""
