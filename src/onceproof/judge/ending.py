"""Records how a run ended, in its directory and timeline, whatever happened in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem, Interrupted, OnceproofError
from onceproof.base.masking import masked
from onceproof.base.process import is_disk_trouble
from onceproof.base.signals import uninterrupted
from onceproof.history.execution import Execution
from onceproof.history.run_directory import run_dir_problem
from onceproof.judge.findings import Outcome, StatedClaim, Verdict
from onceproof.judge.verdict import write_verdict


@contextmanager
def accounted_for(execution: Execution) -> Iterator[None]:
    """Record in the run directory if this block fails or is interrupted. Raises `OnceproofError` and `Interrupted` only."""
    run_dir = execution.directory.path
    try:
        yield
    except Interrupted as interrupted:
        with uninterrupted("noting how the run ended"):
            interrupted.run_dir = run_dir
            _record(execution, Outcome.INTERRUPTED, "interrupted")
        raise
    except Exception as failure:
        try:
            with uninterrupted("noting how the run ended"):
                problem = _as_problem(failure, run_dir)
                problem.run_dir = run_dir
                _record(execution, Outcome.ERROR, masked(str(problem)))
        except Interrupted as interrupted:  # it came after the failure, which the directory records
            interrupted.run_dir = run_dir
            raise
        if problem is failure:
            raise
        raise problem from failure
    finally:
        execution.timeline.close()


def _record(execution: Execution, outcome: Outcome, why: str) -> None:
    """Write to the run directory how the run ended, as far as it can still be written."""
    scenario, directory = execution.scenario, execution.directory
    execution.timeline.emit("phase", name="stopped", outcome=str(outcome), why=why)
    seconds = execution.seconds()
    try:
        if not directory.run.observed:  # if judging failed, the history is complete, and `check` can try again
            directory.update(interrupted=outcome is Outcome.INTERRUPTED, error=why, seconds=seconds)
        verdict = Verdict(
            scenario=scenario.name,
            outcome=outcome,
            claim=StatedClaim.of(scenario),
            reasons=(why,),
            seed=scenario.seed,
            seconds=seconds,
        )
        write_verdict(directory.path, verdict)
    except OSError:
        return  # the caller reports the failing disk


def _as_problem(failure: Exception, run_dir: Path) -> OnceproofError:
    """The failure as an error with an exit code and, if there is one, a hint."""
    if isinstance(failure, OnceproofError):
        return failure
    if isinstance(failure, OSError) and is_disk_trouble(failure):
        return run_dir_problem(failure, run_dir)
    return EnvironmentProblem(
        f"the harness failed: {type(failure).__name__}: {failure}",
        hint=f"see the logs in {run_dir / 'logs'}; if this machine is in order, report it as a defect of onceproof",
    )
