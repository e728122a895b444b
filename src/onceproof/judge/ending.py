"""How a run ends: whatever happens in it, its directory says so, and its timeline is closed."""

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
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import write_verdict


@contextmanager
def accounted_for(execution: Execution) -> Iterator[None]:
    """Note in the run directory how this block ended where it ends early. Raises `OnceproofError` and `Interrupted` only."""
    run_dir = execution.directory.path
    try:
        yield
    except Interrupted as interrupted:
        with uninterrupted("noting how the run ended"):
            interrupted.run_dir = run_dir
            _note(execution, Outcome.INTERRUPTED, "interrupted")
        raise
    except Exception as failure:
        try:
            with uninterrupted("noting how the run ended"):
                problem = _as_problem(failure, run_dir)
                problem.run_dir = run_dir
                _note(execution, Outcome.ERROR, masked(str(problem)))
        except Interrupted as interrupted:  # it came after the failure, which is what the directory says
            interrupted.run_dir = run_dir
            raise
        if problem is failure:
            raise
        raise problem from failure
    finally:
        execution.timeline.close()


def _note(execution: Execution, outcome: Outcome, why: str) -> None:
    """Leave a run directory that says how the run ended, as far as it can still be written."""
    scenario, directory = execution.scenario, execution.directory
    execution.timeline.emit("phase", name="stopped", outcome=str(outcome), why=why)
    seconds = execution.seconds()
    try:
        if not directory.run.observed:  # a judge that fails leaves a whole history: check can try again
            directory.update(interrupted=outcome is Outcome.INTERRUPTED, error=why, seconds=seconds)
        verdict = Verdict(
            scenario=scenario.name,
            outcome=outcome,
            claim=scenario.claim.model_dump(mode="json"),
            reasons=(why,),
            seed=scenario.seed,
            seconds=seconds,
        )
        write_verdict(directory.path, verdict)
    except OSError:
        return  # the disk that failed is the reason why we are here, and the caller says so


def _as_problem(failure: Exception, run_dir: Path) -> OnceproofError:
    """What went wrong, as an error that carries an exit code and, where there is one, a hint."""
    if isinstance(failure, OnceproofError):
        return failure
    if isinstance(failure, OSError) and is_disk_trouble(failure):
        return run_dir_problem(failure, run_dir)
    return EnvironmentProblem(
        f"the harness failed: {type(failure).__name__}: {failure}",
        hint=f"the logs are in {run_dir / 'logs'}; if this machine is in order, it is a defect of onceproof",
    )
