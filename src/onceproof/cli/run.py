"""The commands that execute or judge: `run` for several scenarios one after another, `check`, `replay`, `shrink` and `picture`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from onceproof.api import runs
from onceproof.base.errors import HistoryError, Interrupted, OnceproofError, UsageError
from onceproof.base.registry import suggest
from onceproof.base.standard_streams import kept
from onceproof.ci_output.result import CiResult, of_run
from onceproof.ci_output.server import publish
from onceproof.cli.output import Output, crashed, write_file
from onceproof.cli.show.validate import warning_lines
from onceproof.history.not_a_run import check_exists
from onceproof.history.run_directory import private_files
from onceproof.history.run_record import FILE, RunRecord
from onceproof.judge.findings import VERDICT_FILE, Outcome, Verdict
from onceproof.reports.progress import Progress
from onceproof.reports.report import PAGE_FILE, RunSet, ScenarioResult, reports
from onceproof.reports.terminal import TerminalReport
from onceproof.scenario.model import ExpectedVerdict, Scenario
from onceproof.scenario.tiers import Tier, tier_of
from onceproof.scenario_files.load import LoadedScenario, all_warnings, load_all
from onceproof.scenario_files.shipped import folder, names
from onceproof.stack.profiles import profile_of

if TYPE_CHECKING:
    from onceproof.stack.sharing.shared import SharedStack

#: `run` draws the picture of a run of consumers with at most so many messages.
_MOST_DRAWN = 100


def run_scenarios(
    given: list[str],
    *,
    everything: bool,
    runs_dir: Path,
    seed: int | None,
    files: list[tuple[str, Path]],
    ci: bool,
    output: Output,
    stack: str | None = None,
    fresh_stack: bool = False,
    tier: str = "real",
) -> int:
    """Run the named scenarios, or all shipped ones; returns the exit code.

    ``files``: what `report_files` returned. ``stack``: what `profile_of` takes. Several scenarios share services, unless
    ``fresh_stack``. ``tier``: what `tier_of` takes.

    Raises `UsageError` before anything starts if any of them cannot run.
    """
    if everything and given:
        raise UsageError(
            f"--all already runs every shipped scenario, but {given[0]!r} is named too", hint="use one of the two"
        )
    if not everything and not given:
        hint = "name one or more of `onceproof list`, or the path of a YAML file, or use --all"
        raise UsageError("no scenario is named", hint=hint)
    if everything and stack is not None:
        raise UsageError("--all is not for an external stack", hint="name the scenarios to run there")
    how = tier_of(tier)
    profile = None if stack is None else profile_of(stack)
    loaded = load_all(names() if everything else given, profile)
    tiers = [_tier_for(each.scenario, how) for each in loaded]
    without = [each.scenario.name for each, its in zip(loaded, tiers, strict=True) if its != how]
    if without and not everything:
        raise UsageError(f"--tier {how} is for Spark jobs; {without[0]} runs plain consumers", hint="leave it out")
    own = [each for each in loaded if each.path.parent != folder()]  # no shipped scenario has warnings
    for line in warning_lines(warning for _, some in all_warnings(own) for warning in some):
        output.say(line)
    for _, file in files:
        write_file(file, "")  # fail now, not after ten minutes of running
    results: list[ScenarioResult] = []
    with nullcontext() if fresh_stack or len(loaded) == 1 else shared_stack(loaded) as shared:
        for each, its in zip(loaded, tiers, strict=True):
            results.append(_run_one(each, runs_dir, seed, output, its, shared))
            if isinstance(results[-1].error, Interrupted):
                break
            if len(loaded) > 1:
                _say_report(RunSet((results[-1],)), output)
    run_set = RunSet(tuple(results), by_expectation=everything)
    try:
        code = _conclude(run_set, output, reported=len(loaded) > 1)
    finally:  # whatever cannot be shown, its files are there
        _write_files(files, run_set)
    if ci:
        publish(_for_ci(run_set, loaded), os.environ, output.command)
    return code


def shared_stack(loaded: Iterable[LoadedScenario]) -> SharedStack:
    """Services for these scenarios, one after the other. With the protocol proxy if any of them needs it."""
    from onceproof.faults.contract import needs_proxy
    from onceproof.stack.sharing.shared import SharedStack

    return SharedStack(protocol_proxy=any(needs_proxy(each.scenario) for each in loaded))


def report_files(junit: Path | None, given: list[str], output: Output) -> list[tuple[str, Path]]:
    """(name of a report, its file) of ``--junit FILE`` and of each ``--report NAME=FILE``.

    ``--report NAME`` is in ``output.printed``. Raises `UsageError` for an unknown report, and if stdout would get two.
    """
    files = [] if junit is None else [("junit", junit)]
    for text in given:
        name, equals, file = text.partition("=")
        if name not in reports.names():
            near = suggest(name, reports.names())
            raise UsageError(
                f"--report {text!r}: there is no report {name!r}; {near}", hint="list them: onceproof list reports"
            )
        if equals and not file:
            raise UsageError(
                f"--report {text!r} names no file", hint=f"write --report {name}=FILE, or --report {name} for stdout"
            )
        if equals:
            files.append((name, Path(file)))
    if len(output.printed) > 1:
        both = " and ".join(output.printed[:2])
        raise UsageError(
            f"stdout cannot get two reports: {both}",
            hint=f"give one of them a file: --report {output.printed[1]}=FILE",
        )
    return files


def _for_ci(run_set: RunSet, loaded: list[LoadedScenario]) -> list[CiResult]:
    found = []
    for result, each in zip(run_set.results, loaded, strict=False):  # fewer results after an interruption
        passed, status = run_set.passed(result), result.outcome.value
        if result.verdict is None or result.run_dir is None:
            why = "no verdict" if result.error is None else result.error.message.partition("\n")[0]
            found.append(CiResult(result.scenario, each.path, passed, status, why, str(result.error or "")))
            continue
        why = next(iter(result.verdict.reasons), result.verdict.word).partition("\n")[0]
        run = runs.Run(each.scenario, result.verdict, result.run_dir)
        expected = result.expect.verdict if run_set.by_expectation else "held"
        found.append(of_run(run, each.path, passed=passed, status=status, why=why, expected=expected))
    return found


def check_run(run: Path, files: list[tuple[str, Path]], output: Output) -> int:
    """Judge a stored run again; returns its verdict's exit code. ``files``: what `report_files` returned."""
    verdict = runs.check(run)
    if (why := _html(run)) is not None:
        output.say(why)
    run_set = RunSet((ScenarioResult(verdict.scenario, _stored_expectation(run), verdict, run.resolve()),))
    code = _conclude(run_set, output, reported=False)
    _write_files(files, run_set)
    return code


