"""Makes ``judge.expected``, what the outputs must hold according to the oracle, and like tables for other views of the input.

The oracle gives the rows and the input that caused them (`onceproof.oracle.contract.expectation`). This module decides which of
their columns are compared, which key and headers a record must carry, and which rows are due already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

from onceproof.base.errors import NotEvaluated, UsageError
from onceproof.base.words import are, times
from onceproof.judge.case import record_key
from onceproof.judge.case.outputs import OutputExpectation
from onceproof.judge.relations import as_written, digests, expected_columns
from onceproof.oracle import oracle_of
from onceproof.oracle.contract.expectation import CLOSES, RESERVED, Expectation, ExpectedRows
from onceproof.oracle.contract.inputs import COMMITTED, Inputs, View
from onceproof.oracle.contract.query import statement_problem
from onceproof.values import digest
from onceproof.values.canonical import as_text, canonical_rows, document, is_canonical, key_text, literal, quote

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.values.written import Form


def create(case: Case) -> None:
    """Ask the oracle, and store its answer as ``judge.expected``. Raises `NotEvaluated`; `UsageError` if it omits an output."""
    inputs = case.inputs.seen()
    _create_table(case, "judge.expected")
    case.answer = _ask(case, inputs)
    case.digest_first = _digests_suffice(case, inputs)
    digests.create_expected(case)
    table = "judge.expected_digests" if case.digest_first else "judge.expected"
    for output, rows in case.answer.outputs.items():
        case.expectations[output] = _take(case, table, inputs, output, rows, reduced=case.digest_first)
    for output, spec in case.scenario.outputs.items():
        # The scenario was checked before the run, but its run directory may have been edited, or written by another program.
        if output not in case.expectations and not spec.is_side_output:
            raise UsageError(
                f"the oracle in {case.history.run_dir / 'run.json'} does not describe output {output!r}; "
                f"it describes {', '.join(case.expectations) or 'no output'}",
                hint=f"add what it expects of {output!r} under scenario: oracle, or remove the output",
            )


@dataclass(frozen=True)
class Chosen:
    """Which of an oracle's rows are stored."""

    of_cause: str | None
    """A condition on the columns of the oracle's query that all of them meet, if there is one: it only saves time."""
    of_digest: str
    """A condition on the rows with their digests."""


def again(
    case: Case,
    table: str,
    view: View = COMMITTED,
    *,
    still_open: bool = False,
    only: Mapping[str, Chosen] | None = None,
) -> None:
    """Ask the oracle again, about another view of the input. Store its answer for outputs that can be judged in ``table``.

    With ``still_open``, store only rows whose window had not closed when the run ended; with ``only``, only the chosen rows of
    these outputs. Raises `NotEvaluated`.
    """
    inputs = case.inputs.seen(view)
    _create_table(case, table)
    wanted = case.expectations.keys() & case.closing if still_open else case.expectations.keys()
    wanted = wanted if only is None else wanted & only.keys()
    for output, rows in _ask(case, inputs).outputs.items():
        if output in wanted:
            chosen = None if only is None else only[output]
            _take(case, table, inputs, output, rows, still_open=still_open, chosen=chosen)


def create_uncommitted(case: Case) -> None:
    """Make ``judge.uncommitted`` (see `onceproof.judge.case.case.Case.uncommitted`)."""
    source, case.knows_uncommitted = "judge.expected WHERE false", True
    if case.number("SELECT count(*) FROM history.input WHERE visibility <> 'committed'"):
        case.all_expected()
        try:
            again(case, "judge.expected_of_all", View(uncommitted=True))
            source = "judge.expected_of_all"
        except NotEvaluated:
            case.knows_uncommitted = False
    case.sql(f"""CREATE TABLE judge.uncommitted AS SELECT a.* FROM (FROM {source}) a
        WHERE NOT EXISTS (FROM judge.expected e WHERE e.output = a.output AND e.id = a.id AND e.content = a.content)""")  # noqa: S608


