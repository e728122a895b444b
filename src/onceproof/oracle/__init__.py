"""Oracles: from the committed input, the expected output. One file a kind, registered here by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from onceproof.base.registry import Registry
from onceproof.faults.contract import SpecProblem
from onceproof.scenario import kinds
from onceproof.scenario.model import OracleSpec, Scenario

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case


class Oracle(Protocol):
    Spec: ClassVar[type[OracleSpec]]
    about: ClassVar[str]

    def __init__(self, spec: Any) -> None: ...

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]: ...

    def expect(self, case: Case) -> None:
        """Say what each output must hold: one call of `onceproof.judge.case.case.Case.expect_rows` for each.

        Raises `onceproof.judge.checker.NotEvaluated` where that cannot be said.
        """


oracles: Registry[type[Oracle]] = kinds.oracles
