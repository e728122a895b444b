"""The command `qualify`: prints its progress and the matrix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onceproof.api import qualification
from onceproof.base.duration import seconds
from onceproof.cli.output import Output
from onceproof.cli.report import qualification_report
from onceproof.history.run_directory import private_files
from onceproof.qualify import matrix
from onceproof.qualify.cells import kinds as known_kinds
from onceproof.qualify.console import ProgressOnConsole
from onceproof.qualify.directory import QualificationProgress


def qualify(
    scenario: str | None,
    *,
    go_on: Path | None,
    budget: str,
    tries: int,
    kinds: str | None,
    runs_dir: Path,
    seed: int | None,
    output: Output,
    stack: str | None = None,
    fresh_stack: bool = False,
) -> int:
    """Begin a qualification, or continue one; returns the exit code. Raises `UsageError` before anything starts."""
    budget_s = seconds(budget)

    @contextmanager
    def listening(progress: QualificationProgress) -> Iterator[ProgressOnConsole]:
        stderr = Output(as_json=True).console()
        with ProgressOnConsole(stderr, progress.scenario, budget_s) as progress_line:
            if progress.replaced:
                progress_line.print(f"{matrix.own_faults(progress.replaced)}; qualify uses those of its matrix")
            yield progress_line

    result = qualification.qualify(
        scenario,
        go_on=go_on,
        stack=stack,
        budget=budget,
        tries=tries,
        kinds=_kinds(kinds),
        seed=seed,
        runs_dir=runs_dir,
        fresh_stack=fresh_stack,
        listening=listening,
    )
    output.say(matrix.as_text(result, output.look(log_width=100)), styled=True)
    with private_files():
        qualification_report(result.directory.path, output)
    if output.as_json:
        output.result(json.dumps(matrix.as_json(result), default=str))
    return result.outcome.exit_code


def _kinds(named: str | None) -> list[str]:
    """``crash,stop`` as a list; ``all`` is every kind that qualify can try."""
    if named == "all":
        return known_kinds()
    return list(dict.fromkeys(kind.strip() for kind in (named or "").split(",") if kind.strip()))
