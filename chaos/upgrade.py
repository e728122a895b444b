"""Upgrade: until its point the job runs as an older version, then it is killed, and its own version goes on with the checkpoint.

The scenario's `pipeline` is the new version, of which the oracle and the claim speak; without the fault it runs from the beginning.
Spark compares the schema of the state with that in the checkpoint, and little else: it refuses some changes, and continues after
others with state that means something else (``docs/upgrades.md``). ``checkpoint: removed`` is the usual remedy: the new version
begins with an empty checkpoint, and rebuilds its state from the input.
"""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.base.waiting import wait_until
from onceproof.chaos.checkpoint_damage import empty
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.frames import wait_for_restart
from onceproof.faults.placement import RESTART_S, WATCHED, AtItsPoint, committed, placement_at, point_problems
from onceproof.instruments.checkpoint_watcher import query_id_in
from onceproof.pipeline.program import Program
from onceproof.scenario.base import Model
from onceproof.scenario.model import Argument, FaultSpec, PipelineSpec, Scenario
from onceproof.scenario.points import Point

_KNOWN_S = 5.0
"""Limit for the watcher to read a log entry that was written before the sink ran, which takes milliseconds."""
#: Error classes of a checkpoint that does not fit the query (docs/upgrades.md). Others are errors of the new version itself.
_REFUSAL = re.compile(r"\[((?:STATE_STORE|STREAMING_STATEFUL_OPERATOR)_[A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")
_LOG_LINES = 400


class OldVersion(Model):
    """How the old version is started, where that differs from the scenario's pipeline."""

    command: list[str] | None = Field(
        None, min_length=1, description="its command (default: that of pipeline, with its args)"
    )
    args: dict[str, Argument | None] = Field(
        default_factory=dict, description="options that it has with another value; null: it does not have the option"
    )
    env: dict[str, str | None] = Field(
        default_factory=dict,
        description="variables that it has with another value; null: it does not have the variable",
    )


class UpgradeSpec(FaultSpec):
    fault: Literal["upgrade"]
    target: Literal["driver"]
    old: OldVersion = Field(description="how the job is started until then: what differs from pipeline")
    checkpoint: Literal["kept", "removed"] = Field(
        "kept", description="kept: the new version continues on the old one's checkpoint; removed: it begins with none"
    )


