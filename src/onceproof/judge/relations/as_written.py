"""Takes effects whose bytes are those of an expected row, without decoding them (`onceproof.values.written`).

For a large history, ``judge.expected_digests`` then has the digests of the texts that the expected rows would have in the form of
the output. `settle` reduces the values of the output as they are, compares both sides by bucket, and then row by row in unequal
buckets. What is equal has the identity of its expected row. Only the rest is decoded.

An output has a form if nearly all of some hundred of its values have the same members, in the same order, as the expected columns,
and are written like the canonical texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.judge.case import sources
from onceproof.judge.case.canonical_texts import NUMBERS, canonical_texts, kind_of
from onceproof.judge.case.outputs import Reading
from onceproof.judge.case.record_key import BESIDE_THE_VALUE, COLUMN, HEADERS, KEY_TEXT
from onceproof.judge.relations.caused import with_batches
from onceproof.values import digest, documents, written
from onceproof.values.canonical import is_nested, literal, quote

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.values.written import Form

_SAMPLE = 200
# The expression for a text grows with them.
_MOST_MEMBERS = 200
# So few rows are copied, because they are looked at several times.
_FEW = 100_000
_MOST = 0.9

#: What is compared in addition to the value, in a history.
_OBSERVED = {COLUMN: KEY_TEXT, HEADERS: "headers"}

_POSITION = '"partition", "offset", xid, commit_order'

_READ = f"""
    CREATE OR REPLACE TABLE judge.as_written AS SELECT {{digests}}, {_POSITION} FROM (SELECT {{text}} AS content, {_POSITION} FROM ({{source}}))"""  # noqa: S608

_BUCKET = "digest_1 % 4096"
_SIDES = """(SELECT digest_1, digest_2, 1 AS sign FROM judge.expected_digests WHERE output = $output
             UNION ALL SELECT digest_1, digest_2, -1 FROM judge.as_written)"""

_UNEQUAL = f"""
    CREATE OR REPLACE TEMP TABLE unequal_buckets AS
    SELECT {_BUCKET} AS bucket FROM {_SIDES} GROUP BY bucket HAVING {digest.DIFFERENT}"""  # noqa: S608

# Texts that the sides do not have equally often.
_UNSETTLED = f"""
    CREATE OR REPLACE TABLE judge.unsettled AS
    SELECT digest_1, digest_2 FROM {_SIDES} SEMI JOIN unequal_buckets ON {_BUCKET} = bucket
    GROUP BY digest_1, digest_2 HAVING sum(sign) <> 0"""  # noqa: S608

# The names of the position are those of the cause in `with_batches`.
_SETTLED = """
    SELECT x.h, w.digest_1, w.digest_2, w."partition" AS at_partition, w."offset" AS at_offset, w.xid, w.commit_order, x.topic,
           x."partition", x."offset", x.scope
    FROM judge.as_written w JOIN ({expected}) x ON x.digest_1 = w.digest_1 AND x.digest_2 = w.digest_2
    {only}"""

_EXPECTED = """
    SELECT h, digest_1, digest_2, topic, "partition", "offset", scope FROM judge.expected_digests WHERE output = $output"""
# If rows are expected twice, it takes more than the text to find the cause of each effect.
_EXPECTED_ONCE = """
    SELECT DISTINCT h, digest_1, digest_2, NULL AS topic, NULL AS "partition", NULL AS "offset", NULL AS scope
    FROM judge.expected_digests WHERE output = $output"""
_OTHERS = "WHERE NOT EXISTS (FROM judge.unsettled u WHERE u.digest_1 = w.digest_1 AND u.digest_2 = w.digest_2)"

# A record or change has a position of its own; the rows of a snapshot have none, so the digests of all of them are made again.
_LEFT = """
    SELECT s.* FROM ({source}) s
    SEMI JOIN (SELECT DISTINCT "partition", "offset" FROM judge.as_written SEMI JOIN judge.unsettled USING (digest_1, digest_2)) p
        ON p."partition" IS NOT DISTINCT FROM s."partition" AND p."offset" = s."offset" """
_COUNT_LEFT = """
    SELECT count(*) AS n, count("offset") AS placed FROM judge.as_written SEMI JOIN judge.unsettled USING (digest_1, digest_2)"""
_LEFT_OF_SNAPSHOT = (
    "SELECT s.* FROM ({source}) s SEMI JOIN judge.unsettled u ON u.digest_1 = {one} AND u.digest_2 = {two}"
)


def form_of(case: Case, output: str, columns: dict[str, str]) -> Form | None:
    """The form in which the values of an output with these expected columns (name -> type) are written; None without one."""
    spec = case.scenario.outputs[output]
    members = {name: kind for name, kind in columns.items() if name not in BESIDE_THE_VALUE}
    if case.answer.texts or len(members) > _MOST_MEMBERS or any(map(is_nested, members.values())):
        return None
    if spec.has_rows:
        values = f"SELECT content FROM history.snapshot WHERE output = {literal(output)}"  # noqa: S608
    else:
        values = f"SELECT content FROM ({sources.records(output, spec, 'true')}) WHERE content IS NOT NULL"  # noqa: S608
    texts = [text for (text,) in case.sql(f"{values} LIMIT {_SAMPLE}").fetchall()]
    form = written.form_of(texts)
    if form is None or sorted(m.name for m in form.members) != sorted(members) or documents.renamed(members):
        return None
    if not spec.has_rows and spec.decode not in ("string", "bytes") and not _kinds_fit(form, members):
        return None
    read = canonical_texts(
        case,
        output,
        members,
        Reading(),
        "SELECT content, content AS text FROM (SELECT unnest($texts::VARCHAR[]) AS content) WHERE json_valid(content)",
    )
    alike = (
        f"SELECT count(*) FILTER (text = made) FROM (SELECT text, {form.text(_fields(members))} AS made FROM ({read}))"  # noqa: S608
    )
    return form if case.number(alike, {"texts": texts}) >= _MOST * len(texts) else None


def _kinds_fit(form: Form, members: dict[str, str]) -> bool:
    """Whether text is in quotes and numbers are not, so that equal bytes are equal values."""
    for member in form.members:
        kind = kind_of(members[member.name])
        if kind in (*NUMBERS, documents.TEXT) and member.quoted != (kind == documents.TEXT):
            return False
    return True


def text_of(form: Form, columns: dict[str, str]) -> str:
    """SQL for the text of a row whose canonical texts are in columns like those of `canonical_texts`."""
    return form.text(_fields(columns), [quote(f"={name}") for name in _OBSERVED if name in columns])


def _fields(columns: dict[str, str]) -> dict[str, str]:
    return {name: quote(f"={name}") for name in columns if name not in BESIDE_THE_VALUE}


def settle(case: Case, output: str, source: str) -> bool:
    """Store the digests of effects that are written like expected rows. Whether these are all effects of the output."""
    one, two = digest.of_content("content")
    case.sql(_READ.format(digests=f"{one} AS digest_1, {two} AS digest_2", text=_observed(case, output), source=source))
    case.sql(_UNEQUAL, {"output": output})
    case.sql(_UNSETTLED, {"output": output})
    left = case.number("SELECT count(*) FROM judge.unsettled")
    expected = _EXPECTED_ONCE if case.repeated[output] else _EXPECTED
    rows = with_batches(case, output, _SETTLED.format(expected=expected, only=_OTHERS if left else ""))
    case.sql(f"INSERT INTO judge.effect_digests SELECT $output, * FROM ({rows})", {"output": output})  # noqa: S608
    return not left or not case.number(
        "SELECT count(*) FROM judge.as_written SEMI JOIN judge.unsettled USING (digest_1, digest_2)"
    )


def others(case: Case, output: str, source: str) -> str:
    """SQL for the effects that `settle` did not store. Right until `settle` is called for another output."""
    at = case.rows(_COUNT_LEFT)[0]
    if at["placed"] == at["n"]:
        rows = _LEFT.format(source=source)
    else:
        one, two = digest.of_content(f"({_observed(case, output)})")
        rows = _LEFT_OF_SNAPSHOT.format(source=source, one=one, two=two)
    if at["n"] > _FEW:
        return rows
    name = f"judge.left_over_{list(case.forms).index(output)}"
    case.sql(f"CREATE TABLE IF NOT EXISTS {name} AS {rows}")
    return f"SELECT * FROM {name}"  # noqa: S608


def _observed(case: Case, output: str) -> str:
    columns = case.expectations[output].columns
    return written.observed("content", [expression for name, expression in _OBSERVED.items() if name in columns])
