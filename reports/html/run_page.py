"""The page about one run: verdict, what to do next, timeline, faults, findings, what was not judged, events, versions."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceproof.base.errors import HistoryError
from onceproof.history.run_record import BuiltComponent, RunRecord
from onceproof.judge.anomalies import anomaly
from onceproof.judge.findings import FaultReport, Outcome, Verdict
from onceproof.kinds.contract import has_picture
from onceproof.reports.html import findings, moments
from onceproof.reports.html.drawing import draw_plot, draw_timeline
from onceproof.reports.html.page import render
from onceproof.reports.html.source import LOGS, StoredRun, read
from onceproof.reports.html.timeline import Timeline, Window, timeline
from onceproof.reports.picture import picture, svg
from onceproof.reports.picture import text as picture_text
from onceproof.stores.contract import store_of, systems

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
_MOST_BATCHES = 100


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
    found = moments.moments(run.events)
    listed = moments.chosen(found)
    rows = frozenset(one.anchor for one in listed)
    line = timeline(run, found)
    verdict = run.verdict
    views = () if verdict is None else findings.views(verdict, run.rows, run.path)
    violating = [finding for finding in verdict.findings if finding.violates] if verdict is not None else []
    return render(
        "run.html",
        title=f"{_name(run)}: {_word(run)}",
        name=_name(run),
        word=_word(run),
        outcome="none" if verdict is None else verdict.outcome.value,
        symbol="?" if verdict is None else SYMBOLS[verdict.outcome],
        lead=_lead(run),
        reasons=() if verdict is None else verdict.reasons[1:],
        claimed=() if verdict is None else tuple(claims(verdict.claim)),
        broken=[] if verdict is None else list(verdict.anomalies().items()),
        steps=tuple(_steps(run)),
        notes=run.notes,
        drawn=None if line is None else draw_timeline(line, rows),
        plots=() if line is None else [(plot.title, plot.summary(), draw_plot(plot, line)) for plot in line.plots],
        hidden_batches=0 if line is None else line.hidden,
        start=0.0 if line is None else line.start,
        faults=_faults(verdict, line),
        planned_faults=len(run.record.scenario.chaos or []),
        findings=views,
        more_findings=0 if verdict is None else max(len(verdict.findings) - len(views), 0),
        has_rows=bool(run.rows) or not violating,
        judge=f"onceproof check {shlex.quote(str(run.path))}",
        batches=_batches(verdict),
        batch_total=0 if verdict is None else len(verdict.batches),
        flow=_flow(run),
        ignored={} if verdict is None else verdict.ignored,
        not_evaluated={} if verdict is None else verdict.not_evaluated,
        counts={} if verdict is None else verdict.counts,
        events=listed,
        more_events=len(found) - len(listed),
        logs=run.logs,
        logs_folder=LOGS,
        facts=tuple(_facts(run)),
    )


def claims(claim: dict[str, Any]) -> Iterator[str]:
    """The claim in words, one sentence for all outputs and one for each output with its own."""
    outputs = claim.get("outputs")
    yield ", ".join(f"{name} {value}" for name, value in claim.items() if name != "outputs") or "nothing"
    for output, own in outputs.items() if isinstance(outputs, dict) else ():
        yield f"{output}: {', '.join(f'{name} {value}' for name, value in own.items()) if isinstance(own, dict) else own}"


def _name(run: StoredRun) -> str:
    return run.verdict.scenario if run.verdict is not None else run.record.scenario.name or run.path.name


def _word(run: StoredRun) -> str:
    return "no verdict" if run.verdict is None else run.verdict.word


def _lead(run: StoredRun) -> str:
    if run.verdict is None:
        return run.record.error or "This run has no verdict. The page shows what was recorded before it ended."
    return run.verdict.reasons[0] if run.verdict.reasons else "The verdict gives no reason."


def _steps(run: StoredRun) -> Iterator[Step]:
    """What to do next: the fix of each anomaly first, then the commands."""
    verdict, where = run.verdict, shlex.quote(str(run.path))
    names = list(verdict.anomalies()) if verdict is not None else []
    for name in names:
        if stops := fixes(name, run.record):
            yield Step(f"Fix for {name}, one of", stops) if len(stops) > 1 else Step(f"Fix for {name}", stops)
        yield _command(f"More about {name}", f"onceproof explain {shlex.quote(name)}")
    if verdict is not None and verdict.outcome is Outcome.INCONCLUSIVE:
        yield Step("Nothing is proved", ("Remove the reasons above, then run the scenario again.",))
    if run.record.imported:
        yield _command("Judge it again", f"onceproof check {where}")
        return
    scenario = run.record.scenario_path or run.record.scenario.name
    if scenario is not None:
        seed = "" if run.record.seed is None else f" --seed {run.record.seed}"
        yield _command("Run it again", f"onceproof run {shlex.quote(scenario)}{seed}")
    if run.record.observed:
        yield _command("Judge it again, without services", f"onceproof check {where}")
        yield _command("See how often its findings come back", f"onceproof replay {where}")
    if names:
        yield _command("Find the smallest schedule that shows them", f"onceproof shrink {where}")


def _command(label: str, command: str) -> Step:
    return Step(label, (command,), command=True)


def fixes(name: str, record: RunRecord) -> tuple[str, ...]:
    """What stops the anomaly in outputs such as this run's."""
    try:
        scenario = record.scenario.parsed(Path(), with_faults=False)
        return stops(name, {store_of(spec).words.system for spec in scenario.outputs.values()})
    except (HistoryError, KeyError):  # of another version
        return stops(name)


