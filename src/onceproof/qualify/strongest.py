"""Derives the strongest claim that held. It covers the cells that were exercised, and nothing else.

Every anomaly of every run is known, including those that the user's claim allows, so each delivery promise can be checked
against them. Order, atomicity and recovery are checked only where they are claimed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from pydantic import ConfigDict, with_config

from onceproof.judge.claims import allowance, needs, undecided
from onceproof.judge.findings import Finding, Verdict
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import Claim

Delivery = Literal["effectively-once", "at-least-once", "at-most-once"]
#: From the strongest down, as the model lists them.
DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)
_OTHERS = ("order", "atomic", "liveness")


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Strongest:
    """The promises that held, broke or are in doubt. Round-trips through JSON."""

    delivery: Delivery | None
    """The strongest delivery promise that held; None if none held, or none can be said to have held."""
    others: dict[str, str]
    """``order``, ``atomic``, ``liveness`` -> the claimed value, if it held; with the outputs that claim it, if others do not."""
    broken: dict[str, list[str]]
    """Promise (``effectively-once``, ``order per-key``, ...) -> the anomalies that broke it."""
    doubts: list[str]
    """Why promises that nothing broke cannot be said to hold."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def promises(strongest: Strongest) -> str:
    """What held, in one sentence without its full stop."""
    others = ", ".join(f"{name} {value}" for name, value in strongest.others.items())
    if strongest.delivery is not None:
        return f"The strongest claim that held in all runs is {strongest.delivery}{f', {others}' if others else ''}"
    if all(level in strongest.broken for level in DELIVERIES):
        what = "No delivery promise held in all runs"
    else:
        what = "Whether a delivery promise held is in doubt"
    return f"{what}; {others} held" if others else what


def strongest(verdicts: Iterable[Verdict], scenario: Scenario, unclear: Sequence[str] = ()) -> Strongest:
    """Derive the strongest claim from all runs whose faults were exercised, and the one without faults.

    ``unclear``: why runs prove nothing. With any such reason, broken promises are reported, and none is reported as held.
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
        for value, outputs in _claimed(promise, scenario).items():
            # The anomalies that break the claim as it is, and no longer do when this promise is removed from it.
            kept = set(_breaking(runs, scenario, {}, outputs))
            breaking = sorted(kept - set(_breaking(runs, scenario, {promise: "none"}, outputs)))
            if breaking:
                broken[f"{promise} {value}"] = breaking
            elif unknown := _unknown(runs, scenario, {}, only=promise, outputs=outputs):
                doubts.append(f"{promise} {value}: {unknown}")
            elif not unclear:
                others[promise] = f"{others[promise]}, {value}" if promise in others else value
    return Strongest(delivery, others, broken, doubts)


def _claimed(promise: str, scenario: Scenario) -> dict[str, list[str]]:
    """Return each claimed value of the promise -> the outputs that claim it; the key names them if not all claim the same."""
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
    """Return the anomalies that break the claim with ``instead`` in it.

    ``outputs``: consider only these, and findings that are not in an output (a faulty input topic). Default: all.
    """
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
    """Return why it cannot be decided whether the claim held: a finding of unknown cause, or a checker that was not evaluated."""
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
