"""How long does `onceproof qualify` take? Eight jobs as people write them, and the shipped foreign ones, one after the other.

``python benchmarks/qualify.py`` qualifies each job once, in a process of its own, with ``--tries`` and ``--budget``. Per job it
prints the reachable cells, how many of them were exercised after ten minutes and when 95 % of them were, how many were tried
at ``--tries`` batches by then and at the end, and the verdict. A violated cell counts as tried: one violation decides it.
Cells that hold and have fewer tries have no other batch with anything in danger, or the budget ended; both are printed.

The times are those that the qualification itself has spent, so a component that is fetched first does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from measure import machine

from onceproof.base.errors import OnceproofError
from onceproof.judge.findings import Outcome
from onceproof.qualify.cells import Cell
from onceproof.qualify.directory import FILE, Directory

_ADOPTION = Path(__file__).parent.parent / "tests" / "adoption"
_FOREIGN = ("foreign-jdbc-append", "foreign-job", "foreign-kafka-sink", "foreign-psycopg-upsert", "foreign-two-sinks")
_WITHIN_S = 600.0
"""The time by which most cells are to be exercised."""
_MOST = 0.95
_EVERY_S = 1.0


@dataclass(frozen=True)
class Moment:
    """What was known at one moment of a qualification."""

    spent_s: float
    reachable: int
    exercised: int
    tried: int
    """Cells that are violated, or that hold at ``--tries`` batches."""


@dataclass
class Row:
    """The qualification of one job."""

    job: str
    moments: list[Moment] = field(default_factory=list)
    ended: str = ""

    def at(self, spent_s: float) -> Moment:
        """The last moment until then; that of an empty matrix if there is none."""
        return next((one for one in reversed(self.moments) if one.spent_s <= spent_s), Moment(0.0, 0, 0, 0))

    def most_after_s(self) -> float | None:
        """When `_MOST` of the reachable cells were exercised; None if they never were."""
        return next((one.spent_s for one in self.moments if 0 < one.reachable * _MOST <= one.exercised), None)


sys.path.append(str(_ADOPTION))
samples, shapes = import_module("samples"), import_module("shapes")


def _scenario(job: str, folder: Path) -> str:
    """The scenario of a job: a shipped one by its name, or the one that `init` drafts, with its owner's edits."""
    if job in _FOREIGN:
        return job
    shape = shapes.SHAPES[job]
    shutil.copy(_ADOPTION / "jobs" / shape.job, folder)
    samples.write(folder, *shape.samples)
    if shape.schema:
        (folder / "schema.sql").write_text(shape.schema)
    subprocess.run(
        [sys.executable, "-m", "onceproof", "init", *shape.init], cwd=folder, check=True, capture_output=True
    )
    file = (folder / shape.job).with_suffix(".yaml")
    file.write_text(shape.edited(file.read_text()))
    return str(file)


def _states(runs: Path, tries: int) -> Iterator[Moment]:
    """The present state of the qualification in this folder, if it has begun."""
    for file in runs.glob(f"*/{FILE}"):
        try:
            _, progress = Directory.open(file.parent)
        except OnceproofError:
            continue  # it is being replaced
        reachable = [cell for cell in progress.cells if cell.reachable]
        exercised = sum(
            cell.exercised or bool(cell.hits) for cell in reachable
        )  # a cell that is repeated is pending again
        yield Moment(progress.spent_s, len(reachable), exercised, sum(_tried(cell, tries) for cell in reachable))


def _tried(cell: Cell, tries: int) -> bool:
    return cell.exercised and (cell.verdict is Outcome.VIOLATED or len(cell.hits) >= tries)


def qualify(job: str, budget: str, tries: int, folder: Path) -> Row:
    """Qualify one job, and note what was known after each of its runs."""
    row, runs = Row(job), folder / "runs"
    scenario = _scenario(job, folder)
    asked = [sys.executable, "-m", "onceproof", "qualify", scenario, "--budget", budget, "--tries", str(tries)]
    with (folder / "out.json").open("w+") as out:
        process = subprocess.Popen([*asked, "--json", "--runs", str(runs)], cwd=folder, stdout=out)
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EVERY_S)
                row.moments += [one for one in _states(runs, tries) if not row.moments or one != row.moments[-1]]
        finally:
            process.terminate()  # it cleans up after itself, also when this script is interrupted
            process.wait()
        row.moments += list(_states(runs, tries))
        out.seek(0)
        printed = out.read()
    row.ended = f"exit code {process.returncode}"
    if printed.strip():
        row.ended = f"{json.loads(printed).get('verdict', '?')}, {row.ended}"
    return row


def _line(row: Row) -> str:
    early, last, most = row.at(_WITHIN_S), row.at(math.inf), row.most_after_s()
    reached = "never" if most is None else f"{most:.0f} s"
    return (
        f"{row.job:24} {last.reachable:9} {early.exercised:11} {reached:>8} {early.tried:10} {last.tried:8}"
        f" {last.spent_s:8.0f} s  {row.ended}"
    )


def main() -> None:
    jobs = [*shapes.SHAPES, *_FOREIGN]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"which jobs (default: all): {', '.join(jobs)}")
    parser.add_argument("--budget", default="30m", help="of each qualification (default: 30m)")
    parser.add_argument("--tries", type=int, default=3, help="batches at which a cell that holds is tried (default: 3)")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.jobs) - set(jobs)):
        parser.error(f"no such job: {', '.join(unknown)}; there are {', '.join(jobs)}")
    print(machine())
    print(f"{'job':24} {'reachable':>9} {'by 10 min':>11} {'95 %':>8} {'tried then':>10} {'at end':>8} {'spent':>10}")
    for job in chosen.jobs or jobs:
        with tempfile.TemporaryDirectory(prefix="onceproof-qualify-") as folder:
            print(_line(qualify(job, chosen.budget, chosen.tries, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
