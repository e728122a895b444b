"""One run, from a loaded scenario to its verdict: start, prepare, feed under faults, heal, collect, expect, judge, report.

When `run` returns or raises, every process that it started is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onceproof.base import signals
from onceproof.base.masking import hiding, of_environment
from onceproof.base.process import attentive
from onceproof.base.timeline import Listener
from onceproof.expectation.ask import ask_oracle
from onceproof.expectation.decode import decode_topics
from onceproof.formats.feed import check_registry
from onceproof.history.execution import Execution
from onceproof.history.run_directory import private_files
from onceproof.history.writer import HistoryWriter
from onceproof.judge.ending import accounted_for
from onceproof.judge.findings import Verdict
from onceproof.judge.verdict import check, write_verdict
from onceproof.kinds.contract import Start, kind_of
from onceproof.reports.html.files import reported
from onceproof.scenario.tiers import Tier
from onceproof.scenario_files.load import LoadedScenario
from onceproof.stack.processes.owner import Owner
from onceproof.stack.sharing.shared import SharedStack
from onceproof.stores.contract import make_ready


@dataclass(frozen=True)
class Result:
    verdict: Verdict
    run_dir: Path


def run(
    loaded: LoadedScenario,
    *,
    runs_dir: Path,
    seed: int | None = None,
    listeners: Sequence[Listener] = (),
    survey: bool = False,
    tier: Tier = "real",
    shared: SharedStack | None = None,
) -> Result:
    """Run one scenario and judge it. ``survey``: also record what it commits (`onceproof.faults.survey`).

    ``shared`` lends it a stack, if its kind of pipeline and its stack allow that. ``tier``: how the job is restarted after a kill.

    Raises `EnvironmentProblem` (a service that does not start, a full disk), `Interrupted` on a signal
    (`onceproof.base.signals`). The run directory, if it exists already, records the error.
    """
    scenario = loaded.scenario if seed is None else loaded.scenario.model_copy(update={"seed": seed})
    with signals.interruptible(), private_files(), hiding(of_environment(scenario.pipeline.secrets)):
        created = Execution.create(scenario, loaded.path, runs_dir, listeners, survey=survey, tier=tier, shared=shared)
        execution = created.on(loaded.profile)
        with reported(execution), accounted_for(execution):
            observe(execution)
            verdict = judged(execution)
            signals.check()
        return Result(verdict, execution.directory.path)


def observe(execution: Execution, start: Start | None = None) -> None:
    """Everything before the judge: execute the scenario, then let the oracle compute the expected output."""
    execute(execution, start)
    ask_oracle(execution, execute)


def execute(execution: Execution, start: Start | None = None) -> None:
    """Everything that uses live services: from the first process to the last row of history.

    ``start`` returns services that run already, for an execution that shares them with others.
    """
    kind = kind_of(execution.scenario)
    execution.begins()
    check_registry(execution.scenario, execution.here)
    make_ready(execution.scenario)
    execution.phase("fetch")
    start = start or kind.fetch(
        execution.scenario, survey=execution.survey, profile=execution.profile, shared=execution.shared
    )
    taken_back = execution.services_taken_back()
    with attentive(), taken_back, Owner() as owner, HistoryWriter(execution.directory.path) as writer:
        execution.phase("stack")
        services = start(owner, execution.directory.path, execution.timeline)
        execution.started(services.versions())
        execution.phase("prepare")
        pipeline = kind.prepare(execution, services, owner, writer)
        with pipeline.start():
            execution.phase("run")
            pipeline.drive()
            pipeline.heal()
        pipeline.collect()
        execution.phase("stop")
    decode_topics(execution.scenario, execution.here, execution.directory)
    execution.observed()


def judged(execution: Execution) -> Verdict:
    execution.phase("judge")
    verdict = replace(
        check(execution.directory.path), seconds=execution.seconds()
    )  # of the whole run, not only of `check`
    write_verdict(execution.directory.path, verdict)
    return verdict
