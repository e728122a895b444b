"""From a stored run to its verdict: run all checkers, apply the claim, then decide whether the run proves anything.

A violation outranks every doubt (the doubts are reported in addition), and a doubt outranks ``held``. If the job died before
any fault, the job itself is broken, and its output says nothing about the claim.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from onceproof.base.errors import NotEvaluated
from onceproof.base.masking import hiding, masked_value, of_environment
from onceproof.base.words import are, times
from onceproof.faults.evidence.item import from_row
from onceproof.history import run_files
from onceproof.history.run_directory import private_files, run_dir_problem
from onceproof.history.run_record import JobRecord, RunRecord
from onceproof.history.version import refuse_other_version
from onceproof.judge import batches, ledger, shown_rows, side_outputs
from onceproof.judge.case import record_key, removed
from onceproof.judge.case.case import Case
from onceproof.judge.case.sources import undecodable_inputs
from onceproof.judge.checker import Gap, checkers
from onceproof.judge.claims import allowance, breaks, needs, undecided, unjudged
from onceproof.judge.findings import NO_FAULT, VERDICT_FILE, FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.judge.open import open_case
from onceproof.judge.slices import cut as slices
from onceproof.judge.unobserved import unobserved
from onceproof.judge.witness import noun
from onceproof.judge.witness_files import WitnessFiles
from onceproof.scenario.model import Scenario
from onceproof.scenario.modes import doubts_of
from onceproof.scenario.outputs import Claim

# Not the view ``input``: an input topic may have that name.
_INPUT = "SELECT count(*) FROM history.input WHERE visibility = 'committed'"


def check(run_dir: Path) -> Verdict:
    """Judge a stored run, also from another machine. Write ``verdict.json``, all witnesses and the findings' slices into it.

    Raises what `judge` raises.
    """
    with private_files():
        verdict = _verdict(run_dir, sliced=True)
        try:
            write_verdict(run_dir, verdict)
        except OSError as refused:
            raise run_dir_problem(refused, run_dir) from refused
        return verdict


def judge(run_dir: Path) -> Verdict:
    """The verdict on a stored run. The same run always gives the same verdict, except for ``seconds``.

    A run that was not observed to its end is not examined: what its history lacks may still have happened.
    Raises `HistoryError` if the run directory does not hold a complete history of this version.
    """
    return _verdict(run_dir, sliced=False)


def _verdict(run_dir: Path, *, sliced: bool) -> Verdict:
    started = time.monotonic()
    run = RunRecord.read(run_dir)
    refuse_other_version(run.schema_, run.onceproof)
    # What run.json quotes of the job is masked already, but its output may hold secrets.
    with hiding(of_environment(run.scenario.pipeline.secrets)):
        if run.observed:
            with open_case(run_dir) as case:
                verdict = _Evidence.of(case, WitnessFiles(run_dir) if sliced else None).verdict()
                if sliced:
                    verdict = _with_rows(case, _with_slices(case, verdict))
                verdict = replace(verdict, seconds=round(time.monotonic() - started, 3))
        else:
            verdict = unobserved(run_dir, run)
        masked: Verdict = masked_value(verdict)
        return masked


def _with_slices(case: Case, verdict: Verdict) -> Verdict:
    """Add slices to a verdict. If this fails (disk full, say), ``not_evaluated`` reports it, and the verdict stays the same."""
    try:
        return replace(verdict, slices=slices.export_all(case, verdict, judge_sought))
    except Exception as failure:  # slices only explain the verdict: their failure must not lose it
        return replace(verdict, not_evaluated={**verdict.not_evaluated, "slices": _brief(failure)})


def _with_rows(case: Case, verdict: Verdict) -> Verdict:
    """Store the rows that its witnesses are about. If this fails, ``not_evaluated`` reports it, and the verdict stays the same."""
    try:
        shown_rows.write(case, verdict, case.history.run_dir)
    except Exception as failure:  # rows only explain the verdict
        return replace(verdict, not_evaluated={**verdict.not_evaluated, "rows": _brief(failure)})
    return verdict


def judge_case(case: Case) -> Verdict:
    """The verdict on an open case, without ``seconds`` and without slices."""
    return _Evidence.of(case).verdict()


def judge_sought(case: Case, anomaly: str, is_sought: Callable[[Finding], bool]) -> Verdict | None:
    """The verdict of `judge_case` if it has such a finding, else None, usually without running most of the checkers."""
    evidence = _Evidence(case)
    if not evidence.can_be_examined:
        return None
    others = checkers.names()
    if anomaly in others:  # run first the checker named after the anomaly; if there is none, run all
        others.remove(anomaly)
        evidence.examine([anomaly])
        if not any(map(is_sought, evidence.findings)):
            return None
    evidence.examine(others)
    return evidence.verdict() if any(map(is_sought, evidence.findings)) else None


def write_verdict(run_dir: Path, verdict: Verdict) -> None:
    """Replace ``verdict.json`` atomically: a reader never sees half of it. Raises `OSError`."""
    run_files.write_text(run_dir / VERDICT_FILE, json.dumps(verdict.to_json(), indent=2, default=str) + "\n")


@dataclass
class _Evidence:
    """The results on one case while it is being judged."""

    case: Case
    findings: list[Finding] = field(default_factory=list)
    not_evaluated: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    files: WitnessFiles | None = None
    """Where all witnesses are written; None: nowhere."""

    @classmethod
    def of(cls, case: Case, files: WitnessFiles | None = None) -> _Evidence:
        """Run all checkers on a case."""
        evidence = cls(case, files=files)
        if evidence.can_be_examined:
            evidence.examine(checkers.names())
        return evidence

    @property
    def job(self) -> JobRecord:
        return self.case.run.job or JobRecord()

    @property
    def died_early(self) -> bool:
        return self.job.died_before_fault

    @property
    def can_be_examined(self) -> bool:
        return self.case.no_oracle is None and not self.died_early

    def examine(self, names: Iterable[str]) -> None:
        """Run these checkers. A checker that crashes makes the run inconclusive."""
        for name in names:
            try:
                checker = checkers.get(name)()
                if not checker.by_digest:
                    self.case.all_rows()
                self._take(name, checker.check(self.case))
            except NotEvaluated as gap:
                self._not_evaluated(name, None, str(gap))
            except Exception as crash:  # checkers can come from other packages
                self.not_evaluated[name] = _brief(crash)
                self.doubts.append(f"checker {name} crashed: {crash}")

    def _take(self, name: str, results: Iterable[Finding | Gap]) -> None:
        for result in results:
            if isinstance(result, Gap):
                self._not_evaluated(name, result.output, result.why)
            else:
                self.findings.append(self._judged(result))

    def _judged(self, found: Finding) -> Finding:
        claim = self.case.scenario.claim_of(found.output)
        allowed = allowance(found, claim)
        open_ = undecided(found, claim) or (
            removed.undecided(self.case, found.anomaly, found.output) if not allowed else None
        )
        finding = replace(found, allowed=allowed, undecided=open_)
        if finding.undecided is not None:
            self.doubts.append(f"{finding.anomaly} in {self._where(finding)}: {finding.summary}. {finding.undecided}")
        return replace(finding, witness_file=self._write_witnesses(finding), every=None)

    def _write_witnesses(self, finding: Finding) -> str | None:
        """Write the file with all witnesses. If that fails (disk full, say), the verdict stays the same."""
        if self.files is None or finding.allowed is not None:
            return None
        try:
            return self.files.write(finding)
        except OSError as failure:
            self.not_evaluated["witnesses"] = f"the list of all witnesses cannot be written: {failure}"
            return None

    def _where(self, finding: Finding) -> str:
        outputs = self.case.scenario.outputs  # a finding may be about an input topic
        return f"{'output' if finding.output in outputs else 'input'} {finding.output}"

    def _not_evaluated(self, name: str, output: str | None, why: str) -> None:
        self.not_evaluated[name if output is None else f"{name}@{output}"] = why
        scenario = self.case.scenario
        claims = [scenario.claim_of(o) for o in ([output] if output is not None else scenario.outputs)]
        if any(needs(name, claim) for claim in claims):
            where = "" if output is None else f" on output {output}"
            self.doubts.append(f"{name} could not be evaluated{where}: {why}")

    @cached_property
    def counts(self) -> dict[str, int]:
        """Known when all checkers have run."""
        return _counts(self.case)

    def verdict(self) -> Verdict:
        faults = _faults(self.case)
        violations = [f for f in self.findings if f.violates]
        doubts = self._doubts(faults)
        if violations:
            outcome = Outcome.VIOLATED
            also = [f"in addition, this could not be proved: {doubt}" for doubt in doubts]
            reasons = [f"{f.anomaly} in {self._where(f)}: {f.summary}" for f in violations]
            reasons = _wrote_nothing(self.case, self.counts) + reasons + also
            reasons += [f"the output was judged {self.case.answer.basis}"] if self.case.answer.basis else []
        elif doubts:
            outcome, reasons = Outcome.INCONCLUSIVE, doubts
        else:
            outcome, reasons = Outcome.HELD, [_held(self.case, faults, self.counts)]
        scenario = self.case.scenario
        if self.case.run.nudged:
            silence = f"{scenario.limits.stuck_s:g} s of silence"
            reasons = [*reasons, f"the job was restarted by the harness after {silence}"]
        reasons = [*reasons, *(_hurried(query, own_s) for query, own_s in (self.case.run.triggers or {}).items())]
        reasons = [*reasons, *(note for _, note in self.case.open_watermarks("none"))]
        reasons += [*undecodable_inputs(self.case), *side_outputs.absent(self.case)]
        return Verdict(
            scenario=scenario.name,
            outcome=outcome,
            claim=StatedClaim.of(scenario),
            reasons=tuple(reasons),
            findings=tuple(
                sorted(self.findings, key=lambda f: (not f.violates, f.allowed is not None, f.anomaly, f.output))
            ),
            faults=tuple(faults),
            not_evaluated={
                **self.not_evaluated,
                **{f"{record_key.COLUMN}@{output}": why for output, why in self.case.not_compared.items()},
            },
            counts=self.counts,
            batches=batches.reports(self.case, self.findings, conclusive=self._conclusive()),
            ignored=_ignored(scenario),
            seed=scenario.seed if self.case.run.seed is None else self.case.run.seed,
        )

    def _doubts(self, faults: list[FaultReport]) -> list[str]:
        """Why this run cannot be held, the most important reason first."""
        case, run = self.case, self.case.run
        log = self.job.failure_text()
        modes = doubts_of(run.modes)
        if self.died_early:
            # With several consumers, only the note names the one that died.
            who = run.drain_note if self.job.failure is None else None
            why = "\n".join(line for line in (who, log) if line)
            return [
                f"the job died before any fault, so the job itself is broken:\n{why or 'it logged nothing'}",
                *modes,
            ]
        from_log = f"; from the job's log:\n{log}" if log else ""
        if run.drain_note and not case.number("SELECT count(*) FROM history.input"):
            return [f"no input was fed: {run.drain_note}{from_log}", *modes]  # this explains all other doubts
        if run.never_reads:
            return [f"{run.drain_note}{from_log}", *modes]  # likewise
        doubts = [*modes, *_screened(case), *_emptiness(case, self.counts)]
        doubts += [*ledger.doubts(case), *removed.doubts(case)]
        if case.no_oracle is not None:
            doubts.append(case.no_oracle)
        doubts += [f"output {output} cannot be judged: {why}" for output, why in case.unreadable.items()]
        doubts += case.doubts
        doubts += _missed(case, faults)
        doubts += _unjudged(case)
        doubts += self.doubts
        must_recover = any(case.scenario.claim_of(output).liveness != "none" for output in case.scenario.outputs)
        # If there is such a finding, it says so already.
        stale = any(breaks(f.anomaly, "liveness") and f.violates for f in self.findings)
        if not case.drained and not stale and must_recover:
            note = run.drain_note or "no reason was recorded"
            subject = "history" if run.imported else "run"
            doubts.append(f"the {subject} did not drain, so more output may still come: {note}{from_log}")
        return doubts

    def _conclusive(self) -> bool:
        """Whether every output was judged for all that its claim promises."""
        return not (self.died_early or self.case.no_oracle or self.case.unreadable or self.case.doubts or self.doubts)


def _ignored(scenario: Scenario) -> dict[str, list[str]]:
    """Output -> columns that the scenario excludes from the comparison."""
    ignored = {
        name: [*spec.ignore, *([record_key.COLUMN] if spec.compare_key is False else [])]
        for name, spec in scenario.outputs.items()
    }
    return {name: columns for name, columns in ignored.items() if columns}


def _missed(case: Case, faults: list[FaultReport]) -> list[str]:
    """One sentence per fault that did not hit."""
    doubts = []
    for fault in faults:
        if not fault.hit:
            where = "" if fault.batch is None else f" (batch {fault.batch} at {fault.point})"
            unfired = "was armed and never fired" if fault.armed else "was never armed"
            how = "fired but did not hit" if fault.fired else unfired
            evidence = f": {fault.evidence[-1]}" if fault.evidence else ""
            doubts.append(f"fault {fault.fault} {fault.target}{where} {how}{evidence}")
    unknown = len(case.run.scenario.chaos or []) - len(faults)
    if unknown > 0:
        doubts.append(f"the history does not mention {unknown} of the scenario's faults")
    return doubts


def _unjudged(case: Case) -> list[str]:
    """One sentence per promise that no checker judges, however many outputs make it."""
    scenario = case.scenario
    return list(dict.fromkeys(why for output in scenario.outputs for why in unjudged(scenario.claim_of(output))))


def _emptiness(case: Case, counts: Mapping[str, int]) -> list[str]:
    """Why any pipeline would be held in this run: it has no input, or nothing is expected of it."""
    # A slice with effects that have no single cause holds no input: it stores what is expected.
    if case.oracle.kind != "slice" and not counts["input"]:
        return ["the input topics hold no committed record"]
    doubts = []
    for output in case.expectations:
        if case.scenario.outputs[output].is_side_output:
            continue
        if not (counts.get(f"expected.{output}") or case.expected_in(output)):
            dead_in = [n for n, s in case.outputs.items() if s.dead_letter_of == output and f"dead.{n}" in case.notes]
            all_dead = f"every row that output {output} must hold is in {' and '.join(dead_in)}"
            doubts.append(all_dead if dead_in else f"the oracle expects nothing in output {output}")
        elif (claim := _claim_that_allows_emptiness(case.scenario.claim_of(output))) and not (
            counts.get(f"effects.{output}") or case.effects_of(output)
        ):
            doubts.append(f"output {output} is empty, which {claim} always allows")
    return doubts


def _wrote_nothing(case: Case, counts: Mapping[str, int]) -> list[str]:
    """One sentence per empty output that should not be empty: more useful than the number of lost effects alone."""
    if case.oracle.kind == "slice":  # all effects in a slice may be lost ones
        return []
    sentences = []
    for output in case.expectations:
        expected = counts[f"expected.{output}"]
        if expected and not counts[f"effects.{output}"]:
            kind = times(expected, noun(case, output))
            sentences.append(f"nothing was written to output {output}, where {kind} {are(expected)} expected")
    tail = case.run.job.log_tail if case.run.job is not None else None
    return [*sentences[:-1], f"{sentences[-1]}; the job's last log lines:\n{tail}"] if sentences and tail else sentences


def _claim_that_allows_emptiness(claim: Claim) -> str | None:
    """The part of a claim that a pipeline keeps without ever writing anything, in words."""
    if claim.delivery == "at-most-once":
        return "at-most-once"
    return "a claim without recovery" if claim.liveness == "none" else None


def _screened(case: Case) -> list[str]:
    """A kept JVM may remember what a killed one forgets, so that a sink looks right that is not."""
    kept = sum(jvm.tier == "kept" for jvm in case.run.job.jvms) if case.run.job is not None else 0
    if not kept:
        return []
    return [
        f"{times(kept, 'restart')} used the JVM of the start before (--tier kept): only --tier real shows that the claim holds"
    ]


def _hurried(query: str, own_s: float) -> str:
    return f"query {query} did not wait for its trigger of {own_s:g} s (pipeline: trigger: fast)"


def _faults(case: Case) -> list[FaultReport]:
    return [
        FaultReport(
            **{name: row[name] for name in ("fault", "target", "batch", "point")},
            query=row["query"] or "",
            armed=row["armed_at"] is not None,
            fired=row["fired_at"] is not None,
            hit=bool(row["hit"]),
            seen=from_row(row["evidence"], row["seen"]),
        )
        for row in case.rows('SELECT * FROM history.faults ORDER BY "index"')
    ]


def _by_output(case: Case, side: str) -> dict[str, int]:
    return dict(case.sql(f"SELECT output, count(*) FROM judge.{side}_digests GROUP BY output").fetchall())  # noqa: S608


def _counts(case: Case) -> dict[str, int]:
    counts = {"input": case.number(_INPUT)}
    if case.no_oracle is None:
        expected, effects = (_by_output(case, side) for side in ("expected", "effect"))
        for output in case.expectations:
            counts[f"expected.{output}"] = expected.get(output, 0)
            counts[f"effects.{output}"] = effects.get(output, 0)
            if left_out := case.left_out[output]:
                counts[f"oracle.{output}"] = counts[f"expected.{output}"] + left_out
    counts["batches"] = case.number("SELECT count(DISTINCT (query, batch)) FROM judge.batches")
    counts["restarts"] = max(case.run.job.starts - 1, 0) if case.run.job is not None else 0
    return {**counts, **case.notes}


def _held(case: Case, faults: list[FaultReport], counts: Mapping[str, int]) -> str:
    effects = sum(number for name, number in counts.items() if name.startswith("effects."))
    if case.run.imported:
        under = "; imported history: no fault was exercised"
    elif faults:
        under = f"; {sum(fault.hit for fault in faults)} of {times(len(faults), 'fault')} hit"
    else:
        under = ""
    basis = f", {case.answer.basis}" if case.answer.basis else ""
    for output in case.expectations:
        if dead := case.notes.get(f"dead.{output}"):
            main = case.scenario.outputs[output].dead_letter_of
            basis += f"; {times(dead, 'record')} of {main} {are(dead)} in {output}"
        if unordered := case.notes.get(f"unordered.{output}"):
            rows = times(counts[f"expected.{output}"], "row")
            has = "has" if unordered == 1 else "have"
            basis += f"; {unordered:,} of {rows} in {output} {has} no cause or no key, so the claimed order does not cover them"
    kinds = {noun(case, output) for output in case.expectations}
    kind = f"output {kinds.pop()}" if len(kinds) == 1 else "output row"
    no_fault = "" if faults or case.run.imported else f"{NO_FAULT}: "
    all_of = f"All {times(effects, kind)}" if effects != 1 else f"The one {kind}"
    matches = "match" if effects != 1 else "matches"
    return f"{no_fault}{all_of} from {times(counts['input'], 'input record')} {matches} the claim{under}{basis}"


def _brief(crash: Exception) -> str:
    """The traceback with file names only, so that the verdict is the same on every machine."""
    frames = traceback.extract_tb(crash.__traceback__)
    lines = [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}\n" for frame in frames]
    return "".join([*lines, *traceback.format_exception_only(crash)]).rstrip()
