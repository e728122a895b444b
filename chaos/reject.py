"""Reject: a real refusal by the sink's service. Here: Postgres is away for one whole batch.

A job that swallows the error stays alive and loses data, which no kill would show.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from onceproof.conductor import Site
from onceproof.faults import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.placing import RESTART_S, committed, instruments_of, one_line, placement, planned, point_problems
from onceproof.points import Point
from onceproof.qualify.job import Job, Try, at_checkpoint
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.waiting import wait_until

_ATTEMPT_S = 60.0
"""A refused connection fails at once; this leaves room for a job that retries on its own for a while."""


class RejectSpec(FaultSpec):
    fault: Literal["reject"]
    target: Literal["postgres"]
    how: Literal["unavailable"]


@faults.register("reject")
class Reject:
    """Connections are closed and refused from the moment the batch is planned until an attempt at it has failed."""

    Spec: ClassVar[type[FaultSpec]] = RejectSpec
    about: ClassVar[str] = "the service refuses: Postgres is unavailable for one whole batch"

    def __init__(self, spec: RejectSpec) -> None:
        self._spec = spec
        self._struck_at: float | None = None
        self._open = False

    @classmethod
    def problems(cls, spec: RejectSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, (Point.AFTER_OFFSET_LOG,))
        if scenario.stack.postgres is None:
            problems.append(SpecProblem(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
        return problems

    @classmethod
    def placement(cls, spec: RejectSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        return placement(
            spec.at.point, f"an attempt at batch {n} failed while Postgres was away; {n} committed after", scenario
        )

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]:
        point = Point.AFTER_OFFSET_LOG
        if not any(sink.target == "postgres" for sink in job.sinks):
            return [Try(point, n_a="no commit of the job to a Postgres was seen, and only that can refuse so far")]
        return at_checkpoint(job, (point,), {"target": "postgres", "how": "unavailable"})

    def matches(self, seen: Occurrence) -> bool:
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def strike(self, site: Site, seen: Occurrence) -> None:
        assert site.stack.postgres is not None
        self._struck_at = site.timeline.now()
        with site.job.frozen():
            site.stack.postgres.proxy.cut()
            self._open = planned(site, seen.query, seen.batch) and not committed(site, seen.query, seen.batch)

    def prove(self, site: Site, seen: Occurrence) -> Proof:
        n, struck_at = seen.batch, self._struck_at
        assert struck_at is not None
        if not self._open:
            return Proof(False, (f"batch {n} was not open any more when Postgres went away",))

        def over() -> str | None:
            if committed(site, seen.query, n):
                return "committed"
            failed = site.told_since(struck_at, "attempt-failed", sink="postgres", query=seen.query, batch=n)
            if failed is not None:
                return f"the sink reported: {one_line(failed.facts.get('message'))}"
            gone = site.job.failed_since(struck_at)
            return None if gone is None else f"the driver's attempt failed (exit code {gone.code})"

        attempt = wait_until(f"an attempt at batch {n} to fail", over, deadline_s=_ATTEMPT_S)
        if attempt == "committed":
            return Proof(
                False, (f"batch {n} was committed while Postgres was away: it did not need Postgres, or hid the error",)
            )
        self.heal(site)
        wait_until(
            f"batch {n} to be committed after Postgres came back",
            lambda: committed(site, seen.query, n),
            deadline_s=RESTART_S,
        )
        return Proof(True, (attempt, f"batch {n} was committed after Postgres came back"))

    def heal(self, site: Site) -> None:
        if site.stack.postgres is not None and self._struck_at is not None:
            site.stack.postgres.proxy.heal()
