"""Opens a stored run for judging: makes some tables at once, in this order, and others when a checker asks for them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from onceproof.base.errors import HistoryError, NotEvaluated
from onceproof.history import sanity
from onceproof.history.reader import open_history
from onceproof.judge import side_outputs
from onceproof.judge.case import observed, sources
from onceproof.judge.case.case import Case
from onceproof.judge.relations import caused, changes, compare, effects, expected, late, on_demand, steady

#: Method of `Case` -> the function that makes its tables.
ON_DEMAND = {
    "compare": compare.create,
    "all_rows": on_demand.load_all,
    "all_expected": on_demand.load_expected,
    "changes": changes.create,
    "caused": caused.create,
    "uncommitted": expected.create_uncommitted,
}


@contextmanager
def open_case(run_dir: Path) -> Iterator[Case]:
    """Open a run: make its tables, ask the oracle and load the effects.

    Raises `HistoryError` if the run does not hold a complete history. If the oracle fails, `Case.no_oracle` says why.
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
        side_outputs.add_expectations(case)
        expected.check_identities(case)
        case.doubts += caused.unknown(case)
        late.admit(case)
        effects.load(case)
        late.settle(case)
        side_outputs.match_dead_letters(case)


def _private_folder(run_dir: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix=".judge-", dir=run_dir)
    except OSError as error:
        hint = "judging needs space in the run directory; copy the run to a folder that you can write to"
        raise HistoryError(f"{run_dir} cannot be written to: {error}", hint=hint) from error
