"""Outputs that the oracle does not describe: those that must stay empty, and those that hold another output's dead letters.

``expected: empty``: every row is one too many. Rows are not decoded: each is one text, in the column ``row``.

``dead_letter_of: OUTPUT``: a row accounts for one expected row of that output, the main output. The two rows are matched by
identity (this output's identity columns correspond, in order, to the main output's) or, if this output has a ``source``, by the
input record. The matched row is then no longer expected in the main output, and the dead letter is expected, once. A dead
letter matches nothing if the main output holds the row all the same, or if that row was not expected: the dead letter is then
unexplained. With a ``source``, a committed input record of which the main output needs nothing explains it, too.

If several outputs hold dead letters of one main output, all are matched with what the oracle expects of it. A row is in one of them: for the
later ones in the scenario, it counts as a row that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.base.words import times
from onceproof.judge.case.outputs import OutputExpectation
from onceproof.values.canonical import document, literal, member

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.scenario.outputs import OutputSpec

#: The one column of an output that must stay empty.
ROW = "row"


def _columns(case: Case, output: str, spec: OutputSpec) -> dict[str, str] | None:
    """The columns to read of such an output: column -> DuckDB type. None if its main output cannot be judged."""
    if spec.expected == "empty":
        return {ROW: "VARCHAR"}
    if spec.source is not None:
        position = {spec.source.partition: "BIGINT", spec.source.offset: "BIGINT"}
        return position if spec.source.topic is None else {spec.source.topic: "VARCHAR", **position}
    main = case.expectations.get(str(spec.dead_letter_of))
    if main is None:
        case.unreadable[output] = f"it holds dead letters of {spec.dead_letter_of!r}, which cannot be judged"
        return None
    main_identity = case.scenario.outputs[str(spec.dead_letter_of)].identity
    if len(main_identity) != len(spec.identity):
        case.unreadable[output] = (
            f"its identity has {times(len(spec.identity), 'column')}, "
            f"and that of {spec.dead_letter_of!r} has {len(main_identity)}"
        )
        return None
    return {name: main.columns[main_name] for name, main_name in zip(spec.identity, main_identity, strict=True)}


# Rows that are dead letters (``r``), and the expected rows of the main output that they account for (``e``).
_BY_IDENTITY = """
    CREATE OR REPLACE TEMP TABLE accounted AS
    SELECT l.rowid AS r, e.rowid AS e FROM judge.effect_rows l
    JOIN judge.expected e ON e.output = {main} AND e.id = {id}
    WHERE l.output = {output} AND NOT EXISTS (FROM judge.effect_rows m WHERE m.output = {main} AND m.id = e.id)
      AND e.rowid NOT IN (FROM matched)"""

_BY_SOURCE = """
    CREATE OR REPLACE TEMP TABLE accounted AS
    WITH there AS (
        SELECT DISTINCT e.topic, e."partition", e."offset" FROM judge.expected e WHERE e.output = {main}
          AND (e.id IN (SELECT id FROM judge.effect_rows WHERE output = {main}) OR e.rowid IN (FROM matched))),
    letters AS (SELECT rowid AS r, {topic} AS topic, {partition} AS "partition", {offset} AS "offset"
                FROM judge.effect_rows WHERE output = {output})
    SELECT l.r, e.rowid AS e FROM letters l
    SEMI JOIN (FROM history.input WHERE visibility = 'committed') USING (topic, "partition", "offset")
    LEFT JOIN (SELECT rowid, * FROM judge.expected WHERE output = {main}) e USING (topic, "partition", "offset")
    WHERE NOT EXISTS (FROM there t WHERE t.topic = l.topic AND t."partition" = l."partition" AND t."offset" = l."offset")"""

_EXPECT_DEAD_LETTERS = """
    INSERT INTO judge.expected BY NAME
    SELECT output, id, content, h, digest_1, digest_2 FROM judge.effect_rows
    WHERE rowid IN (SELECT r FROM accounted) QUALIFY row_number() OVER (PARTITION BY id ORDER BY content, rowid) = 1"""


def add_expectations(case: Case) -> None:
    """Note which columns are read of the outputs that the oracle does not describe."""
    for output, spec in case.scenario.outputs.items():
        if spec.is_side_output and (columns := _columns(case, output, spec)) is not None:
            case.expectations[output] = OutputExpectation(columns, whole=False, has_cause=False, has_key=False)


def absent(case: Case) -> list[str]:
    """The side outputs that count as empty because they do not exist: many a job creates such a table with its first row."""
    records = case.run.outputs or {}
    sides = (output for output, spec in case.scenario.outputs.items() if spec.is_side_output)
    read = ((output, records.get(output)) for output in sides)
    return [f"output {o} counts as empty: {r.note}" for o, r in read if r is not None and r.columns is None and r.note]


def match_dead_letters(case: Case) -> None:
    """Match the dead letters with the rows that their main outputs lack."""
    _leave_out_unjudgeable(case)
    mains = {output: spec.dead_letter_of for output, spec in case.outputs.items() if spec.dead_letter_of is not None}
    if not mains:
        return
    case.sql("CREATE TEMP TABLE matched (e BIGINT)")  # expected rows of main outputs that have a dead letter
    for output, main in mains.items():
        case.sql(_match_query(case, output, case.outputs[output], main))
        case.sql(_EXPECT_DEAD_LETTERS)
        case.sql("INSERT INTO matched SELECT DISTINCT e FROM accounted WHERE e IS NOT NULL")
        if letters := case.expected_in(output):
            case.notes[f"dead.{output}"] = letters
    rows = case.sql("SELECT output, count(*) FROM judge.expected WHERE rowid IN (FROM matched) GROUP BY output")
    case.left_out.update(dict(rows.fetchall()))
    case.sql("DELETE FROM judge.expected WHERE rowid IN (FROM matched)")


def _leave_out_unjudgeable(case: Case) -> None:
    """Leave out dead letters and main outputs of which one cannot be judged: neither can be judged without the other."""
    main_of = {
        output: str(spec.dead_letter_of) for output, spec in case.scenario.outputs.items() if spec.dead_letter_of
    }
    for output, main in main_of.items():
        if output in case.outputs and main in case.outputs and case.effects_of(output):
            by_source = case.scenario.outputs[output].source is not None
            if by_source and not case.expectations[main].has_cause:
                why = (
                    f"its rows name input records, and the oracle does not say which record causes a row of {main!r}: "
                    f"select _partition and _offset in the oracle's query for {main!r}, or give {output!r} an identity"
                )
                _leave_out(case, output, why)
    for output, main in main_of.items():
        if output in case.unreadable and main in case.outputs:
            _leave_out(case, main, f"its dead letters in {output!r} cannot be judged")
    for output, main in main_of.items():
        if main in case.unreadable and output in case.outputs:
            _leave_out(case, output, f"it holds dead letters of {main!r}, which cannot be judged")


def _leave_out(case: Case, output: str, why: str) -> None:
    case.unreadable[output] = why
    case.expectations.pop(output, None)
    for table in ("judge.expected", "judge.effect_rows"):
        case.sql(f"DELETE FROM {table} WHERE output = $output", {"output": output})  # noqa: S608


def _match_query(case: Case, output: str, spec: OutputSpec, main: str) -> str:
    names = {"main": literal(main), "output": literal(output)}
    if spec.source is None:
        pairs = zip(spec.identity, case.scenario.outputs[main].identity, strict=True)
        texts = {main_name: f"(l.content->>{member(name)})" for name, main_name in pairs}
        return _BY_IDENTITY.format(id=document(texts), **names)
    source = spec.source
    topic = f"content->>{member(source.topic)}" if source.topic is not None else literal(case.scenario.input[0].topic)
    # Positions copied from a record's headers are often strings, and a string in JSON keeps its quotes.
    numbers = {
        "partition": f"TRY_CAST(trim(content->>{member(source.partition)}, '\"') AS INTEGER)",
        "offset": f"TRY_CAST(trim(content->>{member(source.offset)}, '\"') AS BIGINT)",
    }
    return _BY_SOURCE.format(topic=topic, **numbers, **names)
