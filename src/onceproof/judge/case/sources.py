"""SQL that finds the effects of an output in a history: one row per effect, its content still as observed.

Every source gives ``content`` (a JSON object as text), ``partition``, ``offset``, ``xid``, ``commit_order`` and ``key``.
What counts as an effect depends on the output's kind:

=========  =====================================================  ==========================================================
kind       records (a topic)                                      rows (a table, files, ...)
=========  =====================================================  ==========================================================
append     every record that read_committed shows                 the snapshot's rows
upsert     the last of these per Kafka key in a partition         the snapshot's rows
           (per identity if there is no key); a record
           without value is a tombstone, and leaves nothing
changelog  as append                                              every decoded insert and update
=========  =====================================================  ==========================================================

Replaying the decoded changes attributes each row of a snapshot to the commit that last wrote it, but only if they replay to
exactly the snapshot (as a multiset). Otherwise the rows have no positions, and checks that need positions are not evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onceproof.base.errors import NotEvaluated
from onceproof.base.words import times
from onceproof.judge.case.canonical_texts import canonical_texts
from onceproof.judge.case.outputs import Reading
from onceproof.oracle.contract import decoders
from onceproof.stores.contract import SnapshotOnly, store_of
from onceproof.values import digest, documents
from onceproof.values.canonical import literal, member, quote

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.scenario.outputs import OutputSpec

_POSITION = '"partition", "offset", xid, commit_order'

# Rows with their commit: deleting or replacing a row cancels the oldest equal row before it, so of equal rows the newest
# survive. A truncate removes everything before it.
_SURVIVORS = """
    WITH changes AS (
        SELECT * FROM history.output
        WHERE output = {output} AND "offset" > coalesce(
            (SELECT max("offset") FROM history.output WHERE output = {output} AND op = 'truncate'), -1)
            AND visibility = 'committed'),
    removed AS (SELECT before AS content, count(*) AS times FROM changes WHERE op IN ('update', 'delete') GROUP BY before),
    made AS (
        SELECT content, "partition", "offset", xid, commit_order,
               row_number() OVER (PARTITION BY content ORDER BY "offset") AS nth
        FROM changes WHERE op IN ('insert', 'update'))
    SELECT m.content, m."partition", m."offset", m.xid, m.commit_order, NULL::BLOB AS "key"
    FROM made m LEFT JOIN removed r USING (content) WHERE m.nth > coalesce(r.times, 0)"""

_WRITES = f"""
    SELECT content, {_POSITION}, NULL::BLOB AS "key" FROM history.output
    WHERE output = {{output}} AND op IN ('insert', 'update') AND visibility = 'committed'"""  # noqa: S608

_SNAPSHOT = """
    SELECT content, NULL::INTEGER AS "partition", NULL::BIGINT AS "offset", NULL::BIGINT AS xid,
           NULL::BIGINT AS commit_order, NULL::BLOB AS "key"
    FROM history.snapshot WHERE output = {output}"""


def record_content(spec: OutputSpec) -> str:
    """SQL for a Kafka record's value as a JSON object, by the output's ``decode``; NULL if it is not one."""
    if spec.expected == "empty":
        return "json_object('row', coalesce(content, '\\x' || lower(hex(raw))))::VARCHAR"
    if spec.decode == "string":
        return "CASE WHEN content IS NOT NULL THEN json_object('value', content)::VARCHAR END"
    if spec.decode == "bytes":
        value = "coalesce(raw, encode(content))"
        return f"CASE WHEN {value} IS NOT NULL THEN json_object('value', '\\x' || lower(hex({value})))::VARCHAR END"
    return "content"


def records(name: str, spec: OutputSpec, where: str) -> str:
    """SQL for the records of a Kafka output that meet a condition on ``history.output``."""
    return f"""
    SELECT {record_content(spec)} AS content, {_POSITION}, "key", headers FROM history.output
    WHERE output = {literal(name)} AND {where}"""  # noqa: S608


def effects(case: Case, name: str) -> str:
    """SQL for what a reader sees after the run. If the decoded commits cannot be used, ``case.no_stream`` says why."""
    spec = case.scenario.outputs[name]
    if spec.has_rows:
        return _table(case, name, spec)
    visible = records(name, spec, "visibility = 'committed'")
    return _last_of_each(case, name, visible) if spec.kind == "upsert" else visible


def unreadable(case: Case, name: str) -> str:
    """SQL for the records whose value must be a JSON object: if one is not, the output cannot be judged."""
    spec = case.scenario.outputs[name]
    if spec.has_rows or spec.decode == "bytes":
        return _SNAPSHOT.format(output=literal(name))
    with_value = "visibility = 'committed'" + (
        " AND (content IS NOT NULL OR raw IS NOT NULL)" if spec.kind == "upsert" else ""
    )
    return records(name, spec, with_value)


def check_decoded(case: Case) -> None:
    """Put outputs whose values a format or a function should have decoded, and did not, into ``case.unreadable``."""
    for output, spec in case.scenario.outputs.items():
        if spec.topic is not None and decoders.needs_code(spec.decode):
            decoded = case.run.decoded
            try:
                note = decoders.note(decoded, decoded.outputs if decoded is not None else {}, output, spec.decode)
                if note.undecodable:
                    raise NotEvaluated(
                        f"{times(note.undecodable, 'value')} cannot be decoded, the first at {note.first}"
                    )
                if spec.kind == "upsert" and spec.decode == "debezium" and (nameless := _nameless(case, output)):
                    raise NotEvaluated(nameless)
            except NotEvaluated as gap:
                case.unreadable[output] = f"outputs: {output}: decode: {gap}"


def _nameless(case: Case, output: str) -> str | None:
    """Why the last states are not known: the key of a deletion says which row it deletes, and some have none."""
    query = """SELECT count(*) AS n, min_by("partition" || '@' || "offset", ("partition", "offset")) AS first FROM history.output
        WHERE output = $output AND visibility = 'committed' AND "key" IS NULL AND content IS NULL"""
    row = case.rows(query, {"output": output})[0]
    if not row["n"]:
        return None
    has = "has" if row["n"] == 1 else "have"
    where = f"{case.scenario.outputs[output].place}/{row['first']}"
    return f"{times(row['n'], 'deletion')} {has} no record key that says which row is deleted, the first at {where}"


def undecodable_inputs(case: Case) -> Iterator[str]:
    """A sentence for each input with committed values that a format cannot decode: the oracle sees these records without fields."""
    decoded = case.run.decoded
    for topic, note in (decoded.inputs if decoded is not None else {}).items():
        if note is not None and note.problems:
            first = note.problems[0]
            values = times(note.undecodable or len(note.problems), "value")
            where = f"{first.topic}/{first.partition}@{first.offset}"
            yield f"{values} of input {topic} cannot be decoded, the first at {where}: {first.cause}"


def rewritten(case: Case, output: str) -> bool:
    """Whether rows of a table were changed or deleted: an effect's position is then its last write, not its first."""
    query = "SELECT count(*) FROM history.output WHERE output = $output AND op <> 'insert'"
    return case.memo(("rewritten", output), lambda: case.number(query, {"output": output}) > 0)


