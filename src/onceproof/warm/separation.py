"""Whether each schedule of a pipeline can have a checkpoint and a schema of its own: what its arguments and variables lead to."""

from __future__ import annotations

from pathlib import PurePosixPath

from onceproof.pipeline import callable_driver
from onceproof.scenario.model import PipelineSpec
from onceproof.scenario.templates import fill, used

#: Parts of a connection's address, which cannot name a schema.
_PARTS = {"postgres.host", "postgres.port", "postgres.database"}


def checkpoint_problem(pipeline: PipelineSpec) -> str | None:
    """Why schedules cannot have checkpoints of their own with this pipeline's arguments; None if they can."""
    option = f"--{callable_driver.CHECKPOINT}="
    given = [word.removeprefix(option) for word in pipeline.command if word.startswith(option)]
    if not given:
        return f"the callable has no argument {callable_driver.CHECKPOINT}: each schedule needs a checkpoint of its own"
    root = "/checkpoints"
    path = PurePosixPath(fill(given[-1], {"checkpoint": root}))
    if not path.is_relative_to(root) or ".." in path.parts:
        return (
            f"its checkpoint is {given[-1]}: only a plain path below {{checkpoint}} leads to a folder of each schedule"
        )
    return None


def shared_value(pipeline: PipelineSpec) -> str | None:
    """Which value of the pipeline would lead all schedules to the same place; None if there is none."""
    for text in pipeline.command:
        if found := sorted(used(text) & _PARTS):
            return f"{text} uses {{{found[0]}}}: only {{postgres}} and {{postgres.jdbc}} lead to the schema of each schedule"
    for name, text in pipeline.env.items():
        if found := sorted(used(text) & {"checkpoint", "postgres", "postgres.jdbc", *_PARTS}):
            return (
                f"variable {name} uses {{{found[0]}}}: schedules share one environment, and each has its own checkpoint and "
                "schema; give the function an argument instead"
            )
    return None
