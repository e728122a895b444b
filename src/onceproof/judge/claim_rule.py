"""How claims treat an anomaly, as its checker states it: which claims allow it, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onceproof.judge.findings import Finding
from onceproof.scenario.outputs import Claim


@dataclass(frozen=True)
class Allows:
    """Findings that some claims allow, and the reason that the report shows."""

    claim: Mapping[str, str]
    """The parts that a claim must have, as in a scenario: ``{"delivery": "at-least-once"}``; empty: any claim."""
    what: str
    """Which findings are allowed, for ``docs/claims.md`` and `onceproof explain`."""
    why: str
    """The reason in a report. ``{source}`` is the finding's source, ``{transient}`` is ``transient: `` if it is transient."""
    when: Callable[[Finding], bool] | None = None
    """Whether a finding is allowed; None: all are, so a claim with these parts does not need the anomaly judged."""
    by_cause: bool = False
    """Whether a finding is allowed depends on its cause. If the cause is unknown, it is undecided."""

    def fits(self, claim: Claim) -> bool:
        return all(getattr(claim, promise) == level for promise, level in self.claim.items())

    def reason(self, finding: Finding) -> str | None:
        if self.when is not None and not self.when(finding):
            return None
        return self.why.format(source=finding.source, transient="transient: " if finding.transient else "")


@dataclass(frozen=True)
class ClaimRule:
    """The first fitting entry of ``allows`` allows a finding. Without one, a claim forbids the anomaly and needs it judged."""

    allows: tuple[Allows, ...] = ()
    counted_as: str = ""
    """Which other anomalies count its lasting effects: a claim can then be held although this anomaly was not evaluated."""

    def leaves_out(self, claim: Claim) -> bool:
        """Whether ``claim`` allows every finding of this anomaly."""
        return any(allowed.when is None and allowed.fits(claim) for allowed in self.allows)

    def judges(self, promise: str) -> bool:
        """Whether this anomaly is what breaks ``promise``: it is then allowed if ``promise`` is ``none``."""
        return any(allowed.when is None and dict(allowed.claim) == {promise: "none"} for allowed in self.allows)


FORBIDDEN = ClaimRule()

#: Anomalies that were visible only for a while. They break no claim about the end.
TRANSIENT = Allows(
    claim={},
    what="findings that are gone at the quiet point",
    why="transient: it was visible during the run, and is gone at the quiet point",
    when=lambda finding: finding.transient,
)

#: At-most-once allows a loss if a fault caused it.
STRUCK = Allows(
    claim={"delivery": "at-most-once"},
    what="a loss in a batch that a fault struck",
    why="at-most-once allows a loss in a batch that a fault struck",
    when=lambda finding: finding.source == "fault",
    by_cause=True,
)
