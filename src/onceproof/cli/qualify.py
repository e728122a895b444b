"""The command `qualify`: checks its options, and prints the matrix."""

from __future__ import annotations

import json
import re
from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.cli.output import Output
from onceproof.cli.report import qualification_report
from onceproof.history.run_directory import private_files
from onceproof.scenario_files.load import find

_UNITS = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smh])+")
_LEAST_S = 10.0


def seconds(text: str) -> float:
    """``90s``, ``10m``, ``1h30m`` as seconds. Raises `UsageError`."""
    words = text.strip().lower()
    hint = "a number with s, m or h: 90s, 10m, 1h30m"
    if not _DURATION.fullmatch(words):
        raise UsageError(f"--budget {text!r} is not a duration", hint=f"give {hint}")
    total = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smh])", words))
    if total < _LEAST_S:
        raise UsageError(
            f"--budget {text!r} is too short: a run without faults takes {_LEAST_S:.0f} s or more", hint=f"give {hint}"
        )
    return total


def qualify(
    scenario: str | None, *, go_on: Path | None, budget: str, runs_dir: Path, seed: int | None, output: Output
) -> int:
    """Begin a qualification, or continue one; returns the exit code. Raises `UsageError` before anything starts."""
    budget_s = seconds(budget)
    if (scenario is None) == (go_on is None):
        given = "both" if scenario else "neither"
        raise UsageError(
            f"qualify takes either a SCENARIO or --continue DIR, and was given {given}",
            hint="onceproof qualify my_job.yaml",
        )
    if go_on is not None and seed is not None:
        message = f"--seed {seed} cannot change the seed of a qualification that is continued"
        raise UsageError(message, hint="leave out --seed")
    with private_files():
        return _qualify(scenario, go_on, budget_s, runs_dir, seed, output)


def _qualify(
    scenario: str | None, go_on: Path | None, budget_s: float, runs_dir: Path, seed: int | None, output: Output
) -> int:
    from onceproof.qualify import matrix, session
    from onceproof.qualify.console import ProgressOnConsole

    if go_on is not None:
        directory, progress = session.resume(go_on)
    else:
        assert scenario is not None
        directory, progress = session.begin(find(scenario), runs_dir=runs_dir, seed=seed)
    stderr = Output(as_json=True).console()
    with ProgressOnConsole(stderr, progress.scenario, budget_s) as progress_line:
        if progress.replaced:
            progress_line.print(f"{matrix.own_faults(progress.replaced)}; qualify uses those of its matrix")
        result = session.Session(directory, progress, budget_s=budget_s, listener=progress_line).work()
    console = output.console()
    color = console.is_terminal and console.color_system is not None and not console.no_color
    output.say(
        matrix.as_text(result, color=color, width=min(console.width, 120) if console.is_terminal else 100), styled=True
    )
    qualification_report(result.directory.path, output)
    if output.as_json:
        output.result(json.dumps(matrix.as_json(result), default=str))
    return result.outcome.exit_code
