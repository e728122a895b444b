"""Makes ``judge.expected_digests`` and ``judge.effect_digests``: both sides reduced to numbers.

A small history is loaded whole: ``judge.expected`` and ``judge.effect_rows`` hold every row with its texts, and the two relations
of digests are views of them. Of a larger one only the digests are stored, and rows are loaded when they are asked for
(`onceproof.judge.relations.on_demand`): a history without damage needs none of them.

These histories are always loaded whole, because more than digests is needed to decide which rows are due:

- an output of kind changelog, with a tolerance, with windows (``_closes``), or without an oracle (dead letters, ``expected: empty``);
- an oracle with ``windows``, or with a query that depends on the order of rows;
- at most ``MOST_WHOLE`` records: loading them takes less time than a second look at some of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.oracle.contract.expectation import CLOSES
from onceproof.oracle.contract.query import statement_problem
from onceproof.values import digest

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.oracle.contract.inputs import Inputs

#: A history with at most so many records of input and outputs is loaded whole. So is one whose input is so small that an oracle is
#: asked twice (`onceproof.oracle.contract.inputs.CHEAP_ROWS`), whatever its outputs: its two answers are compared with their texts.
MOST_WHOLE = 400_000

_DIGESTS = "h, digest_1, digest_2"
_EXPECTED = f"""output VARCHAR, {digest.COLUMNS}, topic VARCHAR, "partition" INTEGER, "offset" BIGINT, scope UBIGINT,
                to_partition INTEGER"""
_EFFECTS = f"""output VARCHAR, {digest.COLUMNS}, "partition" INTEGER, "offset" BIGINT, xid BIGINT, commit_order BIGINT,
               cause_topic VARCHAR, cause_partition INTEGER, cause_offset BIGINT, scope UBIGINT, query VARCHAR, batch BIGINT"""

# ``scope``: the digest of the cause's key; NULL without a key.
_CAUSE = f"""topic, "partition", "offset", CASE WHEN "key" IS NOT NULL THEN {digest.of_text('"key"')} END AS scope, to_partition"""
_POSITION = """"partition", "offset", xid, commit_order"""


def of_expected(rows: str, *, written: bool = False) -> str:
    """SQL that reduces rows like those of ``judge.expected`` (without digests) to those of ``judge.expected_digests``.

    With ``written``, the digests are of their text in the form of the output, in a column of that name.
    """
    return f"SELECT output, {digest.of_row('written' if written else 'content')}, {_CAUSE} FROM ({rows})"  # noqa: S608


def of_effects(rows: str, *, written: bool = False) -> str:
    """The same for ``judge.effect_rows`` and ``judge.effect_digests``, without the causes of the effects."""
    no_cause = "NULL, NULL, NULL, NULL, NULL, NULL"
    return f"SELECT output, {digest.of_row('written' if written else 'content')}, {_POSITION}, {no_cause} FROM ({rows})"  # noqa: S608


def suffice(case: Case, inputs: Inputs) -> bool:
    """Whether digests are enough to load this case. ``case.answer`` must be known. Raises `duckdb.Error` for a broken query."""
    outputs = case.scenario.outputs.values()
    if case.inputs.windows or any(s.kind == "changelog" or s.tolerance or s.is_side_output for s in outputs):
        return False
    if _records(case) <= MOST_WHOLE or case.inputs.is_cheap() or depends_on_order(case):
        return False
    return not any(
        statement_problem(rows.query) or CLOSES in inputs.types(rows.query) for rows in case.answer.outputs.values()
    )


def depends_on_order(case: Case) -> bool:
    """Whether some query of the oracle depends on an order of rows that nothing fixes."""
    return any(rows.unordered for rows in case.answer.outputs.values())


def _records(case: Case) -> int:
    tables = ("input", "output", "snapshot")
    return sum(case.history.footers[table].num_rows for table in tables)


def create_expected(case: Case) -> None:
    """Make ``judge.expected_digests``: an empty table, or a view of ``judge.expected``."""
    if case.digest_first:
        case.sql(f"CREATE TABLE judge.expected_digests ({_EXPECTED})")
    else:
        case.sql(f"CREATE VIEW judge.expected_digests AS SELECT output, {_DIGESTS}, {_CAUSE} FROM judge.expected")  # noqa: S608


def create_effects(case: Case) -> None:
    """Make ``judge.effect_digests``: an empty table, or a view of ``judge.effect_rows``."""
    if case.digest_first:
        case.sql(f"CREATE TABLE judge.effect_digests ({_EFFECTS})")
    else:
        case.sql(f"CREATE VIEW judge.effect_digests AS SELECT output, {_DIGESTS}, {_POSITION} FROM judge.effect_rows")  # noqa: S608


def forget(case: Case, output: str) -> None:
    """Forget both sides of an output that cannot be judged: otherwise all that is expected in it would count as lost."""
    tables = ["judge.expected"]
    if case.digest_first:
        tables += ["judge.expected_digests", "judge.effect_digests"]
    for table in tables:
        case.sql(f"DELETE FROM {table} WHERE output = $output", {"output": output})  # noqa: S608
