"""Compares the verdict on a run with what a planted bug has named: the anomaly, its batches, and the fault."""

from __future__ import annotations

from onceproof.judge.findings import Finding, Outcome, Verdict
from onceproof.planted.catalogue import Bug
from onceproof.planted.results import Attempt


def attempt(bug: Bug, verdict: Verdict, run: str) -> Attempt:
    """The result of the broken scenario under its fault. ``run``: the name of the run directory."""
    problems = [*mismatches(bug, verdict), *_unproven(bug, verdict)]
    return _result(bug, verdict, run, passed=not problems, why="; ".join(problems) or _found(bug, verdict))


def vacuity(bug: Bug, verdict: Verdict, run: str) -> Attempt:
    """The result of the broken scenario without any fault: it passes if it is judged, and does not show the same (`_shows_same`)."""
    judged = verdict.outcome in (Outcome.HELD, Outcome.VIOLATED) or _only_doubt(bug, verdict)
    missed = judged and not _shows_same(bug, verdict)
    if missed:
        why = f"{verdict.word}{_anomalies(verdict)}"
    elif judged:
        why = f"shows the same without the fault: {_found(bug, verdict)}"
    else:
        why = f"it shows nothing without the fault: {_first_line(verdict)}"
    return _result(bug, verdict, run, passed=missed, why=why)


def control(bug: Bug, verdict: Verdict, run: str) -> Attempt:
    """The result of the remedy under the same faults: it passes if the run is held, and every fault hit."""
    missed = [f"{fault.fault} {fault.target} did not hit" for fault in verdict.faults if not fault.hit]
    passed = verdict.outcome is Outcome.HELD and not verdict.anomalies() and not missed
    reasons = [f"{verdict.word}{_anomalies(verdict)}", *missed]
    if verdict.outcome is Outcome.INCONCLUSIVE:
        reasons += verdict.reasons[:1]
    return _result(bug, verdict, run, passed=passed, why="; ".join(reasons))


def mismatches(bug: Bug, verdict: Verdict) -> list[str]:
    """What in the verdict is not as the bug has named it, apart from its fault."""
    found = verdict.anomalies()
    if verdict.outcome is not Outcome.VIOLATED:
        return [f"the run is {_first_line(verdict)}"]
    problems = []
    if bug.anomaly not in found:
        problems.append(f"no {bug.anomaly}, but {', '.join(found)}")
    elif (batches := batches_of(verdict, bug.anomaly)) != sorted(bug.batches):
        problems.append(f"{bug.anomaly} in {in_words(batches)}, not in {in_words(sorted(bug.batches))}")
    if more := [name for name in found if name not in (bug.anomaly, *bug.also)]:
        problems.append(f"also {', '.join(more)}, which it does not name")
    return problems


def batches_of(verdict: Verdict, anomaly: str) -> list[int]:
    """The batches to which the verdict attributes rows or records with this anomaly."""
    return sorted({batch for found in _findings(verdict, anomaly) for batch in _numbers(found)})


def _shows_same(bug: Bug, verdict: Verdict) -> bool:
    """Whether the verdict has the bug's anomaly in one of its batches, apart from those that always show it.

    Where the bug or a finding names no batch, nothing sets the two apart: then the anomaly alone is the same.
    """
    named = set(bug.batches) - set(bug.always)
    found = [_numbers(each) for each in _findings(verdict, bug.anomaly)]
    return any(not named or not numbers or named & numbers for numbers in found)


def _only_doubt(bug: Bug, verdict: Verdict) -> bool:
    """Whether everything was judged, and the run is not held only because of what the job is."""
    known = [reason for reason in verdict.reasons if bug.doubt and bug.doubt in reason]
    return verdict.outcome is Outcome.INCONCLUSIVE and bool(known) and len(known) == len(verdict.reasons)


def _findings(verdict: Verdict, anomaly: str) -> list[Finding]:
    return [found for found in verdict.findings if found.violates and found.anomaly == anomaly]


def _numbers(found: Finding) -> set[int]:
    return {int(key.rpartition("/")[2]) for key in found.batches}


def _unproven(bug: Bug, verdict: Verdict) -> list[str]:
    if bug.shows_without_fault:
        return []
    kind, target = bug.fault.split()
    named = [fault for fault in verdict.faults if (fault.fault, fault.target) == (kind, target)]
    return [] if named and all(fault.hit for fault in named) else [f"it is not proven that {bug.fault} hit"]


def _found(bug: Bug, verdict: Verdict) -> str:
    return f"{bug.anomaly} {verdict.anomalies().get(bug.anomaly, 0):,} in {in_words(batches_of(verdict, bug.anomaly))}"


def _first_line(verdict: Verdict) -> str:
    return f"{verdict.word}: {next(iter(verdict.reasons), '')}".partition("\n")[0]


def _anomalies(verdict: Verdict) -> str:
    found = verdict.anomalies()
    return f": {', '.join(found)}" if found else ""


def in_words(batches: list[int], none: str = "no known batch") -> str:
    if not batches:
        return none
    return f"{'batch' if len(batches) == 1 else 'batches'} {', '.join(map(str, batches))}"


def _result(bug: Bug, verdict: Verdict, run: str, *, passed: bool, why: str) -> Attempt:
    return Attempt(
        passed=passed,
        why=why,
        outcome=verdict.outcome.value,
        anomalies=verdict.anomalies(),
        batches=batches_of(verdict, bug.anomaly),
        seconds=round(verdict.seconds, 1),
        run=run,
    )
