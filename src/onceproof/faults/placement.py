"""What several fault kinds share: which instrument sees which point, who leads a partition, what cannot be placed where."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from onceproof.base.registry import suggest
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Placement, SpecProblem
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import LEFT_BEHIND, Point

#: Seen at the checkpoint of any job: by the checkpoint file system, or by the watcher where a job writes past that.
WATCHED = (Point.AFTER_OFFSET_LOG, Point.AFTER_SINK_COMMIT, Point.AFTER_COMMIT_LOG)
#: Seen by the checkpoint file system alone: nothing is in the checkpoint yet that a watcher could see.
GATED = (Point.BEFORE_OFFSET_LOG, Point.STATE_PARTLY_COMMITTED)
#: Reached by onceproof's own sinks, which park there.
PARKED = (Point.BEFORE_SINK_COMMIT,)

LeaderOf = Annotated[str, Field(pattern=r"^[^/]+/\d+$", description="TOPIC/PARTITION whose leader is meant")]

RESTART_S = 90.0
"""A cold driver took 8 to 20 s to its first commit on two loaded cores; this is the bound for declaring that it never came."""


def instruments_of(point: Point) -> tuple[str, ...]:
    """Which instruments see ``point``: ``checkpoint``, ``watcher``, ``failpoint``, or none yet."""
    if point in WATCHED:
        return ("checkpoint", "watcher")
    if point in GATED:
        return ("checkpoint",)
    return ("failpoint",) if point in PARKED else ()


def point_problems(spec: FaultSpec, allowed: tuple[Point, ...]) -> list[SpecProblem]:
    """A point where this kind cannot be placed."""
    if spec.at.point in allowed:
        return []
    places = ", ".join(p.value for p in Point if p in allowed)
    return [
        SpecProblem(
            ("at", "point"),
            f"{spec.fault} of {spec.target} cannot be placed at {spec.at.point.value!r}",
            f"it can be placed at: {places}",
        )
    ]


def placement(point: Point, proof: str, scenario: Scenario) -> Placement:
    """How a fault is put at ``point`` in this scenario, and what state is left behind there."""
    waits = {
        Point.BEFORE_OFFSET_LOG: "waits before it creates offsets/N",
        Point.AFTER_OFFSET_LOG: "waits after the rename to offsets/N",
        Point.AFTER_SINK_COMMIT: "waits before it creates commits/N",
        Point.AFTER_COMMIT_LOG: "waits after the rename to commits/N",
        Point.STATE_PARTLY_COMMITTED: "waits with one state file of the batch renamed and the others not; needs a query "
        "with two state partitions or more",
    }
    instruments = instruments_of(point)
    if "checkpoint" in instruments and not has_own_file_manager(scenario):
        return Placement("exact", "checkpoint file system", f"the driver {waits[point]}: {LEFT_BEHIND[point]}", proof)
    if "watcher" in instruments:
        why = f"the job sets {FILE_MANAGER} itself, so a write is seen after it was made, and the driver runs on"
        return Placement("approximate", "checkpoint watcher", f"{why}: {LEFT_BEHIND[point]}", proof)
    if "failpoint" in instruments:
        return Placement(
            "exact",
            "failpoint in the sink",
            f"the sink is parked there: {LEFT_BEHIND[point]}; needs a sink of onceproof.sinks",
            proof,
        )
    why = f"the job sets {FILE_MANAGER} itself" if instruments else "no instrument reaches this point yet"
    return Placement("n/a", "none", why, proof)


def has_own_file_manager(scenario: Scenario) -> bool:
    """Whether the scenario's command or environment names a manager of checkpoint files (a job's own code can do so too)."""
    pipeline = scenario.pipeline
    return any(FILE_MANAGER in word for word in (*pipeline.command, *pipeline.env.values()))


def leader_problems(leader_of: str | None, scenario: Scenario) -> list[SpecProblem]:
    """A leader that cannot be: no topic of that name, no such partition, or nowhere for leadership to go."""
    problems = []
    if scenario.stack.kafka.brokers < 3:
        problems.append(
            SpecProblem(("target",), "a single broker has nobody to take over from it", "set stack.kafka.brokers to 3")
        )
    if leader_of is None:
        return [*problems, SpecProblem((), "which leader? leader_of is missing", "for example leader_of: my-topic/0")]
    topic, _, partition = leader_of.rpartition("/")
    sizes = {i.topic: i.partitions for i in scenario.input}
    sizes |= {name: spec.partitions for name, spec in scenario.pipeline.prepare.topics.items()}
    if topic not in sizes:
        problems.append(SpecProblem(("leader_of",), f"no topic is named {topic!r}", suggest(topic, sorted(sizes))))
    elif int(partition) >= sizes[topic]:
        problems.append(
            SpecProblem(
                ("leader_of",),
                f"topic {topic!r} has no partition {partition}",
                f"its partitions are 0 to {sizes[topic] - 1}",
            )
        )
    return problems


def split_leader_of(leader_of: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)/(\d+)", leader_of)
    assert match is not None, "validated by the spec"
    return match.group(1), int(match.group(2))


def committed(context: FaultContext, query: str, batch: int) -> bool:
    return context.checkpoint.log_exists(query, "commits", batch)


def planned(context: FaultContext, query: str, batch: int) -> bool:
    return context.checkpoint.log_exists(query, "offsets", batch)


def state_written(context: FaultContext, query: str, batch: int) -> tuple[int, int]:
    """How many state stores of the query hold what ``batch`` wrote, and how many there are."""
    files = re.compile(rf"{batch + 1}(_[^.]*)?\.(changelog|delta|snapshot|zip)")
    root = context.checkpoint.folder(query) / "state"
    stores = {
        path.parent
        for path in root.rglob("*")
        if re.fullmatch(r"\d+(_[^.]*)?\.(changelog|delta|snapshot|zip)", path.name)
    }
    written = {path.parent for path in root.rglob("*") if files.fullmatch(path.name)}
    return len(written), len(stores)


def one_line(words: object) -> str:
    """A message that may run over several lines, as one sentence of evidence."""
    return " ".join(str(words).split())
