"""Aborted input: another producer writes records to an input topic in a transaction, and aborts it.

The records remain in the log, and only a read_committed reader skips them. Spark's Kafka source reads uncommitted records by
default (``kafka.isolation.level``). Even for a read_committed reader the offsets then have gaps, so counting offsets does not
count records (KIP-98).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, proven
from onceproof.faults.foreign_transaction import ForeignSpec, ForeignTransaction, foreign_problems
from onceproof.faults.placement import RESTART_S, AtItsPoint, placement_at
from onceproof.scenario.model import FaultSpec, Scenario


class AbortedInputSpec(ForeignSpec):
    become: ClassVar[str] = "aborted"

    fault: Literal["aborted-input"]


@faults.register("aborted-input")
class AbortedInput(AtItsPoint[AbortedInputSpec]):
    """Writes aborted records to the log between two chunks of the feed; the pipeline must not process them."""

    Spec: ClassVar[type[FaultSpec]] = AbortedInputSpec
    about: ClassVar[str] = "another producer writes records to an input topic in a transaction, and aborts it"

    def __init__(self, spec: AbortedInputSpec) -> None:
        self._spec = spec
        self._written: ForeignTransaction | None = None

    @classmethod
    def problems(cls, spec: AbortedInputSpec, scenario: Scenario) -> list[SpecProblem]:
        return foreign_problems(spec, scenario)

    @classmethod
    def placement(cls, spec: AbortedInputSpec, scenario: Scenario) -> Placement:
        proof = (
            "the records are below the last stable offset, and a batch whose offset range includes them is committed"
        )
        return placement_at(spec.at.point, proof, scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._written = ForeignTransaction(self._spec, context)
        self._written.abort()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        written = self._written
        assert written is not None, "it struck"
        evidence = [
            f"{self._spec.records} records were written at {seen.point} of batch {seen.batch} and aborted: {written.places()}",
            "the last stable offsets have passed them: the transaction has ended",
        ]
        reason = "a batch whose offset range includes them to be committed"
        batches = wait_until(reason, lambda: written.batches(seen), deadline_s=RESTART_S)
        numbers = ", ".join(map(str, batches))
        return proven(*evidence, f"batch {numbers}, whose offset range includes them, was committed")
