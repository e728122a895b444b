"""What a checker is: all that one anomaly is, in one file under ``checkers/``.

It is a pure function from a case (history + expected output) to findings, and what there is to say of the anomaly: its
text, what claims allow of it, what comes with it, and how a right history is damaged so that it is there. Pages, lists,
legends and property tests take it from here (see docs/add-a-checker.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onceproof.base.registry import Registry
from onceproof.judge.claim_rule import FORBIDDEN, ClaimRule
from onceproof.judge.findings import Finding
from onceproof.judge.synthetic.damage import Damage

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case


@dataclass(frozen=True)
class Gap:
    """Why one output could not be judged for this anomaly: the others are."""

    output: str
    why: str


#: Kinds of output systems, as they are named where something holds for one of them only.
STORES = ("Kafka", "Postgres")
#: Likewise for what only helps where the input itself is at fault.
INPUT = "Input"


@dataclass(frozen=True)
class Explanation:
    """What `onceproof explain` and ``docs/anomalies.md`` say of an anomaly. Empty parts are left out."""

    example: str = ""
    """What somebody who uses the output would see, in a case small enough to follow."""
    causes: tuple[str, ...] = ()
    """How it comes about in Spark, Kafka or Postgres, each with the fault that shows it."""
    decided: str = ""
    """What in a history shows it, and what leaves it undecided."""
    stops: tuple[str, ...] = ()
    """What a pipeline does so that it cannot happen. What helps only with one kind of output begins with its name, as in
    ``Kafka: ...`` (`STORES`); what concerns those who write the input, with ``Input: ...``."""
    sources: tuple[str, ...] = ()
    """Where to read on: a KIP, a ticket, a report, a chapter."""

    def stops_for(self, stores: Collection[str]) -> tuple[str, ...]:
        """What a pipeline whose outputs are of these kinds, e.g. ``{"Kafka"}``, can do itself."""
        elsewhere = tuple(f"{name}:" for name in (*STORES, INPUT) if name not in stores)
        return tuple(text for text in self.stops if not text.startswith(elsewhere))


class Checker:
    """The docstring of a checker is the exact rule. Those of this package state everything; only ``meaning`` has no default."""

    meaning: ClassVar[str]
    """One sentence: the anomaly."""
    explanation: ClassVar[Explanation] = Explanation()
    rule: ClassVar[ClaimRule] = FORBIDDEN
    comes_with: ClassVar[Mapping[str, str]] = {}
    """Other anomalies that the same broken write may show -> why. No others may be found where only this is damaged."""
    damages: ClassVar[tuple[Damage, ...]] = ()
    """How to break a right history so that this anomaly is there."""

    def check(self, case: Case) -> Iterable[Finding | Gap]:
        """All findings of this anomaly, and what could not be evaluated. Raises `NotEvaluated` where nothing could."""
        raise NotImplementedError


checkers: Registry[type[Checker]] = Registry("checker", "onceproof.checkers", "onceproof.checkers", Checker)
