"""Checks a job that runs in a container: ``pipeline.image``."""

from __future__ import annotations

from collections.abc import Iterator

from onceproof.faults.contract import ReplacesJob, fault_of
from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint

_LOC = ("pipeline", "image")


def complaints(scenario: Scenario) -> Iterator[Complaint]:
    """What cannot be combined with an image."""
    pipeline, spark = scenario.pipeline, scenario.stack.spark
    if pipeline.image is None:
        return
    for what, given in (
        ("pipeline.connect", pipeline.connect is not None),
        ("pipeline.callable", pipeline.callable is not None),
        ("stack.spark.submit", spark is not None and bool(spark.submit)),
    ):
        if given:
            message = f"image runs pipeline.command in a container, and {what} starts programs of this machine"
            yield Complaint(_LOC, message, f"remove image, or {what}", at_key=True)
    if any(isinstance(fault_of(spec), ReplacesJob) for spec in scenario.chaos):
        message = "the proof of an upgrade compares processes of this machine, and the job runs in a container"
        yield Complaint(_LOC, message, "remove image, or the upgrade", at_key=True)
