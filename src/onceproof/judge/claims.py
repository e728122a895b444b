"""What a claim allows, and what it needs to be judged. Every anomaly is computed; this subtracts, with a reason.

The rules, one function each, stand in the order in which they are asked; the first that gives a reason allows the
finding. A finding that no rule allows violates the claim. ``docs/claims.md`` tells them to users.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from onceproof.judge.findings import Finding
from onceproof.scenario.model import Claim

# What can be left unclaimed (``none``), and the anomaly that breaks it. ``delivery`` is always claimed.
_JUDGED_BY = {"order": "reordered", "atomic": "torn-batch", "liveness": "stale-tail"}

# These say how something came about. What they leave behind at a quiet point breaks a claim; on the way they need not.
_ON_THE_WAY = {"torn-batch", "zombie-write", "commit-ahead-of-effect", "sink-disagreement", "diverged-replay"}

# Of these nothing stays that another anomaly does not count as well (a loss, a copy, a wrong content), so a claim can be
# said to hold where they could not be evaluated. An early read of input that was committed in the end leaves what is right;
# one of input that was aborted, or never ended, is found without any clock.
_IMPLIED = {"sink-disagreement", "zombie-write", "commit-ahead-of-effect", "diverged-replay", "precommitted-read"}

# A loss by any of these names, in a batch that a fault struck.
_LOSSES = {"lost-write", "sink-disagreement", "commit-ahead-of-effect"}


#: What a reordering is that no single key shows (its finding's ``source``).
ACROSS_KEYS = "another key"

#: A disagreement of outputs in how often they hold an effect (its finding's ``source``).
COPIES = "copies"


def _atomic(finding: Finding, claim: Claim) -> str | None:
    if finding.anomaly != "torn-batch":
        return None
    if claim.atomic == "none":
        kind = "transient: " if finding.transient else ""
        return f"{kind}no atomicity is claimed; an effect that stays away is a lost write"
    if claim.atomic == "transaction" and finding.source != "transaction":
        return "atomicity is claimed for transactions, and a batch may take several of them"
    return None


def _order(finding: Finding, claim: Claim) -> str | None:
    if finding.anomaly == "reordered" and claim.order == "none":
        return "no order is claimed"
    if finding.anomaly == "reordered" and claim.order == "per-key" and finding.source == ACROSS_KEYS:
        return "the order of each key is claimed, and none between keys"
    return None


def _liveness(finding: Finding, claim: Claim) -> str | None:
    if finding.anomaly == "stale-tail" and claim.liveness == "none":
        return "no recovery is claimed"
    return None


def _delivery(finding: Finding, claim: Claim) -> str | None:
    if claim.delivery == "at-least-once":
        if finding.anomaly == "duplicate" and finding.source not in (None, "unknown"):
            return f"at-least-once allows a duplicate whose cause is known: {finding.source}"
        if finding.anomaly == "zombie-write" and finding.source == "duplicate":
            return "at-least-once allows what it leaves behind: copies of right effects, whose cause is known"
        if finding.anomaly == "sink-disagreement" and finding.source == COPIES:
            return "at-least-once allows copies whose cause is known; the others are reported as duplicate"
    if claim.delivery == "at-most-once" and finding.anomaly in _LOSSES and finding.source == "fault":
        return "at-most-once allows a loss in a batch that a fault struck"
    return None


def _transient(finding: Finding, claim: Claim) -> str | None:
    if not finding.transient or finding.anomaly not in _ON_THE_WAY or finding.anomaly == "torn-batch":
        return None
    if finding.anomaly == "zombie-write" and finding.source == "older state" and claim.order != "none":
        return None  # for a while readers saw an identity go back
    if finding.anomaly == "sink-disagreement":
        return (
            "transient: the run reached no quiet point, and until then outputs may differ by what is still on its way"
        )
    return "transient: it could be seen on the way, and is gone at the quiet point"


_RULES: tuple[Callable[[Finding, Claim], str | None], ...] = (_atomic, _order, _liveness, _delivery, _transient)


def allowance(finding: Finding, claim: Claim) -> str | None:
    """Why ``claim`` allows ``finding``, as a sentence; None: it does not, and the claim is violated.

    The anomalies of `_ON_THE_WAY` violate only if they survive to the quiet point (``finding.transient`` is False) or
    contradict ``atomic`` or ``order``.
    """
    for rule in _RULES:
        if (why := rule(finding, claim)) is not None:
            return why
    return None


def undecided(finding: Finding, claim: Claim) -> str | None:
    """Why nobody can say whether ``claim`` allows ``finding``, as a sentence; None: it can be said.

    At-most-once allows a loss by its cause, at-least-once a copy: where the history does not show the cause, neither is broken for sure.
    """
    if finding.source != "unknown" or finding.unsettled is None or allowance(finding, claim) is not None:
        return None
    by_cause = (claim.delivery == "at-most-once" and finding.anomaly in _LOSSES) or (
        claim.delivery == "at-least-once" and finding.anomaly == "duplicate"
    )
    return f"Whether {claim.delivery} allows this cannot be decided: {finding.unsettled}" if by_cause else None


def needs(anomaly: str, claim: Claim) -> bool:
    """Whether ``claim`` cannot be said to hold while ``anomaly`` is not evaluated. Anomalies of third parties: always."""
    for promise, judged_by in _JUDGED_BY.items():
        if anomaly == judged_by:
            return bool(getattr(claim, promise) != "none")
    return anomaly not in _IMPLIED


def unjudged(claim: Claim, checkers: Collection[str]) -> list[str]:
    """Why ``claim`` cannot be said to hold with these ``checkers``: what it promises that none of them looks for."""
    return [
        f"claim {promise}: {getattr(claim, promise)} is not judged yet: no checker for {anomaly} is registered"
        for promise, anomaly in _JUDGED_BY.items()
        if getattr(claim, promise) != "none" and anomaly not in checkers
    ]
