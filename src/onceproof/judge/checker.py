"""The base class of checkers. A checker defines one anomaly completely, in one file under ``checkers/``.

It has a pure function from a case (history and expected output) to findings, and everything else about the anomaly: its
explanation, which claims allow it, which anomalies accompany it, and how to damage a correct history so that it occurs.
Pages, lists and property tests are made from these (see docs/add-a-checker.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from onceproof.base.registry import Registry
from onceproof.judge.claim_rule import FORBIDDEN, ClaimRule
from onceproof.judge.findings import Finding
from onceproof.judge.synthetic.damage import Damage
from onceproof.stores.contract import systems

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case


@dataclass(frozen=True)
class Gap:
    """One output that a checker could not judge for its anomaly, and why. It did judge the others."""

    output: str
    why: str


Results = Iterator[Finding | Gap]

#: The beginning of advice that only helps where the input itself is at fault.
INPUT = "Input"


@dataclass(frozen=True)
class Explanation:
    """The text of `onceproof explain` and ``docs/anomalies.md`` about an anomaly. Empty parts are left out."""

    example: str = ""
    """What a user of the output would see, in a case small enough to follow."""
    causes: tuple[str, ...] = ()
    """How the anomaly comes about in Spark, Kafka or Postgres, each with the fault that shows it."""
    decided: str = ""
    """What in a history shows the anomaly, and what leaves it undecided."""
    stops: tuple[str, ...] = ()
    """What can be done to prevent the anomaly. Advice for one output system only begins with its name, as in ``Kafka: ...``
    (`onceproof.stores.contract.Words.system`), and advice for the producers of the input with ``Input: ...``."""
    after: Mapping[str, str] = field(default_factory=dict)
    """Fault (``reject``, with its target: ``crash broker``, or its point: ``between-sinks``) -> what prevents the anomaly then: the
    first advice for such a run."""
    sources: tuple[str, ...] = ()
    """Further reading: a KIP, a ticket, a report, a chapter."""

    @property
    def advice(self) -> tuple[str, ...]:
        """All of it: `stops`, then that after certain faults."""
        return tuple(dict.fromkeys((*self.stops, *self.after.values())))

    def stops_for(self, stores: Collection[str], faults: Collection[str] = ()) -> tuple[str, ...]:
        """The advice for a pipeline with these output systems, e.g. ``{"Kafka"}``, and with a correct input.

        What prevents the anomaly after one of ``faults`` (written like the keys of `after`) comes first.
        """
        others = tuple(f"{name}:" for name in (*systems(), INPUT) if name not in stores)
        first = [text for fault, text in self.after.items() if fault in faults]
        return tuple(text for text in dict.fromkeys((*first, *self.advice)) if not text.startswith(others))


class Checker:
    """Finds one anomaly. A checker's docstring states the exact rule.

    Only ``meaning`` and `check` are required. The checkers that onceproof ships define every attribute.
    """

    meaning: ClassVar[str]
    """One sentence: the anomaly."""
    explanation: ClassVar[Explanation] = Explanation()
    rule: ClassVar[ClaimRule] = FORBIDDEN
    comes_with: ClassVar[Mapping[str, str]] = {}
    """Other anomalies that the same broken write may cause -> why. A history with only this damage shows no others."""
    own_batch: ClassVar[frozenset[str]] = frozenset()
    """Sources of findings whose rows were caused in the batch that they name, whatever had gone wrong in batches before it."""
    damages: ClassVar[tuple[Damage, ...]] = ()
    """How to break a correct history so that this anomaly occurs."""

    by_digest: ClassVar[bool] = False
    """Whether it loads the rows that it reads (`onceproof.judge.relations.on_demand`). If not, all rows are loaded before it runs."""

    def check(self, case: Case) -> Results:
        """All findings of this anomaly, and the outputs that could not be judged. Raises `NotEvaluated` if none could."""
        raise NotImplementedError


checkers: Registry[type[Checker]] = Registry("checker", "onceproof.checkers", "onceproof.checkers", Checker)
