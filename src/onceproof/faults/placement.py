"""Helpers for placing faults: which instrument sees a point, which points and leaders a spec may name, what a batch left."""

from __future__ import annotations

import re
from typing import Annotated, Generic, TypeVar

from pydantic import Field

from onceproof.base.registry import suggest
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, SpecProblem
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import LEFT_BEHIND, Point

#: Seen at the checkpoint of any job: by the checkpoint file system, or by the watcher if the job does not write through it.
WATCHED = (Point.AFTER_OFFSET_LOG, Point.AFTER_SINK_COMMIT, Point.AFTER_COMMIT_LOG)
#: Seen only by the checkpoint file system: the checkpoint holds no file yet that the watcher could see.
GATED = (Point.BEFORE_OFFSET_LOG, Point.STATE_PARTLY_COMMITTED)
#: Reached by onceproof's own sinks, which park there.
PARKED = (Point.BEFORE_SINK_COMMIT,)

LeaderOf = Annotated[str, Field(pattern=r"^[^/]+/\d+$", description="TOPIC/PARTITION whose leader is struck")]

SpecT = TypeVar("SpecT", bound=FaultSpec)

RESTART_S = 90.0
"""A cold driver took 8 to 20 s to its first commit on two loaded cores; after this time the commit counts as missing."""


def instruments_of(point: Point) -> tuple[str, ...]:
    """The instruments that see ``point``: ``checkpoint``, ``watcher``, ``failpoint``, or none."""
    if point in WATCHED:
        return ("checkpoint", "watcher")
    if point in GATED:
        return ("checkpoint",)
    return ("failpoint",) if point in PARKED else ()


class AtItsPoint(Generic[SpecT]):
    """Base of the faults that strike when their batch reaches their point. ``heal`` does nothing unless a kind overrides it."""

    _spec: SpecT

    def matches(self, seen: Occurrence) -> bool:
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def heal(self, context: FaultContext) -> None:
        return


def point_problems(spec: FaultSpec, allowed: tuple[Point, ...]) -> list[SpecProblem]:
    """A problem if this kind cannot be placed at the spec's point."""
    if spec.at.point in allowed:
        return []
    places = ", ".join(p.value for p in Point if p in allowed)
    message = f"{spec.fault} of {spec.target} cannot be placed at {spec.at.point.value!r}"
    return [SpecProblem(("at", "point"), message, f"it can be placed at: {places}")]


def placement_at(point: Point, proof: str, scenario: Scenario) -> Placement:
    """How exactly a fault can strike at ``point`` in this scenario, and what state the batch has there."""
    waits = {
        Point.BEFORE_OFFSET_LOG: "waits before it creates offsets/N",
        Point.AFTER_OFFSET_LOG: "waits after the rename to offsets/N",
        Point.AFTER_SINK_COMMIT: "waits before it creates commits/N",
        Point.AFTER_COMMIT_LOG: "waits after the rename to commits/N",
        Point.STATE_PARTLY_COMMITTED: "waits with one state file of the batch renamed and the others not; the query must "
        "have at least two state partitions",
    }
    instruments = instruments_of(point)
    if "checkpoint" in instruments and not has_own_file_manager(scenario):
        return Placement("exact", "checkpoint file system", f"the driver {waits[point]}: {LEFT_BEHIND[point]}", proof)
    if "watcher" in instruments:
        why = f"the job sets {FILE_MANAGER} itself, so a write is seen only afterwards, while the driver runs on"
        return Placement("approximate", "checkpoint watcher", f"{why}: {LEFT_BEHIND[point]}", proof)
    if "failpoint" in instruments:
        why = f"the sink is parked there: {LEFT_BEHIND[point]}; needs a sink of onceproof.sinks"
        return Placement("exact", "failpoint in the sink", why, proof)
    why = f"the job sets {FILE_MANAGER} itself" if instruments else "no instrument reaches this point yet"
    return Placement("n/a", "none", why, proof)


def has_own_file_manager(scenario: Scenario) -> bool:
    """Whether the scenario's command or environment sets a checkpoint file manager (a job's code can do so too)."""
    pipeline = scenario.pipeline
    return any(FILE_MANAGER in word for word in (*pipeline.command, *pipeline.env.values()))


def leader_problems(leader_of: str | None, scenario: Scenario) -> list[SpecProblem]:
    """Why this leader cannot be struck: unknown topic, unknown partition, or no other broker that could take over."""
    problems = []
    if scenario.stack.kafka.brokers < 3:
        message = "no other broker could take over from a single one"
        problems.append(SpecProblem(("target",), message, "set stack.kafka.brokers to 3"))
    if leader_of is None:
        message = "leader_of is missing: the partition whose leader is struck"
        return [*problems, SpecProblem((), message, "for example leader_of: my-topic/0")]
    topic, partition = split_leader_of(leader_of)
    sizes = {i.topic: i.partitions for i in scenario.input}
    sizes |= {name: spec.partitions for name, spec in scenario.pipeline.prepare.topics.items()}
    if topic not in sizes:
        problems.append(SpecProblem(("leader_of",), f"no topic is named {topic!r}", suggest(topic, sorted(sizes))))
    elif partition >= sizes[topic]:
        message = f"topic {topic!r} has no partition {partition}"
        problems.append(SpecProblem(("leader_of",), message, f"its partitions are 0 to {sizes[topic] - 1}"))
    return problems


def split_leader_of(leader_of: str) -> tuple[str, int]:
    topic, _, partition = leader_of.rpartition("/")
    return topic, int(partition)


def committed(context: FaultContext, query: str, batch: int) -> bool:
    return context.checkpoint.log_exists(query, "commits", batch)


def planned(context: FaultContext, query: str, batch: int) -> bool:
    return context.checkpoint.log_exists(query, "offsets", batch)


def is_open(context: FaultContext, query: str, batch: int) -> bool:
    """Whether the batch is planned and not committed."""
    return planned(context, query, batch) and not committed(context, query, batch)


def state_written(context: FaultContext, query: str, batch: int) -> tuple[int, int]:
    """How many state stores of the query hold a file written by ``batch``, and how many state stores there are."""
    files = [*(context.checkpoint.folder(query) / "state").rglob("*")]

    def stores(version: str) -> int:
        name = re.compile(rf"{version}(_[^.]*)?\.(changelog|delta|snapshot|zip)")
        return len({path.parent for path in files if name.fullmatch(path.name)})

    return stores(str(batch + 1)), stores(r"\d+")


def one_line(text: object) -> str:
    """A message of several lines, joined to one line of evidence."""
    return " ".join(str(text).split())
