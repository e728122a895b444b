"""A broker or the controller is away while a batch is open: killed and restarted, or stopped (SIGSTOP) and continued.

The broker is chosen as the leader of a partition, or as the coordinator of a transactional.id (the leader of the partition of
``__transaction_state`` in which Kafka keeps it). The symptom is that another broker leads. For the controller there is no such
symptom: a batch needs little of it, and that is what such a fault shows.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import Literal

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, missed, proven
from onceproof.faults.evidence import leadership
from onceproof.faults.frames import wait_for_commit
from onceproof.faults.placement import (
    PARKED,
    WATCHED,
    committed,
    instruments_of,
    is_open,
    leader_problems,
    placement_at,
    point_problems,
    split_leader_of,
)
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.api import Kafka, Leadership

_ALONE_S = 10.0
"""How long a batch may take without a controller; after this time the evidence says that it was not committed without it."""
_TRANSACTIONS = "__transaction_state"
_POINTS = tuple(p for p in (*WATCHED, *PARKED) if p is not Point.AFTER_COMMIT_LOG)

How = Literal["killed", "stopped"]


@dataclass(frozen=True)
class NodeChoice:
    """Which Kafka process to strike: exactly one field is set."""

    leader_of: str | None = None
    coordinator_of: str | None = None
    controller: bool = False

    def describe(self) -> str:
        if self.controller:
            return "the controller"
        if self.coordinator_of is not None:
            return f"the coordinator of transactional.id {self.coordinator_of}"
        return f"the leader of {self.leader_of}"

    def partition(self, kafka: Kafka) -> str:
        """TOPIC/PARTITION whose leader is to be struck."""
        if self.coordinator_of is not None:
            folders = kafka.log_folders(_TRANSACTIONS)
            partition = _java_hash(self.coordinator_of) % len(folders)
            key = transaction_key(self.coordinator_of)
            if not any(key in file.read_bytes() for file in folders[partition].glob("*.log")):
                raise EnvironmentProblem(f"no producer has used transactional.id {self.coordinator_of!r} yet")
            return f"{_TRANSACTIONS}/{partition}"
        assert self.leader_of is not None, "validated by `problems`"
        return self.leader_of

    def problems(self, scenario: Scenario) -> list[SpecProblem]:
        if self.leader_of is not None and (self.controller or self.coordinator_of is not None):
            message = f"leader_of does not apply to {self.describe()}"
            return [SpecProblem(("leader_of",), message, "remove leader_of")]
        if self.controller and self.coordinator_of is not None:
            message = "the controller coordinates no transactions"
            return [SpecProblem(("coordinator_of",), message, "remove coordinator_of")]
        if (self.controller or self.coordinator_of is not None) and scenario.stack.kafka.brokers < 3:
            message = f"a single node is both broker and controller: {self.describe()} cannot be struck alone"
            return [SpecProblem(("target",), message, "set stack.kafka.brokers to 3")]
        if self.controller or self.coordinator_of is not None:
            return []
        return leader_problems(self.leader_of, scenario)


class BrokerAway:
    """The striker of `onceproof.chaos.crash.kind` and `onceproof.chaos.stall.kind` for a broker or the controller."""

    def __init__(self, spec: FaultSpec, choice: NodeChoice, how: How) -> None:
        self._spec = spec
        self._choice = choice
        self._how = how
        self._leader_of = ""
        self._before: Leadership | None = None
        self._node: int | None = None
        self._healing = threading.Lock()
        self._epoch = 0
        self._open = False

    @classmethod
    def problems(
        cls, spec: FaultSpec, choice: NodeChoice, scenario: Scenario, *, also: tuple[Point, ...] = ()
    ) -> list[SpecProblem]:
        """``also``: points at which another striker strikes the target, for the hint."""
        return point_problems(spec, (*_POINTS, *also)) + choice.problems(scenario)

    @classmethod
    def placement(cls, spec: FaultSpec, choice: NodeChoice, how: How, scenario: Scenario) -> Placement:
        symptom = (
            "it becomes the controller again"
            if choice.controller
            else "another broker takes its place in a later epoch"
        )
        return placement_at(
            spec.at.point, f"{choice.describe()} was {how} while batch {spec.at.batch} was open; {symptom}", scenario
        )

    def matches(self, seen: Occurrence) -> bool:
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        kafka = context.stack.kafka
        with context.job.frozen():
            if self._choice.controller:
                self._node, self._epoch = kafka.controller, kafka.quorum_epoch()
            else:
                self._leader_of = self._choice.partition(kafka)
                self._before = kafka.leader(*split_leader_of(self._leader_of))
                self._node = self._before.broker
            if self._how == "killed":
                kafka.kill_broker(self._node)
            else:
                kafka.pause_broker(self._node)
            self._open = is_open(context, seen.query, seen.batch)
        if seen.release is not None:
            seen.release()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        assert self._node is not None
        if not self._open:
            return missed(f"batch {seen.batch} was no longer open when node {self._node} was {self._how}")
        evidence = [f"node {self._node}, {self._choice.describe()}, was {self._how} while batch {seen.batch} was open"]
        evidence.append(self._without_controller(context, seen) if self._choice.controller else self._moved(context))
        if not self._is_away(context):
            return missed(*evidence, f"node {self._node} was running again before the fault was healed")
        self.heal(context)
        if self._choice.controller and self._how == "killed":
            epoch = context.stack.kafka.quorum_epoch()
            evidence.append(
                f"it was started again, and leads the quorum in epoch {epoch} (before: epoch {self._epoch})"
            )
            if epoch <= self._epoch:
                return missed(*evidence)
        if not committed(context, seen.query, seen.batch) or not self._choice.controller:
            evidence.append(wait_for_commit(context, seen))
        return proven(*evidence)

    def heal(self, context: FaultContext) -> None:
        with self._healing:  # `prove` and the end of the run both call this
            if self._node is None:
                return
            if self._how == "stopped":
                context.stack.kafka.resume_broker(self._node)
            elif not context.stack.kafka.is_running(self._node):
                context.stack.kafka.restart_broker(self._node)
            self._node = None  # only after success: a heal that failed is tried again, and reported

    def _is_away(self, context: FaultContext) -> bool:
        assert self._node is not None
        if self._how == "killed":
            return not context.stack.kafka.is_running(self._node)
        return context.stack.kafka.is_paused(self._node)

    def _moved(self, context: FaultContext) -> str:
        assert self._before is not None
        after = leadership.wait_for_new_leader(context.stack.kafka, self._leader_of, self._before)
        return leadership.describe_move(self._leader_of, self._before, after)

    def _without_controller(self, context: FaultContext, seen: Occurrence) -> str:
        try:
            wait_until("", lambda: committed(context, seen.query, seen.batch), deadline_s=_ALONE_S)
        except WaitTimeout:
            return f"batch {seen.batch} was not committed within {_ALONE_S:.0f} s without it"
        return f"batch {seen.batch} was committed without it"


def transaction_key(transactional_id: str) -> bytes:
    """The key of its records in ``__transaction_state`` (TransactionLogKey, version 0). It includes the length, so that it is
    not found within a longer id."""
    name = transactional_id.encode()
    return struct.pack(">hh", 0, len(name)) + name


def _java_hash(text: str) -> int:
    """Kafka's ``Utils.abs(text.hashCode())``, which chooses a transactional.id's partition of ``__transaction_state``."""
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if signed == -(1 << 31) else abs(signed)
