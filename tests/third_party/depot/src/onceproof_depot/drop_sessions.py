"""Fault ``drop-sessions``: the database ends every session of the job, as a failover or the restart of a pooler does."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.placement import PARKED, instruments_of, is_open, placement_at, point_problems
from onceproof.faults.refusals import administrator, postgres_of
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point

_DROP = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND datname = %s"


class DropSessionsSpec(FaultSpec):
    fault: Literal["drop-sessions"]
    target: Literal["postgres"]


@faults.register("drop-sessions")
class DropSessions:
    """Clients get error 57P01 on their next statement. The server stays up, and new sessions can begin at once."""

    Spec: ClassVar[type[FaultSpec]] = DropSessionsSpec
    about: ClassVar[str] = "the database ends every session of the job, and accepts new ones"

    def __init__(self, spec: DropSessionsSpec) -> None:
        self._spec = spec
        self._dropped = 0
        self._was_open = False

    @classmethod
    def problems(cls, spec: DropSessionsSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, (Point.AFTER_OFFSET_LOG, *PARKED))
        if scenario.stack.postgres is None:
            problems.append(SpecProblem(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
        return problems

    @classmethod
    def placement(cls, spec: DropSessionsSpec, scenario: Scenario) -> Placement:
        return placement_at(spec.at.point, "the server ended at least one session while the batch was open", scenario)

    def matches(self, seen: Occurrence) -> bool:
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        postgres = postgres_of(context)
        with administrator(postgres) as connection:
            dropped = connection.execute(_DROP, (postgres.user, postgres.database)).fetchall()
        self._dropped = sum(ended is True for (ended,) in dropped)
        self._was_open = is_open(context, seen.query, seen.batch)
        if seen.release is not None:
            seen.release()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if not self._was_open:
            return missed(f"batch {seen.batch} was no longer open when the sessions were ended")
        if not self._dropped:
            return missed("the job had no session that could be ended")
        return proven(f"the server ended {self._dropped} session(s) of the job while batch {seen.batch} was open")

    def heal(self, context: FaultContext) -> None:
        """There is nothing to undo: the server accepts new sessions."""