def check_identities(case: Case) -> None:
    """Check that no identity is expected twice. If one is, an upsert cannot be judged, and an append cannot be held."""
    for output in list(case.expectations):
        kind = case.scenario.outputs[output].kind
        if kind == "changelog":
            _check_states(case, output)
            continue
        query = """SELECT count(*) AS n, min(id) AS first FROM (
                       SELECT min(id) AS id FROM judge.expected WHERE output = $output AND h IN (
                           SELECT h FROM judge.expected_digests WHERE output = $output GROUP BY h HAVING count(*) > 1) GROUP BY h)"""
        case.repeated[output] = case.number(_SEVERAL_ROWS, {"output": output})
        if not case.repeated[output]:
            continue
        case.all_expected()
        row = case.rows(query, {"output": output})[0]
        if row["n"]:
            columns = ", ".join(case.scenario.outputs[output].identity)
            why = (
                f"outputs: {output}: identity: [{columns}] does not name a single row: {times(row['n'], 'identity')} "
                f"{are(row['n'])} expected more than once, the first is {row['first']}; add a column that distinguishes them"
            )
            if kind == "upsert":
                case.unreadable[output] = why
            else:
                case.doubts.append(why)


_SEVERAL_ROWS = """
    SELECT count(*) FROM (SELECT h FROM judge.expected_digests WHERE output = $output GROUP BY h HAVING count(*) > 1)"""


def _check_states(case: Case, output: str) -> None:
    """Check that the states of each identity come from one input partition: offsets order them only there."""
    query = """SELECT count(*) AS n, min(id) AS first FROM (
                   SELECT id FROM judge.expected WHERE output = $output GROUP BY id
                   HAVING count(DISTINCT (topic, "partition")) > 1)"""
    row = case.rows(query, {"output": output})[0]
    if row["n"]:
        case.unreadable[output] = (
            f"outputs: {output}: kind: changelog: the states of {times(row['n'], 'identity')} come from several input "
            f"partitions (the first is {row['first']}), and states from different partitions have no order; declare it as upsert"
        )


def _ask(case: Case, inputs: Inputs) -> Expectation:
    return oracle_of(case.oracle).expect(inputs)


def _digests_suffice(case: Case, inputs: Inputs) -> bool:
    try:
        return digests.suffice(case, inputs)
    except duckdb.Error:  # `_take` reports the broken query
        return False


def _create_table(case: Case, table: str) -> None:
    case.sql(f"""CREATE TABLE IF NOT EXISTS {table} (output VARCHAR, id {digest.TEXT}, content {digest.TEXT}, topic VARCHAR,
                 "partition" INTEGER, "offset" BIGINT, "key" {digest.TEXT}, nth BIGINT, to_partition INTEGER, closes_us BIGINT, {digest.COLUMNS})""")


def _take(
    case: Case,
    table: str,
    inputs: Inputs,
    output: str,
    rows: ExpectedRows,
    *,
    still_open: bool = False,
    chosen: Chosen | None = None,
    reduced: bool = False,
) -> OutputExpectation:
    """Insert the rows of one output, or with ``reduced`` their digests only, into a table.

    Raises `NotEvaluated` for a query that fails or lacks an identity column.
    """
    spec = case.scenario.outputs[output]
    if problem := statement_problem(rows.query):
        raise NotEvaluated(f"the oracle's query for output {output!r} cannot be run: {problem[0]}")
    try:
        query, types = expected_columns.with_source(inputs, output, rows.query)
        columns = expected_columns.compared(case.scenario, output, types)
        if CLOSES in types:
            case.closing.add(output)
            query = _due(case, output, query, still_open=still_open)
        key = _key_source(case, inputs, output, query, types)
        if key is not None:
            columns[record_key.COLUMN] = "VARCHAR"
        if spec.headers == "compare":
            if (gap := record_key.headers_problem(case, types)) is not None:
                raise NotEvaluated(f"output {output!r} compares headers, but {gap}")
            columns[record_key.HEADERS] = "VARCHAR"
        if chosen is not None and chosen.of_cause is not None:
            query = f"SELECT * FROM (\n{query}\n) WHERE {chosen.of_cause}"  # noqa: S608
        form = as_written.form_of(case, output, columns) if reduced else None
        if form is not None:
            case.forms[output] = form
        whole_rows = _rows(case, output, query, types, columns, key, form)
        stored = digests.of_expected(whole_rows, written=form is not None) if reduced else digest.of_rows(whole_rows)
        if chosen is not None:
            stored = f"SELECT * FROM ({stored}) WHERE {chosen.of_digest}"  # noqa: S608
        case.sql(f"INSERT INTO {table} SELECT * FROM read_parquet({literal(str(inputs.store(stored)))})")  # noqa: S608
    except duckdb.Error as error:
        raise NotEvaluated(
            f"the oracle's query for output {output!r} fails: {error}{case.inputs.renamings()}"
        ) from error
    whole = rows.whole and spec.compare is None
    return OutputExpectation(columns, whole, "_offset" in types, "_key" in types, "_to_partition" in types)


