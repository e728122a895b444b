"""The command `gate`: runs the listed scenarios, prints the table, and writes the baseline."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table
from rich.text import Text

from onceproof.api import qualification, runs
from onceproof.api.runs import Run
from onceproof.base.duration import clock, seconds
from onceproof.base.errors import Interrupted, OnceproofError, ScenarioError, UsageError
from onceproof.base.visible import visible
from onceproof.ci_output.result import CiResult, of_run
from onceproof.ci_output.server import publish
from onceproof.cli.output import Output, crashed, write_file
from onceproof.cli.report import qualification_report
from onceproof.faults.contract import needs_proxy
from onceproof.gate import junit, session, settings
from onceproof.gate.baseline import Baseline
from onceproof.gate.session import GateResult, GateRow, Status
from onceproof.gate.settings import GateQualification, GateScenario, GateSettings
from onceproof.history.run_directory import private_files
from onceproof.judge.findings import Outcome
from onceproof.qualify import matrix
from onceproof.qualify.console import ProgressOnConsole
from onceproof.qualify.session import Qualification
from onceproof.reports import commands
from onceproof.reports.page import Page
from onceproof.reports.progress import Progress
from onceproof.reports.report import PAGE_FILE
from onceproof.scenario_files.load import LoadedScenario, load_file
from onceproof.scenario_files.shipped import find
from onceproof.stack.sharing.shared import SharedStack

_STYLE = {Outcome.HELD: "green", Outcome.VIOLATED: "bold red", Outcome.INCONCLUSIVE: "bold yellow"}


def gate(
    file: Path,
    *,
    budget: str,
    update: bool,
    runs_dir: Path,
    ci: bool,
    output: Output,
    junit_file: Path | None = None,
    fresh_stack: bool = False,
) -> int:
    """Run the gate; returns its exit code. Raises `UsageError` before anything starts."""
    budget_s = seconds(budget)
    gated = settings.read(file)
    loaded = _loaded(gated)
    known = Baseline(scenarios={}) if update else Baseline.read(gated.baseline)
    guesses = _guesses(gated.baseline) if update else known
    if junit_file is not None:
        write_file(
            junit_file, ""
        )  # fail now, not after ten minutes of running; what is interrupted leaves no valid report

    qualifies = any(isinstance(item, GateQualification) for item in gated.items)
    stack = SharedStack(protocol_proxy=qualifies or any(needs_proxy(each.scenario) for each in loaded.values()))
    shared = None if fresh_stack else stack

    def execute(scenario: GateScenario) -> Run:
        output.say(f"gate: {scenario.path}, expected {scenario.expect}")
        each = loaded[scenario.path]
        limit_s = each.scenario.limits.deadline_s
        with _bugs_told(output), Progress(output.console(), scenario.path, limit_s) as progress:
            return runs.run(each, runs_dir=runs_dir, listeners=[progress], shared=shared)

    def qualify(item: GateQualification, most_s: float) -> Qualification:
        output.say(f"gate: {item.name}, expected {item.expect}, within {clock(most_s)}")
        with _bugs_told(output):
            done = qualification.qualify(
                loaded[item.name].path,
                budget=f"{int(most_s)}s",
                tries=item.tries,
                runs_dir=runs_dir,
                fresh_stack=fresh_stack,
                shared=shared,
                listening=lambda progress: ProgressOnConsole(output.console(), progress.scenario, most_s),
            )
        with private_files():
            qualification_report(done.directory.path, output)
        return done

    order = session.ordered(gated.items, session.read_last_failed(runs_dir), guesses)
    with stack:
        result = session.work(order, known, execute, qualify, budget_s=budget_s)
    try:
        output.say(as_text(result, output), styled=True)
        if output.as_json:
            output.result(json.dumps(as_json(result)))
    finally:  # whatever cannot be shown, its files are there
        if junit_file is not None:
            write_file(junit_file, junit.render(result))
    session.write_last_failed(runs_dir, result)
    if ci:
        publish([_for_ci(row, loaded) for row in result.rows], os.environ, output.command)
    if update:
        _update(result, gated, output)
    return result.outcome.exit_code


@contextmanager
def _bugs_told(output: Output) -> Iterator[None]:
    """A bug of onceproof is shown at once, with its traceback, and ends this run only. Raises `OnceproofError` for it."""
    try:
        yield
    except (OnceproofError, Interrupted):
        raise
    except Exception as crash:
        error = crashed(crash)
        output.complain(f"error: {error}")
        raise error from None


def _guesses(baseline: Path) -> Baseline:
    """The baseline that is replaced, for how long everything takes; an empty one if there is none, or it cannot be read."""
    try:
        return Baseline.read(baseline)
    except UsageError:
        return Baseline(scenarios={})


def _for_ci(row: GateRow, loaded: dict[str, LoadedScenario]) -> CiResult:
    path = loaded[row.path].path if row.path in loaded else None
    passed = row.status is Status.PASSED
    if row.run is None:
        return CiResult(row.path, path, passed, row.status, row.why)
    return of_run(row.run, path, passed=passed, status=row.status, why=row.why, expected=row.expect)


def _loaded(gated: GateSettings) -> dict[str, LoadedScenario]:
    """Every scenario of the gate: nothing may start before all of them are valid."""
    loaded: dict[str, LoadedScenario] = {}
    problems = []
    for item in gated.items:
        field = "qualifications" if isinstance(item, GateQualification) else "scenarios"
        try:
            loaded[item.name] = load_file(find(gated.path_of(item)))
        except ScenarioError as error:
            problems += error.problems
        except UsageError as error:
            raise UsageError(f"{gated.file}: gate.{field}: {error.message}", hint=error.hint) from None
    if problems:
        raise ScenarioError(problems)
    return loaded


def _update(result: GateResult, gated: GateSettings, output: Output) -> None:
    """Write the baseline, unless a scenario did not pass: it would accept what is wrong."""
    wrong = [row.path for row in result.rows if row.status is not Status.PASSED]
    if wrong:
        output.complain(f"the baseline {gated.baseline} was not written: {', '.join(wrong)} did not pass")
        return
    result.baseline().write(gated.baseline)
    output.say(f"wrote the baseline {gated.baseline}; commit it")


def as_text(result: GateResult, output: Output) -> str:
    """The table, then what failed with its findings and its run directory."""
    page = Page(output.look(log_width=100))
    page.rule()
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for column in ("scenario", "expected", "result", "why"):
        table.add_column(column, overflow="fold")
    for row in result.rows:
        style = _STYLE.get(row.status.outcome, "bold magenta")
        table.add_row(visible(row.path), row.expect, Text(row.status, style=style), Text(visible(row.why)))
    page.below(table, 0)
    for row in result.rows:
        if row.status is not Status.PASSED and row.run is not None:
            page.blank()
            page.below(row.run.explain(f"expected {row.expect}").partition("\nreport: ")[0], 0)
            page.unbroken("report", str(row.run.report))
            page.unbroken("next", commands.check(row.run.run_dir))
        elif row.status is not Status.PASSED and row.qualification is not None:
            where = row.qualification.directory.path
            page.blank()
            page.below(f"{row.path}: {matrix.statement(row.qualification)}", 0)
            page.unbroken("report", str(where / PAGE_FILE))
            page.unbroken("next", f"onceproof qualify --continue {where}")
    page.blank()
    counts = {status: sum(row.status is status for row in result.rows) for status in Status}
    page.line("gate", ", ".join(f"{count} {status}" for status, count in counts.items() if count))
    return page.text()


def as_json(result: GateResult) -> dict[str, object]:
    return {
        "gate": "passed" if result.outcome is Outcome.HELD else "failed",
        "exit": result.outcome.exit_code,
        "scenarios": [_row(row) for row in result.rows],
    }


def _row(row: GateRow) -> dict[str, object]:
    run = None if row.run is None else str(row.run.run_dir)
    directory = None if row.qualification is None else str(row.qualification.directory.path)
    result: dict[str, object] = {
        "path": row.path,
        "expect": row.expect,
        "result": str(row.status),
        "why": row.why,
        "run": run,
    }
    return result | ({} if directory is None else {"qualification": directory})
