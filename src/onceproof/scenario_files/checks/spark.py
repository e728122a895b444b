"""Checks how a scenario's job is started: by ``stack.spark.submit``, in client mode, or as a client of Spark Connect."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise

from onceproof.scenario import templates
from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint, Loc


def complaints(scenario: Scenario) -> Iterator[Complaint]:
    """Why the job cannot be started as the scenario says."""
    cluster, command = scenario.stack.spark, scenario.pipeline.command
    parts: dict[Loc, list[str]] = {
        ("stack", "spark", "submit"): cluster.submit if cluster is not None else [],
        ("pipeline", "command"): command,
    }
    for loc, words in parts.items():
        pairs = pairwise(" ".join(words).replace("=", " ").split())
        if any(name in ("--deploy-mode", "spark.submit.deployMode") and mode == "cluster" for name, mode in pairs):
            message = "deploy mode cluster: the driver would run where onceproof can neither see nor end it"
            yield Complaint(loc, message, "use --deploy-mode client, see docs/your-spark.md", at_key=True)
    yield from _connect(scenario)
    if cluster is None or not cluster.submit:
        return
    if command[0] != "{python}":
        message = f"stack.spark.submit starts the job instead of {{python}}, but the command starts with {command[0]!r}"
        yield Complaint(("pipeline", "command", 0), message, 'begin the command with "{python}", or remove submit')
    program = templates.fill(cluster.submit[0], {"python": sys.executable})
    if not templates.used(program) and shutil.which(program) is None:
        message = f"stack.spark.submit: program {program!r} was not found"
        yield Complaint(("stack", "spark", "submit", 0), message, "give its path, or put its folder on PATH")


def _connect(scenario: Scenario) -> Iterator[Complaint]:
    connect = scenario.pipeline.connect
    if connect is None:
        return
    if scenario.stack.spark is not None:
        message = "the Connect server runs on this machine, not on the cluster of stack.spark"
        yield Complaint(("pipeline", "connect"), message, "remove connect, or spark from the stack", at_key=True)
    if not (master := connect.conf["spark.master"]).startswith("local"):
        message = f"spark.master is {master!r}: the Connect server runs on this machine"
        yield Complaint(("pipeline", "connect", "conf", "spark.master"), message, "use local[N]")
