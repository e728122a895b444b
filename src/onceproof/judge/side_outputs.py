"""Outputs of which the oracle says nothing: one that must stay empty, and one that takes what another output could not.

``expected: empty``: every row is one too many. Its rows are not decoded: each is one text, in the column ``row``.

``dead_letter_of: OUTPUT``: a row accounts for one of that output's. It is found by the columns of its identity, which are those of
the other's identity in their order, or, where it has a ``source``, by the input record. What it accounts for is no longer
expected in the other output, and the row itself is expected, once. It accounts for nothing where the other output holds the
effect all the same, or where nothing was expected: then it is unexplained. With a ``source`` a committed input record that has
no effect in the other output at all explains it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.judge.case.outputs import OutputExpectation
from onceproof.values.canonical import document, literal, member

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.scenario.outputs import OutputSpec

#: The one column of an output that must stay empty.
ROW = "row"


def _columns(case: Case, output: str, spec: OutputSpec) -> dict[str, str] | None:
    """What of such an output is read: column -> DuckDB type; None where its main output cannot be judged."""
    if spec.expected == "empty":
        return {ROW: "VARCHAR"}
    if spec.source is not None:
        place = {spec.source.partition: "BIGINT", spec.source.offset: "BIGINT"}
        return place if spec.source.topic is None else {spec.source.topic: "VARCHAR", **place}
    main = case.expectations.get(str(spec.dead_letter_of))
    if main is None:
        case.unreadable[output] = f"it holds dead letters of {spec.dead_letter_of!r}, which cannot be judged"
        return None
    theirs = case.scenario.outputs[str(spec.dead_letter_of)].identity
    if len(theirs) != len(spec.identity):
        case.unreadable[output] = f"its identity has not as many columns as that of {spec.dead_letter_of!r}"
        return None
    return {name: main.columns[their] for name, their in zip(spec.identity, theirs, strict=True)}


# Rows of the dead letters (``r``), and the rows that they account for (``e``).
_BY_IDENTITY = """
    CREATE OR REPLACE TEMP TABLE accounted AS
    SELECT l.rowid AS r, e.rowid AS e FROM judge.effect_rows l
    JOIN judge.expected e ON e.output = {main} AND e.id = {id}
    WHERE l.output = {output} AND NOT EXISTS (FROM judge.effect_rows m WHERE m.output = {main} AND m.id = e.id)"""

_BY_SOURCE = """
    CREATE OR REPLACE TEMP TABLE accounted AS
    WITH there AS (
        SELECT DISTINCT e.topic, e."partition", e."offset" FROM judge.expected e
        SEMI JOIN (FROM judge.effect_rows WHERE output = {main}) m USING (id) WHERE e.output = {main}),
    letters AS (SELECT rowid AS r, {topic} AS topic, {partition} AS "partition", {offset} AS "offset"
                FROM judge.effect_rows WHERE output = {output})
    SELECT l.r, e.rowid AS e FROM letters l
    SEMI JOIN (FROM history.input WHERE visibility = 'committed') USING (topic, "partition", "offset")
    LEFT JOIN (SELECT rowid, * FROM judge.expected WHERE output = {main}) e USING (topic, "partition", "offset")
    WHERE NOT EXISTS (FROM there t WHERE t.topic = l.topic AND t."partition" = l."partition" AND t."offset" = l."offset")"""

_EXPECT_THEM = """
    INSERT INTO judge.expected BY NAME
    SELECT output, id, content, h, digest_1, digest_2 FROM judge.effect_rows
    WHERE rowid IN (SELECT r FROM accounted) QUALIFY row_number() OVER (PARTITION BY id ORDER BY content, rowid) = 1"""


def expect(case: Case) -> None:
    """Of outputs that the oracle knows nothing of, what is read of their rows."""
    for output, spec in case.scenario.outputs.items():
        if spec.is_aside and (columns := _columns(case, output, spec)) is not None:
            case.expectations[output] = OutputExpectation(columns, whole=False, has_cause=False, has_key=False)


def settle(case: Case) -> None:
    """Hold the dead letters against the rows that their main outputs lack."""
    _leave_out_what_cannot_be_held(case)
    for output, spec in case.outputs.items():
        main = spec.dead_letter_of
        if main is None:
            continue
        case.sql(_accounted(case, output, spec, main))
        case.sql(_EXPECT_THEM)
        case.sql("DELETE FROM judge.expected WHERE rowid IN (SELECT e FROM accounted)")
        found = case.number("SELECT count(*) FROM judge.expected WHERE output = $output", {"output": output})
        if found:
            case.notes[f"dead.{output}"] = found


def _leave_out_what_cannot_be_held(case: Case) -> None:
    """Of a main output and its dead letters neither can be judged without the other."""
    letters = {
        output: str(spec.dead_letter_of) for output, spec in case.scenario.outputs.items() if spec.dead_letter_of
    }
    for output, main in letters.items():
        if output in case.outputs and main in case.outputs and case.effects_of(output):
            by_source = case.scenario.outputs[output].source is not None
            if by_source and not case.expectations[main].has_cause:
                why = (
                    f"its rows name input records, and the oracle does not say which record causes a row of {main!r}: "
                    f"select _partition and _offset in the oracle's query for {main!r}, or give {output!r} an identity"
                )
                _leave_out(case, output, why)
    # What is missing in an output may be among its dead letters, and these are for whatever it lacks.
    for output, main in letters.items():
        if output in case.unreadable and main in case.outputs:
            _leave_out(case, main, f"its dead letters in {output!r} cannot be judged")
    for output, main in letters.items():
        if main in case.unreadable and output in case.outputs:
            _leave_out(case, output, f"it holds dead letters of {main!r}, which cannot be judged")


def _leave_out(case: Case, output: str, why: str) -> None:
    case.unreadable[output] = why
    case.expectations.pop(output, None)
    for table in ("judge.expected", "judge.effect_rows"):
        case.sql(f"DELETE FROM {table} WHERE output = $output", {"output": output})  # noqa: S608


def _accounted(case: Case, output: str, spec: OutputSpec, main: str) -> str:
    names = {"main": literal(main), "output": literal(output)}
    if spec.source is None:
        theirs = case.scenario.outputs[main].identity
        texts = {their: f"(l.content->>{member(name)})" for name, their in zip(spec.identity, theirs, strict=True)}
        return _BY_IDENTITY.format(id=document(texts), **names)
    source = spec.source
    topic = f"content->>{member(source.topic)}" if source.topic is not None else literal(case.scenario.input[0].topic)
    # Positions that are copied from a record's headers are often texts, and a text among JSON has its quotes.
    numbers = {
        "partition": f"TRY_CAST(trim(content->>{member(source.partition)}, '\"') AS INTEGER)",
        "offset": f"TRY_CAST(trim(content->>{member(source.offset)}, '\"') AS BIGINT)",
    }
    return _BY_SOURCE.format(topic=topic, **numbers, **names)
