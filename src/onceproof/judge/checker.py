"""What a checker is: a pure function from a case (history + expected output) to findings. One file an anomaly, under ``checkers/``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from onceproof.base.registry import Registry
from onceproof.judge.findings import Finding

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case


@dataclass(frozen=True)
class Gap:
    """The same for one output only: the others are still judged."""

    output: str
    why: str


class Checker(Protocol):
    meaning: ClassVar[str]
    """One sentence: the anomaly."""

    def check(self, case: Case) -> Iterable[Finding | Gap]:
        """All findings of this anomaly, and what could not be evaluated. Raises `NotEvaluated` where nothing could."""


checkers: Registry[type[Checker]] = Registry("checker", "onceproof.checkers", "onceproof.checkers")