def _html(run: Path) -> str | None:
    """Write the HTML report of a judged run. Returns why it could not be written: that must not lose the verdict."""
    from onceproof.reports.html import files as html_files

    try:
        with private_files():
            html_files.write(run)
    except Exception as failure:
        return f"there is no {html_files.FILE}: {failure or type(failure).__name__}"
    return None


def draw_run(run: Path) -> str:
    """Write the picture of a stored run to its directory; returns it as text."""
    check_exists(run)
    from onceproof.reports.picture import files as picture_files

    return f"{picture_files.write(run)}\n\npicture: {run / picture_files.SVG}"


def replay_run(run: Path, times: int, output: Output, *, fresh_stack: bool = False) -> int:
    """Replay a stored run's schedule; 0 if every replay had the same findings, else 3."""
    check_exists(run)
    from onceproof.explore.replay import as_text, replay

    done = replay(run.resolve(), times=times, report=output.say, fresh_stack=fresh_stack)
    output.say(as_text(done))
    if output.as_json:
        output.result(json.dumps(done.to_json()))
    return 0 if done.same == done.times else Outcome.INCONCLUSIVE.exit_code


def shrink_run(run: Path, anomaly: str | None, most: int, output: Output, *, fresh_stack: bool = False) -> int:
    """Shrink a stored run's schedule; 0 if the result is proved to be minimal, 130 after Ctrl-C, else 3."""
    check_exists(run)
    from onceproof.explore import minimal

    done = minimal.shrink_run(run.resolve(), anomaly=anomaly, most=most, report=output.say, fresh_stack=fresh_stack)
    output.say(done.as_text())
    if output.as_json:
        output.result(json.dumps(done.to_json()))
    return done.exit_code


def _tier_for(scenario: Scenario, wanted: Tier) -> Tier:
    """The tier of this scenario's run: only Spark jobs have drivers."""
    from onceproof.kinds.contract import kind_of

    return wanted if kind_of(scenario).micro_batches else "real"


