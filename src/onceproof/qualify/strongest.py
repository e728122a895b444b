"""The strongest claim that held: of what was exercised, and of nothing else.

Every anomaly of every run is known, those included that the user's claim allows, so each delivery promise can be held against
them. Order, atomicity and recovery are judged only where they are claimed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from onceproof.judge.claims import allowance, needs, undecided
from onceproof.judge.findings import Finding, Verdict
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import Claim

Delivery = Literal["effectively-once", "at-least-once", "at-most-once"]
#: From the strongest down, as the model lists them.
DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)
_OTHERS = ("order", "atomic", "liveness")


@dataclass(frozen=True)
class Strongest:
    """Round-trips through JSON. ``None``: no claim of that kind held, or none can be said to have."""

    delivery: Delivery | None
    others: dict[str, str]
    """``order``, ``atomic``, ``liveness`` -> the claimed value, where it held; with the outputs that claim it, if others do not."""
    broken: dict[str, list[str]]
    """Promise (``effectively-once``, ``order per-key``, ...) -> the anomalies that broke it."""
    doubts: list[str]
    """Why promises that nothing broke cannot be said to hold."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def strongest(verdicts: Iterable[Verdict], scenario: Scenario, unclear: Sequence[str] = ()) -> Strongest:
    """From all runs whose faults were exercised (and the one without faults).

    ``unclear``: what of them proves nothing. With any, what is broken is told, and nothing is said to hold.
    """
    runs = list(verdicts)
    broken: dict[str, list[str]] = {}
    doubts: list[str] = list(unclear)
    delivery: Delivery | None = None
    for level in DELIVERIES:
        breaking = _breaking(runs, scenario, {"delivery": level, "order": "none", "atomic": "none"})
        if breaking:
            broken[level] = breaking
        elif unknown := _unknown(runs, scenario, {"delivery": level, "order": "none", "atomic": "none"}):
            doubts.append(f"{level}: {unknown}")
        elif not unclear:
            delivery = level
            break
    others: dict[str, str] = {}
    for promise in _OTHERS:
        for told, outputs in _claimed(promise, scenario).items():
            # What breaks the claim as it stands, and no longer does when this promise is taken out of it.
            kept = set(_breaking(runs, scenario, {}, outputs))
            breaking = sorted(kept - set(_breaking(runs, scenario, {promise: "none"}, outputs)))
            if breaking:
                broken[f"{promise} {told}"] = breaking
            elif unknown := _unknown(runs, scenario, {}, only=promise, outputs=outputs):
                doubts.append(f"{promise} {told}: {unknown}")
            elif not unclear:
                others[promise] = f"{others[promise]}, {told}" if promise in others else told
    return Strongest(delivery, others, broken, doubts)


def _claimed(promise: str, scenario: Scenario) -> dict[str, list[str]]:
    """What is claimed of it, with the outputs named where not all claim the same -> those outputs."""
    values: dict[str, list[str]] = {}
    for output in scenario.outputs:
        values.setdefault(str(getattr(scenario.claim_of(output), promise)), []).append(output)
    every = len(values) == 1
    return {
        value if every else f"{value} of {', '.join(outputs)}": outputs
        for value, outputs in values.items()
        if value != "none"
    }


def _claim(scenario: Scenario, output: str, instead: Mapping[str, str]) -> Claim:
    return scenario.claim_of(output).model_copy(update=dict(instead))


def _breaking(
    runs: list[Verdict], scenario: Scenario, instead: Mapping[str, str], outputs: Collection[str] | None = None
) -> list[str]:
    """``outputs``: of these alone, and of what is no output (an input topic that is found faulty). Default: of all."""
    return sorted(
        {
            finding.anomaly
            for run in runs
            for finding in run.findings
            if outputs is None or finding.output in outputs or finding.output not in scenario.outputs
            if _breaks(finding, _claim(scenario, finding.output, instead))
        }
    )


def _breaks(finding: Finding, claim: Claim) -> bool:
    return allowance(finding, claim) is None and undecided(finding, claim) is None


def _unknown(
    runs: list[Verdict],
    scenario: Scenario,
    instead: Mapping[str, str],
    only: str | None = None,
    outputs: Collection[str] | None = None,
) -> str | None:
    """A finding of unknown cause, or a checker that the claim needs and that could not be asked, in some run."""
    for run in runs:
        for finding in run.findings:
            if (outputs is None or finding.output in outputs) and only is None:
                why = undecided(finding, _claim(scenario, finding.output, instead))
                if why is not None:
                    return f"{finding.anomaly} in {finding.output}: {finding.unsettled}"
        for name, why in sorted(run.not_evaluated.items()):
            checker, _, output = name.partition("@")
            concerned = [one for one in ([output] if output else scenario.outputs) if outputs is None or one in outputs]
            claims = [_claim(scenario, one, instead) for one in concerned]
            if only is not None:  # needed for this promise, and not without it
                without = [claim.model_copy(update={only: "none"}) for claim in claims]
                needed = any(needs(checker, claim) for claim in claims) and not any(needs(checker, c) for c in without)
            else:
                needed = any(needs(checker, claim) for claim in claims)
            if needed and checker != "slices":
                return f"{checker} could not be evaluated: {why.splitlines()[0]}"
    return None
