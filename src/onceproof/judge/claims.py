"""What a claim allows, and what it needs to be judged. Every anomaly is computed; this subtracts, with a reason."""

from __future__ import annotations

from collections.abc import Collection

from onceproof.judge.findings import Finding
from onceproof.scenario.model import Claim

# What can be left unclaimed (``none``), and the anomaly that breaks it. ``delivery`` is always claimed.
_JUDGED_BY = {"order": "reordered", "atomic": "torn-batch", "liveness": "stale-tail"}


def allowance(finding: Finding, claim: Claim, *, drained: bool) -> str | None:
    """Why ``claim`` allows ``finding``; None: it does not."""
    kind = (finding.anomaly, finding.source)
    if claim.delivery == "at-least-once" and finding.anomaly == "duplicate" and finding.source != "unknown":
        return f"at-least-once allows a duplicate whose cause is known: {finding.source}"
    if claim.delivery == "at-most-once" and kind in {("lost-write", "fault"), ("sink-disagreement", "fault")}:
        return "at-most-once allows an effect to be lost in a fault window"
    if claim.order == "none" and finding.anomaly == "reordered":
        return "no order is claimed"
    if claim.liveness == "none" and finding.anomaly == "stale-tail":
        return "no recovery is claimed"
    if finding.anomaly == "sink-disagreement" and not drained:
        return "the run reached no quiet point: until then outputs may differ by what is still on its way"
    return None


def needs(anomaly: str, claim: Claim) -> bool:
    """Whether ``claim`` cannot be said to hold while ``anomaly`` is not evaluated. Anomalies of third parties: always."""
    for promise, judged_by in _JUDGED_BY.items():
        if anomaly == judged_by:
            return bool(getattr(claim, promise) != "none")
    # Outputs disagree only where one of them lacks an effect, and that is a lost write or a stale tail already.
    return anomaly != "sink-disagreement"


def unjudged(claim: Claim, checkers: Collection[str]) -> list[str]:
    """Why ``claim`` cannot be said to hold with these ``checkers``: what it promises that none of them looks for."""
    return [
        f"claim {promise}: {getattr(claim, promise)} is not judged yet: no checker for {anomaly} is registered"
        for promise, anomaly in _JUDGED_BY.items()
        if getattr(claim, promise) != "none" and anomaly not in checkers
    ]