def stops(name: str, stores: Collection[str] | None = None) -> tuple[str, ...]:
    """What stops the anomaly in these output systems (default: in all); empty if the checker has no explanation."""
    try:
        return anomaly(name).explanation.stops_for(systems() if stores is None else stores)
    except KeyError:
        return ()


def _faults(verdict: Verdict | None, line: Timeline | None) -> tuple[FaultRow, ...]:
    windows = {} if line is None else {window.number: window for window in line.windows}
    if verdict is not None and verdict.faults:
        return tuple(
            FaultRow(number, _title(fault), _state(fault), windows.get(number), fault.evidence[:20])
            for number, fault in enumerate(verdict.faults, 1)
        )
    return tuple(FaultRow(number, window.title, window.state, window, ()) for number, window in windows.items())


def _title(fault: FaultReport) -> str:
    batch = "" if fault.batch is None else f", batch {fault.batch}"
    point = "" if fault.point is None else f" at {fault.point}"
    return f"{fault.fault} {fault.target}{batch}{point}{f' of {fault.query}' if fault.query else ''}"


def _state(fault: FaultReport) -> str:
    if fault.hit:
        return "hit"
    return "fired, not hit" if fault.fired else "armed, never fired" if fault.armed else "never armed"


def _batches(verdict: Verdict | None) -> list[Any]:
    """The batches that have a finding or a fault."""
    if verdict is None:
        return []
    return [(batch, SYMBOLS[batch.verdict]) for batch in verdict.batches if batch.anomalies or batch.faults][
        :_MOST_BATCHES
    ]


def _flow(run: StoredRun) -> dict[str, str] | None:
    """The picture of a run of consumers, as an image and as text; None for other runs, and if it cannot be drawn."""
    if not has_picture(run.record.scenario.pipeline.kind):
        return None
    try:
        drawn = picture.of_run(run.path)
    except (HistoryError, ValueError) as error:
        return {"why": str(error)}
    if drawn is None or len(drawn.rows) > _MOST_DRAWN:
        return {"why": f"it is too large for this page: onceproof picture {shlex.quote(str(run.path))}"}
    image = base64.b64encode(svg.render(drawn).encode()).decode()
    return {"image": f"data:image/svg+xml;base64,{image}", "text": picture_text.render(drawn)}


def _facts(run: StoredRun) -> Iterator[tuple[str, str]]:
    record = run.record
    yield "run directory", str(run.path)
    if record.scenario_path is not None:
        yield "scenario", record.scenario_path
    if record.seed is not None:
        yield "seed", str(record.seed)
    seconds = run.verdict.seconds if run.verdict is not None else record.seconds
    yield "duration", f"{seconds:.1f} s"
    yield "onceproof", record.onceproof or "unknown"
    if record.job is not None:
        yield "driver starts", str(record.job.starts)
    yield from (record.machine or {"machine": "unknown"}).items()
    for name, version in sorted((record.versions or {}).items()):
        shown = version.version if isinstance(version, BuiltComponent) else version
        yield name, "unknown" if shown is None else shown
    if record.harness_peak_rss_kib is not None:
        yield "harness memory, peak", f"{record.harness_peak_rss_kib / 1024:,.0f} MiB"