@faults.register("upgrade")
class Upgrade(AtItsPoint[UpgradeSpec]):
    """SIGKILL of the old version at the point; the supervisor then starts the scenario's own version."""

    Spec: ClassVar[type[FaultSpec]] = UpgradeSpec
    about: ClassVar[str] = "an older version of the job is replaced by the scenario's own, on the old one's checkpoint"

    def __init__(self, spec: UpgradeSpec) -> None:
        self._spec = spec
        self._start = 0
        self._struck_at = 0.0
        self._old: Program | None = None
        self._id: str | None = None
        self._was_committed = False

    @classmethod
    def problems(cls, spec: UpgradeSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, WATCHED)
        if scenario.pipeline.callable is not None and spec.old.command is not None:
            message = "pipeline.callable is started by a command of its own, which cannot have another one before"
            problems.append(SpecProblem(("old", "command"), message, "use old: args, or pipeline: command"))
        if cls.first_pipeline(spec, scenario) == scenario.pipeline:
            message = "the old version would be started like the new one"
            problems.append(SpecProblem(("old",), message, "name under old what differs: command, args or env"))
        if sum(isinstance(one, UpgradeSpec) for one in scenario.chaos) > 1:
            message = "a scenario has one old version, so there is one upgrade"
            problems.append(SpecProblem(("fault",), message, "remove the others"))
        if spec.checkpoint == "removed" and scenario.stack.object_store is not None:
            message = "only a checkpoint in a local folder can be removed, and this one is in the stack's object store"
            problems.append(SpecProblem(("checkpoint",), message, "remove object_store from the stack"))
        if spec.checkpoint == "removed" and spec.at.point is Point.AFTER_OFFSET_LOG:
            message = "onceproof reads the new log entry only after the fault has struck, and then it would be gone"
            problems.append(
                SpecProblem(("at", "point"), message, f"use {Point.AFTER_SINK_COMMIT} or {Point.AFTER_COMMIT_LOG}")
            )
        return problems

    @classmethod
    def first_pipeline(cls, spec: UpgradeSpec, scenario: Scenario) -> PipelineSpec:
        """The scenario's pipeline, as the old version is started."""
        now, old = scenario.pipeline, spec.old
        command = _with_args(now.command, old.args) if old.command is None else _with_args(old.command, old.args)
        env = {name: value for name, value in {**now.env, **old.env}.items() if value is not None}
        return now.model_copy(update={"command": command, "env": env})

    @classmethod
    def placement(cls, spec: UpgradeSpec, scenario: Scenario) -> Placement:
        goes_on = {
            "kept": "committed a batch in the old version's checkpoint, or Spark refused that checkpoint",
            "removed": "committed batch 0 of a new checkpoint",
        }[spec.checkpoint]
        proof = f"what the processes of both versions execute, by the kernel; the new version {goes_on}"
        return placement_at(spec.at.point, proof, scenario)

    @property
    def needs_input(self) -> bool:
        """True where nothing is left to replay: the new version's first batch then needs more input."""
        return self._was_committed and self._spec.checkpoint == "kept"

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        folder, n = context.checkpoint.folder(seen.query), seen.batch
        with context.job.frozen():
            if self._spec.checkpoint == "removed":
                # The watcher reads each new log entry: wait until it has read those that are removed here.
                plan = partial(context.checkpoint.batch, seen.query, n)
                wait_until(f"the plan of batch {n}", plan, deadline_s=_KNOWN_S)
            self._old = context.job.executes()
            self._id = query_id_in(folder)
            self._was_committed = committed(context, seen.query, n)
            if self._spec.checkpoint == "removed":
                empty(folder)
            self._struck_at = context.timeline.now()
            context.job.upgrade()
            self._start = context.job.kill_driver()  # frozen until now, so it has written nothing since

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        n, start = seen.batch, self._start
        evidence = [f"driver start {start}, the old version, was killed at {seen.point} of batch {n}"]
        wait_for_restart(context, start)
        new = wait_until("what the next driver executes", context.job.executes, deadline_s=_KNOWN_S)
        if self._old is None or not (changes := _changes(self._old, new)):
            return missed(*evidence, "the next driver was started like the one before it")
        evidence.append(f"driver start {start + 1} was started with {', '.join(changes)}")
        if self._spec.checkpoint == "removed":
            evidence.append("the checkpoint was removed while the driver was down")
        evidence.append(
            wait_until("the new version to go on", lambda: self._went_on(context, seen), deadline_s=RESTART_S)
        )
        return proven(*evidence)

    def _went_on(self, context: FaultContext, seen: Occurrence) -> str | None:
        """How the new version went on, once it has committed a batch or Spark has refused the checkpoint."""
        later = [
            (batch.batch, batch.committed_by)
            for batch in context.checkpoint.batches()
            if batch.query == seen.query and (batch.committed_by or 0) > self._start
        ]
        now = query_id_in(context.checkpoint.folder(seen.query))
        if later and self._spec.checkpoint == "removed" and now != self._id:
            return (
                f"driver start {later[0][1]} committed batch {later[0][0]} of a new checkpoint, under another query id"
            )
        first = seen.batch + 1 if self._was_committed else seen.batch
        if self._spec.checkpoint == "kept" and now == self._id and any(batch == first for batch, _ in later):
            again = "replayed the old version's batch" if first == seen.batch else "committed batch"
            return f"driver start {later[0][1]} {again} {first} in the same checkpoint, under the same query id"
        if self._spec.checkpoint == "kept" and context.job.failed_since(self._struck_at) is not None:
            found = _REFUSAL.findall(context.job.log_end(_LOG_LINES))
            if found:
                return f"Spark refused the checkpoint: the new version failed with {found[-1]}"
        return None


def _with_args(command: list[str], args: dict[str, str | int | bool | None]) -> list[str]:
    """The command with these options, each in the place of the one of that name, or at the end."""
    words = list(command)
    for name, value in args.items():
        own = [f"--{name}" if value is True else f"--{name}={value}"] if value is not None else []
        found = [i for i, word in enumerate(words) if word == f"--{name}" or word.startswith(f"--{name}=")]
        place = found[-1] if found else len(words)
        words[place : place + len(found[:1])] = own
    return words


def _changes(old: Program, new: Program) -> list[str]:
    """The words of the new command that the old one lacks, those that it has lost, and the variables that differ."""
    added = [repr(word) for word in new.command if word not in old.command]
    lost = [f"no {word!r}" for word in old.command if word not in new.command]
    names = sorted(name for name in {*old.env, *new.env} if old.env.get(name) != new.env.get(name))
    return [*added, *lost, *(f"another value of {name}" for name in names)]
