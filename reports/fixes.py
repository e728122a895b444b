"""What stops an anomaly, for reports: the advice for the output systems of the pipeline, that after its faults first."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from onceproof.base.errors import HistoryError
from onceproof.history.run_record import RunRecord
from onceproof.judge.anomalies import anomaly
from onceproof.judge.checker import checkers
from onceproof.scenario.model import Scenario
from onceproof.stores.contract import store_of, systems


def of_run(name: str, record: RunRecord, output: str | None = None) -> tuple[str, ...]:
    """What stops the anomaly in this output of the run, or in any; in all systems, if its scenario is of another version."""
    faults = {text for one in record.scenario.chaos or () for text in _of_fault(one)}
    try:
        return of_scenario(name, record.scenario.parsed(Path(), with_faults=False), faults, output)
    except (HistoryError, KeyError):
        return of_systems(name, faults=faults)


def _of_fault(fault: dict[str, Any]) -> tuple[str, ...]:
    """How `Explanation.after` may name a fault of ``run.json``."""
    kind, at = str(fault.get("fault")), fault.get("at")
    return kind, f"{kind} {fault.get('target')}", str(at.get("point")) if isinstance(at, dict) else kind


def of_scenario(
    name: str, scenario: Scenario, faults: Collection[str] = (), output: str | None = None
) -> tuple[str, ...]:
    """What stops the anomaly in this output, or in any of the scenario's, after these faults."""
    outputs = [scenario.outputs[output]] if output in scenario.outputs else scenario.outputs.values()
    return of_systems(name, {store_of(spec).words.system for spec in outputs}, faults)


def of_systems(name: str, stores: Collection[str] | None = None, faults: Collection[str] = ()) -> tuple[str, ...]:
    """What stops the anomaly in these output systems (default: in all); empty if the checker has no explanation.

    ``faults``: kinds of faults, alone and with their targets (``crash``, ``crash broker``), and points (``between-sinks``).
    """
    if checkers.find(name) is None:
        return ()
    return anomaly(name).explanation.stops_for(systems() if stores is None else stores, faults)
