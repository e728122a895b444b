"""Opens a stored run for judging: what is made of it at once, in this order, and what is made when a checker asks for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from onceproof.base.errors import HistoryError, NotEvaluated
from onceproof.history import sanity
from onceproof.history.reader import open_history
from onceproof.judge import aside
from onceproof.judge.case import observed, sources
from onceproof.judge.case.case import Case
from onceproof.judge.relations import caused, changes, compare, effects, expected, late, steady

#: Name -> what makes the tables that `Case` has a method of that name for.
ON_DEMAND = {
    "compare": compare.create,
    "changes": changes.create,
    "caused": caused.create,
    "uncommitted": expected.create_uncommitted,
}


@contextmanager
def open_case(run_dir: Path) -> Iterator[Case]:
    """The run, with its tables made, the oracle asked and the effects loaded.

    Raises `HistoryError` for a run that is no whole history. An oracle that fails leaves `Case.no_oracle`.
    """
    history = open_history(run_dir)
    sanity.check(history)
    scenario = history.run.scenario.parsed(history.run_dir, with_faults=False)
    with _private_folder(run_dir) as folder:
        case = Case(history, scenario, Path(folder), ON_DEMAND)
        try:
            try:
                _prepare(case)
            except duckdb.Error as error:
                raise HistoryError(f"the history in {run_dir} cannot be read: {error}") from error
            yield case
        finally:
            case.close()


def _prepare(case: Case) -> None:
    observed.create(case)
    case.inputs.observe()
    caused.create_batches(case)
    sources.check_decoded(case)
    try:
        case.inputs.decode()
        case.notes |= case.inputs.late
        expected.create(case)
        steady.check(case)
    except NotEvaluated as gap:
        case.no_oracle = str(gap)
    else:
        aside.expect(case)
        expected.check_identities(case)
        case.doubts += caused.unknown(case)
        late.admit(case)
        effects.load(case)
        late.settle(case)
        aside.settle(case)


def _private_folder(run_dir: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix=".judge-", dir=run_dir)
    except OSError as error:
        hint = "judging needs room in the run directory; copy the run to where you can write"
        raise HistoryError(f"{run_dir} cannot be written to: {error}", hint=hint) from error