def hidden(case: Case, output: str) -> int:
    """The number of records or changes in an output's log that no reader sees: their transaction was aborted, or is open."""
    query = "SELECT count(*) FROM history.output WHERE output = $output AND visibility <> 'committed'"
    return case.memo(("hidden", output), lambda: case.number(query, {"output": output}))


def _last_of_each(case: Case, name: str, visible: str) -> str:
    """SQL for the state that compacting the topic would leave (the records of a key are in order in one partition)."""
    keyless = (
        """SELECT count(*) FROM history.output WHERE output = $output AND "key" IS NULL AND visibility = 'committed'"""
    )
    rows = _last(f'SELECT * FROM ({visible}) WHERE "key" IS NOT NULL', '"key"')  # noqa: S608
    if case.number(keyless, {"output": name}):
        rows += f" UNION ALL BY NAME {_last_of_each_identity(case, name, visible)}"
    return f"SELECT * FROM ({rows}) WHERE content IS NOT NULL"  # noqa: S608


def _last(rows: str, of: str) -> str:
    return f"""SELECT * FROM ({rows}) QUALIFY row_number() OVER (PARTITION BY "partition", {of} ORDER BY "offset" DESC) = 1"""  # noqa: S608


def _last_of_each_identity(case: Case, name: str, visible: str) -> str:
    """SQL for the last of the records without a key of each identity, which may be written in several ways, as 1 and 1.0."""
    identity = case.scenario.outputs[name].identity
    texts = ", ".join(
        # TRY: a value that is not JSON makes the output unreadable, which is found later.
        f"TRY(coalesce({', '.join(f'content->>{member(name)}' for name in documents.spellings(column))}, NULL))"
        for column in identity
    )
    # First those that are written alike: few records are left to be read exactly. These texts do not have all digits of long numbers.
    long = f"CASE WHEN regexp_matches(content, {literal(documents.LONG_FRACTION)}) THEN content END"
    rows = _last(f'SELECT *, [{texts}] AS texts FROM ({visible}) WHERE "key" IS NULL', f"texts, {long}")  # noqa: S608
    columns = case.expectations[name].columns if name in case.expectations else {}
    if not set(identity) <= set(columns):
        return f"SELECT * EXCLUDE (texts) FROM ({rows})"  # noqa: S608
    valid = (
        f"SELECT * REPLACE (CASE WHEN json_valid(content) THEN content END AS content), content AS value FROM ({rows})"  # noqa: S608
    )
    read = canonical_texts(case, name, {c: columns[c] for c in identity}, Reading(long_numbers=True), valid)
    fields = ", ".join(quote(f"={column}") for column in identity)
    same = ", ".join(f"CASE WHEN {quote(f'={c}')} IS NULL THEN texts END" for c in identity)
    return f"SELECT * EXCLUDE (value, texts, {fields}), value AS content FROM ({_last(read, f'{fields}, {same}')})"  # noqa: S608


