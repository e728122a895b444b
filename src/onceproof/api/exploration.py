"""Explore a job: crashes of its driver at all points of its first batches, alone, in pairs, or at random."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from onceproof.api.runs import RUNS
from onceproof.base.duration import seconds
from onceproof.base.errors import UsageError
from onceproof.base.masking import hiding, of_environment
from onceproof.base.version import __version__
from onceproof.explore import sources
from onceproof.explore.exploration import Directory, Plan
from onceproof.explore.result import Exploration
from onceproof.explore.session import Listener, Session
from onceproof.history.run_directory import locked, private_files
from onceproof.qualify.directory import digest_of
from onceproof.qualify.session import check_has_batches
from onceproof.scenario_files.load import LoadedScenario, load_file
from onceproof.scenario_files.shipped import find
from onceproof.warm.tier import unavailable

#: Batch 0 is planned before the input is fed, so these are the first three with data.
BATCHES = (1, 2, 3)

_NOT_EXPLORED = {
    "in-tasks, between-sinks, commit-lost, commit-unacknowledged, state-partly-committed": (
        "the session can end an attempt only in a log write of the driver, or before a sink's commit; use `onceproof qualify`"
    ),
    "lost requests and answers, refusals, fences, stalls, crashes of services": (
        "they need real connections and processes; use `onceproof qualify`"
    ),
}


@dataclass(frozen=True)
class Wanted:
    """What to explore."""

    mode: str = "singles"
    number: int = 0
    seed: int | None = None
    rows_per_batch: int = 30
    tier: str = "auto"

    @classmethod
    def of(
        cls,
        *,
        singles: bool,
        pairs: bool,
        random: int | None,
        seed: int | None = None,
        rows: int = 30,
        tier: str = "auto",
    ) -> Self:
        """From the options of the command line. Raises `UsageError`."""
        given = [name for name, is_given in (("singles", singles), ("pairs", pairs), ("random", random)) if is_given]
        if len(given) > 1:
            raise UsageError(
                f"explore was given --{' and --'.join(given)}", hint="give one; --pairs includes the single faults"
            )
        if tier not in ("auto", "real"):
            raise UsageError(f"--tier {tier!r} is not a tier", hint="give auto or real")
        return cls(given[0] if given else "singles", random or 0, seed, rows, tier)


class Silent(Listener):
    """Ignores everything."""


def explore(
    scenario: str | Path | None = None,
    wanted: Wanted | None = None,
    *,
    go_on: str | Path | None = None,
    budget: str = "10m",
    runs_dir: str | Path = RUNS,
    listener: Listener | None = None,
) -> Exploration:
    """Explore a ``scenario``, or ``go_on`` with the exploration in that directory.

    ``wanted``: the schedules (default: each fault alone); those of an exploration that is continued stay the same. The result
    has a verdict for each schedule, and what real kills showed. After a signal it has what was found until then.

    Raises `UsageError` before anything starts, and as a run does.
    """
    budget_s = seconds(budget)
    if (scenario is None) == (go_on is None):
        given = "both" if scenario else "neither"
        raise UsageError(
            f"explore takes either a SCENARIO or --continue DIR, and was given {given}",
            hint="onceproof explore my_function.yaml",
        )
    if go_on is not None and wanted not in (None, Wanted()):
        raise UsageError(
            "an exploration that is continued keeps its schedules, its seed and its rows",
            hint="give only --budget, or begin a new one: onceproof explore SCENARIO",
        )
    with private_files(), ExitStack() as held:
        if go_on is not None:
            held.enter_context(locked(Directory.open(Path(go_on))[0].path, "explore"))  # before the results are read
            loaded, directory, plan = _resumed(Path(go_on))
        else:
            loaded, directory, plan = _begun(scenario, wanted or Wanted(), Path(runs_dir))
            held.enter_context(locked(directory.path, "explore"))
        with hiding(of_environment(loaded.scenario.pipeline.secrets)):
            return Session(loaded, directory, plan, budget_s=budget_s, listener=listener or Silent()).work()


def _begun(scenario: str | Path | None, wanted: Wanted, runs_dir: Path) -> tuple[LoadedScenario, Directory, Plan]:
    assert scenario is not None
    path = find(scenario)
    loaded = load_file(path)
    check_has_batches(loaded.scenario)
    why_not = "--tier real" if wanted.tier == "real" else unavailable(loaded.scenario)
    plan = Plan(
        scenario=loaded.scenario.name,
        scenario_path=str(path.absolute()),
        digest=digest_of(path),
        mode=wanted.mode,
        number=wanted.number,
        seed=loaded.scenario.seed if wanted.seed is None else wanted.seed,
        batch_numbers=BATCHES,
        rows_per_batch=wanted.rows_per_batch,
        tier="warm" if why_not is None else "real",
        tier_reason=why_not or "",
        not_explored=_NOT_EXPLORED,
        files=sources.digests(loaded.scenario, path),
        onceproof=__version__,
    )
    directory = Directory.create(runs_dir, loaded.scenario.name)
    directory.save(plan)
    return loaded, directory, plan


def _resumed(path: Path) -> tuple[LoadedScenario, Directory, Plan]:
    directory, plan = Directory.open(path)
    original = Path(plan.scenario_path)
    loaded = load_file(find(original))
    check_has_batches(loaded.scenario)
    hint = f"what was found may no longer be true; begin a new one: onceproof explore {original}"
    if (file := sources.changed({str(original): plan.digest, **plan.files})) is not None:
        raise UsageError(f"{file} has changed, or is gone, since the exploration in {path} began", hint=hint)
    if plan.onceproof != __version__:
        raise UsageError(
            f"onceproof {plan.onceproof} began the exploration in {path}, and this is {__version__}", hint=hint
        )
    return loaded, directory, plan
