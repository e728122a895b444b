"""Late commit: another producer writes records to an input topic in a transaction, and commits it later.

Until then the records are in the log, and only a read_committed reader waits for the commit. Spark's Kafka source reads uncommitted
records by default (``kafka.isolation.level``), so their rows are visible before anyone knows whether they will be aborted (Jepsen's
Kafka workload: precommitted-read).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.foreign_transaction import ForeignSpec, ForeignTransaction, foreign_problems
from onceproof.faults.placement import RESTART_S, AtItsPoint, committed, placement_at
from onceproof.scenario.model import FaultSpec, Scenario


class LateCommitSpec(ForeignSpec):
    become: ClassVar[str] = "committed"

    fault: Literal["late-commit"]
    after_s: PositiveFloat = Field(
        5.0,
        le=30.0,
        description="how long the transaction is open after the batch of the fault is committed, seconds; it ends earlier once a "
        "batch with its records is committed",
    )


@faults.register("late-commit")
class LateCommit(AtItsPoint[LateCommitSpec]):
    """Keeps records in an open transaction until a batch has taken them, or until ``after_s`` shows that none does."""

    Spec: ClassVar[type[FaultSpec]] = LateCommitSpec
    about: ClassVar[str] = "another producer writes records to an input topic in a transaction, and commits it later"

    def __init__(self, spec: LateCommitSpec) -> None:
        self._spec = spec
        self._written: ForeignTransaction | None = None
        self._lock = threading.Lock()
        self._over = False

    @classmethod
    def problems(cls, spec: LateCommitSpec, scenario: Scenario) -> list[SpecProblem]:
        return foreign_problems(spec, scenario)

    @classmethod
    def placement(cls, spec: LateCommitSpec, scenario: Scenario) -> Placement:
        proof = (
            "the transaction was open when a batch with its records was committed, or no batch had taken them when it was committed; "
            "then a batch with them was"
        )
        return placement_at(spec.at.point, proof, scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._written = ForeignTransaction(self._spec, context)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        written = self._written
        assert written is not None, "it struck"
        evidence = [
            f"{self._spec.records} records were written at {seen.point} of batch {seen.batch}: {written.places()}"
        ]
        reason = f"batch {seen.batch} to be committed"
        wait_until(reason, lambda: committed(context, seen.query, seen.batch), deadline_s=RESTART_S)
        since = context.timeline.now()
        wait_until(
            "the transaction to have been open for long enough",
            lambda: bool(written.batches(seen)) or context.timeline.now() >= since + self._spec.after_s,
            deadline_s=self._spec.after_s + RESTART_S,
        )
        early = written.batches(seen)
        lasted = context.timeline.now() - since
        with self._lock:
            if self._over:
                return missed(*evidence, "the run ended before their transaction was to be committed")
            written.commit()
            self._over = True
        if early:
            return proven(*evidence, _taken_by(early), "then their transaction was committed")
        evidence.append(
            f"{lasted:.1f} s after batch {seen.batch} no batch had taken them, and their transaction was committed"
        )
        reason = "a batch whose offset range includes them to be committed"
        batches = wait_until(reason, lambda: written.batches(seen), deadline_s=RESTART_S)
        return proven(*evidence, f"{_taken_by(batches)} after that")

    def heal(self, context: FaultContext) -> None:
        with self._lock:
            if self._written is not None and not self._over:
                self._over = True
                self._written.abort()  # an open transaction would block every read_committed reader


def _taken_by(batches: Sequence[int]) -> str:
    one = len(batches) == 1
    numbers = ", ".join(map(str, batches))
    return f"{'batch' if one else 'batches'} {numbers} took them and {'was' if one else 'were'} committed"
