"""Partition of Postgres: the server runs on, with its sessions and their locks, but the job cannot reach it for a while.

Packets are dropped: no side gets an error, and both wait. Where Postgres is in a container of this machine, the container is
disconnected from its network instead: then the job's connections break, and only the server keeps its half of them.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.frames import wait_for_commit
from onceproof.faults.placement import AtItsPoint, committed, is_open, placement_at, point_problems
from onceproof.faults.refusals import postgres_of
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.processes.connections import is_connected
from onceproof.stack.toxiproxy.dropping import begin_noting, requests_of

_LOOK_EVERY_S = 0.02
"""A client that is refused is connected to the proxy for a few milliseconds only."""


class PostgresPartitionSpec(FaultSpec):
    fault: Literal["partition"]
    target: Literal["postgres"]
    for_s: PositiveFloat = Field(4.0, le=60.0, description="how long, seconds")


@faults.register("partition", "postgres")
class PostgresPartition(AtItsPoint[PostgresPartitionSpec]):
    """Postgres is cut off from its clients from the moment the batch is planned."""

    Spec: ClassVar[type[FaultSpec]] = PostgresPartitionSpec
    about: ClassVar[str] = "Postgres is cut off from its clients, and keeps its sessions"

    def __init__(self, spec: PostgresPartitionSpec) -> None:
        self._spec = spec
        self._how: str | None = None
        self._struck_at = 0.0
        self._open = False
        self._is_back = False

    @classmethod
    def notes_requests(cls, spec: PostgresPartitionSpec) -> bool:
        """True: a cut that no request met changed nothing."""
        return True

    @classmethod
    def problems(cls, spec: PostgresPartitionSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, (Point.AFTER_OFFSET_LOG,))
        if scenario.stack.postgres is None:
            problems.append(SpecProblem(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
        return problems

    @classmethod
    def placement(cls, spec: PostgresPartitionSpec, scenario: Scenario) -> Placement:
        proof = f"batch {spec.at.batch} was not committed until the partition ended, although the job tried"
        return placement_at(spec.at.point, proof, scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        with context.job.frozen():
            self._how = ""  # from here on there is something to heal, even if the next line fails half-way
            self._how = postgres_of(context).isolate()
            begin_noting(postgres_of(context).proxy)
            self._open = is_open(context, seen.query, seen.batch)
        self._struck_at = context.timeline.now()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        n, starts = seen.batch, context.job.starts
        if not self._open:
            return missed(f"batch {n} was no longer open when the partition began")
        ends_at = self._struck_at + self._spec.for_s
        tried = ""

        def over() -> bool:
            nonlocal tried
            tried = tried or self._tried(context)
            return context.timeline.now() >= ends_at or committed(context, seen.query, n)

        reason = f"the {self._spec.for_s} s of the partition to pass"
        wait_until(reason, over, deadline_s=self._spec.for_s + 5, every_s=_LOOK_EVERY_S)
        lasted = context.timeline.now() - self._struck_at
        if committed(context, seen.query, n):
            return missed(f"batch {n} committed {lasted:.1f} s into the partition: it did not need Postgres")
        if not tried:
            return missed("no process of the job tried to reach Postgres during the partition")
        asked = requests_of(postgres_of(context).proxy)
        if not asked:
            return missed(
                "no client sent Postgres a statement or logged in during the partition, so the job lost nothing"
            )
        self.heal(context)
        recovered = wait_for_commit(context, seen)
        restarted = " (the driver gave up and was started again)" if context.job.starts > starts else ""
        return proven(
            f"Postgres was cut off from its clients for {lasted:.1f} s: {self._how}",
            f"meanwhile {tried}, and {asked}",
            f"batch {n} was not committed until the partition ended{restarted}",
            recovered,
        )

    def heal(self, context: FaultContext) -> None:
        if self._how is not None and not self._is_back:
            postgres_of(context).rejoin()
            self._is_back = True

    def _tried(self, context: FaultContext) -> str:
        """What the job did that needs Postgres, as a clause of evidence; empty if nothing so far."""
        if is_connected(context.job.pids(), postgres_of(context).proxy.listen):
            return "the job was connected to its proxy"
        failure = context.job.failed_since(self._struck_at)
        return "" if failure is None else f"the driver's attempt failed (exit code {failure.code})"
