from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from onceproof.scenario_files.load import load
from onceproof.scenario_files.plan import plan


def test_a_plan_shows_each_fault_with_its_instrument_and_proof(write: Callable[..., Path]) -> None:
    planned = plan(load(write()))
    assert planned.guaranteed_batches == 10
    assert (planned.input[0].topic, planned.input[0].records) == ("flights", 60000)
    fault = planned.faults[0]
    assert (fault.fault, fault.target, fault.batch, fault.point) == ("crash", "driver", 2, "after-sink-commit")
    assert fault.placement.exactness in ("exact", "approximate")
    assert fault.placement.instrument
    assert "replay" in fault.placement.proof
    assert {output.where for output in planned.outputs} == {"table flights_out", "topic enriched"}


def test_a_plan_can_be_written_as_json(write: Callable[..., Path]) -> None:
    planned = plan(load(write()))
    assert (
        json.loads(json.dumps(planned.to_json()))["faults"][0]["placement"]["proof"]
        == planned.faults[0].placement.proof
    )


def test_a_plan_shows_the_attempt_of_a_fault(write: Callable[..., Path]) -> None:
    again = "after-sink-commit}\n  - fault: crash\n    target: driver\n    at: {batch: 2, point: after-sink-commit, attempt: 2}"
    first, second = plan(load(write(("after-sink-commit}", again)))).faults
    assert "attempt" not in first.settings and second.settings["attempt"] == 2
