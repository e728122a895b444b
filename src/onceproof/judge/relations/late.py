"""Late records and open windows, by the plan that Spark logged: what a windowed output must hold, and what it may.

``offsets/N`` of a checkpoint holds the batch's ranges and its watermark W(N). A stateful operator that gets a record in
batch N compares the end of the record's window (of a join: its event time) with a watermark, and drops it at or below:

- at or below W(N-1): **dropped**. Since Spark 3.5 records are late by the watermark of the batch before, while state is
  evicted by that of the batch itself (`WatermarkPropagator`, SPARK-42376);
- above W(N-1), at or below W(N): **may** count. By default it does; with one watermark for both, as before, it does not
  (``spark.sql.streaming.statefulOperator.allowMultiple``);
- above W(N): **must** count.

An oracle's option ``windows`` says for a topic when a record's window closes. The topic's view then has the records that
must count, with ``_batch`` and ``_watermark_ms``; view ``TOPIC_with_late`` has all of them and ``_late``: ``no``, ``may``,
``dropped``. An identity is right if it has the rows that follow without the records that may count, or those that follow with
them. Where such records stand in several batches some might count and others not: then other rows are a doubt.

A column ``_closes`` in an oracle's rows says when a row's window closes, for outputs that get a row only then: rows that close
above the last committed watermark are *open*, and nothing of their identity is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
from pydantic import Field

from onceproof.base.errors import NotEvaluated
from onceproof.base.registry import suggest
from onceproof.base.words import times
from onceproof.faults.contract import SpecProblem
from onceproof.judge.case.query import select_problem
from onceproof.scenario.base import Model
from onceproof.scenario.model import Scenario
from onceproof.values.canonical import literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceproof.judge.case.case import Case

#: Column of an oracle's rows: when the row's window closes.
CLOSES = "_closes"
# What makes a SELECT of an expression.
_EXPRESSION = ("SELECT (\n", "\n)")


class WindowSpec(Model):
    closes: str = Field(
        description="SQL expression over the topic's fields: when the window of a record closes, a TIMESTAMP"
    )
    query: str | None = Field(None, description="checkpoint folder of the query that reads it (where several do)")


def problems(windows: Mapping[str, WindowSpec], scenario: Scenario) -> list[SpecProblem]:
    """What can be known to be wrong with an oracle's ``windows`` before a run."""
    topics = sorted({spec.topic for spec in scenario.input})
    found = []
    for topic, spec in windows.items():
        if topic not in topics:
            found.append(SpecProblem(("windows", topic), f"there is no input topic {topic!r}", suggest(topic, topics)))
        if problem := select_problem(spec.closes, *_EXPRESSION):
            found.append(SpecProblem(("windows", topic, "closes"), *problem))
    return found


def filter_input(case: Case) -> None:
    """Leave late records out of the topics' views. Raises `NotEvaluated` where the plan or the expression does not serve."""
    if not _windows(case):
        return
    case.inputs.sql("CREATE SCHEMA judge")
    case.inputs.sql("""CREATE TABLE judge.plan AS
        WITH marks AS (
            SELECT query, batch, coalesce(max(watermark_ms), 0) AS watermark_ms FROM history.batches GROUP BY ALL),
        pairs AS (
            SELECT *, lag(watermark_ms, 1, 0) OVER (PARTITION BY query ORDER BY batch) AS before_ms FROM marks)
        SELECT query, batch, b.topic, b."partition", b.start_offset, b.end_offset, p.watermark_ms, p.before_ms
        FROM history.batches b JOIN pairs p USING (query, batch) WHERE b.end_offset > b.start_offset""")
    for topic, spec in _windows(case).items():
        if problem := select_problem(spec.closes, *_EXPRESSION):
            raise NotEvaluated(f"oracle: windows: {topic}: closes cannot be used: {problem[0]}")
        try:
            _filter(case, topic, spec)
            _count(case, topic)
        except duckdb.Error as error:
            raise NotEvaluated(f"oracle: windows: {topic}: {error}") from error


def due(case: Case, output: str, query: str) -> str:
    """An oracle's rows for an output, without those whose window is still open."""
    try:
        columns = case.inputs.types(query)
    except duckdb.Error:
        return query  # told where it is run
    if CLOSES not in columns:
        return f"SELECT * FROM (\n{query}\n) WHERE NOT coalesce(getvariable('open_windows'), false)"  # noqa: S608
    case.closing.add(output)
    closed = f"coalesce(epoch_us({CLOSES}::TIMESTAMPTZ) <= 1000::BIGINT * {_final_watermark(case, output)}, true)"
    return f"""SELECT * FROM (\n{query}\n)
        WHERE {closed} <> coalesce(getvariable('open_windows'), false)"""  # noqa: S608


