"""Qualify a job: try each kind of fault at each point of its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from onceproof.api.runs import RUNS
from onceproof.base.duration import seconds
from onceproof.base.errors import UsageError
from onceproof.history.run_directory import private_files
from onceproof.qualify import session
from onceproof.qualify.directory import Directory, QualificationProgress
from onceproof.qualify.session import ProgressListener, Qualification
from onceproof.scenario_files.shipped import find
from onceproof.stack.profiles import profile_of
from onceproof.stack.sharing.shared import SharedStack

TRIES = 3
"""At how many batches a cell is tried by default."""


class Silent(ProgressListener):
    """Ignores everything."""


def qualify(
    scenario: str | Path | None = None,
    *,
    go_on: str | Path | None = None,
    stack: str | None = None,
    budget: str = "10m",
    tries: int = TRIES,
    kinds: Sequence[str] = (),
    seed: int | None = None,
    runs_dir: str | Path = RUNS,
    fresh_stack: bool = False,
    shared: SharedStack | None = None,
    listening: Callable[[QualificationProgress], AbstractContextManager[ProgressListener]] | None = None,
) -> Qualification:
    """Begin the qualification of a ``scenario``, or ``go_on`` with the one in that directory.

    ``stack``: ``compose``, or the name of a stack in ``onceproof.toml``; None: services of its own, or those that it began on.
    ``fresh_stack``: each run starts services of its own; else they stay up, and are clean for each run (`SharedStack`).
    ``shared``: lends these services instead, and goes on to live.
    ``budget``: for all runs together (``90s``, ``10m``, ``1h30m``). ``tries``: at how many batches a cell that holds is tried, as far as
    the budget allows; every cell is tried once before any is tried again. ``kinds``: the kinds of faults to try, and no others;
    none: those that need not be named (`onceproof.qualify.cells.unnamed_kinds`). ``listening`` returns a context with what is notified of
    the progress. The result has the matrix in ``cells``, the ``outcome`` and the ``strongest`` claim that held.

    Raises `UsageError` before anything starts, and `Interrupted` with the command that continues.
    """
    budget_s = seconds(budget)
    if tries < 1:
        raise UsageError(f"--tries {tries} is too few", hint="each cell is tried at least once: --tries 1")
    if (scenario is None) == (go_on is None):
        given = "both" if scenario else "neither"
        raise UsageError(
            f"qualify takes either a SCENARIO or --continue DIR, and was given {given}",
            hint="onceproof qualify my_job.yaml",
        )
    if go_on is not None and seed is not None:
        message = f"--seed {seed} cannot change the seed of a qualification that is continued"
        raise UsageError(message, hint="leave out --seed")
    with private_files(), ExitStack() as held:
        if go_on is not None:
            held.enter_context(Directory.open(Path(go_on))[0].locked())  # before the state is read
            directory, progress = session.resume(Path(go_on))
            if stack not in (None, progress.stack):
                raise UsageError(
                    f"--stack {stack} cannot change the stack of a qualification that is continued: "
                    f"it began on {progress.stack or 'services of its own'}",
                    hint="leave out --stack",
                )
            if kinds and tuple(kinds) != progress.kinds:
                raise UsageError(
                    "--kinds cannot change the matrix of a qualification that is continued: "
                    f"it began with {', '.join(progress.kinds) or 'those that need not be named'}",
                    hint="leave out --kinds",
                )
            profile = None if progress.stack is None else profile_of(progress.stack)
        else:
            assert scenario is not None
            profile = None if stack is None else profile_of(stack)
            directory, progress = session.begin(
                find(scenario), runs_dir=Path(runs_dir), seed=seed, profile=profile, kinds=tuple(kinds)
            )
            held.enter_context(directory.locked())
        silent: AbstractContextManager[ProgressListener] = nullcontext(Silent())
        with (
            _services(shared, fresh_stack) as lending,
            silent if listening is None else listening(progress) as listener,
        ):
            return session.Session(
                directory, progress, budget_s=budget_s, listener=listener, profile=profile, tries=tries, shared=lending
            ).work()


def _services(shared: SharedStack | None, fresh: bool) -> AbstractContextManager[SharedStack | None]:
    if shared is not None or fresh:
        return nullcontext(None if fresh else shared)
    return SharedStack(protocol_proxy=True)  # the first run needs it, to see what the job commits