def _run_one(
    loaded: LoadedScenario, runs_dir: Path, seed: int | None, output: Output, tier: Tier, shared: SharedStack | None
) -> ScenarioResult:
    from onceproof.kinds.contract import kind_of

    scenario = loaded.scenario
    try:
        with Progress(output.console(), scenario.name, scenario.limits.deadline_s) as progress:
            outcome = runs.run(loaded, runs_dir=runs_dir, seed=seed, listeners=[progress], tier=tier, shared=shared)
    except KeyboardInterrupt:
        return ScenarioResult(scenario.name, scenario.expect, error=Interrupted("interrupted"))
    except (OnceproofError, Interrupted) as error:
        return _failed(scenario, error)
    except Exception as crash:  # the scenarios after this one still run
        return ScenarioResult(scenario.name, scenario.expect, error=crashed(crash))
    if kind_of(scenario).has_picture:
        output.say(f"{_picture(scenario, outcome.run_dir)}\n")
    return ScenarioResult(scenario.name, scenario.expect, outcome.verdict, outcome.run_dir)


def _picture(scenario: Scenario, run: Path) -> str:
    """The picture of a judged run, or one line with the reason why there is none. A failure to draw must not lose the verdict."""
    from onceproof.scenario_files.checks.consumers import rows_of

    try:
        if (messages := rows_of(scenario)) > _MOST_DRAWN:
            return (
                f"no picture: {messages} messages are too many for this report; draw it with `onceproof picture {run}`"
            )
        return draw_run(run)
    except Exception as failure:
        return f"no picture: {failure or type(failure).__name__}"


def _failed(scenario: Scenario, error: OnceproofError | Interrupted) -> ScenarioResult:
    """The result of a run that failed, with the verdict that it stored, if any."""
    run = error.run_dir
    return ScenarioResult(scenario.name, scenario.expect, None if run is None else _stored_failure(run), run, error)


def _stored_failure(run: Path) -> Verdict | None:
    """The verdict ``error`` or ``interrupted`` that a run wrote when it failed; None if it could not (a full disk)."""
    try:
        verdict = Verdict.from_json(run / VERDICT_FILE)
    except (OSError, ValueError):
        return None  # the error that is being reported matters more than this one
    return verdict if verdict.outcome in (Outcome.ERROR, Outcome.INTERRUPTED) else None


def _conclude(runs: RunSet, output: Output, *, reported: bool) -> int:
    """Print the summary if each scenario was ``reported`` when it ended, else the report; returns the exit code."""
    for result in runs.results:
        if result.run_dir is not None:
            kept(result.run_dir)
    if reported:
        output.say(TerminalReport(output.look(), full=False).summary(runs), styled=True)
    else:
        _say_report(runs, output)
    for name in output.printed:
        output.result(reports.get(name)().render(runs))
    error = runs.results[0].error
    if len(runs.results) == 1 and error is not None:
        return error.exit_code
    return runs.outcome().exit_code


def _say_report(runs: RunSet, output: Output) -> None:
    result = runs.results[0]
    if len(runs.results) == 1 and result.error is not None:
        output.complain(_complaint(result, result.error))
    else:
        output.say(TerminalReport(output.look(), full=False).render(runs), styled=True)
    page = None if result.run_dir is None else result.run_dir / PAGE_FILE
    if len(runs.results) == 1 and page is not None and page.is_file():
        output.say(f"report     {page}")


def _complaint(result: ScenarioResult, error: OnceproofError | Interrupted) -> str:
    run = result.run_dir
    if isinstance(error, Interrupted):
        where = "" if run is None else f"; run directory: {run}"
        return f"{error.message} in {result.scenario}: everything that it started was stopped{where}"
    where = "" if run is None else f"\nrun: {run}\nlogs: {run / 'logs'}"
    return f"error in {result.scenario}: {error}{where}"


def _write_files(files: list[tuple[str, Path]], runs: RunSet) -> None:
    """Write the reports, after the result is printed: it is shown even if a file cannot be written."""
    for name, file in files:
        write_file(file, reports.get(name)().render(runs))


def _stored_expectation(run: Path) -> ExpectedVerdict:
    try:
        return ExpectedVerdict.model_validate(RunRecord.read(run).scenario.expect)
    except ValueError as error:
        raise HistoryError(f"{run / FILE} cannot be read: {error}", hint="run the scenario again") from None
