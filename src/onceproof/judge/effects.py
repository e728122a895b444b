"""What a reader of the outputs sees after the run: the table ``judge.effect_rows`` and the view ``judge.effects``.

The rows come from `onceproof.judge.sources`; here their values are brought to the canonical form in which they are
compared, and numbers within the tolerance of what was expected count as what was expected.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from onceproof.judge import digest, sources, states
from onceproof.judge.canonical import canonical_rows, document, is_nested, literal, member, quote
from onceproof.judge.record_key import BESIDE_THE_VALUE, HEADERS, KEY_TEXT
from onceproof.judge.record_key import COLUMN as RECORD_KEY
from onceproof.judge.witness import times

if TYPE_CHECKING:
    from onceproof.judge.case import Case
    from onceproof.scenario.model import Tolerance

#: ``lane`` and ``pos`` order what stands in one output; ``place`` says where it stands, in words.
STANDING = """coalesce("partition", -1) AS lane, coalesce(commit_order, "offset") AS pos,
               CASE WHEN "partition" IS NOT NULL THEN named || '/' || "partition" || '@' || "offset"
                    WHEN xid IS NOT NULL THEN named || ' xid ' || xid ELSE named END AS place"""


def load(case: Case) -> None:
    """Fill ``judge.effect_rows``; outputs that cannot be judged go to ``case.unreadable`` with the reason."""
    case.sql(f"""CREATE TABLE judge.effect_rows (output VARCHAR, id {digest.TEXT}, content {digest.TEXT},
                "partition" INTEGER, "offset" BIGINT, xid BIGINT, commit_order BIGINT, "key" {digest.TEXT}, {digest.COLUMNS})""")
    named = []
    for output, spec in case.scenario.outputs.items():
        named.append(f"({literal(output)}, {literal(spec.topic or spec.table or output)})")
        source = sources.effects(case, output)
        problem = case.unreadable.get(output) or _misshapen(case, output, source)
        if problem is not None:
            _give_up(case, output, problem)
        elif output in case.expectations:
            _insert(case, output, source)
            if spec.kind == "changelog":
                states.drop_unseen(case, output)
            for column, tolerance in spec.tolerance.items():
                _tolerate(case, output, column, tolerance)
    case.sql(f"CREATE TABLE judge.outputs AS SELECT * FROM (VALUES {', '.join(named)}) t(output, named)")  # noqa: S608
    case.sql(f"""CREATE VIEW judge.effects AS
        SELECT e.*, {STANDING} FROM judge.effect_rows e JOIN judge.outputs USING (output)""")  # noqa: S608


def decoded(case: Case, output: str, source: str, *more: str) -> str:
    """SQL that gives ``output``, ``id``, ``content`` in canonical form, the position, and ``more`` columns of ``source``."""
    columns = case.expectations[output].columns
    decimals = [name for name, kind in columns.items() if kind.startswith("DECIMAL") and not is_nested(kind)]
    # A text among other JSON keeps its quotes; a table gives JSON as the text that it is.
    any_json = case.scenario.outputs[output].table is None
    kinds = {
        name: "JSON" if kind == "JSON" and any_json else "VARCHAR"
        for name, kind in columns.items()
        if name not in BESIDE_THE_VALUE
    }
    if case.scenario.outputs[output].expected == "empty" and case.scenario.outputs[output].table is not None:
        source = f"SELECT * REPLACE (json_object('row', content)::VARCHAR AS content) FROM ({source})"  # noqa: S608
    parsed = f"json_transform(content, {literal(json.dumps(kinds))}) AS f"
    if decimals:
        again = f"json_transform({_NUMBERS_AS_STRINGS}, {literal(json.dumps(dict.fromkeys(decimals, 'VARCHAR')))})"
        parsed += f", CASE WHEN regexp_matches(content, '[0-9.]{{17}}') THEN {again} END AS d"
    # Columns of the output may be called as ours are: they get names that no position has.
    fields = {name: f"={name}" for name in columns}
    opened = ", ".join(f"{_field(name, twice=name in decimals)} AS {quote(field)}" for name, field in fields.items())
    texts = canonical_rows(
        f"""SELECT * EXCLUDE ({"f, d" if decimals else "f"}, content), {opened}
            FROM (SELECT *, {parsed} FROM ({source}))""",  # noqa: S608
        {fields[name]: sql_type for name, sql_type in columns.items()},
    )
    identity = {name: quote(fields[name]) for name in case.scenario.outputs[output].identity}
    rest = "".join(f", {column}" for column in more)
    return f"""
        SELECT {literal(output)} AS output, {document(identity)} AS id,
               {document({name: quote(field) for name, field in fields.items()})} AS content,
               "partition", "offset", xid, commit_order, {KEY_TEXT} AS "key"{rest}
        FROM ({texts})"""  # noqa: S608


def _field(name: str, *, twice: bool) -> str:
    """SQL for a field's text: of the second parsing, where there was one."""
    if name == RECORD_KEY:
        return KEY_TEXT
    if name == HEADERS:
        return "headers"
    once = f"f.{quote(name)}"
    return f"CASE WHEN d IS NULL THEN {once} ELSE d.{quote(name)} END" if twice else once


