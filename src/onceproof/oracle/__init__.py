"""Oracles: functions from the input of a run to what its outputs must hold. One file per kind, registered here by name."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from onceproof.base.registry import Registry
from onceproof.faults.contract import SpecProblem
from onceproof.oracle.contract.expectation import Expectation
from onceproof.oracle.contract.inputs import Inputs
from onceproof.scenario import kinds
from onceproof.scenario.model import OracleSpec, Scenario


class Oracle(Protocol):
    """One kind of oracle."""

    Spec: ClassVar[type[OracleSpec]]
    about: ClassVar[str]

    def __init__(self, spec: Any) -> None: ...

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]: ...

    def expect(self, inputs: Inputs) -> Expectation:
        """Return what each output must hold. The result depends on ``inputs`` only; the judge may ask again, with other views of them.

        Raises `onceproof.base.errors.NotEvaluated` if there is no answer.
        """


oracles: Registry[type[Oracle]] = kinds.oracles.requires(Oracle, Spec=OracleSpec)


def oracle_of(spec: OracleSpec) -> Oracle:
    return oracles.get(spec.kind)(spec)
