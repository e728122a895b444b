from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.findings import Finding, Outcome, Verdict
from onceproof.qualify.strongest import strongest
from onceproof.scenario.model import Claim, Scenario


def run(*findings: Finding, missing: dict[str, str] | None = None) -> Verdict:
    return Verdict("small", Outcome.HELD, {}, (), findings, not_evaluated=missing or {})


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
def test_the_strongest_delivery_that_nothing_breaks(
    upsert: Scenario, findings: list[Finding], delivery: str | None, broken: dict[str, list[str]] | None
) -> None:
    told = strongest([run(), run(*findings)], upsert)
    assert told.delivery == delivery
    assert told.broken == broken or broken is None
    assert told.others == {"liveness": "recovers"}


def test_a_weaker_claim_of_the_users_does_not_hide_a_stronger_truth(upsert: Scenario) -> None:
    modest = upsert.model_copy(update={"claim": Claim(delivery="at-most-once")})
    assert strongest([run()], modest).delivery == "effectively-once"


def test_order_is_told_only_where_it_is_claimed(upsert: Scenario) -> None:
    mixed = run(found("reordered"))
    assert strongest([mixed], upsert).delivery == "effectively-once"
    assert "order" not in strongest([run()], upsert).others
    ordered = upsert.model_copy(update={"claim": Claim(order="per-key")})
    assert strongest([run()], ordered).others == {"order": "per-key", "liveness": "recovers"}
    told = strongest([mixed], ordered)
    assert (told.delivery, told.broken) == ("effectively-once", {"order per-key": ["reordered"]})


def test_what_was_not_evaluated_is_not_said_to_hold(upsert: Scenario) -> None:
    told = strongest([run(missing={"duplicate@last_seen": "no stream\nof commits"})], upsert)
    assert told.delivery is None
    assert told.doubts[0] == "effectively-once: duplicate could not be evaluated: no stream"
    ordered = upsert.model_copy(update={"claim": Claim(order="per-key")})
    gap = strongest([run(missing={"reordered@last_seen": "an upsert shows no order"})], ordered)
    assert (gap.delivery, gap.others) == ("effectively-once", {"liveness": "recovers"})
    assert gap.doubts == ["order per-key: reordered could not be evaluated: an upsert shows no order"]
    assert strongest([run(missing={"slices": "no room"})], upsert).delivery == "effectively-once"
