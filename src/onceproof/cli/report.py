"""The command `report`: writes the HTML page about a run or a qualification, about several runs, or compares two."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem, NotARun, OnceproofError, UsageError
from onceproof.cli.output import Output
from onceproof.history import run_files
from onceproof.history.not_a_run import describe_path
from onceproof.history.run_directory import private_files
from onceproof.history.run_record import FILE as RUN_FILE
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import VERDICT_FILE, Verdict
from onceproof.qualify.directory import FILE as QUALIFICATION
from onceproof.qualify.directory import Directory
from onceproof.reports.brief import Brief
from onceproof.reports.comparison import Comparison, compare_runs

COMPARISON, MERGED = "comparison.html", "merged.html"


def report(directories: list[Path], *, compare: bool, merge: bool, to: Path | None, show: bool, output: Output) -> None:
    """Write the page and print where it is. Raises `UsageError` if a directory holds neither a run nor a qualification."""
    _check_number(len(directories), compare=compare, merge=merge)
    for directory in directories:
        if not directory.is_dir():
            hint = "the report of each run names its directory"
            raise UsageError(f"run directory {str(directory)!r} does not exist", hint=hint)
    resolved = [directory.resolve() for directory in directories]
    with private_files():
        if compare:
            _compare(resolved[0], resolved[1], to, show, output)
        elif merge:
            _merge(resolved, to, show, output)
        else:
            _report(resolved[0], to, show, output)


def _check_number(given: int, *, compare: bool, merge: bool) -> None:
    if compare and merge:
        raise UsageError("--compare and --merge are two different pages", hint="use one of the two")
    if merge:
        fits, names = given > 1, "two runs or more"
    elif compare:
        fits, names = given == 2, "OLD and NEW, two directories"
    else:
        fits, names = given == 1, "one directory; --merge takes several, --compare takes two"
    if not fits:
        raise UsageError(
            f"report takes {names}, and {given} are named",
            hint="onceproof report RUN; onceproof report --compare OLD NEW; onceproof report RUN --merge RUN...",
        )


def _report(directory: Path, to: Path | None, show: bool, output: Output) -> None:
    from onceproof.qualify import page as qualification_page
    from onceproof.reports.html import files as run_page
    from onceproof.reports.html.run_page import of_run

    text = qualification_page.page(*Directory.open(directory)) if _is_qualification(directory) else of_run(directory)
    _done(_written(to or directory / run_page.FILE, text), {}, show, output)


def _compare(old: Path, new: Path, to: Path | None, show: bool, output: Output) -> None:
    from onceproof.reports.html import comparison_page

    comparison = _comparison(old, new)
    path = _written(to or new / COMPARISON, comparison_page.page(comparison))
    output.say(comparison.as_text())
    _done(path, comparison.to_json(), show, output)


def _merge(directories: list[Path], to: Path | None, show: bool, output: Output) -> None:
    from onceproof.reports.html import index_page

    for directory in directories:
        if _is_qualification(directory):
            raise UsageError(
                f"{directory} is a qualification, and --merge takes runs", hint=f"its runs are in {directory / 'runs'}"
            )
        if not (directory / RUN_FILE).is_file() and not (directory / VERDICT_FILE).is_file():
            what, hint = describe_path(directory)
            raise NotARun(f"{directory} is not a run: {what}", hint=hint)
    runs = index_page.results(list(dict.fromkeys(directories)))
    path = _written(to or directories[0] / MERGED, index_page.page(*runs))
    outcome = runs[0].outcome()
    output.say(f"result     {outcome.value}, the worst of {len(runs[0].results)} runs")
    _done(path, {"verdict": outcome.value, "runs": [str(each.run_dir) for each in runs[0].results]}, show, output)


def _comparison(old: Path, new: Path) -> Comparison:
    from onceproof.qualify import page as qualification_page

    if _is_qualification(old) != _is_qualification(new):
        raise UsageError(
            f"{old} and {new} cannot be compared: one is a run, the other a qualification",
            hint="compare two runs or two qualifications",
        )
    if _is_qualification(old):
        return qualification_page.compared(old, new)
    return compare_runs(_stored(old), _stored(new))


def _stored(run: Path) -> Brief:
    record = RunRecord.read(run)
    try:
        return Brief(run, record, Verdict.from_json(run / VERDICT_FILE))
    except FileNotFoundError:
        return Brief(run, record, None)
    except (OSError, ValueError) as error:
        hint = f"judge it again: onceproof check {run}"
        raise UsageError(f"{run / VERDICT_FILE} cannot be read: {error}", hint=hint) from None


def _is_qualification(directory: Path) -> bool:
    return (directory / QUALIFICATION).exists() or (directory / QUALIFICATION).is_symlink()


def _written(path: Path, text: str) -> Path:
    try:
        run_files.write_text(path, text)
    except OSError as error:
        hint = "name a writable file with --to FILE"
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror}", hint=hint) from None
    return path


def _done(path: Path, document: dict[str, object], show: bool, output: Output) -> None:
    output.say(f"report     {path}")
    if output.as_json:
        output.result(json.dumps({"report": str(path), **document}))
    if show and not _opened(path):
        output.say("no browser was found: open the file in one")


def _opened(path: Path) -> bool:
    try:
        return webbrowser.open(path.as_uri())
    except (OSError, webbrowser.Error):
        return False


def qualification_report(directory: Path, output: Output) -> None:
    """Write the page of a qualification that ended. A failure to write it must not lose the result."""
    from onceproof.qualify import page as qualification_page

    try:
        output.say(f"report     {qualification_page.write(directory)}")
    except (OnceproofError, OSError, ValueError) as failure:
        output.say(f"there is no report: {failure}")
