"""What a claim allows, and what it needs to be judged. Every anomaly is computed; this subtracts, with a reason.

What is allowed each checker says itself (`onceproof.judge.claim_rule`). A finding that its rule does not allow violates the
claim, and so does one of an anomaly that no checker is named after.
"""

from __future__ import annotations

from onceproof.judge.checker import checkers
from onceproof.judge.claim_rule import FORBIDDEN, ClaimRule
from onceproof.judge.findings import Finding
from onceproof.scenario.outputs import Claim

# What can be left unclaimed (``none``). ``delivery`` is always claimed.
_OPTIONAL = ("order", "atomic", "liveness")


def _rule(anomaly: str) -> ClaimRule:
    return checkers.get(anomaly).rule if anomaly in checkers.names() else FORBIDDEN


def allowance(finding: Finding, claim: Claim) -> str | None:
    """Why ``claim`` allows ``finding``, as a sentence; None: it does not, and the claim is violated."""
    for allowed in _rule(finding.anomaly).allows:
        if allowed.fits(claim) and (why := allowed.reason(finding)) is not None:
            return why
    return None


def undecided(finding: Finding, claim: Claim) -> str | None:
    """Why nobody can say whether ``claim`` allows ``finding``, as a sentence; None: it can be said.

    At-most-once allows a loss by its cause, at-least-once a copy: where the history does not show the cause, neither is broken for sure.
    """
    if finding.source != "unknown" or finding.unsettled is None or allowance(finding, claim) is not None:
        return None
    by_cause = any(allowed.by_cause and allowed.fits(claim) for allowed in _rule(finding.anomaly).allows)
    return f"Whether {claim.delivery} allows this cannot be decided: {finding.unsettled}" if by_cause else None


def needs(anomaly: str, claim: Claim) -> bool:
    """Whether ``claim`` cannot be said to hold while ``anomaly`` is not evaluated."""
    rule = _rule(anomaly)
    return not rule.counted_as and not rule.leaves_out(claim)


def breaks(anomaly: str, promise: str) -> bool:
    """Whether it is this anomaly that breaks ``promise`` (``order``, ``atomic`` or ``liveness``)."""
    return _rule(anomaly).judges(promise)


def unjudged(claim: Claim) -> list[str]:
    """Why ``claim`` cannot be said to hold with these checkers: what it promises that none of them looks for."""
    return [
        f"claim {promise}: {level} is not judged: no registered checker looks for what breaks it"
        for promise in _OPTIONAL
        if (level := getattr(claim, promise)) != "none"
        and not any(breaks(anomaly, promise) for anomaly in checkers.names())
    ]