def admit(case: Case) -> None:
    """Where records may count, put what follows with them beside what follows without, until `settle` chooses."""
    # With uncommitted input for its own sake, an aborted record that may count would make a window doubtful.
    if not any(case.notes.get(f"may.{topic}") for topic in _windows(case)):
        return
    case.inputs.sql("SET VARIABLE late_counts = true")
    try:
        case.expect_into("judge.expected_with_late")
    finally:
        case.inputs.sql("RESET VARIABLE late_counts")
    case.borderline = True
    listed = "SELECT output, id, list(content ORDER BY content) AS contents FROM {} GROUP BY ALL"
    case.sql(f"""CREATE TABLE judge.borderline AS
        SELECT output, id, coalesce(s.contents, []) AS strict, coalesce(l.contents, []) AS lenient
        FROM ({listed.format("judge.expected")}) s
        FULL JOIN ({listed.format("judge.expected_with_late")}) l USING (output, id)
        WHERE s.contents IS DISTINCT FROM l.contents""")  # noqa: S608
    case.sql(
        "CREATE TABLE judge.expected_strict AS FROM judge.expected e SEMI JOIN judge.borderline b USING (output, id)"
    )
    case.sql(
        "INSERT INTO judge.expected FROM judge.expected_with_late e SEMI JOIN judge.borderline b USING (output, id)"
    )


def settle(case: Case) -> None:
    """Once the effects are there: choose where there was a choice, and take open windows out of the judgement."""
    if case.closing & case.expectations.keys():
        _leave_open(case)
    if case.borderline:
        _choose(case)


def _windows(case: Case) -> Mapping[str, WindowSpec]:
    found: Mapping[str, WindowSpec] = getattr(case.oracle, "windows", {})
    return found


def _filter(case: Case, topic: str, spec: WindowSpec) -> None:
    query = spec.query or _reader(case, topic)
    raw, full = quote(f"{topic} (raw)"), quote(f"{topic}_with_late")
    case.inputs.sql(f"ALTER VIEW {quote(topic)} RENAME TO {raw}")
    case.inputs.sql(f"""CREATE VIEW {full} AS
        SELECT * EXCLUDE ({CLOSES}_us, _before_ms),
               CASE WHEN {CLOSES}_us <= 1000 * _before_ms THEN 'dropped'
                    WHEN {CLOSES}_us <= 1000 * _watermark_ms THEN 'may' ELSE 'no' END AS _late
        FROM (
            SELECT r.*, CASE WHEN r._offset < p.end_offset THEN p.batch END AS _batch,
                   CASE WHEN r._offset < p.end_offset THEN p.watermark_ms END AS _watermark_ms,
                   CASE WHEN r._offset < p.end_offset THEN p.before_ms END AS _before_ms
            FROM (SELECT *, epoch_us((\n{spec.closes}\n)::TIMESTAMPTZ) AS {CLOSES}_us FROM {raw}) r
            ASOF LEFT JOIN (FROM judge.plan WHERE query = {literal(query)} AND topic = {literal(topic)}) p
              ON p."partition" = r._partition AND r._offset >= p.start_offset)""")  # noqa: S608
    case.inputs.sql(f"""CREATE VIEW {quote(topic)} AS SELECT * EXCLUDE (_late) FROM {full}
        WHERE _late = 'no' OR (_late = 'may' AND coalesce(getvariable('late_counts'), false))""")  # noqa: S608


def _reader(case: Case, topic: str) -> str:
    readers = [
        row["query"] for row in case.inputs.rows("SELECT DISTINCT query FROM judge.plan WHERE topic = $t", {"t": topic})
    ]
    if len(readers) > 1:
        raise NotEvaluated(
            f"oracle: windows: {topic}: queries {' and '.join(sorted(readers))} read it: say under query: whose watermark counts"
        )
    return readers[0] if readers else ""


def _count(case: Case, topic: str) -> None:
    counted = f"SELECT _late, count(*) AS n, count(DISTINCT _batch) AS batches FROM {quote(f'{topic}_with_late')} GROUP BY ALL"  # noqa: S608
    found = {row["_late"]: row for row in case.inputs.rows(counted)}
    case.notes[f"late.{topic}"] = found["dropped"]["n"] if "dropped" in found else 0
    if "may" in found:
        case.notes[f"may.{topic}"] = found["may"]["n"]