def _table(case: Case, name: str, spec: OutputSpec) -> str:
    output = literal(name)
    query = """SELECT count(*) FILTER (op <> 'insert') > 0 AS changed,
                      count(*) FILTER (op IN ('update', 'delete') AND before IS NULL) AS without_before,
                      count(*) FILTER (op IN ('delete', 'truncate')) AS deletes
               FROM history.output WHERE output = $output"""
    row = case.rows(query, {"output": name})[0]
    case.memo(("rewritten", name), lambda: bool(row["changed"]))
    source = (_SURVIVORS if row["changed"] else _WRITES).format(output=output)
    snapshot = _SNAPSHOT.format(output=output)
    if row["without_before"]:
        case.no_stream[name] = f"{row['without_before']} of its decoded changes do not say which row they changed"
    elif isinstance(store := store_of(spec), SnapshotOnly):
        case.no_stream[name] = store.no_commits
    elif case.run.imported:
        case.no_stream[name] = "it was imported as a snapshot, so its commits are unknown"
    elif _digest(case, source) != _digest(case, snapshot):
        case.no_stream[name] = "its decoded commits do not replay to its snapshot (an unlogged table, or DDL)"
    if spec.kind == "changelog":
        if name not in case.no_stream and not row["deletes"]:
            return _WRITES.format(output=output)
        why = case.no_stream.get(name) or f"{row['deletes']} of its decoded changes delete rows"
        case.unreadable[name] = f"it is a changelog, but its changes cannot be followed: {why}; declare it as upsert"
    return snapshot if name in case.no_stream else source


def _digest(case: Case, source: str) -> tuple[object, ...]:
    """The count and two exact sums of independent 64-bit hashes: equal for equal multisets, in constant memory."""
    one, two = digest.of_content("content")
    query = f"SELECT count(*), sum({one}), sum({two}) FROM ({source})"  # noqa: S608
    return tuple(case.sql(query).fetchone() or ())
