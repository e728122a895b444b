"""A scenario's schedule as a value from which parts can be removed. The kind of pipeline decides what its parts are."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from onceproof.scenario.model import Scenario

#: The ways to place several faults again multiply: at most so many are listed.
MOST_WAYS = 256

ScheduleT = TypeVar("ScheduleT")


class Schedule(Protocol):
    """A schedule. Two are compared by value; `str` describes one."""

    def __hash__(self) -> int: ...

    @property
    def faults(self) -> Sequence[object]: ...

    @property
    def parts(self) -> Sequence[int]:
        """The parts that can be removed several at a time; empty if there are none."""

    def only(self, parts: Sequence[int]) -> Self:
        """The schedule with these parts, and with the faults that need no other part."""

    def without_faults(self) -> Self:
        """The schedule without its faults."""

    def smaller(self) -> Iterator[Removal[Self]]:
        """Each removal of a single thing."""

    def sizes(self) -> Mapping[str, int]:
        """How many it has of each thing, by the thing's name."""


@dataclass(frozen=True)
class Removal(Generic[ScheduleT]):
    """One thing that can be removed from a schedule."""

    without: str
    ways: list[ScheduleT]
    """The schedules that remain without it: one for each way to place the faults again."""
    cut: bool = False
    """Whether there are more ways than ``ways`` lists."""


@dataclass(frozen=True)
class ShrinkHint:
    """The input record and the batch that a witness of a finding names."""

    cause: str | None
    """``topic/partition@offset`` of the input."""
    batch: int | None


class Whole(Protocol):
    """The scenario whose schedule is made smaller."""

    @property
    def scenario(self) -> Scenario: ...

    @property
    def schedule(self) -> Any:
        """The scenario's whole schedule."""

    def of(self, schedule: Any, records_file: Path) -> Scenario:
        """The scenario with that schedule. Records that its data set cannot produce are written to ``records_file``."""

    def execution_key(self, schedule: Any) -> Hashable:
        """A key that is equal for two schedules if executing one of them is enough."""