def _final_watermark(case: Case, output: str) -> int:
    """The last watermark with which the query of that output committed a batch, in ms since 1970."""
    query = case.scenario.outputs[output].query
    if query is None:
        queries = [row["query"] for row in case.rows("SELECT DISTINCT query FROM history.batches ORDER BY 1")]
        if len(queries) > 1:
            raise NotEvaluated(
                f"outputs: {output}: query is needed: there are {' and '.join(queries)}, each with a watermark of its own"
            )
        query = queries[0] if queries else ""
    return case.number(
        "SELECT max(watermark_ms) FROM history.batches WHERE query = $query AND committed_at IS NOT NULL",
        {"query": query},
    )


def _leave_open(case: Case) -> None:
    case.inputs.sql("SET VARIABLE open_windows = true")
    try:
        case.expect_into("judge.open_windows")
    finally:
        case.inputs.sql("RESET VARIABLE open_windows")
    for output in sorted(case.closing & case.expectations.keys()):
        case.notes[f"open.{output}"] = case.number(
            "SELECT count(*) FROM judge.open_windows WHERE output = $output", {"output": output}
        )
    case.sql("""DELETE FROM judge.effect_rows e
        WHERE EXISTS (FROM judge.open_windows o WHERE o.output = e.output AND o.id = e.id)
          AND NOT EXISTS (FROM judge.expected x WHERE x.output = e.output AND x.id = e.id)""")


# Found equal to one of the two, or to one of them several times (a duplicate of it), or to nothing (a loss).
_CHOICE = """
    CREATE TABLE judge.choice AS
    WITH seen AS (
        SELECT output, id, list(content ORDER BY content) AS contents
        FROM judge.effect_rows SEMI JOIN judge.borderline USING (output, id) GROUP BY ALL)
    SELECT output, id,
           CASE WHEN found = strict THEN 'strict' WHEN found = lenient THEN 'lenient' WHEN len(found) = 0 THEN 'strict'
                WHEN list_sort(list_distinct(found)) = list_sort(list_distinct(strict)) THEN 'strict'
                WHEN list_sort(list_distinct(found)) = list_sort(list_distinct(lenient)) THEN 'lenient' END AS chosen
    FROM (SELECT b.*, coalesce(s.contents, []) AS found FROM judge.borderline b LEFT JOIN seen s USING (output, id))"""


def _choose(case: Case) -> None:
    case.sql(_CHOICE)
    case.sql("DELETE FROM judge.expected e USING judge.borderline b WHERE b.output = e.output AND b.id = e.id")
    if _batches_with_may(case) > 1:
        _doubt(case)
    case.sql("UPDATE judge.choice SET chosen = 'lenient' WHERE chosen IS NULL")
    for version, table in (("strict", "judge.expected_strict"), ("lenient", "judge.expected_with_late")):
        chosen = f"(FROM judge.choice WHERE chosen = '{version}')"
        case.sql(f"INSERT INTO judge.expected FROM {table} e SEMI JOIN {chosen} c USING (output, id)")
    unreadable = ", ".join(literal(output) for output in case.scenario.outputs if output not in case.expectations)
    if unreadable:
        case.sql(f"DELETE FROM judge.expected WHERE output IN ({unreadable})")  # noqa: S608


def _batches_with_may(case: Case) -> int:
    parts = [
        f"SELECT {literal(topic)} AS topic, _batch FROM {quote(f'{topic}_with_late')} WHERE _late = 'may'"  # noqa: S608
        for topic in _windows(case)
    ]
    return case.inputs.number(f"SELECT count(DISTINCT _batch) FROM ({' UNION ALL '.join(parts)})")  # noqa: S608


def _doubt(case: Case) -> None:
    """Some of the records that may count might count and others not: nobody can say which rows follow."""
    for row in case.rows(
        "SELECT output, count(*) AS n, min(id) AS first FROM judge.choice WHERE chosen IS NULL GROUP BY 1"
    ):
        case.doubts.append(
            f"output {row['output']}: {times(row['n'], 'effect')} can be explained neither with nor without the records that "
            f"came between two watermarks, in several batches; the first is {row['first']}"
        )
    case.sql("""DELETE FROM judge.effect_rows e USING judge.choice c
        WHERE c.chosen IS NULL AND c.output = e.output AND c.id = e.id""")
    case.sql("DELETE FROM judge.choice WHERE chosen IS NULL")
