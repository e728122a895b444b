"""Prepares an oracle's queries on a sample of the input, to warn of errors before a run.

The first and the last records of each data set become views, as when a run is judged; no query runs over them. A query that
cannot be prepared is an error if these are all records that a run feeds. Otherwise it is a warning: a record outside the sample
may have a field that the sample lacks.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow.parquet as pq

from onceproof.base.errors import NotEvaluated
from onceproof.base.registry import suggest
from onceproof.data import dataset_of, datasets, rows_of
from onceproof.faults.foreign_transaction import ForeignSpec
from onceproof.history.reader import History
from onceproof.history.run_record import RunRecord
from onceproof.history.schema import TABLES
from onceproof.history.writer import HistoryWriter
from onceproof.judge.relations.expected_columns import compared, with_source
from onceproof.oracle import oracle_of
from onceproof.oracle.contract import decoders
from onceproof.oracle.contract.inputs import InputRecords
from onceproof.oracle.contract.query import Unordered, unordered
from onceproof.oracle.identity import IdentitySpec, expressions
from onceproof.oracle.reference import ReferenceSpec
from onceproof.oracle.sql import SqlSpec
from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint, Loc

#: How many records of each data set are sampled. Closing records come last and may have other fields.
FIRST, LAST = 2_000, 200
_UNKNOWN = re.compile(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"')


@dataclass(frozen=True)
class Rehearsal:
    """What is wrong with the oracle of a valid scenario, each with its place."""

    errors: list[Complaint]
    """In a run, too, these queries cannot be run."""
    warnings: list[Complaint]


def rehearse(scenario: Scenario) -> Rehearsal:
    oracle, loc = scenario.oracle, cast("Loc", ("oracle",))
    if isinstance(oracle, ReferenceSpec) and oracle.anchor is not None:
        oracle, loc = oracle.anchor, ("oracle", "anchor")
    if not isinstance(oracle, SqlSpec | IdentitySpec):
        return Rehearsal([], [])
    unclear, wrong = list(_unordered(oracle, loc)), _unprepared(scenario, oracle, loc)
    more = any(isinstance(fault, ForeignSpec) for fault in scenario.chaos)  # it writes records that are not fed
    certain = _sample_size(scenario) is None and not more
    return Rehearsal(wrong, unclear) if certain else Rehearsal([], [*unclear, *wrong])


def _unordered(oracle: SqlSpec | IdentitySpec, loc: Loc) -> Iterator[Complaint]:
    found: list[tuple[Loc, list[Unordered]]]
    if isinstance(oracle, SqlSpec):
        found = [(("queries", output), unordered(query)) for output, query in oracle.queries.items()]
    else:
        found = [
            (where, unordered(text, before, "\n)"))
            for output in oracle.columns
            for where, text, before in expressions(oracle, output)
        ]
    for where, parts in found:
        for part in parts:
            yield Complaint(
                (*loc, *where), f"the rows that the oracle expects may differ from check to check: {part}", part.hint
            )


def _unprepared(scenario: Scenario, oracle: SqlSpec | IdentitySpec, loc: Loc) -> list[Complaint]:
    if any(decoders.needs_code(spec.decode) for spec in scenario.input):
        return []  # only running the function would show its columns
    with tempfile.TemporaryDirectory(prefix="onceproof-") as folder:
        records = InputRecords(_sample_history(scenario, Path(folder)), scenario, Path(folder) / "inputs")
        try:
            return list(_prepared(scenario, oracle, records, loc))
        finally:
            records.close()


def _prepared(
    scenario: Scenario, oracle: SqlSpec | IdentitySpec, records: InputRecords, loc: Loc
) -> Iterator[Complaint]:
    """What is wrong with the oracle's queries over these records."""
    try:
        records.observe()
        records.decode()
        inputs = records.seen()
        answer = oracle_of(oracle).expect(inputs)
    except NotEvaluated as gap:
        yield Complaint(loc, str(gap), _sample_size(scenario))
        return
    field = "queries" if isinstance(oracle, SqlSpec) else "columns"
    for output, rows in answer.outputs.items():
        try:
            _, types = with_source(inputs, output, rows.query)
            compared(scenario, output, types)
        except duckdb.Error as error:
            why = " ".join(str(error).partition("\n\nLINE ")[0].split())
            message = f"the oracle's query for output {output!r} cannot be run: {why}"
            hint = "\n".join(filter(None, (_near(why), _sample_size(scenario))))
            yield Complaint((*loc, field, output), message, hint or None)
        except NotEvaluated as gap:
            yield Complaint((*loc, field, output), str(gap), _sample_size(scenario))


def _near(why: str) -> str | None:
    """The column that the user may have meant instead of one that DuckDB does not find."""
    unknown = _UNKNOWN.search(why)
    near = "" if unknown is None else suggest(unknown[1] or unknown[2], re.findall(r'"([^"]+)"', why[unknown.end() :]))
    return near if near.startswith("did you mean") else None


def _sample_history(scenario: Scenario, folder: Path) -> History:
    """A history in ``folder`` with the first and the last records of each input."""
    with HistoryWriter(folder) as writer:
        for spec in scenario.input:
            dataset, rows = dataset_of(spec, scenario.seed), rows_of(spec, scenario.seed)
            first = dataset.records(0, min(FIRST, rows))
            last = dataset.records(max(FIRST, rows - LAST), rows) if rows > FIRST else ()
            where: dict[str, Any] = {"topic": spec.topic, "partition": 0, "visibility": "committed"}
            writer.append(
                "input",
                (
                    {**where, "offset": at, "key": r.key, "value": r.value, "timestamp_ms": r.timestamp_ms}
                    for at, r in enumerate(chain(first, last))
                ),
            )
    static = {}
    for name in scenario.pipeline.prepare.tables:
        owner = next(datasets.get(i.dataset) for i in scenario.input if name in datasets.get(i.dataset).tables())
        static[name] = folder / f"{name}.parquet"
        pq.write_table(owner.table(name), static[name])
    tables = {name: folder / "history" / f"{name}.parquet" for name in TABLES}
    footers = {name: pq.read_metadata(path) for name, path in tables.items()}
    return History(folder, RunRecord(), tables, static, footers)


def _sample_size(scenario: Scenario) -> str | None:
    """Which records were sampled, for inputs with more; None if the sample is complete."""
    more = [
        f"the first {FIRST:,} and the last {LAST} of the {rows:,} records of {spec.topic}"
        for spec in scenario.input
        if (rows := rows_of(spec, scenario.seed)) > FIRST + LAST
    ]
    return f"checked against {', '.join(more)}" if more else None
