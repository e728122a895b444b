"""What the command `qualify` prints: its progress and the matrix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from onceproof.cli.output import Output
from onceproof.cli.report import qualification_report
from onceproof.history.run_directory import private_files
from onceproof.qualify import matrix
from onceproof.qualify.cells import kinds as known_kinds
from onceproof.qualify.console import ProgressOnConsole
from onceproof.qualify.directory import QualificationProgress
from onceproof.qualify.session import Qualification


@contextmanager
def listening(progress: QualificationProgress, *, budget_s: float) -> Iterator[ProgressOnConsole]:
    stderr = Output(as_json=True).console()
    with ProgressOnConsole(stderr, progress.scenario, budget_s) as progress_line:
        if progress.replaced:
            progress_line.print(f"{matrix.own_faults(progress.replaced)}; qualify uses those of its matrix")
        yield progress_line


def report(result: Qualification, output: Output) -> int:
    """Print the result and write its page; returns the exit code."""
    output.say(matrix.as_text(result, output.look(log_width=100)), styled=True)
    with private_files():
        qualification_report(result.directory.path, output)
    if output.as_json:
        output.result(json.dumps(matrix.as_json(result), default=str))
    return result.outcome.exit_code


def chosen(named: str | None) -> list[str]:
    """``crash,stop`` as a list; ``all`` is every kind that qualify can try."""
    if named == "all":
        return known_kinds()
    return list(dict.fromkeys(kind.strip() for kind in (named or "").split(",") if kind.strip()))
