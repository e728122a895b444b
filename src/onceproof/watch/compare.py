"""Compares the rows that one window expects with the rows that were read, by their digests, in an open case."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.history.schema import TABLES
from onceproof.judge.case.case import Case
from onceproof.values import digest
from onceproof.values.canonical import literal
from onceproof.watch.window import Positions, Window

#: The two digests of a row's content.
Content = tuple[int, int]


class Missing(NamedTuple):
    """An expected row that no record shows yet."""

    output: str
    identity: int
    """Its digest."""
    text: str
    """The identity as JSON."""
    contents: tuple[Content, ...]
    """One per row that is missing."""
    cause: str


class Unmatched(NamedTuple):
    """A record that no input of this window explains, and none of a later one can."""

    output: str
    partition: int
    offset: int
    identity: int
    text: str
    content: Content


@dataclass
class Compared:
    """The result for one window."""

    found: int = 0
    """Records that this window explains, or that have the identity of one of its rows."""
    explained: frozenset[str] = frozenset()
    """The outputs of which it explains some record."""
    due: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """Output -> digest of the identity, topic, partition and offset of the cause, for each expected row."""
    differs: bool = False
    missing: list[Missing] = field(default_factory=list)
    unmatched: list[Unmatched] = field(default_factory=list)
    inputs: pa.Table | None = None
    """If it differs: the input records of the identities that differ, and of all that they cause."""
    outputs: pa.Table | None = None
    """The records with one of these identities."""
    carried: pa.Table | None = None
    """Records that a later window may explain."""


# A row is due in this window if its cause is at or after the window's start: earlier causes only show which fields there are.
_DUE = """
    CREATE TEMP TABLE due AS
    SELECT e.output, e.h, e.digest_1, e.digest_2, e.id, e.topic, e."partition", e."offset"
    FROM judge.expected e LEFT JOIN starts s ON s.place = e.topic AND s."partition" = e."partition"
    WHERE e."offset" >= coalesce(s."offset", 0)"""

_FOUND = (
    "CREATE TEMP TABLE found AS SELECT * FROM judge.effect_rows e SEMI JOIN due d ON d.output = e.output AND d.h = e.h"
)

_SIDES = """
    SELECT output, h, 1 AS sign, digest_1, digest_2 FROM due UNION ALL SELECT output, h, -1, digest_1, digest_2 FROM found"""

# Bucket by bucket first, as for a whole history: a window without damage is one sum per bucket.
_UNEQUAL = f"""
    CREATE TEMP TABLE unequal AS
    WITH buckets AS (SELECT output, {digest.BUCKET} AS bucket FROM ({_SIDES}) GROUP BY ALL HAVING {digest.DIFFERENT})
    SELECT s.output, s.h FROM ({_SIDES}) s JOIN buckets b ON b.output = s.output AND b.bucket = {digest.BUCKET.replace("h", "s.h")}
    GROUP BY ALL HAVING {digest.DIFFERENT}"""  # noqa: S608

# The inputs of these identities, and all rows of these inputs in every output, so that none of those seems to be missing.
_TOUCHED = """
    CREATE TEMP TABLE causes AS SELECT DISTINCT topic, "partition", "offset" FROM due SEMI JOIN unequal USING (output, h);
    CREATE TEMP TABLE touched AS SELECT DISTINCT output, h FROM due SEMI JOIN causes USING (topic, "partition", "offset")"""

_INPUTS = """
    SELECT i.* FROM history.input i SEMI JOIN (
        SELECT DISTINCT topic, "partition", "offset" FROM due SEMI JOIN touched USING (output, h)) c
    USING (topic, "partition", "offset") ORDER BY topic, "partition", "offset" """

_OUTPUTS = """
    SELECT o.* FROM history.output o SEMI JOIN (SELECT f.output, f."partition", f."offset" FROM found f SEMI JOIN touched USING (output, h)) t
    USING (output, "partition", "offset") ORDER BY output, "partition", "offset" """

_OTHERS = """
    CREATE TEMP TABLE others AS
    SELECT e.output, e."partition", e."offset", e.h, e.id, e.digest_1, e.digest_2, e."offset" < coalesce(s."offset", 0) AS final
    FROM judge.effect_rows e LEFT JOIN seen s ON s.place = e.output AND s."partition" = e."partition"
    WHERE NOT EXISTS (FROM due d WHERE d.output = e.output AND d.h = e.h)"""

_CARRIED = """
    SELECT o.* FROM history.output o SEMI JOIN (FROM others WHERE NOT final) t USING (output, "partition", "offset")
    ORDER BY output, "partition", "offset" """


def compare(case: Case, window: Window) -> Compared:
    """Compare in a case that holds the window's input and all records that no earlier window has explained."""
    for table in ("all_rows", "all_expected"):
        getattr(case, table)()
    _positions(case, "starts", window.start)
    _positions(case, "seen", window.seen)
    for statement in (_DUE, _FOUND, _UNEQUAL, _OTHERS):
        case.sql(statement)
    result = Compared(case.number("SELECT count(*) FROM found"))
    result.explained = frozenset(output for (output,) in case.sql("SELECT DISTINCT output FROM found").fetchall())
    for output in case.expectations:
        case.sql('SELECT h, topic, "partition", "offset" FROM due WHERE output = $output', {"output": output})
        result.due[output] = list(case.db.fetchnumpy().values())
    if case.number("SELECT count(*) FROM unequal"):
        result.differs = True
        for statement in _TOUCHED.split(";"):
            case.sql(statement)
        result.missing = list(_missing(case))
        result.inputs = _table(case, "input", _INPUTS)
        result.outputs = _table(case, "output", _OUTPUTS)
    result.unmatched = [
        Unmatched(output, partition, offset, h, text, (one, two))
        for output, partition, offset, h, text, one, two in case.sql(
            'SELECT output, "partition", "offset", h, id, digest_1, digest_2 FROM others WHERE final ORDER BY 1, 2, 3'
        ).fetchall()
    ]
    result.carried = _table(case, "output", _CARRIED)
    return result


