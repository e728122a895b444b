"""Which findings a claim allows, and which anomalies it needs evaluated.

All anomalies are computed, and the claim then allows some of them, each with a reason. Each checker says which claims allow its
findings (`onceproof.judge.claim_rule`). A finding that this rule does not allow violates the claim, and so does a finding of an
anomaly that no checker is named after.
"""

from __future__ import annotations

from onceproof.judge.checker import checkers
from onceproof.judge.claim_rule import FORBIDDEN, ClaimRule
from onceproof.judge.findings import Finding
from onceproof.scenario.outputs import Claim

# Promises that a claim can leave out (``none``). ``delivery`` is always claimed.
_OPTIONAL = ("order", "atomic", "liveness")


def _rule(anomaly: str) -> ClaimRule:
    return checkers.get(anomaly).rule if anomaly in checkers.names() else FORBIDDEN


def allowance(finding: Finding, claim: Claim) -> str | None:
    """Why ``claim`` allows ``finding``, as a sentence; None if it does not."""
    for allowed in _rule(finding.anomaly).allows:
        if allowed.fits(claim) and (why := allowed.reason(finding)) is not None:
            return why
    return None


def undecided(finding: Finding, claim: Claim) -> str | None:
    """Why it is undecided whether ``claim`` allows ``finding``, as a sentence; None if it is decided.

    At-most-once allows a loss, and at-least-once a duplicate, depending on its cause. If the history does not show the cause,
    the claim may or may not be violated.
    """
    if finding.source != "unknown" or finding.unsettled is None or allowance(finding, claim) is not None:
        return None
    by_cause = any(allowed.by_cause and allowed.fits(claim) for allowed in _rule(finding.anomaly).allows)
    return f"Whether {claim.delivery} allows this cannot be decided: {finding.unsettled}" if by_cause else None


def needs(anomaly: str, claim: Claim) -> bool:
    """Whether ``claim`` can be held only if ``anomaly`` was evaluated."""
    rule = _rule(anomaly)
    return not rule.counted_as and not rule.leaves_out(claim)


def breaks(anomaly: str, promise: str) -> bool:
    """Whether ``anomaly`` is what breaks ``promise`` (``order``, ``atomic`` or ``liveness``)."""
    return _rule(anomaly).judges(promise)


def unjudged(claim: Claim) -> list[str]:
    """The promises in ``claim`` that no registered checker judges, so that it cannot be held."""
    return [
        f"claim {promise}: {level} is not judged: no registered checker looks for what breaks it"
        for promise in _OPTIONAL
        if (level := getattr(claim, promise)) != "none"
        and not any(breaks(anomaly, promise) for anomaly in checkers.names())
    ]
