from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from onceproof.scenario_files.load import load
from onceproof.scenario_files.plan import plan


def test_a_plan_tells_faults_with_their_instrument_and_proof(write: Callable[..., Path]) -> None:
    told = plan(load(write()))
    assert told.guaranteed_batches == 10
    assert (told.input[0].topic, told.input[0].records) == ("flights", 60000)
    fault = told.faults[0]
    assert (fault.fault, fault.target, fault.batch, fault.point) == ("crash", "driver", 2, "after-sink-commit")
    assert fault.placement.exactness in ("exact", "approximate")
    assert fault.placement.instrument
    assert "replay" in fault.placement.proof
    assert {output.where for output in told.outputs} == {"table flights_out", "topic enriched"}


def test_a_plan_goes_to_json(write: Callable[..., Path]) -> None:
    told = plan(load(write()))
    assert json.loads(json.dumps(told.to_json()))["faults"][0]["placement"]["proof"] == told.faults[0].placement.proof


def test_a_plan_says_which_attempt_is_meant(write: Callable[..., Path]) -> None:
    again = "after-sink-commit}\n  - fault: crash\n    target: driver\n    at: {batch: 2, point: after-sink-commit, attempt: 2}"
    first, second = plan(load(write(("after-sink-commit}", again)))).faults
    assert "attempt" not in first.settings and second.settings["attempt"] == 2
