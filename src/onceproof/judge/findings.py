"""Findings and verdicts: immutable values that are stored as JSON and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

from onceproof.faults.evidence.item import Evidence
from onceproof.history import run_files
from onceproof.scenario.model import Scenario

VERDICT_FILE = "verdict.json"
MAX_WITNESSES = 32
#: The reason of a held run without faults begins with this.
NO_FAULT = "no fault injected"


class Outcome(StrEnum):
    """The outcome of a run. `worst` orders them."""

    HELD = "held"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"
    VIOLATED = "violated"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        return {"held": 0, "violated": 1, "inconclusive": 3, "error": 4, "interrupted": 130}[self.value]


def worst(outcomes: list[Outcome]) -> Outcome:
    """The worst: violated > error > inconclusive > held. Interrupted outranks all, since the other scenarios did not run."""
    order = [Outcome.HELD, Outcome.INCONCLUSIVE, Outcome.ERROR, Outcome.VIOLATED, Outcome.INTERRUPTED]
    return max(outcomes, key=order.index, default=Outcome.INCONCLUSIVE)


@dataclass(frozen=True)
class Witness:
    """One row or record that shows the anomaly, with what a person needs to look it up."""

    identity: dict[str, Any]
    """Identity column -> value."""
    argument: str
    """The premises with their positions, then the contradiction: two lines at most."""
    cause: str | None = None
    """``topic/partition@offset`` of the input record, if known."""
    batch: int | None = None
    positions: tuple[str, ...] = ()
    """Its positions in the output: ``topic/partition@offset``, or ``table xid N``."""


@dataclass(frozen=True)
class Finding:
    """One anomaly in one output."""

    anomaly: str
    output: str
    """The output, or the input topic if that is at fault."""
    total: int
    """The number of offending rows or records, not only of the witnesses."""
    summary: str
    witnesses: tuple[Witness, ...] = ()
    source: str | None = None
    """The kind of cause, if the anomaly makes one finding per kind of cause: a claim may allow one kind and not another."""
    attribution: dict[str, int] = field(default_factory=dict)
    """Origin -> number of rows or records, e.g. ``{"from the replay of batch 2 (query flights)": 6000}``."""
    batches: dict[str, int] = field(default_factory=dict)
    """``query/batch`` -> number of rows or records whose batch is known, e.g. ``{"flights/2": 666}``; for the verdicts per batch."""
    transient: bool = False
    """It was visible during the run and is gone at the quiet point."""
    allowed: str | None = None
    """Why the claim allows it; None if it does not."""
    unsettled: str | None = None
    """What the history does not show about the cause, for claims that allow some causes only."""
    undecided: str | None = None
    """Why it is undecided whether the claim allows this finding. It then makes the run inconclusive, not violated."""
    every: Callable[[], Iterator[Witness]] | None = field(default=None, repr=False, compare=False)
    """Gives all witnesses, one after the other. Called before the checker continues, and not kept."""
    witness_file: str | None = None
    """The file with all witnesses, one JSON object per line, relative to the run directory; set after judging."""

    @property
    def violates(self) -> bool:
        return self.allowed is None and self.undecided is None


def names_of(finding: Finding) -> list[str]:
    """Anomaly, output and, if there is one, source."""
    return [name for name in (finding.anomaly, finding.output, finding.source) if name is not None]


@dataclass(frozen=True)
class FaultReport:
    """One fault of the scenario, and how far it got."""

    fault: str
    target: str
    query: str
    batch: int | None
    point: str | None
    armed: bool
    fired: bool
    hit: bool
    seen: tuple[Evidence, ...] = ()
    """The evidence that proves the hit, or what was missing."""

    @property
    def evidence(self) -> tuple[str, ...]:
        """`seen` as sentences."""
        return tuple(map(str, self.seen))


@dataclass(frozen=True)
class BatchReport:
    """One micro-batch of one query: its input, which driver starts ran it, and its anomalies."""

    query: str
    batch: int
    planned_by: int | None
    """The driver start that wrote ``offsets/N``, from 0; None if unknown."""
    committed_by: int | None
    """The driver start that wrote ``commits/N``; None if none did."""
    records: int
    """The number of committed input records in its offset ranges."""
    faults: tuple[str, ...]
    """The faults that were active during the batch."""
    verdict: Outcome
    """``violated``: one of its rows or records violates the claim. ``held``: it was committed, and every violation is known to be in
    other batches. ``inconclusive`` otherwise."""
    anomalies: dict[str, int] = field(default_factory=dict)
    """Anomaly -> number of rows or records of this batch that the claim does not allow."""


@dataclass(frozen=True)
class StatedClaim:
    """The claim that a verdict is about, as it was stated: an older version may have known other promises than `Claim` does."""

    promises: Mapping[str, str] = field(default_factory=dict)
    """Promise -> level, e.g. ``{"delivery": "effectively-once", "order": "none"}``."""
    outputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Output with a claim of its own -> its promises."""

    @classmethod
    def of(cls, scenario: Scenario) -> StatedClaim:
        own = {name: spec.claim.model_dump() for name, spec in scenario.outputs.items() if spec.claim is not None}
        return cls(scenario.claim.model_dump(), own)

    def each(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """The promises for all outputs, under the name ``""``, then those of each output with its own."""
        yield "", self.promises
        yield from self.outputs.items()

    def to_json(self) -> dict[str, Any]:
        """One object: the promises and, if there are any, ``outputs``."""
        own = {"outputs": {name: dict(promises) for name, promises in self.outputs.items()}} if self.outputs else {}
        return {**self.promises, **own}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StatedClaim:
        """Raises `AttributeError` or `TypeError` if ``stored`` is not a claim."""
        own = {name: _levels(promises) for name, promises in (stored.get("outputs") or {}).items()}
        return cls(_levels({name: level for name, level in stored.items() if name != "outputs"}), own)


def _levels(promises: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(level) for name, level in promises.items()}


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run, and why."""

    scenario: str
    outcome: Outcome
    claim: Annotated[StatedClaim, BeforeValidator(StatedClaim.from_json)]
    reasons: tuple[str, ...]
    """Why this outcome, the most important reason first."""
    findings: tuple[Finding, ...] = ()
    faults: tuple[FaultReport, ...] = ()
    not_evaluated: dict[str, str] = field(default_factory=dict)
    """Checker (or checker@output) -> why it was not evaluated."""
    counts: dict[str, int] = field(default_factory=dict)
    """input, expected.OUTPUT, effects.OUTPUT, batches, restarts, and what the oracle counted: late records, open windows, ...

    oracle.OUTPUT, if it is more than expected.OUTPUT: what the oracle expects, with the states that a changelog left out and the rows
    that have a dead letter.
    """
    batches: tuple[BatchReport, ...] = ()
    """Ordered by query and batch."""
    ignored: dict[str, list[str]] = field(default_factory=dict)
    """Output -> columns that the scenario excludes from the comparison."""
    slices: dict[str, str] = field(default_factory=dict)
    """``anomaly/output`` (``/source``) -> the run directory with the smallest slice of history that still shows it, relative to
    this run's directory; set after judging."""
    seed: int = 0
    seconds: float = 0.0

    @property
    def word(self) -> str:
        """The outcome for people. It says if no fault was injected: ``held`` alone would imply that the job survived faults."""
        faultless = self.outcome is Outcome.HELD and any(reason.startswith(NO_FAULT) for reason in self.reasons)
        return f"{self.outcome.value}, {NO_FAULT}" if faultless else self.outcome.value

    def anomalies(self) -> dict[str, int]:
        """Anomaly -> number of rows or records that violate the claim."""
        total: dict[str, int] = {}
        for finding in self.findings:
            if finding.violates:
                total[finding.anomaly] = total.get(finding.anomaly, 0) + finding.total
        return total

    def to_json(self) -> dict[str, Any]:
        """The object stored as ``verdict.json``. `from_json` reads it back as an equal verdict."""
        document = asdict(replace(self, findings=tuple(replace(finding, every=None) for finding in self.findings)))
        document["claim"] = self.claim.to_json()
        for finding in document["findings"]:
            del finding["every"]
        for stored, fault in zip(document["faults"], self.faults, strict=True):
            stored["evidence"] = list(fault.evidence)
        document["verdict"] = document.pop("outcome")
        document["anomalies"] = self.anomalies()
        return document

    @classmethod
    def from_json(cls, source: Path | str | Mapping[str, Any]) -> Verdict:
        """Read a ``verdict.json``, given as path, text or object. Raises `OSError`, and `ValueError` if it is not a verdict."""
        text = run_files.read_text(source) if isinstance(source, Path) else source
        document = json.loads(text) if isinstance(text, str) else text
        try:
            faults = [_with_evidence_items(fault) for fault in document.get("faults", ())]
            return _adapter().validate_python({**document, "faults": faults, "outcome": document["verdict"]})
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"this is not a verdict: {type(error).__name__}: {error}") from error


def _with_evidence_items(fault: Any) -> Any:
    """A stored fault with evidence items: an earlier version stored sentences only."""
    if not isinstance(fault, Mapping) or "seen" in fault:
        return fault
    return {**fault, "seen": [{"what": sentence} for sentence in fault.get("evidence", ())]}


@cache
def _adapter() -> TypeAdapter[Verdict]:
    return TypeAdapter(Verdict)
