"""What stops an anomaly, for reports: only the advice for the output systems of the pipeline."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from onceproof.base.errors import HistoryError
from onceproof.history.run_record import RunRecord
from onceproof.judge.anomalies import anomaly
from onceproof.scenario.model import Scenario
from onceproof.stores.contract import store_of, systems


def of_run(name: str, record: RunRecord) -> tuple[str, ...]:
    """What stops the anomaly in outputs such as this run's; in all systems, if its scenario is of another version."""
    try:
        return of_scenario(name, record.scenario.parsed(Path(), with_faults=False))
    except (HistoryError, KeyError):
        return of_systems(name)


def of_scenario(name: str, scenario: Scenario) -> tuple[str, ...]:
    """What stops the anomaly in outputs such as this scenario's."""
    return of_systems(name, {store_of(spec).words.system for spec in scenario.outputs.values()})


def of_systems(name: str, stores: Collection[str] | None = None) -> tuple[str, ...]:
    """What stops the anomaly in these output systems (default: in all); empty if the checker has no explanation."""
    try:
        return anomaly(name).explanation.stops_for(systems() if stores is None else stores)
    except KeyError:
        return ()
