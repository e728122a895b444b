"""Makes the table ``judge.effect_rows`` and the view ``judge.effects``: what a reader of the outputs sees after the run.

The rows come from `onceproof.judge.case.sources`. This module brings their values to the canonical form in which they are
compared, and replaces numbers within the tolerance of the expected number by the expected number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from onceproof.base.errors import NotEvaluated
from onceproof.base.words import times
from onceproof.history.database import common_shape
from onceproof.judge.case import sources
from onceproof.judge.case.canonical_texts import NUMBERS, all_texts, canonical_texts, kind_of
from onceproof.judge.case.outputs import Reading
from onceproof.judge.case.record_key import BESIDE_THE_VALUE, KEY_TEXT
from onceproof.judge.relations import as_written, digests, states
from onceproof.stores.contract import store_of
from onceproof.values import digest, documents, shapes
from onceproof.values.canonical import (
    document,
    literal,
    member,
    quote,
)
from onceproof.values.shapes import Shape
from onceproof.values.tolerance import within

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.scenario.outputs import Tolerance
    from onceproof.values.written import Form

#: SQL for three columns: ``lane`` and ``pos`` order the effects of one output; ``place`` is the position in words.
POSITION = """coalesce("partition", -1) AS lane, coalesce(commit_order, "offset") AS pos,
               CASE WHEN "partition" IS NOT NULL THEN named || '/' || "partition" || '@' || "offset"
                    WHEN xid IS NOT NULL THEN named || ' ' || commit_word || ' ' || xid ELSE named END AS place"""


def load(case: Case) -> None:
    """Fill ``judge.effect_rows``. Outputs that cannot be judged go into ``case.unreadable``, with the reason."""
    case.sql(f"""CREATE TABLE judge.effect_rows (output VARCHAR, id {digest.TEXT}, content {digest.TEXT},
                "partition" INTEGER, "offset" BIGINT, xid BIGINT, commit_order BIGINT, "key" {digest.TEXT}, {digest.COLUMNS})""")
    digests.create_effects(case)
    named = []
    for output, spec in case.scenario.outputs.items():
        named.append(f"({literal(output)}, {literal(spec.place)}, {literal(store_of(spec).words.commit)})")
        source = sources.effects(case, output)
        case.effect_sources[output] = source
        if output not in case.unreadable and (not_read := _not_read(case, output)) is not None:
            case.unreadable[output] = not_read
        judged = output in case.expectations and output not in case.unreadable
        settled = judged and output in case.forms and as_written.settle(case, output, source)
        problem = case.unreadable.get(output) or _problem(case, output, source, settled=settled)
        if problem is not None:
            _give_up(case, output, problem)
        elif output in case.expectations and not settled:
            insert(case, output, reduced=case.digest_first)
            if spec.kind == "changelog" and spec.tolerance:
                states.tolerate(case, output, spec.tolerance)
            for column, tolerance in spec.tolerance.items():
                _tolerate(case, output, column, tolerance)
            if spec.kind == "changelog":
                states.drop_unseen(case, output)
    case.sql(f"CREATE TABLE judge.outputs AS SELECT * FROM (VALUES {', '.join(named)}) t(output, named, commit_word)")  # noqa: S608
    case.sql(f"""CREATE VIEW judge.effects AS
        SELECT e.*, {POSITION} FROM judge.effect_rows e JOIN judge.outputs USING (output)""")  # noqa: S608


def insert(case: Case, output: str, *, reduced: bool = False, wanted: bool = False) -> None:
    """Insert the effects of one output into ``judge.effect_rows``, or with ``reduced`` their digests into ``judge.effect_digests``.

    With ``wanted``, only the effects of the identities in ``judge.wanted``.
    """
    source = case.effect_sources[output]
    if reduced:
        form = case.forms.get(output)
        rows = decoded(case, output, source if form is None else as_written.others(case, output, source), written=form)
        case.sql(f"INSERT INTO judge.effect_digests {digests.of_effects(rows, written=form is not None)}")
        return
    if wanted:
        source = _WANTED_POSITIONS.format(source=source, output=literal(output))
    rows = digest.of_rows(decoded(case, output, source))
    if wanted:
        rows = f"SELECT * FROM ({rows}) SEMI JOIN judge.wanted USING (output, h)"  # noqa: S608
    case.sql(f"INSERT INTO judge.effect_rows {rows}")


# Most records are left out by their position, before their values are decoded.
_WANTED_POSITIONS = """
    SELECT s.* FROM ({source}) s SEMI JOIN (
        SELECT DISTINCT "partition", "offset" FROM judge.effect_digests SEMI JOIN judge.wanted USING (output, h)
        WHERE output = {output}) p
    ON p."partition" IS NOT DISTINCT FROM s."partition" AND p."offset" IS NOT DISTINCT FROM s."offset" """


def decoded(case: Case, output: str, source: str, *more: str, written: Form | None = None) -> str:
    """SQL for ``output``, ``id`` and ``content`` in canonical form, the position, and ``more`` columns of ``source``.

    With ``written``, also for the row's text in that form, as ``written``.
    """
    columns = case.expectations[output].columns
    if output in case.forms and output not in case.readings and (problem := _read_settled(case, output)) is not None:
        raise NotEvaluated(problem)
    texts = canonical_texts(case, output, columns, case.readings.get(output, Reading()), source)
    fields = {name: quote(f"={name}") for name in columns}
    rest = "".join(f", {column}" for column in more)
    rest += "" if written is None else f", {as_written.text_of(written, columns)} AS written"
    return f"""
        SELECT {literal(output)} AS output, {document({n: fields[n] for n in case.scenario.outputs[output].identity})} AS id,
               {document(fields)} AS content,
               "partition", "offset", xid, commit_order, {KEY_TEXT} AS "key"{rest}
        FROM ({texts})"""  # noqa: S608


def _reading(
    case: Case, output: str, names: Collection[str], values: str, *, repeated: bool, shape: Shape | None
) -> Reading:
    """How to read an output whose values have these names. Scans ``values`` once, for those that need exact reading.

    No scan is needed if all values have one shape, whose strings and numbers are where they are expected.
    """
    members = {column: name for name, column in documents.renamed(names).items()}
    spec = case.scenario.outputs[output]
    if all_texts(case, output):
        return Reading(
            exact=bool(members) or repeated, long_numbers=case.answer.texts and not spec.has_rows, members=members
        )
    columns = {
        name: kind_of(kind) for name, kind in case.expectations[output].columns.items() if name not in BESIDE_THE_VALUE
    }
    numbers = [name for name, kind in columns.items() if kind in NUMBERS]
    texts = [name for name, kind in columns.items() if kind == documents.TEXT]
    if shape is not None and not any(
        (shape.kinds.get(name) == shapes.STRING) != (kind == documents.TEXT)
        for name, kind in columns.items()
        if name in shape.kinds and (kind in NUMBERS or kind == documents.TEXT)
    ):
        written = {
            name
            for name, kind in columns.items()
            if shape.kinds.get(name) == shapes.WHOLE and kind in (documents.WHOLE, documents.DECIMAL)
        }
        return Reading(exact=bool(members) or repeated, members=members, canonical=frozenset(written))
    # A name without a backslash is not escaped.
    suspects = [
        r"\\[u/]",
        *(rf"{_in_json(names)}\s*:\s*{start}" for names, start in ((numbers, '"'), (texts, r"[-0-9tf\[{]")) if names),
    ]
    every = f"SELECT * FROM ({values}) WHERE content IS NOT NULL"  # noqa: S608
    fractions = any(kind in (*NUMBERS, documents.JSON) and kind != documents.FRACTION for kind in columns.values())
    # Nearly always there are none: one cheap look at every record shows it.
    any_of = literal("|".join([*suspects, *([documents.MAYBE_LONG] if fractions else [])]))
    if not case.number(f"SELECT count(*) FROM ({every}) WHERE regexp_matches(content, {any_of})"):  # noqa: S608
        return Reading(exact=bool(members) or repeated, members=members)
    query = f"""SELECT bool_or(regexp_matches(content, {literal("|".join(suspects))})) AS suspect,
                       {f"bool_or(regexp_matches(content, {literal(documents.LONG_FRACTION)}))" if fractions else "false"} AS long
                FROM ({every})"""  # noqa: S608
    row = case.rows(query)[0]
    exact: bool = (
        bool(members) or repeated or (row["suspect"] and _other_kinds(case, every, columns, "|".join(suspects)))
    )
    return Reading(exact=exact, long_numbers=bool(row["long"]), members=members)


def _in_json(names: Sequence[str]) -> str:
    """A regular expression for these names as JSON strings."""
    return f'"(?:{"|".join(re.escape(json.dumps(name, ensure_ascii=False)[1:-1]) for name in names)})"'


def _other_kinds(case: Case, records: str, columns: Mapping[str, str], suspects: str) -> bool:
    """Whether some record has a string where a number or a boolean is expected, or the other way round."""
    pointers = ", ".join(member(name) for name in columns)
    query = f"""SELECT DISTINCT TRY(json_type(content, [{pointers}])) FROM ({records})
                WHERE regexp_matches(content, {literal(suspects)})"""  # noqa: S608
    for (kinds,) in case.sql(query).fetchall():
        for wanted, kind in zip(columns.values(), kinds or (), strict=False):
            if (kind == "VARCHAR") if wanted in NUMBERS else (wanted == documents.TEXT and kind in _PLAIN):
                return True
    return False


_PLAIN = ("UBIGINT", "BIGINT", "HUGEINT", "DOUBLE", "BOOLEAN", "ARRAY", "OBJECT")


def _read_settled(case: Case, output: str) -> str | None:
    """Determine how the values of an output are read whose effects needed no decoding. Returns what `_shape_problem` returns."""
    if _shows_all(case, output):
        # All values are written like canonical texts, perhaps with long numbers.
        case.readings[output] = Reading(long_numbers=not case.scenario.outputs[output].has_rows)
        return None
    return _shape_problem(case, output, case.effect_sources[output])


def _shows_all(case: Case, output: str) -> bool:
    """Whether the effects of an output are all its records."""
    return case.scenario.outputs[output].kind == "append" and not sources.hidden(case, output)


def _give_up(case: Case, output: str, problem: str) -> None:
    case.unreadable[output] = problem
    # Otherwise all effects expected in this output would count as lost.
    digests.forget(case, output)
    case.expectations.pop(output, None)


def _problem(case: Case, output: str, source: str, *, settled: bool) -> str | None:
    """Why the effects cannot be compared with the expected ones; None if they can."""
    if not settled:
        return _shape_problem(case, output, source)
    spec = case.scenario.outputs[output]
    # The values that a reader sees are as expected, but others were overwritten.
    return None if spec.kind == "append" or spec.has_rows else _undecodable(case, output)


def _shape_problem(case: Case, output: str, source: str) -> str | None:
    """Why the effects cannot be compared with the expected ones; None if they can. Usually takes one scan, of their names."""
    spec = case.scenario.outputs[output]
    if spec.expected == "empty":
        return None
    form = case.forms.get(output) if _shows_all(case, output) else None
    # Values that need no decoding have the members of the form, and nothing that needs exact reading except long numbers.
    rest = None if form is None else as_written.others(case, output, source)
    every_value = rest or (source if spec.has_rows else sources.records(output, spec, "true"))
    shape = _common_shape(case, every_value)
    if shape is not None:
        every_shape = {tuple(shape.kinds)}
    else:
        query = f"SELECT DISTINCT TRY(json_keys(content)) FROM ({rest or source})"  # noqa: S608
        every_shape = {tuple(row[0] or ()) for row in case.sql(query).fetchall()}
    if form is not None:
        every_shape.add(tuple(member.name for member in form.members))
    # Values of one shape are JSON. DuckDB also reads some that are not.
    not_json = shape is None and not spec.has_rows and _some_loose(case, every_value)
    # The source of an append output holds all its records. A value without names is an empty object, or no object.
    if () in every_shape or spec.kind != "append" or not_json:
        problem = _undecodable(case, output)
        if problem is not None:
            return problem
    names = {name for names_ in every_shape for name in names_}
    every = names
    if output in case.expectations:
        repeated = any(len(set(names_)) < len(names_) for names_ in every_shape)
        wanted = {*case.expectations[output].columns, *spec.ignore}
        every = documents.with_absent(names, wanted)
        reading = _reading(case, output, every, every_value, repeated=repeated, shape=shape)
        if form is not None:  # the reading was learned from the other values only, and is for all of them
            reading = replace(reading, long_numbers=not spec.has_rows, canonical=frozenset())
        case.readings[output] = reading
    columns = documents.columns(every)
    found = {columns[name] for name in names}
    return _missing_identity(case, output, found) or _unnamed_columns(case, output, found)


def _some_loose(case: Case, values: str) -> bool:
    return case.number(f"SELECT count(*) FROM ({values}) WHERE {documents.loose('content')}") > 0  # noqa: S608


def _common_shape(case: Case, values: str) -> Shape | None:
    """The shape of every value of an output, also of those that no reader sees; None if there are several, or a value is missing."""
    if case.number(f"SELECT count(*) FROM ({values}) WHERE content IS NULL"):  # noqa: S608
        return None
    return common_shape(case, "content", f"FROM ({values})")


def _undecodable(case: Case, output: str) -> str | None:
    broken = "content IS NULL OR NOT json_valid(content) OR json_type(content) <> 'OBJECT'"
    if not case.scenario.outputs[output].has_rows:
        broken += f" OR {documents.loose('content')}"
    query = f"""SELECT count(*) AS n, min_by("partition" || '@' || "offset", ("partition", "offset")) AS first
                FROM ({sources.unreadable(case, output)}) WHERE {broken}"""  # noqa: S608
    row = case.rows(query)[0]
    if not row["n"]:
        return None
    spec = case.scenario.outputs[output]
    has = "has" if row["n"] == 1 else "have"
    records = times(row["n"], store_of(spec).words.item)
    return f"{records} {has} no JSON object as value, the first at {spec.place}/{row['first']}"


def _missing_identity(case: Case, output: str, found: set[str]) -> str | None:
    """Why no row can match an expected one: all expected rows have an identity column that no row of the output has."""
    spec = case.scenario.outputs[output]
    for name in spec.identity if found and output in case.expectations else []:
        expected = f"""SELECT count(*) > 0 AND count(*) = count(id->>{member(name)}) AS all_have_it
                       FROM judge.expected WHERE output = $output"""  # noqa: S608
        if name in found:
            continue
        case.all_expected()
        if spec.dead_letter_of is not None or case.rows(expected, {"output": output})[0]["all_have_it"]:
            item = store_of(spec).words.item
            return f"no {item} has a column {name!r}, which is part of the identity; the columns are {', '.join(sorted(found))}"
    return None


def _not_read(case: Case, output: str) -> str | None:
    """Why what was read back cannot be compared: it is not there, or lacks a generated column that is compared."""
    record = (case.run.outputs or {}).get(output)
    if output not in case.expectations or record is None:
        return None
    if record.columns is None and record.note is not None and not case.scenario.outputs[output].is_side_output:
        return (
            record.note
        )  # a misspelt name looks the same as a job that lost everything; many a job creates dead letters late
    compared = case.expectations[output].columns
    lacking = [name for name in record.generated if name in compared and name not in (record.columns or {})]
    if not lacking:
        return None
    return (
        f"its generated columns {', '.join(lacking)} are not in the decoded commits (Postgres decodes stored ones since version "
        "18, and virtual ones never): leave them out of the oracle's query, because they follow from the other columns"
    )


def _unnamed_columns(case: Case, output: str, found: set[str]) -> str | None:
    """Why wrong values would go unnoticed: the output has columns that the oracle does not give."""
    expectation = case.expectations.get(output)
    if expectation is None or not expectation.whole:
        return None
    record = (case.run.outputs or {}).get(output)
    computed = () if record is None else record.generated  # from other columns, which are compared or ignored
    known = {*expectation.columns, *case.scenario.outputs[output].ignore, *computed} - BESIDE_THE_VALUE
    if not (extra := sorted(found - known)):
        return None
    names = ", ".join(extra)
    return f"the oracle does not give its columns {names}: select them in the oracle's query, or list them under ignore"


def _tolerate(case: Case, output: str, column: str, tolerance: Tolerance) -> None:
    """Replace each effect's value of ``column`` by the expected value, if it is within the tolerance.

    Of several values expected for its identity, the nearest counts, and one that is expected stays. NULL, NaN, the infinities and values that are not numbers
    are within the tolerance of themselves only.
    """

    def field(side: str, name: str) -> str:
        return f"({side}.content->>{member(name)})"

    names = case.expectations[output].columns
    snapped = document({name: field("x" if name == column else "a", name) for name in names})
    found, wanted = field("a", column), field("x", column)
    near = within(found, wanted, absolute="$absolute", relative="$relative")
    one, two = digest.of_content("near.content")
    several = case.scenario.outputs[output].kind == "changelog" or case.repeated[output]
    expected = f"""AND NOT EXISTS (FROM judge.expected s WHERE s.output = a.output AND s.id = a.id
                                    AND {field("s", column)} = {found})"""
    case.sql(
        f"""UPDATE judge.effect_rows AS e SET content = near.content, digest_1 = {one}, digest_2 = {two} FROM (
                SELECT a.rowid AS r, {snapped} AS content,
                       TRY_CAST({found} AS DOUBLE) AS found, TRY_CAST({wanted} AS DOUBLE) AS wanted
                FROM judge.effect_rows a JOIN judge.expected x ON x.output = a.output AND x.id = a.id
                WHERE a.output = $output AND {found} <> {wanted} {expected if several else ""}
                  AND CASE WHEN isfinite(found) AND isfinite(wanted) THEN {near} ELSE false END
                QUALIFY row_number() OVER (PARTITION BY a.rowid ORDER BY abs(found - wanted), x.content) = 1) near
            WHERE e.rowid = near.r""",  # noqa: S608
        {"output": output, "absolute": tolerance.absolute, "relative": tolerance.relative},
    )