# A string or a number: strings are taken whole, so no number is found inside of one.
_STRING_OR_NUMBER = r"""("(?:[^"\\]|\\.)*")|(-?[0-9]+(?:[.][0-9]+)?(?:[eE][+-]?[0-9]+)?)"""


# SQL for ``content`` with all its digits: DuckDB reads a number with a point as DOUBLE, of which 15 are sure. U+0001 marks
# where a number begins and ends; JSON has it nowhere. Only for what holds a long number: it costs a second parsing.
_MARKED = f"regexp_replace(content, {literal(_STRING_OR_NUMBER)}, '\\1' || chr(1) || '\\2' || chr(1), 'gs')"
_NUMBERS_AS_STRINGS = f"""replace(replace({_MARKED}, chr(1) || chr(1), ''), chr(1), '"')"""


def _give_up(case: Case, output: str, problem: str) -> None:
    case.unreadable[output] = problem
    # Or else every effect that was expected here would seem lost.
    case.sql("DELETE FROM judge.expected WHERE output = $output", {"output": output})
    case.expectations.pop(output, None)


def _misshapen(case: Case, output: str, source: str) -> str | None:
    """Why the effects cannot be compared with what is expected. Where their names tell that all is well, that is one scan."""
    if case.scenario.outputs[output].expected == "empty":
        return None
    query = f"SELECT DISTINCT TRY(json_keys(content)) FROM ({source})"  # noqa: S608
    shapes = {tuple(row[0] or ()) for row in case.sql(query).fetchall()}
    # Of a bag the source is all there is. No names: an empty object, or none.
    if () in shapes or case.scenario.outputs[output].kind != "append":
        problem = _undecodable(case, output)
        if problem is not None:
            return problem
    if twice := sorted(
        {name for shape in shapes if len(set(shape)) < len(shape) for name in shape if shape.count(name) > 1}
    ):
        return f"of some of its effects {', '.join(twice)} stands twice in one object, and each reader takes another of the two"
    return _unnamed_columns(case, output, {name for shape in shapes for name in shape})


def _undecodable(case: Case, output: str) -> str | None:
    broken = "content IS NULL OR NOT json_valid(content) OR json_type(content) <> 'OBJECT'"
    query = f"""SELECT count(*) AS n, min_by("partition" || '@' || "offset", ("partition", "offset")) AS first
                FROM ({sources.unreadable(case, output)}) WHERE {broken}"""  # noqa: S608
    row = case.rows(query)[0]
    if not row["n"]:
        return None
    count, topic = times(row["n"], "effect"), case.scenario.outputs[output].topic
    return f"{count} of it without a JSON object as value, the first at {topic}/{row['first']}"


def _unnamed_columns(case: Case, output: str, found: set[str]) -> str | None:
    """Columns that the output has and the oracle is silent about: nobody would notice if they were wrong."""
    expectation = case.expectations.get(output)
    if expectation is None or not expectation.whole:
        return None
    known = {*expectation.columns, *case.scenario.outputs[output].ignore} - BESIDE_THE_VALUE
    if not (extra := sorted(found - known)):
        return None
    return f"the oracle says nothing of its columns {', '.join(extra)}: select them in the oracle's query, or list them under ignore"


def _insert(case: Case, output: str, source: str) -> None:
    case.sql(f"INSERT INTO judge.effect_rows {digest.of_rows(decoded(case, output, source))}")


def _tolerate(case: Case, output: str, column: str, tolerance: Tolerance) -> None:
    """Give each effect the expected value of ``column`` where its own is near enough.

    The nearest of those that are expected for its identity. Null, what is no number, NaN and the infinities are near to
    themselves only.
    """

    def field(side: str, name: str) -> str:
        return f"({side}.content->>{member(name)})"

    names = case.expectations[output].columns
    snapped = document({name: field("x" if name == column else "a", name) for name in names})
    found, wanted = field("a", column), field("x", column)
    # Beyond some digits two numbers that differ by more than the tolerance are one double.
    exact = f"abs(TRY_CAST({found} AS DECIMAL(38, 9)) - TRY_CAST({wanted} AS DECIMAL(38, 9)))"
    distance = (
        f"coalesce(CASE WHEN least(abs(found), abs(wanted)) >= 1e6 THEN TRY({exact})::DOUBLE END, abs(found - wanted))"
    )
    one, two = digest.of_content("near.content")
    case.sql(
        f"""UPDATE judge.effect_rows AS e SET content = near.content, digest_1 = {one}, digest_2 = {two} FROM (
                SELECT a.rowid AS r, {snapped} AS content,
                       TRY_CAST({found} AS DOUBLE) AS found, TRY_CAST({wanted} AS DOUBLE) AS wanted
                FROM judge.effect_rows a JOIN judge.expected x ON x.output = a.output AND x.id = a.id
                WHERE a.output = $output AND {found} <> {wanted} AND isfinite(found) AND isfinite(wanted)
                  AND {distance} <= greatest($absolute, $relative * abs(wanted))
                QUALIFY row_number() OVER (PARTITION BY a.rowid ORDER BY {distance}, x.content) = 1) near
            WHERE e.rowid = near.r""",  # noqa: S608
        {"output": output, "absolute": tolerance.absolute, "relative": tolerance.relative},
    )
