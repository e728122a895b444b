"""The strongest claim that held: of what was exercised, and of nothing else.

Every anomaly of every run is known, those included that the user's claim allows, so each delivery promise can be held against
them. Order, atomicity and recovery are judged only where they are claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from onceproof.judge.claims import allowance, needs
from onceproof.judge.findings import Verdict
from onceproof.scenario.model import Claim, Scenario

Delivery = Literal["effectively-once", "at-least-once", "at-most-once"]
#: From the strongest down, as the model lists them.
DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)
_OTHERS = ("order", "atomic", "liveness")


@dataclass(frozen=True)
class Strongest:
    """Round-trips through JSON. ``None``: no claim of that kind held, or none can be said to have."""

    delivery: Delivery | None
    others: dict[str, str]
    """``order``, ``atomic``, ``liveness`` -> the claimed value, where it held."""
    broken: dict[str, list[str]]
    """Promise (``effectively-once``, ``order per-key``, ...) -> the anomalies that broke it."""
    doubts: list[str]
    """Why promises that nothing broke cannot be said to hold."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def strongest(verdicts: Iterable[Verdict], scenario: Scenario) -> Strongest:
    """From all runs whose faults were exercised (and the one without faults)."""
    runs = list(verdicts)
    broken: dict[str, list[str]] = {}
    doubts: list[str] = []
    delivery: Delivery | None = None
    for level in DELIVERIES:
        breaking = _breaking(runs, scenario, {"delivery": level, "order": "none", "atomic": "none"})
        if breaking:
            broken[level] = breaking
        elif unknown := _unknown(runs, scenario, {"delivery": level, "order": "none", "atomic": "none"}):
            doubts.append(f"{level}: {unknown}")
        else:
            delivery = level
            break
    others = {}
    for promise in _OTHERS:
        value = str(getattr(scenario.claim, promise))
        if value == "none":
            continue
        # What breaks the claim as it stands, and no longer does when this promise is taken out of it.
        kept = set(_breaking(runs, scenario, {}))
        breaking = sorted(kept - set(_breaking(runs, scenario, {promise: "none"})))
        if breaking:
            broken[f"{promise} {value}"] = breaking
        elif unknown := _unknown(runs, scenario, {}, only=promise):
            doubts.append(f"{promise} {value}: {unknown}")
        else:
            others[promise] = value
    return Strongest(delivery, others, broken, doubts)


def _claim(scenario: Scenario, output: str, instead: Mapping[str, str]) -> Claim:
    return scenario.claim_of(output).model_copy(update=dict(instead))


def _breaking(runs: list[Verdict], scenario: Scenario, instead: Mapping[str, str]) -> list[str]:
    return sorted(
        {
            finding.anomaly
            for run in runs
            for finding in run.findings
            if allowance(finding, _claim(scenario, finding.output, instead)) is None
        }
    )


def _unknown(
    runs: list[Verdict], scenario: Scenario, instead: Mapping[str, str], only: str | None = None
) -> str | None:
    """A checker that the claim needs and that could not be asked, in some run."""
    for run in runs:
        for name, why in sorted(run.not_evaluated.items()):
            checker, _, output = name.partition("@")
            claims = [_claim(scenario, one, instead) for one in ([output] if output else scenario.outputs)]
            if only is not None:  # needed for this promise, and not without it
                without = [claim.model_copy(update={only: "none"}) for claim in claims]
                needed = any(needs(checker, claim) for claim in claims) and not any(needs(checker, c) for c in without)
            else:
                needed = any(needs(checker, claim) for claim in claims)
            if needed and checker != "slices":
                return f"{checker} could not be evaluated: {why.splitlines()[0]}"
    return None
