"""The commands that a report shows about a run. Each can be pasted into a shell as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

from onceproof.base.errors import HistoryError
from onceproof.history.run_record import RunRecord

#: Written for the name of the stack if the run, of an earlier version, did not store it.
_UNKNOWN_STACK = "NAME"


def check(run_dir: Path) -> str:
    """Judges the run again, or a slice of one."""
    return shlex.join(["onceproof", "check", str(run_dir)])


def run_again(record: RunRecord) -> str | None:
    """Runs the scenario again as it was run: same seed, same stack. None if there is no scenario, as for an imported run."""
    scenario = record.scenario_path or record.scenario.name
    if record.imported or scenario is None:
        return None
    seed = [] if record.seed is None else ["--seed", str(record.seed)]
    stack = stack_of(record)
    return shlex.join(["onceproof", "run", scenario, *seed, *([] if stack is None else ["--stack", stack])])


def run_again_of(run_dir: Path) -> str | None:
    """As `run_again`; None also if the record cannot be read."""
    try:
        return run_again(RunRecord.read(run_dir))
    except HistoryError:
        return None


def stack_of(record: RunRecord) -> str | None:
    """The name that ``--stack`` takes to run on the same stack; None for a run on services of its own."""
    stack = record.scenario.stack
    external = isinstance(stack, dict) and stack.get("provider") == "external"
    return record.stack_profile or (_UNKNOWN_STACK if external else None)