def _missing(case: Case) -> list[Missing]:
    """Identities of which fewer records were read than are due, and none with another content."""
    due: dict[tuple[str, int], list[Any]] = {}
    for output, h, one, two, *rest in case.sql("SELECT output, h, digest_1, digest_2, id, topic, \"partition\", \"offset\" FROM due SEMI JOIN unequal USING (output, h)").fetchall():  # fmt: skip
        due.setdefault((output, h), []).append(((one, two), rest))
    found: dict[tuple[str, int], Counter[Content]] = {}
    for output, h, one, two in case.sql("SELECT output, h, digest_1, digest_2 FROM found SEMI JOIN unequal USING (output, h)").fetchall():  # fmt: skip
        found.setdefault((output, h), Counter())[(one, two)] += 1
    missing = []
    for (output, h), rows in due.items():
        there = found.get((output, h), Counter())
        lacking = Counter(content for content, _ in rows) - there
        fewer = len(rows) - there.total()
        if fewer > 0:
            text, topic, partition, offset = rows[0][1]
            contents = tuple(list(lacking.elements())[:fewer])
            missing.append(Missing(output, h, text, contents, f"{topic}/{partition}@{offset}"))
    return missing


def _positions(case: Case, name: str, positions: Positions) -> None:
    case.sql(f'CREATE TEMP TABLE {name} (place VARCHAR, "partition" INTEGER, "offset" BIGINT)')
    rows = ", ".join(f"({literal(place)}, {partition}, {at})" for (place, partition), at in positions.items())
    if rows:
        case.sql(f"INSERT INTO {name} VALUES {rows}")  # noqa: S608


def _table(case: Case, table: str, query: str) -> pa.Table:
    """The rows of a query as rows of a history's table. They are copied by way of a file, as everything that leaves a case."""
    file = case.folder / "rows.parquet"
    file.unlink(missing_ok=True)
    case.sql(f"COPY ({query}) TO {literal(str(file))} (FORMAT parquet)")
    rows = pq.read_table(file)
    schema = TABLES[table]
    return pa.Table.from_arrays(
        [rows[column.name].cast(column.type).combine_chunks() for column in schema], schema=schema
    )
