"""The last phase of a run before it is judged: asks an oracle that runs code, and stores its answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from onceproof.history.execution import Execution
from onceproof.history.run_directory import RunDir
from onceproof.judge.proposals import store_rows
from onceproof.oracle import oracle_of
from onceproof.oracle.contract.precomputed import OracleRunner, PrecomputedOracle, work_out
from onceproof.pipeline.spark_conf import job_environment
from onceproof.scenario.model import Scenario
from onceproof.scenario.templates import fill
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner


def ask_oracle(execution: Execution, execute: Callable[[Execution], None]) -> None:
    """Ask the oracle of an observed run. Does nothing for an oracle that runs no code.

    ``execute`` runs a scenario without judging it. If the oracle fails, ``run.json`` records it, and the run is inconclusive.
    Raises what ``execute`` raises, and `Interrupted`.
    """
    scenario, directory, timeline = execution.scenario, execution.directory, execution.timeline
    oracle = oracle_of(scenario.oracle)
    if not isinstance(oracle, PrecomputedOracle):
        return
    execution.phase("expect")
    fetched = components.ensure()
    secrets = scenario.pipeline.secrets

    def run_scenario(other: Scenario, where: Path) -> RunDir:
        inner = execution.of(other, where)
        try:
            execute(inner)
        finally:
            inner.timeline.close()
        return inner.directory

    with Owner() as owner:
        values = {
            "here": str(execution.here),
            "python": sys.executable,
            **{f"table.{name}": str(directory.tables / f"{name}.parquet") for name in scenario.pipeline.prepare.tables},
            **{f"topic.{scenario.known_as(name)}": name for name in scenario.topics()},
        }
        environment = job_environment(
            class_path=fetched.spark_jars,
            archive=fetched.spark_archive,
            scratch=owner.scratch,
            passfile=None,
            failpoints=None,
            own={name: fill(value, values) for name, value in scenario.pipeline.env.items()},
            secrets=secrets,
        )
        runner = OracleRunner(scenario, directory, owner, timeline, environment, values, run_scenario, store_rows)
        work_out(oracle, scenario.oracle.kind, runner)
