"""Shared by the faults of the object store: they strike the PUT with which the driver writes ``commits/N``.

The rule is armed when the batch is planned. Its pattern names the query's own log, so it cannot stop a PUT of another query.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, missed
from onceproof.faults.frames import HIT_S, at_plan, placement_at_frame
from onceproof.faults.placement import committed, is_open, point_problems
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Action, Condition, Hit, Rule
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.model import At, FaultSpec, Scenario
from onceproof.scenario.points import Point

POINT = Point.AFTER_SINK_COMMIT


class PutAt(At):
    """The position of a fault of the object store."""

    point: Point = Field(
        POINT, description="the place in the batch's commit protocol: the PUT of commits/N comes there"
    )


class PutSpec(FaultSpec):
    target: Literal["object-store"]
    at: PutAt


def put_placement(spec: PutSpec, proof: str, scenario: Scenario) -> Placement:
    return placement_at_frame(spec.at.point, proof, scenario)


class StoppedPut:
    """The PUT of ``commits/N``: `arm` arms the rule, `wait_for_put` returns the stopped request, `close` disarms the rule."""

    def __init__(self, action: Action, *, attempts: bool = False) -> None:
        """``attempts``: stop each PUT of the entry, also those of its temporary file, and not only the first of the entry."""
        self._action = action
        self._attempts = attempts
        self._rule: Rule | None = None
        self._was_open = False

    @property
    def rule(self) -> Rule:
        assert self._rule is not None, "armed by `strike`"
        return self._rule

    def arm(self, context: FaultContext, seen: Occurrence) -> None:
        """Arm the rule while the job is stopped."""
        assert context.stack.frames is not None, "the run starts the protocol proxy for a fault that reads frames"
        entry = re.escape(f"{folder_of(context, seen.query)}/commits/")
        # Spark's own manager writes .N.UUID.tmp, and copies that to N: both are PUTs.
        name = rf"\.?{seen.batch}(\.[^/]*)?" if self._attempts else str(seen.batch)
        condition = Condition("put", key=rf"/{entry}{name}$")
        self._rule = Rule(condition, self._action, times=None if self._attempts else 1, name=self._action)
        with context.job.frozen():
            context.stack.frames.arm("object-store", self._rule)
            self._was_open = is_open(context, seen.query, seen.batch)

    def wait_for_put(self, context: FaultContext, seen: Occurrence) -> Hit | Proof:
        """The first stopped PUT; or a miss that says why there is none."""
        if not self._was_open:
            return missed(f"batch {seen.batch} was no longer open when the rule was armed")

        def raise_if_committed() -> None:
            if committed(context, seen.query, seen.batch) and not self.rule.hits:
                raise WaitTimeout(f"batch {seen.batch} was committed without a {self.rule.describe()}")

        what = f"a {self.rule.describe()}"
        try:
            return wait_until(
                what, lambda: next(iter(self.rule.hits), None), deadline_s=HIT_S, abandon=raise_if_committed
            )
        except WaitTimeout as never:
            return missed(never.message, f"nearest: {self.rule.nearest()}")

    def close(self, context: FaultContext) -> None:
        if context.stack.frames is not None and self._rule is not None:
            context.stack.frames.disarm("object-store", self._rule)


class PutFault:
    """What the faults of the object store have in common."""

    _put: StoppedPut

    @classmethod
    def reads_frames(cls, spec: AnyFaultSpec) -> bool:
        return True

    @classmethod
    def problems(cls, spec: PutSpec, scenario: Scenario) -> list[SpecProblem]:
        """Why this fault cannot work: a point without a PUT, or a checkpoint that is not in an object store."""
        problems = point_problems(spec, (POINT,))
        if scenario.stack.object_store is None:
            hint = "add `object_store: {}` to the stack"
            problems.append(SpecProblem(("target",), "this stack has no object store", hint))
        return problems

    def matches(self, seen: Occurrence) -> bool:
        return at_plan(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._put.arm(context, seen)

    def heal(self, context: FaultContext) -> None:
        self._put.close(context)


def folder_of(context: FaultContext, query: str) -> str:
    """The query's checkpoint, as the start of its keys in the bucket."""
    assert context.stack.object_store is not None, "validated"
    below = context.checkpoint.folder(query).relative_to(context.checkpoint.root)
    return (PurePosixPath(context.stack.object_store.folder) / below).as_posix()


def describe_put(frame: Frame) -> str:
    """A PUT, with what distinguishes it from others of the same key."""
    copied = f" (a copy of {frame.facts['copy_of']})" if "copy_of" in frame.facts else ""
    only_new = " (only if there is none)" if frame.facts.get("if_none_match") == "*" else ""
    return f"PUT {frame.facts['key']}{copied}{only_new}"
