"""Oracles: functions from a run's input to what its outputs must hold. One file per kind, registered here by name."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from onceproof.base.registry import Registry
from onceproof.faults.contract import SpecProblem
from onceproof.oracle.contract.expectation import Expectation
from onceproof.oracle.contract.inputs import Inputs
from onceproof.scenario import kinds
from onceproof.scenario.model import OracleSpec, Scenario


class Oracle(Protocol):
    Spec: ClassVar[type[OracleSpec]]
    about: ClassVar[str]

    def __init__(self, spec: Any) -> None: ...

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]: ...

    def expect(self, inputs: Inputs) -> Expectation:
        """What each output must hold, by these inputs and nothing else. It may be asked several times, of other views of them.

        Raises `onceproof.base.errors.NotEvaluated` where that cannot be said.
        """


oracles: Registry[type[Oracle]] = kinds.oracles
