"""A broker or the controller is away while a batch is open: killed and restarted, or stopped (SIGSTOP) and continued.

The broker is chosen as the leader of a partition, or as the coordinator of a transactional.id (the leader of the partition of
``__transaction_state`` in which Kafka keeps it). The symptom is that another broker leads. For the controller there is no such
symptom: a batch needs little of it, and that is what such a fault shows.
"""

from __future__ import annotations

import struct
import threading
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.evidence import leadership
from onceproof.faults.frames import wait_for_commit
from onceproof.faults.placement import (
    PARKED,
    WATCHED,
    AtItsPoint,
    LeaderOf,
    committed,
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
POINTS = tuple(p for p in (*WATCHED, *PARKED) if p is not Point.AFTER_COMMIT_LOG)


class BrokerSpec(FaultSpec):
    """Settings of a fault of a broker: exactly one of them chooses it."""

    target: Literal["broker"]
    leader_of: LeaderOf | None = Field(None, description="TOPIC/PARTITION whose leader is struck")
    coordinator_of: str | None = Field(None, description="the transactional.id whose coordinator is struck")

    def describe(self) -> str:
        if self.coordinator_of is not None:
            return f"the coordinator of transactional.id {self.coordinator_of}"
        return f"the leader of {self.leader_of}"


class ControllerSpec(FaultSpec):
    target: Literal["controller"]

    def describe(self) -> str:
        return "the controller"


NodeSpecT = TypeVar("NodeSpecT", BrokerSpec, ControllerSpec)


class NodeAway(AtItsPoint[NodeSpecT]):
    """Base of the faults that keep a Kafka process away while a batch is open.

    A subclass chooses the process and proves the symptom; a class of a kind says how the process is struck.
    """

    how: ClassVar[Literal["killed", "stopped"]]
    symptom: ClassVar[str]

    def __init__(self, spec: NodeSpecT) -> None:
        self._spec = spec
        self._node: int | None = None
        self._healing = threading.Lock()
        self._open = False

    @classmethod
    def placement(cls, spec: NodeSpecT, scenario: Scenario) -> Placement:
        proof = f"{spec.describe()} was {cls.how} while batch {spec.at.batch} was open; {cls.symptom}"
        return placement_at(spec.at.point, proof, scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        kafka = context.stack.kafka
        with context.job.frozen():
            self._node = self._choose(kafka)
            if self.how == "killed":
                kafka.kill_broker(self._node)
            else:
                kafka.pause_broker(self._node)
            self._open = is_open(context, seen.query, seen.batch)
        context.timeline.emit("broker.away", broker=self._node, how=self.how)
        if seen.release is not None:
            seen.release()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        node, n = self._node, seen.batch
        assert node is not None
        if not self._open:
            return missed(f"batch {n} was no longer open when node {node} was {self.how}")
        evidence = [
            f"node {node}, {self._spec.describe()}, was {self.how} while batch {n} was open",
            self._while_away(context, seen),
        ]
        kafka = context.stack.kafka
        away = kafka.is_paused(node) if self.how == "stopped" else not kafka.is_running(node)
        if not away:
            return missed(*evidence, f"node {node} was running again before the fault was healed")
        self.heal(context)
        return self._prove_return(context, seen, evidence)

    def heal(self, context: FaultContext) -> None:
        with self._healing:  # `prove` and the end of the run both call this
            if self._node is None:
                return
            if self.how == "stopped":
                context.stack.kafka.resume_broker(self._node)
            elif not context.stack.kafka.is_running(self._node):
                context.stack.kafka.restart_broker(self._node)
            context.timeline.emit("broker.back", broker=self._node)
            self._node = None  # only after success: a heal that failed is tried again, and reported

    # -- for subclasses -------------------------------------------------------------------------------------------

    def _choose(self, kafka: Kafka) -> int:
        """The node to strike. The state before the fault is kept for the proof."""
        raise NotImplementedError

    def _while_away(self, context: FaultContext, seen: Occurrence) -> str:
        """What happened while the process was away, as evidence."""
        raise NotImplementedError

    def _prove_return(self, context: FaultContext, seen: Occurrence, evidence: list[str]) -> Proof:
        """The proof, once the process is back."""
        raise NotImplementedError


class BrokerAway(NodeAway[BrokerSpec]):
    """A broker is away, and another one takes its place."""

    symptom: ClassVar[str] = "another broker takes its place in a later epoch"
    points: ClassVar[tuple[Point, ...]] = POINTS
    """Points at which the kind can strike a partition's leader."""
    _leader_of: str
    _before: Leadership

    @classmethod
    def needs_control(cls, spec: BrokerSpec) -> str | None:
        return "the brokers" if spec.coordinator_of is None else "the brokers' files"

    @classmethod
    def problems(cls, spec: BrokerSpec, scenario: Scenario) -> list[SpecProblem]:
        if spec.coordinator_of is None:
            points = POINTS if spec.leader_of is None else cls.points
            return point_problems(spec, points) + leader_problems(spec.leader_of, scenario)
        problems = point_problems(spec, POINTS)
        if spec.leader_of is None:
            return problems + single_node_problems(spec, scenario)
        message = f"leader_of does not apply to {spec.describe()}"
        return [*problems, SpecProblem(("leader_of",), message, "remove leader_of")]

    def _choose(self, kafka: Kafka) -> int:
        self._leader_of = self._partition(kafka)
        self._before = kafka.leader(*split_leader_of(self._leader_of))
        return self._before.broker

    def _partition(self, kafka: Kafka) -> str:
        """TOPIC/PARTITION whose leader is to be struck."""
        coordinated = self._spec.coordinator_of
        if coordinated is None:
            assert self._spec.leader_of is not None, "validated by `problems`"
            return self._spec.leader_of
        folders = kafka.log_folders(_TRANSACTIONS)
        partition = _java_hash(coordinated) % len(folders)
        key = transaction_key(coordinated)
        if not any(key in file.read_bytes() for file in folders[partition].glob("*.log")):
            raise EnvironmentProblem(f"no producer has used transactional.id {coordinated!r} yet")
        return f"{_TRANSACTIONS}/{partition}"

    def _while_away(self, context: FaultContext, seen: Occurrence) -> str:
        after = leadership.wait_for_new_leader(context.stack.kafka, self._leader_of, self._before)
        return leadership.describe_move(self._leader_of, self._before, after)

    def _prove_return(self, context: FaultContext, seen: Occurrence, evidence: list[str]) -> Proof:
        return proven(*evidence, wait_for_commit(context, seen))


class ControllerAway(NodeAway[ControllerSpec]):
    """The controller is away; a batch may not need it."""

    symptom: ClassVar[str] = "it becomes the controller again"
    _epoch: int

    @classmethod
    def needs_control(cls, spec: ControllerSpec) -> str | None:
        return "the brokers"

    @classmethod
    def problems(cls, spec: ControllerSpec, scenario: Scenario) -> list[SpecProblem]:
        return point_problems(spec, POINTS) + single_node_problems(spec, scenario)

    def _choose(self, kafka: Kafka) -> int:
        node, self._epoch = kafka.controller, kafka.quorum_epoch()
        return node

    def _while_away(self, context: FaultContext, seen: Occurrence) -> str:
        try:
            wait_until("", lambda: committed(context, seen.query, seen.batch), deadline_s=_ALONE_S)
        except WaitTimeout:
            return f"batch {seen.batch} was not committed within {_ALONE_S:.0f} s without it"
        return f"batch {seen.batch} was committed without it"

    def _prove_return(self, context: FaultContext, seen: Occurrence, evidence: list[str]) -> Proof:
        if self.how == "killed":
            epoch = context.stack.kafka.quorum_epoch()
            evidence.append(
                f"it was started again, and leads the quorum in epoch {epoch} (before: epoch {self._epoch})"
            )
            if epoch <= self._epoch:
                return missed(*evidence)
        if not committed(context, seen.query, seen.batch):
            evidence.append(wait_for_commit(context, seen))
        return proven(*evidence)


def single_node_problems(spec: BrokerSpec | ControllerSpec, scenario: Scenario) -> list[SpecProblem]:
    """A problem if the stack has one Kafka node, which is then all of broker, coordinator and controller."""
    if scenario.stack.kafka.brokers >= 3:
        return []
    message = f"a single node is both broker and controller: {spec.describe()} cannot be struck alone"
    return [SpecProblem(("target",), message, "set stack.kafka.brokers to 3")]


class BrokerCrashSpec(BrokerSpec):
    fault: Literal["crash"]


@faults.register("crash", "broker")
class BrokerCrash(BrokerAway):
    """A broker's process dies at once, and is restarted after its successor leads."""

    Spec: ClassVar[type[FaultSpec]] = BrokerCrashSpec
    about: ClassVar[str] = "SIGKILL of a broker"
    how = "killed"
    points = (*POINTS, Point.IN_TASKS)  # there `onceproof.chaos.crash.leader` strikes it


class ControllerCrashSpec(ControllerSpec):
    fault: Literal["crash"]


@faults.register("crash", "controller")
class ControllerCrash(ControllerAway):
    """The controller's process dies at once, and is restarted."""

    Spec: ClassVar[type[FaultSpec]] = ControllerCrashSpec
    about: ClassVar[str] = "SIGKILL of the controller"
    how = "killed"


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
