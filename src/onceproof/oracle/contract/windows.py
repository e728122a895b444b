"""Derives late records from the plan that Spark logged: which records of a topic a windowed output must count, and which it may.

``offsets/N`` of a checkpoint holds the batch's ranges and its watermark W(N). A stateful operator that gets a record in
batch N compares the end of the record's window (for a join: its event time) with a watermark, and drops it at or below:

- at or below W(N-1): **dropped**. Since Spark 3.5 the watermark of the preceding batch decides which records are late, while the
  batch's own watermark evicts state (`WatermarkPropagator`, SPARK-42376);
- above W(N-1), at or below W(N): **may** count. By default it does; with one watermark for both, as before, it does not
  (``spark.sql.streaming.statefulOperator.allowMultiple``);
- above W(N): **must** count.

An oracle's option ``windows`` says for a topic when a record's window closes. The topic's view then has the records that
must count, with ``_batch`` and ``_watermark_ms``; in a view with late data it also has those that may count. The view
``TOPIC_with_late`` has all records, and ``_late``: ``no``, ``may``, ``dropped``. How these are judged: `onceproof.judge.relations.late`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import duckdb
from pydantic import Field

from onceproof.base.errors import NotEvaluated
from onceproof.base.registry import suggest
from onceproof.faults.contract import SpecProblem
from onceproof.history.database import Connection
from onceproof.oracle.contract.expectation import CLOSES
from onceproof.oracle.contract.query import select_problem
from onceproof.scenario.base import Model
from onceproof.scenario.model import OracleSpec, Scenario
from onceproof.values.canonical import literal, quote

# The text before and after an expression that makes it a SELECT.
_EXPRESSION = ("SELECT (\n", "\n)")

_PLAN = """CREATE TABLE windows.plan AS
    WITH marks AS (
        SELECT query, batch, coalesce(max(watermark_ms), 0) AS watermark_ms FROM observed.batches GROUP BY ALL),
    pairs AS (
        SELECT *, lag(watermark_ms, 1, 0) OVER (PARTITION BY query ORDER BY batch) AS before_ms FROM marks)
    SELECT query, batch, {topic} AS topic, b."partition", b.start_offset, b.end_offset, p.watermark_ms, p.before_ms
    FROM observed.batches b JOIN pairs p USING (query, batch) WHERE b.end_offset > b.start_offset"""


class WindowSpec(Model):
    closes: str = Field(
        description="SQL expression over the topic's fields: when the window of a record closes, a TIMESTAMP"
    )
    query: str | None = Field(None, description="checkpoint folder of the query that reads it (if several do)")


def problems(windows: Mapping[str, WindowSpec], scenario: Scenario) -> list[SpecProblem]:
    """Return what is wrong with an oracle's ``windows``, as far as it is known before a run."""
    topics = sorted({spec.topic for spec in scenario.input})
    found = []
    for topic, spec in windows.items():
        if topic not in topics:
            found.append(SpecProblem(("windows", topic), f"there is no input topic {topic!r}", suggest(topic, topics)))
        if problem := select_problem(spec.closes, *_EXPRESSION):
            found.append(SpecProblem(("windows", topic, "closes"), *problem))
    return found


def of(oracle: OracleSpec) -> Mapping[str, WindowSpec]:
    """Return input topic -> its windows, from the oracle's option."""
    found: Mapping[str, WindowSpec] = getattr(oracle, "windows", {})
    return found


def raw(topic: str) -> str:
    """Return the name of the view of all records of a topic that has windows."""
    return f"{topic} (raw)"


def plan(records: Connection, prefix: str) -> None:
    """Create the table that the views of `show` are joined with; it names topics without ``prefix``."""
    topic = f"CASE WHEN starts_with(b.topic, {literal(prefix)}) THEN b.topic[{len(prefix) + 1}:] ELSE b.topic END"
    records.sql("CREATE SCHEMA windows")
    records.sql(_PLAN.format(topic=topic))


def show(inputs: Connection, topic: str, spec: WindowSpec, *, late: bool) -> None:
    """Create the topic's views over the `raw` one: without late records, or with those that may count.

    Raises `NotEvaluated` if the plan or the expression cannot be used.
    """
    if problem := select_problem(spec.closes, *_EXPRESSION):
        raise NotEvaluated(f"oracle: windows: {topic}: closes cannot be used: {problem[0]}")
    query = spec.query or _reader(inputs, topic)
    counts = "_late <> 'dropped'" if late else "_late = 'no'"
    full = quote(_with_late(topic))
    try:
        inputs.sql(f"""CREATE TEMP VIEW {full} AS
            SELECT * EXCLUDE ({CLOSES}_us, _before_ms),
                   CASE WHEN {CLOSES}_us <= 1000 * _before_ms THEN 'dropped'
                        WHEN {CLOSES}_us <= 1000 * _watermark_ms THEN 'may' ELSE 'no' END AS _late
            FROM (
                SELECT r.*, CASE WHEN r._offset < p.end_offset THEN p.batch END AS _batch,
                       CASE WHEN r._offset < p.end_offset THEN p.watermark_ms END AS _watermark_ms,
                       CASE WHEN r._offset < p.end_offset THEN p.before_ms END AS _before_ms
                FROM (SELECT *, epoch_us((\n{spec.closes}\n)::TIMESTAMPTZ) AS {CLOSES}_us FROM {quote(raw(topic))}) r
                ASOF LEFT JOIN (FROM windows.plan WHERE query = {literal(query)} AND topic = {literal(topic)}) p
                  ON p."partition" = r._partition AND r._offset >= p.start_offset)""")  # noqa: S608
        inputs.sql(f"CREATE OR REPLACE TEMP VIEW {quote(topic)} AS SELECT * EXCLUDE (_late) FROM {full} WHERE {counts}")  # noqa: S608
    except duckdb.Error as error:
        raise NotEvaluated(f"oracle: windows: {topic}: {error}") from error


def late_records(inputs: Connection, topics: Collection[str]) -> dict[str, int]:
    """Return how many records of these topics came late (``late.TOPIC``), and how many may have (``may.TOPIC``, if any)."""
    notes = {}
    for topic in topics:
        query = f"SELECT _late, count(*) AS n FROM {quote(_with_late(topic))} GROUP BY ALL"  # noqa: S608
        try:
            found = {row["_late"]: row["n"] for row in inputs.rows(query)}
        except duckdb.Error as error:
            raise NotEvaluated(f"oracle: windows: {topic}: {error}") from error
        notes[f"late.{topic}"] = found.get("dropped", 0)
        if "may" in found:
            notes[f"may.{topic}"] = found["may"]
    return notes


def batches_with_may(inputs: Connection, topics: Collection[str]) -> int:
    """Return the number of batches with records that may count."""
    parts = [
        f"SELECT {literal(topic)} AS topic, _batch FROM {quote(_with_late(topic))} WHERE _late = 'may'"  # noqa: S608
        for topic in topics
    ]
    return inputs.number(f"SELECT count(DISTINCT _batch) FROM ({' UNION ALL '.join(parts)})")  # noqa: S608


def _with_late(topic: str) -> str:
    return f"{topic}_with_late"


def _reader(inputs: Connection, topic: str) -> str:
    readers = [
        row["query"] for row in inputs.rows("SELECT DISTINCT query FROM windows.plan WHERE topic = $t", {"t": topic})
    ]
    if len(readers) > 1:
        raise NotEvaluated(
            f"oracle: windows: {topic}: queries {' and '.join(sorted(readers))} read it: set `query` to the one whose watermark counts"
        )
    return readers[0] if readers else ""
