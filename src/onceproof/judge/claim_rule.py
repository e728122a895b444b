"""What an anomaly means for a claim, as its checker states it: which claims allow it, and for what reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onceproof.judge.findings import Finding
from onceproof.scenario.outputs import Claim


@dataclass(frozen=True)
class Allows:
    """Findings that some claims allow, and the reason that the report shows."""

    claim: Mapping[str, str]
    """The parts of a claim that must be so, as in a scenario: ``{"delivery": "at-least-once"}``; empty: any claim."""
    what: str
    """Which findings, for ``docs/claims.md`` and `onceproof explain`."""
    why: str
    """The reason in a report; ``{source}`` is the finding's, ``{transient}`` is ``transient: `` for one that is."""
    when: Callable[[Finding], bool] | None = None
    """Whether this finding is one of them; None: all are, so a claim with these parts does not need the anomaly judged."""
    by_cause: bool = False
    """It depends on the cause: whether a claim allows a finding whose cause is unknown is undecided."""

    def fits(self, claim: Claim) -> bool:
        return all(getattr(claim, promise) == level for promise, level in self.claim.items())

    def reason(self, finding: Finding) -> str | None:
        if self.when is not None and not self.when(finding):
            return None
        return self.why.format(source=finding.source, transient="transient: " if finding.transient else "")


@dataclass(frozen=True)
class ClaimRule:
    """The first of ``allows`` that fits allows a finding. Without any, every claim forbids it and needs it judged."""

    allows: tuple[Allows, ...] = ()
    counted_as: str = ""
    """Which anomalies count what it leaves behind: a claim can then be held where this one could not be evaluated."""

    def leaves_out(self, claim: Claim) -> bool:
        """Whether ``claim`` allows each of its findings."""
        return any(allowed.when is None and allowed.fits(claim) for allowed in self.allows)

    def judges(self, promise: str) -> bool:
        """Whether it is this anomaly that breaks ``promise``: it is allowed where nothing is promised."""
        return any(allowed.when is None and dict(allowed.claim) == {promise: "none"} for allowed in self.allows)


FORBIDDEN = ClaimRule()

#: What could be seen for a while. It breaks no claim about the end.
TRANSIENT = Allows(
    claim={},
    what="what is gone at the quiet point",
    why="transient: it could be seen on the way, and is gone at the quiet point",
    when=lambda finding: finding.transient,
)

#: At-most-once allows a loss by its cause.
STRUCK = Allows(
    claim={"delivery": "at-most-once"},
    what="a loss in a batch that a fault struck",
    why="at-most-once allows a loss in a batch that a fault struck",
    when=lambda finding: finding.source == "fault",
    by_cause=True,
)
