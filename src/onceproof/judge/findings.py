"""Findings and verdicts: frozen values that print well and go to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from onceproof.faults.evidence.item import Evidence
from onceproof.history import run_files

VERDICT_FILE = "verdict.json"
MAX_WITNESSES = 32
#: How the reason of a held run begins in which nothing was broken.
NO_FAULT = "no fault injected"


class Outcome(StrEnum):
    """What a run comes to. `worst` orders them."""

    HELD = "held"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"
    VIOLATED = "violated"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        return {"held": 0, "violated": 1, "inconclusive": 3, "error": 4, "interrupted": 130}[self.value]


def worst(outcomes: list[Outcome]) -> Outcome:
    """violated > error > inconclusive > held; an interruption outranks all, since the rest did not run."""
    order = [Outcome.HELD, Outcome.INCONCLUSIVE, Outcome.ERROR, Outcome.VIOLATED, Outcome.INTERRUPTED]
    return max(outcomes, key=order.index, default=Outcome.INCONCLUSIVE)


@dataclass(frozen=True)
class Witness:
    """One effect that shows the anomaly, named so that a person can look it up."""

    identity: dict[str, Any]
    """Identity column -> value."""
    argument: str
    """Premises with their positions, then the contradiction; two lines at most."""
    cause: str | None = None
    """``topic/partition@offset`` of the input, where known."""
    batch: int | None = None
    positions: tuple[str, ...] = ()
    """Where in the output: ``topic/partition@offset``, or ``table xid N``."""


@dataclass(frozen=True)
class Finding:
    """One anomaly in one output."""

    anomaly: str
    output: str
    """The output, or the input topic that is found faulty itself."""
    total: int
    """Offending effects, not only those among the witnesses."""
    summary: str
    witnesses: tuple[Witness, ...] = ()
    source: str | None = None
    """The kind of cause that all of these effects share, where the anomaly has several (one finding each): a claim may
    allow one kind and not another."""
    attribution: dict[str, int] = field(default_factory=dict)
    """Where they come from -> effects, e.g. ``{"from the replay of batch 2 (query flights)": 6000}``."""
    batches: dict[str, int] = field(default_factory=dict)
    """``query/batch`` -> effects, where the batch is known, e.g. ``{"flights/2": 666}``: what per-batch verdicts add up."""
    transient: bool = False
    """It could be seen on the way and is gone at the quiet point."""
    allowed: str | None = None
    """Why the claim allows it; None: it does not."""
    unsettled: str | None = None
    """What the history does not say about the cause, where a claim that allows some causes would need to know."""
    undecided: str | None = None
    """Why nobody can say whether the claim allows it: the run is inconclusive, and not violated, for this finding."""
    every: Callable[[], Iterator[Witness]] | None = field(default=None, repr=False, compare=False)
    """All witnesses, one after the other. Called at once, before the checker goes on; not kept."""
    witness_file: str | None = None
    """File with all witnesses, one JSON object per line, relative to the run directory; filled in after judging."""

    @property
    def violates(self) -> bool:
        return self.allowed is None and self.undecided is None


@dataclass(frozen=True)
class FaultReport:
    fault: str
    target: str
    query: str
    batch: int | None
    point: str | None
    armed: bool
    fired: bool
    hit: bool
    seen: tuple[Evidence, ...] = ()
    """What was seen that proves the hit, or what was missing."""

    @property
    def evidence(self) -> tuple[str, ...]:
        """As sentences."""
        return tuple(map(str, self.seen))


@dataclass(frozen=True)
class BatchReport:
    """One micro-batch of one query: what it took, who ran it, and what was found of it."""

    query: str
    batch: int
    planned_by: int | None
    """Which start of the driver wrote ``offsets/N``, from 0; None: not known."""
    committed_by: int | None
    """Which start wrote ``commits/N``; None: none did."""
    records: int
    """Committed input records in its ranges."""
    faults: tuple[str, ...]
    """Faults that were active in it."""
    verdict: Outcome
    """``violated``: an effect of it is among what violates the claim. ``held``: it was committed, and everything that
    violates is known to be of other batches. Else ``inconclusive``."""
    anomalies: dict[str, int] = field(default_factory=dict)
    """Anomaly -> effects of this batch, after the claim."""


@dataclass(frozen=True)
class Verdict:
    scenario: str
    outcome: Outcome
    claim: dict[str, Any]
    reasons: tuple[str, ...]
    """Why this outcome, most telling first."""
    findings: tuple[Finding, ...] = ()
    faults: tuple[FaultReport, ...] = ()
    not_evaluated: dict[str, str] = field(default_factory=dict)
    """Checker (or checker@output) -> why."""
    counts: dict[str, int] = field(default_factory=dict)
    """input, expected.OUTPUT, effects.OUTPUT, batches, restarts, and what the oracle counted: late records, open windows, ..."""
    batches: tuple[BatchReport, ...] = ()
    """In the order of query and batch."""
    ignored: dict[str, list[str]] = field(default_factory=dict)
    """Output -> columns that were not compared, by the scenario's wish."""
    slices: dict[str, str] = field(default_factory=dict)
    """``anomaly/output`` (``/source``) -> the run directory that holds the smallest slice of history that still shows it,
    relative to this run's; filled in after judging."""
    seed: int = 0
    seconds: float = 0.0

    @property
    def word(self) -> str:
        """The outcome for people: ``held`` alone would claim that faults were survived."""
        calm = self.outcome is Outcome.HELD and any(reason.startswith(NO_FAULT) for reason in self.reasons)
        return f"{self.outcome.value}, {NO_FAULT}" if calm else self.outcome.value

    def anomalies(self) -> dict[str, int]:
        """Anomaly -> offending effects, after the claim."""
        total: dict[str, int] = {}
        for finding in self.findings:
            if finding.violates:
                total[finding.anomaly] = total.get(finding.anomaly, 0) + finding.total
        return total

    def to_json(self) -> dict[str, Any]:
        """The object that ``verdict.json`` is. `from_json` makes the same verdict of it."""
        document = asdict(replace(self, findings=tuple(replace(finding, every=None) for finding in self.findings)))
        for finding in document["findings"]:
            del finding["every"]
        for stored, fault in zip(document["faults"], self.faults, strict=True):
            stored["evidence"] = list(fault.evidence)
        document["verdict"] = document.pop("outcome")
        document["anomalies"] = self.anomalies()
        return document

    @classmethod
    def from_json(cls, source: Path | str | Mapping[str, Any]) -> Verdict:
        """From a ``verdict.json``, its text, or its object. Raises `OSError`, and `ValueError` for what is no verdict."""
        text = run_files.read_text(source) if isinstance(source, Path) else source
        document = json.loads(text) if isinstance(text, str) else text
        try:
            faults = [_with_items(fault) for fault in document.get("faults", ())]
            return _adapter().validate_python({**document, "faults": faults, "outcome": document["verdict"]})
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"it is no verdict: {type(error).__name__}: {error}") from error


def _with_items(fault: Any) -> Any:
    """An earlier version stored sentences only."""
    if not isinstance(fault, Mapping) or "seen" in fault:
        return fault
    return {**fault, "seen": [{"what": sentence} for sentence in fault.get("evidence", ())]}


@cache
def _adapter() -> TypeAdapter[Verdict]:
    return TypeAdapter(Verdict)
