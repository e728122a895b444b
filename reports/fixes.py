"""What stops an anomaly, for reports: the advice for the output systems of the pipeline, that after its faults first."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from onceproof.base.errors import HistoryError
from onceproof.history.run_record import RunRecord
from onceproof.judge.anomalies import anomaly
from onceproof.judge.checker import checkers
from onceproof.scenario.model import Scenario
from onceproof.stores.contract import store_of, systems


def of_run(name: str, record: RunRecord) -> tuple[str, ...]:
    """What stops the anomaly in outputs such as this run's; in all systems, if its scenario is of another version."""
    chaos = [(str(one.get("fault")), str(one.get("target"))) for one in record.scenario.chaos or ()]
    faults = {text for kind, target in chaos for text in (kind, f"{kind} {target}")}
    try:
        return of_scenario(name, record.scenario.parsed(Path(), with_faults=False), faults)
    except (HistoryError, KeyError):
        return of_systems(name, faults=faults)


def of_scenario(name: str, scenario: Scenario, faults: Collection[str] = ()) -> tuple[str, ...]:
    """What stops the anomaly in outputs such as this scenario's, after these faults."""
    return of_systems(name, {store_of(spec).words.system for spec in scenario.outputs.values()}, faults)


def of_systems(name: str, stores: Collection[str] | None = None, faults: Collection[str] = ()) -> tuple[str, ...]:
    """What stops the anomaly in these output systems (default: in all); empty if the checker has no explanation.

    ``faults``: kinds of faults, alone and with their targets (``crash``, ``crash broker``).
    """
    if checkers.find(name) is None:
        return ()
    return anomaly(name).explanation.stops_for(systems() if stores is None else stores, faults)
