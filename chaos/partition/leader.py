"""Partition of a leader: its packets from and to others are dropped, in one direction or both, while connections stay open.

``from: clients`` cuts the pipeline off from the leader, which still sends heartbeats: no other broker is elected, and the batch
must wait. ``from: cluster`` cuts the leader off from its followers and the controller: it is fenced, and another broker leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.evidence import leadership
from onceproof.faults.frames import wait_for_commit
from onceproof.faults.job import Job, Try
from onceproof.faults.placement import (
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
from onceproof.stack.api import Leadership, Lost, Proxy
from onceproof.stack.processes.connections import is_connected
from onceproof.stack.toxiproxy.dropping import begin_noting, drop_packets, requests_of


class PartitionSpec(FaultSpec):
    fault: Literal["partition"]
    target: Literal["leader"]
    leader_of: LeaderOf
    from_: Literal["clients", "cluster"] = Field("clients", alias="from", description="whom the leader is cut off from")
    lost: Literal["both", "to-leader", "from-leader"] = Field(
        "both", description="which packets are lost: all, only those to the leader, or only those from it"
    )
    for_s: PositiveFloat = Field(4.0, le=60.0, description="how long, seconds")


@faults.register("partition", "leader")
class LeaderPartition(AtItsPoint[PartitionSpec]):
    """A network partition that drops packets: no side gets an error, both wait."""

    Spec: ClassVar[type[FaultSpec]] = PartitionSpec
    about: ClassVar[str] = (
        "the leader of a partition is cut off from its clients, or from its followers and the controller"
    )

    def __init__(self, spec: PartitionSpec) -> None:
        self._spec = spec
        self._before: Leadership | None = None
        self._proxy: Proxy | None = None
        self._how = ""
        self._struck_at = 0.0
        self._open = False
        self._is_back = False

    @classmethod
    def needs_control(cls, spec: PartitionSpec) -> str | None:
        if spec.from_ == "clients":
            return None
        links = "the links between brokers"
        return links if spec.lost == "both" else f"each direction of {links}"

    @classmethod
    def notes_requests(cls, spec: PartitionSpec) -> bool:
        """True if clients are cut off: a cut that no request met changed nothing."""
        return spec.from_ == "clients"

    @classmethod
    def problems(cls, spec: PartitionSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = leader_problems(spec.leader_of, scenario)
        if spec.from_ == "clients":
            # Clients can be cut off from a single broker too; only a change of leader needs three.
            problems = [p for p in problems if p.loc != ("target",)]
        return problems + point_problems(spec, tuple(p for p in WATCHED if p is Point.AFTER_OFFSET_LOG))

    @classmethod
    def placement(cls, spec: PartitionSpec, scenario: Scenario) -> Placement:
        if spec.from_ == "clients":
            proof = f"clients sent requests meanwhile, and batch {spec.at.batch} was not committed until the partition ended"
        else:
            proof = f"another broker leads {spec.leader_of}, in a later epoch"
        return placement_at(spec.at.point, proof, scenario)

    @classmethod
    def more_tries(cls, job: Job) -> Iterator[Try]:
        """Each output topic: partition 0, whose leader is cut off from its clients, then from the other brokers."""
        for sink in job.places:
            if sink.target == "kafka":
                for cut_off in ("clients", "cluster"):
                    settings = {"target": "leader", "leader_of": f"{sink.place}/0", "from": cut_off}
                    words = f"{sink.place}, from {cut_off}"
                    yield Try(Point.AFTER_OFFSET_LOG, settings, job.at_query(sink.query), words=words)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        kafka = context.stack.kafka
        with context.job.frozen():
            self._before = kafka.leader(*split_leader_of(self._spec.leader_of))
            broker = self._before.broker
            if self._spec.from_ == "clients":
                self._proxy = kafka.client_proxy(broker)
                drop_packets(self._proxy, self._lost())
                begin_noting(self._proxy)
            else:
                self._how = kafka.isolate_broker(broker, self._lost())
            self._open = is_open(context, seen.query, seen.batch)
        self._struck_at = context.timeline.now()
        context.timeline.emit("broker.away", broker=broker, how=f"cut off from {self._spec.from_}")

    def _lost(self) -> Lost:
        lost: dict[str, Lost] = {"both": "both", "to-leader": "to-it", "from-leader": "from-it"}
        return lost[self._spec.lost]

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if not self._open:
            return missed(f"batch {seen.batch} was no longer open when the partition began")
        prove = self._prove_clients if self._spec.from_ == "clients" else self._prove_cluster
        return prove(context, seen)

    def _prove_clients(self, context: FaultContext, seen: Occurrence) -> Proof:
        assert self._before is not None and self._proxy is not None
        starts, proxy = context.job.starts, self._proxy
        ends_at = self._struck_at + self._spec.for_s
        connected = False

        def over() -> bool:
            nonlocal connected
            connected = connected or is_connected(context.job.pids(), proxy.listen)
            return context.timeline.now() >= ends_at or committed(context, seen.query, seen.batch)

        wait_until(
            f"the {self._spec.for_s} s of the partition to pass", over, deadline_s=self._spec.for_s + 5, every_s=0.2
        )
        lasted = context.timeline.now() - self._struck_at
        if committed(context, seen.query, seen.batch):
            self.heal(context)  # before the question: the answer may take long if the cluster has no leader
            why = leadership.why_not_needed(context.stack.kafka, self._spec.leader_of, self._before)
            return missed(f"batch {seen.batch} committed {lasted:.1f} s into the partition: {why}")
        if not connected:
            why = f"no process of the job was connected to broker {self._before.broker} during the partition"
            return missed(why)
        asked = requests_of(proxy)
        if not asked:
            return missed(
                f"no client sent broker {self._before.broker} a request during the partition, so it lost nothing"
            )
        self.heal(context)
        recovered = wait_for_commit(context, seen)
        restarted = " (the driver gave up and was started again)" if context.job.starts > starts else ""
        return proven(
            f"clients were cut off from broker {self._before.broker}, leader of {self._spec.leader_of}, for {lasted:.1f} s"
            f"{self._ways()}",
            f"meanwhile {asked}",
            f"batch {seen.batch} was not committed until the partition ended{restarted}",
            recovered,
        )

    def _prove_cluster(self, context: FaultContext, seen: Occurrence) -> Proof:
        assert self._before is not None
        before = self._before
        after = leadership.wait_for_new_leader(context.stack.kafka, self._spec.leader_of, before)
        ends_at = self._struck_at + self._spec.for_s
        wait_until(
            f"the {self._spec.for_s} s of the partition to pass",
            lambda: context.timeline.now() >= ends_at,
            deadline_s=self._spec.for_s + 5,
        )
        # The old leader may have acknowledged alone: it truncates those records when it follows the new leader.
        when = "during the partition" if committed(context, seen.query, seen.batch) else "after the partition"
        self.heal(context)
        wait_for_commit(context, seen)
        return proven(
            f"broker {before.broker} was cut off from its followers and the controller{self._ways()}: {self._how}",
            leadership.describe_move(self._spec.leader_of, before, after),
            f"batch {seen.batch} was committed {when}",
        )

    def _ways(self) -> str:
        return {
            "both": "",
            "to-leader": " (only packets to it were lost)",
            "from-leader": " (only packets from it were lost)",
        }[self._spec.lost]

    def heal(self, context: FaultContext) -> None:
        if self._before is None or self._is_back:
            return
        if self._proxy is not None:
            self._proxy.heal()
        elif self._spec.from_ == "cluster":
            context.stack.kafka.rejoin_broker(self._before.broker)
        self._is_back = True
        context.timeline.emit("broker.back", broker=self._before.broker)
