"""The page about one run: verdict, what to do next, timeline, faults, findings, what was not judged, events, versions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from onceproof.base.errors import HistoryError
from onceproof.base.words import times
from onceproof.history.run_record import BuiltComponent
from onceproof.judge.findings import BatchReport, Outcome, StatedClaim, Verdict
from onceproof.kinds.contract import has_picture
from onceproof.reports import commands, fixes, tiers
from onceproof.reports.comparison import name_of, state
from onceproof.reports.html import findings, moments
from onceproof.reports.html.drawing import draw_plot, draw_timeline
from onceproof.reports.html.limits import SIZES, Limits, Some, some
from onceproof.reports.html.moments import Moment
from onceproof.reports.html.page import render_capped
from onceproof.reports.html.source import LOGS, StoredRun, read
from onceproof.reports.html.timeline import FAULT_LANES, Timeline, Window, timeline
from onceproof.reports.picture import picture, svg
from onceproof.reports.picture import text as picture_text
from onceproof.reports.picture.words import in_words, message_of

#: A picture of more rows than this would be larger than the rest of the page.
_MOST_DRAWN = 800
#: Symbol of each outcome, so that no meaning depends on a colour.
SYMBOLS = {
    Outcome.HELD: "\u2713",
    Outcome.VIOLATED: "\u2715",
    Outcome.INCONCLUSIVE: "?",
    Outcome.ERROR: "!",
    Outcome.INTERRUPTED: "\u25a0",
}
_MOST_EVIDENCE = 20
_NO_VERDICT = Verdict("", Outcome.ERROR, StatedClaim(), ())


@dataclass(frozen=True)
class Step:
    """Something to do next."""

    label: str
    texts: tuple[str, ...]
    command: bool = False


@dataclass(frozen=True)
class FaultRow:
    number: int
    title: str
    state: str
    window: Window | None
    evidence: tuple[str, ...]

    @property
    def hit(self) -> bool:
        return self.state == "hit"


def of_run(run_dir: Path) -> str:
    """The page about a stored run, with whatever parts of it exist. Raises `NotARun`, and `HistoryError` if it holds links."""
    return page(read(run_dir))


def page(run: StoredRun) -> str:
    """The page, with at most `MOST_BYTES`: if all of `SIZES` are too large but the last, that one."""
    found, flow = moments.moments(run.events, run.logs), _flow(run)
    return render_capped("run.html", ((limits.text, _values(run, found, flow, limits)) for limits in SIZES))


def _values(run: StoredRun, found: tuple[Moment, ...], flow: dict[str, Any] | None, limits: Limits) -> dict[str, Any]:
    """What the template shows."""
    most = limits.items
    listed = moments.chosen(found, limits.events)
    line = timeline(run, found, limits)
    verdict = run.verdict or _NO_VERDICT
    faults = some(_faults(verdict, line), most)
    rows = frozenset({one.anchor for one in listed} | {f"fault-{one.number}" for one in faults.shown})
    drawn = line if limits.drawings else None
    excerpts = run.excerpts.chosen(listed, limits)
    kept = {index for index, _ in excerpts.shown}
    return {
        "title": f"{run.name}: {run.word}",
        "name": run.name,
        "word": run.word,
        "outcome": "none" if run.verdict is None else verdict.outcome.value,
        "symbol": "?" if run.verdict is None else SYMBOLS[verdict.outcome],
        "limits": limits,
        "reduced": limits != SIZES[0],
        "lead": _lead(run),
        "reasons": some(verdict.reasons[1:], most),
        "claimed": some(() if run.verdict is None else claims(verdict.claim), most),
        "broken": some(verdict.anomalies().items(), most),
        "first": _first(run),
        "fault_lanes": FAULT_LANES,
        "steps": some(_steps(run), most),
        "tier": tiers.sentence(run.record),
        "notes": some(run.notes, most),
        "drawn": None if drawn is None else draw_timeline(drawn, rows),
        "plots": () if drawn is None else [(one.title, one.summary(), draw_plot(one, drawn)) for one in drawn.plots],
        "has_times": line is not None,
        "hidden": () if line is None else line.hidden,
        "start": 0.0 if line is None else line.start,
        "faults": faults,
        "most_evidence": min(_MOST_EVIDENCE, most),
        "planned_faults": len(run.record.scenario.chaos or []),
        "findings": findings.views(verdict, run.rows, run.path, limits),
        "most_positions": findings.MOST_POSITIONS,
        "has_rows": bool(run.rows) or not any(finding.violates for finding in verdict.findings),
        "judge": commands.check(run.path),
        "batches": some(_batches(verdict), most),
        "batch_total": len(verdict.batches),
        "flow": flow if flow is None or limits.drawings else {"why": _too_large(run)},
        "ignored": some(sorted(verdict.ignored.items()), most),
        "not_evaluated": some(sorted(verdict.not_evaluated.items()), most),
        "counts": some(verdict.counts.items(), most),
        "events": Some(listed, len(found) - len(listed)),
        "excerpts": excerpts,
        "excerpt_of": {one.anchor: index for one in listed if (index := run.excerpts.of(one.anchor)) in kept},
        "logs": some(run.logs, most),
        "logs_folder": LOGS,
        "facts": some(_facts(run), most),
    }


def claims(claim: StatedClaim) -> Iterator[str]:
    """The claim in words, one sentence for all outputs and one for each output with its own."""
    for output, promises in claim.each():
        text = ", ".join(f"{name} {level}" for name, level in promises.items()) or "nothing"
        yield f"{output}: {text}" if output else text


def _lead(run: StoredRun) -> str:
    if run.verdict is None:
        return run.record.error or "This run has no verdict. The page shows what was recorded before it ended."
    return run.verdict.reasons[0] if run.verdict.reasons else "The verdict gives no reason."


def _first(run: StoredRun) -> list[Step]:
    """What to do first: the first fix of the most frequent anomaly, and the command that repeats the run. They fit one screen."""
    verdict = run.verdict
    found = {} if verdict is None else verdict.anomalies()
    first = []
    if found:
        name = max(found, key=lambda one: found[one])
        first += [Step(f"Fix for {name}", stops[:1]) for stops in [fixes.of_run(name, run.record)] if stops]
    if verdict is not None and verdict.outcome is Outcome.INCONCLUSIVE:
        first.append(Step("Nothing is proved", ("Remove the reasons, then run the scenario again.",)))
    if run.record.imported:
        first.append(_command("Judge it again", commands.check(run.path)))
    elif (again := commands.run_again(run.record)) is not None:
        first.append(_command("Run it again", again))
    return first


def _steps(run: StoredRun) -> Iterator[Step]:
    """What else to do: all fixes of each anomaly, then the commands."""
    verdict, where = run.verdict, shlex.quote(str(run.path))
    names = list(verdict.anomalies()) if verdict is not None else []
    for name in names:
        if stops := fixes.of_run(name, run.record):
            yield Step(f"Fix for {name}, one of", stops) if len(stops) > 1 else Step(f"Fix for {name}", stops)
        yield _command(f"More about {name}", f"onceproof explain {shlex.quote(name)}")
    if run.record.imported:
        return
    if run.record.observed:
        yield _command("Judge it again, without services", commands.check(run.path))
    if commands.stack_of(run.record) is not None:
        return  # how to reach that stack is not stored: neither `replay` nor `shrink` can use it
    if run.record.observed:
        yield _command("See how often its findings come back", f"onceproof replay {where}")
    if names:
        yield _command("Find the smallest schedule that shows them", f"onceproof shrink {where}")


def _command(label: str, command: str) -> Step:
    return Step(label, (command,), command=True)


def _faults(verdict: Verdict, line: Timeline | None) -> Iterator[FaultRow]:
    windows = {} if line is None else {window.number: window for window in line.windows}
    for number, fault in enumerate(verdict.faults, 1):
        title = f"{name_of(fault)}{f' of {fault.query}' if fault.query else ''}"
        reached = state(armed=fault.armed, fired=fault.fired, hit=fault.hit)
        yield FaultRow(number, title, reached, windows.get(number), fault.evidence)
    if not verdict.faults:
        yield from (FaultRow(number, window.title, window.state, window, ()) for number, window in windows.items())


def _batches(verdict: Verdict) -> Iterator[tuple[BatchReport, str, str]]:
    """The batches that have a finding or a fault, each with its symbol and its anomalies in words."""
    for batch in verdict.batches:
        if batch.anomalies or batch.faults:
            anomalies = ", ".join(f"{name} {count:,}" for name, count in batch.anomalies.items())
            yield batch, SYMBOLS[batch.verdict], anomalies


def _flow(run: StoredRun) -> dict[str, Any] | None:
    """The picture of a run of consumers as SVG, with its events in words; None for other runs. ``why``: it cannot be drawn."""
    if not has_picture(run.record.scenario.pipeline.kind):
        return None
    try:
        drawn = picture.of_run(run.path)
    except (HistoryError, ValueError) as error:
        return {"why": str(error)}
    if drawn is None or len(drawn.rows) > _MOST_DRAWN:
        return {"why": _too_large(run)}
    # `inline` has escaped every text; there is nothing in it but SVG elements of that module.
    head, body = (Markup(part) for part in svg.inline(drawn, "flow-"))  # noqa: S704
    return {
        "head": head,
        "body": body,
        "events": tuple(
            (f"flow-{number}", row.tick, f"m{message}" if (message := message_of(drawn, number)) else "", what)
            for number, row in enumerate(drawn.rows)
            for what in [in_words(drawn, number)]
        ),
        "results": tuple(picture_text.results(drawn)),
    }


def _too_large(run: StoredRun) -> str:
    return f"it is too large for this page: onceproof picture {shlex.quote(str(run.path))}"


def _facts(run: StoredRun) -> Iterator[tuple[str, str]]:
    record = run.record
    yield "run directory", str(run.path)
    if record.scenario_path is not None:
        yield "scenario", record.scenario_path
    if (stack := commands.stack_of(record)) is not None:
        yield "stack", record.stack_profile or f"external; its name is not stored, so commands say {stack}"
    if record.seed is not None:
        yield "seed", str(record.seed)
    seconds = run.verdict.seconds if run.verdict is not None else record.seconds
    yield "duration", f"{seconds:.1f} s"
    yield "onceproof", record.onceproof or "unknown"
    if record.job is not None:
        yield "driver starts", str(record.job.starts)
    if (use := record.shared_stack) is not None:
        before = "new" if not use.served_before else f"shared, after {times(use.served_before, 'other run')}"
        yield "services", f"{before}{', with the protocol proxy' if use.protocol_proxy else ''}"
    yield from (record.machine or {"machine": "unknown"}).items()
    for name, version in sorted((record.versions or {}).items()):
        shown = version.version if isinstance(version, BuiltComponent) else version
        yield name, "unknown" if shown is None else shown
    if record.harness_peak_rss_kib is not None:
        yield "harness memory, peak", f"{record.harness_peak_rss_kib / 1024:,.0f} MiB"
