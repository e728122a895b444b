from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.findings import FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.qualify.cells import Cell, CellState
from onceproof.qualify.strongest import strongest
from onceproof.qualify.unclear import unclear_cells, unclear_runs
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import Claim


def run(*findings: Finding, missing: dict[str, str] | None = None) -> Verdict:
    return Verdict("small", Outcome.HELD, StatedClaim(), (), findings, not_evaluated=missing or {})


def found(anomaly: str, **more: Any) -> Finding:
    return Finding(anomaly, "last_seen", 3, "three", **more)


REPLAYED = found("duplicate", source="batch replay")
LOST = found("lost-write", source="fault")


@pytest.mark.parametrize(
    ("findings", "delivery", "broken"),
    [
        ([], "effectively-once", {}),
        ([REPLAYED], "at-least-once", {"effectively-once": ["duplicate"]}),
        ([LOST], "at-most-once", {"effectively-once": ["lost-write"], "at-least-once": ["lost-write"]}),
        ([found("duplicate", source="unknown")], None, None),
        ([REPLAYED, LOST], None, None),
        ([found("wrong-value")], None, None),
        ([found("torn-batch", source="batch", transient=True)], "effectively-once", {}),
    ],
)
def test_the_strongest_delivery_promise_that_no_finding_breaks(
    upsert: Scenario, findings: list[Finding], delivery: str | None, broken: dict[str, list[str]] | None
) -> None:
    claim = strongest([run(), run(*findings)], upsert)
    assert claim.delivery == delivery
    assert claim.broken == broken or broken is None
    assert claim.others == {"liveness": "recovers"}


def test_a_copy_of_unknown_cause_puts_at_least_once_in_doubt(
    upsert: Scenario,
) -> None:
    unknown = found("duplicate", source="unknown", unsettled="the batch in which they were written is not known")
    result = strongest([run(), run(unknown)], upsert)
    assert result.delivery is None
    assert result.broken == {"effectively-once": ["duplicate"], "at-most-once": ["duplicate"]}
    assert result.doubts == ["at-least-once: duplicate in last_seen: the batch in which they were written is not known"]
    known = strongest([run(unknown), run(found("duplicate", source="unknown"))], upsert)
    assert "at-least-once" in known.broken and not known.doubts


def test_a_stronger_promise_than_the_claimed_one_is_reported_if_it_held(upsert: Scenario) -> None:
    modest = upsert.model_copy(update={"claim": Claim(delivery="at-most-once")})
    assert strongest([run()], modest).delivery == "effectively-once"


def test_order_is_reported_only_if_it_is_claimed(upsert: Scenario) -> None:
    mixed = run(found("reordered"))
    assert strongest([mixed], upsert).delivery == "effectively-once"
    assert "order" not in strongest([run()], upsert).others
    ordered = upsert.model_copy(update={"claim": Claim(order="per-key")})
    assert strongest([run()], ordered).others == {"order": "per-key", "liveness": "recovers"}
    claim = strongest([mixed], ordered)
    assert (claim.delivery, claim.broken) == ("effectively-once", {"order per-key": ["reordered"]})


def test_a_promise_that_was_not_evaluated_is_in_doubt(upsert: Scenario) -> None:
    claim = strongest([run(missing={"duplicate@last_seen": "no stream\nof commits"})], upsert)
    assert claim.delivery is None
    assert claim.doubts[0] == "effectively-once: duplicate could not be evaluated: no stream"
    ordered = upsert.model_copy(update={"claim": Claim(order="per-key")})
    gap = strongest([run(missing={"reordered@last_seen": "an upsert shows no order"})], ordered)
    assert (gap.delivery, gap.others) == ("effectively-once", {"liveness": "recovers"})
    assert gap.doubts == ["order per-key: reordered could not be evaluated: an upsert shows no order"]
    assert strongest([run(missing={"slices": "no room"})], upsert).delivery == "effectively-once"


def test_a_promise_names_the_outputs_that_claim_it(upsert: Scenario) -> None:
    spec = upsert.outputs["last_seen"]
    loose = spec.model_copy(update={"claim": Claim(order="none")})
    both = upsert.model_copy(update={"claim": Claim(order="per-key"), "outputs": {"last_seen": loose, "totals": spec}})
    assert strongest([run()], both).others == {"order": "per-key of totals", "liveness": "recovers"}
    assert strongest([run(found("reordered"))], both).broken == {}, "that output claims no order"
    mixed = Finding("reordered", "totals", 3, "three")
    assert strongest([run(mixed)], both).broken == {"order per-key of totals": ["reordered"]}
    none = both.model_copy(update={"outputs": {"last_seen": loose}})
    assert "order" not in strongest([run()], none).others


def test_with_any_unclear_run_no_promise_is_reported_as_held(upsert: Scenario) -> None:
    claim = strongest([run(REPLAYED)], upsert, ["runs/x: it did not drain"])
    assert (claim.delivery, claim.others, claim.doubts) == (None, {}, ["runs/x: it did not drain"])
    assert claim.broken == {"effectively-once": ["duplicate"], "at-most-once": ["duplicate"]}


CRASHED, MISSED = "checker x crashed\nthere", "fault crash driver (batch 2 at after-sink-commit) fired but did not hit"


def ended(outcome: Outcome = Outcome.HELD, *whys: str, hit: bool = True, judged: bool = True) -> Verdict:
    fault = FaultReport("crash", "driver", "last_seen", 2, "after-sink-commit", True, True, hit)
    counts = {"expected.last_seen": 9} if judged else {}
    return Verdict("small", outcome, StatedClaim(), whys or (CRASHED,), faults=(fault,), counts=counts)


@pytest.mark.parametrize(
    ("verdict", "drained", "why"),
    [
        (ended(), True, None),
        (ended(Outcome.INCONCLUSIVE, MISSED, hit=False), True, None),
        (ended(Outcome.INCONCLUSIVE, "3 records were lost", MISSED, hit=False), True, "3 records were lost"),
        (ended(), False, "the run did not drain, so more may still have come"),
        (ended(Outcome.VIOLATED), False, "the run did not drain, so more may still have come"),
        (ended(Outcome.INCONCLUSIVE), True, "checker x crashed"),
        (ended(judged=False), True, "what output last_seen should hold is not known, or it could not be read"),
    ],
)
def test_reasons_why_a_run_proves_nothing(
    upsert: Scenario, tmp_path: Path, verdict: Verdict, drained: bool, why: str | None
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text(json.dumps({"scenario": {}, "drained": drained}))
    assert unclear_runs([], {"r": verdict}, tmp_path, upsert) == ([f"r: {why}"] if why else [])


def test_an_inconclusive_cell_is_one_doubt_not_a_second_one_of_its_run(
    upsert: Scenario, tmp_path: Path, matrix: list[Cell]
) -> None:
    done = {"state": CellState.EXERCISED, "verdict": Outcome.INCONCLUSIVE, "why": "no oracle", "runs": ("s", "r")}
    cell = replace(matrix[0], **done)  # type: ignore[arg-type]
    assert unclear_cells([cell]) == [f"{cell.title()}: no oracle"]
    assert unclear_runs([cell], {"r": ended(judged=False)}, tmp_path, upsert) == [], "the cell says so already"