def _due(case: Case, output: str, query: str, *, still_open: bool) -> str:
    """SQL for the rows whose window has closed, by the last watermark; or for those whose window is still open."""
    closed = f"coalesce(epoch_us({CLOSES}::TIMESTAMPTZ) <= 1000::BIGINT * {last_watermark(case, output)}, true)"
    return f"SELECT * FROM (\n{query}\n) WHERE {f'NOT {closed}' if still_open else closed}"  # noqa: S608


def last_watermark(case: Case, output: str, *, committed: bool = True) -> int:
    """The last watermark with which the query of this output committed (or only planned) a batch, in ms since 1970."""
    query = case.scenario.outputs[output].query
    if query is None:
        queries = case.queries
        if len(queries) > 1:
            raise NotEvaluated(
                f"outputs: {output}: query is needed: there are {' and '.join(queries)}, each with a watermark of its own"
            )
        query = queries[0] if queries else ""
    among = "committed_at IS NOT NULL" if committed else "true"
    return case.number(
        f"SELECT max(watermark_ms) FROM history.batches WHERE query = $query AND {among}",  # noqa: S608
        {"query": query},
    )


def _key_source(case: Case, inputs: Inputs, output: str, query: str, types: dict[str, str]) -> str | None:
    """The column that the keys of the output's records are compared with. When the oracle is asked again, as the first time."""
    known = case.expectations.get(output)
    if known is None:
        return record_key.source(case, inputs, output, query, types)
    return ("_to_key" if "_to_key" in types else "_key") if record_key.COLUMN in known.columns else None


def _rows(
    case: Case,
    output: str,
    query: str,
    types: dict[str, str],
    columns: dict[str, str],
    key: str | None,
    form: Form | None = None,
) -> str:
    """SQL for rows like those of ``judge.expected``, without their digests. ``columns`` are compared, with ``key`` as the key.

    With ``form``, also for their texts in that form, as ``written``.
    """
    spec = case.scenario.outputs[output]
    has = {name: quote(name) if name in types else "NULL" for name in RESERVED}
    given = {name: quote(name) for name in columns}
    if key is not None:
        given[record_key.COLUMN] = key_text(quote(key)) if types[key] == "BLOB" else f"{quote(key)}::VARCHAR"
    given[record_key.HEADERS] = record_key.headers(types.get("_headers", "VARCHAR"))
    if "_offset" in types and "_topic" not in types:
        has["_topic"] = literal(case.scenario.input[0].topic)
    if CLOSES in types:
        has[CLOSES] = f"epoch_us({quote(CLOSES)}::TIMESTAMPTZ)"
    fields = {name: f"={name}" for name in columns}
    cause = ", ".join(f"{expression} AS {quote(name)}" for name, expression in has.items())
    opened = ", ".join(
        f"{as_text(sql_type, given[name])} AS {quote(fields[name])}" for name, sql_type in columns.items()
    )
    texts = canonical_rows(
        f"SELECT {cause}, {opened} FROM (\n{query}\n)",  # noqa: S608
        {fields[name]: sql_type for name, sql_type in columns.items() if not is_canonical(sql_type)},
    )
    identity = document({name: quote(fields[name]) for name in spec.identity})
    content = document({name: quote(field) for name, field in fields.items()})
    written = "" if form is None else f", {as_written.text_of(form, columns)} AS written"
    changelog = spec.kind == "changelog"
    nth = f"row_number() OVER (PARTITION BY {identity} ORDER BY _offset, _partition)" if changelog else "NULL"
    return f"""SELECT {literal(output)} AS output, {identity} AS id, {content} AS content, _topic::VARCHAR AS topic,
                      _partition::INTEGER AS "partition", _offset::BIGINT AS "offset", _key::VARCHAR AS "key",
                      {nth}::BIGINT AS nth, _to_partition::INTEGER AS to_partition, {CLOSES}::BIGINT AS closes_us{written}
               FROM ({texts})"""  # noqa: S608
