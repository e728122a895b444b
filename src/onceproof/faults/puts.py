"""Shared by the faults of the object store: they strike the PUT with which the driver writes ``commits/N``.

The rule is armed when the batch is planned. Its pattern names the query's own log, so it cannot stop a PUT of another query.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, SpecProblem
from onceproof.faults.frames import AtItsFrame, StoppedRequest
from onceproof.faults.placement import point_problems
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Action, Condition, Rule
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


class StoppedPut(StoppedRequest):
    """The PUT of ``commits/N``."""

    def __init__(self, action: Action, *, attempts: bool = False) -> None:
        """``attempts``: stop each PUT of the entry, also those of its temporary file, and not only the first of the entry."""
        super().__init__("object-store", Rule(Condition("put"), action, times=None if attempts else 1, name=action))
        self._attempts = attempts

    def arm(self, context: FaultContext, seen: Occurrence, *others: Rule) -> None:
        """Arm the rule, for this batch's entry, while the job is stopped."""
        entry = re.escape(f"{folder_of(context, seen.query)}/commits/")
        # Spark's own manager writes .N.UUID.tmp, and copies that to N: both are PUTs.
        name = rf"\.?{seen.batch}(\.[^/]*)?" if self._attempts else str(seen.batch)
        self.rule.condition = Condition("put", key=rf"/{entry}{name}$")
        super().arm(context, seen, *others)


class PutFault(AtItsFrame):
    """What the faults of the object store have in common."""

    _put: StoppedPut

    @classmethod
    def problems(cls, spec: PutSpec, scenario: Scenario) -> list[SpecProblem]:
        """Why this fault cannot work: a point without a PUT, or a checkpoint that is not in an object store."""
        problems = point_problems(spec, (POINT,))
        if scenario.stack.object_store is None:
            hint = "add `object_store: {}` to the stack"
            problems.append(SpecProblem(("target",), "this stack has no object store", hint))
        return problems

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
