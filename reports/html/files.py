"""Writes the page about a run into its directory, as ``report.html``, and before it the excerpts of logs that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from onceproof.base.masking import masked
from onceproof.base.signals import uninterrupted
from onceproof.base.timeline import read_events
from onceproof.history import run_files
from onceproof.history.execution import Execution
from onceproof.history.run_directory import run_dir_problem
from onceproof.reports.html import excerpts, moments
from onceproof.reports.html.limits import SIZES
from onceproof.reports.html.run_page import of_run
from onceproof.reports.report import PAGE_FILE

FILE = PAGE_FILE


def write(run_dir: Path) -> Path:
    """Write the page and return its path. A link of that name is replaced, not followed.

    Raises what `of_run` raises, and `EnvironmentProblem` if the directory cannot be written.
    """
    text = of_run(run_dir)
    try:
        run_files.write_text(run_dir / FILE, text)
    except OSError as refused:
        raise run_dir_problem(refused, run_dir) from refused
    return run_dir / FILE


@contextmanager
def reported(execution: Execution) -> Iterator[None]:
    """Write the page when this block ends, however it ends. A failure to write becomes a warning: the verdict matters more."""
    try:
        yield
    finally:
        with uninterrupted("writing the report"):
            _attempt(execution, excerpts.FILE, lambda: _write_excerpts(execution))
            _attempt(execution, FILE, lambda: write(execution.directory.path))


def _attempt(execution: Execution, file: str, write_it: Callable[[], object]) -> None:
    try:
        write_it()
    except Exception as failure:
        why = masked(str(failure) or type(failure).__name__)
        execution.timeline.emit("warning", message=f"there is no {file}: {why}")


def _write_excerpts(execution: Execution) -> None:
    """Store what the logs say around the events that a page lists."""
    run = execution.directory.path
    logs = [path.name for path in execution.directory.logs.iterdir() if path.is_file()]
    found = moments.moments(read_events(run), logs)
    excerpts.write(run, moments.chosen(found, SIZES[0].events), execution.timeline.wall_start)
