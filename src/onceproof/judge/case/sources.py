"""Where the effects of an output are found in a history: SQL over its tables, one row an effect, its content still as observed.

Every source gives ``content`` (a JSON object as text), ``partition``, ``offset``, ``xid``, ``commit_order`` and ``key``.
What counts as an effect depends on the output's kind:

=========  =====================================================  ==========================================================
kind       records (a topic)                                      rows (a table, files, ...)
=========  =====================================================  ==========================================================
append     every record that read_committed shows                 the snapshot's rows
upsert     of these the last of each Kafka key in a partition     the snapshot's rows
           (of each identity where there is no key); a record
           without value is a tombstone, and leaves nothing
changelog  as append                                              every decoded insert and update
=========  =====================================================  ==========================================================

A row of a snapshot is attributed to the commit that last wrote it by replaying the decoded changes, and only if these
replay to exactly the snapshot (as a multiset); else the rows stand without positions, and what needs positions is not
evaluated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.base.errors import NotEvaluated
from onceproof.base.words import times
from onceproof.oracle.contract import decoders
from onceproof.values import digest, documents
from onceproof.values.canonical import literal, member

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.scenario.outputs import OutputSpec

_POSITION = '"partition", "offset", xid, commit_order'

# Rows with their commit: a row that is deleted or replaced cancels the oldest equal row that stood before it, so of
# equal rows the newest survive. A truncate ends everything before it.
_SURVIVORS = """
    WITH changes AS (
        SELECT * FROM history.output
        WHERE output = {output} AND "offset" > coalesce(
            (SELECT max("offset") FROM history.output WHERE output = {output} AND op = 'truncate'), -1)
            AND visibility = 'committed'),
    gone AS (SELECT before AS content, count(*) AS times FROM changes WHERE op IN ('update', 'delete') GROUP BY before),
    made AS (
        SELECT content, "partition", "offset", xid, commit_order,
               row_number() OVER (PARTITION BY content ORDER BY "offset") AS nth
        FROM changes WHERE op IN ('insert', 'update'))
    SELECT m.content, m."partition", m."offset", m.xid, m.commit_order, NULL::BLOB AS "key"
    FROM made m LEFT JOIN gone g USING (content) WHERE m.nth > coalesce(g.times, 0)"""

_WRITES = f"""
    SELECT content, {_POSITION}, NULL::BLOB AS "key" FROM history.output
    WHERE output = {{output}} AND op IN ('insert', 'update') AND visibility = 'committed'"""  # noqa: S608

_SNAPSHOT = """
    SELECT content, NULL::INTEGER AS "partition", NULL::BIGINT AS "offset", NULL::BIGINT AS xid,
           NULL::BIGINT AS commit_order, NULL::BLOB AS "key"
    FROM history.snapshot WHERE output = {output}"""


def record_content(spec: OutputSpec) -> str:
    """SQL for the JSON object that a Kafka record's value is, by the output's ``decode``. NULL: no value, or it is none."""
    if spec.expected == "empty":
        return "json_object('row', coalesce(content, '\\x' || lower(hex(raw))))::VARCHAR"
    if spec.decode == "string":
        return "CASE WHEN content IS NOT NULL THEN json_object('value', content)::VARCHAR END"
    if spec.decode == "bytes":
        value = "coalesce(raw, encode(content))"
        return f"CASE WHEN {value} IS NOT NULL THEN json_object('value', '\\x' || lower(hex({value})))::VARCHAR END"
    return "content"


def records(name: str, spec: OutputSpec, where: str) -> str:
    """The records of a Kafka output that meet a condition over ``history.output``."""
    return f"""
    SELECT {record_content(spec)} AS content, {_POSITION}, "key", headers FROM history.output
    WHERE output = {literal(name)} AND {where}"""  # noqa: S608


def effects(case: Case, name: str) -> str:
    """The source of what a reader sees after the run. A stream that cannot be used is noted in ``case.no_stream``."""
    spec = case.scenario.outputs[name]
    if spec.has_rows:
        return _table(case, name, spec)
    visible = records(name, spec, "visibility = 'committed'")
    return _last_of_each(visible, spec) if spec.kind == "upsert" else visible


def unreadable(case: Case, name: str) -> str:
    """Records that have something as value and no JSON object: nobody can say what effect they are."""
    spec = case.scenario.outputs[name]
    if spec.has_rows or spec.decode == "bytes":
        return _SNAPSHOT.format(output=literal(name))
    something = "visibility = 'committed'" + (
        " AND (content IS NOT NULL OR raw IS NOT NULL)" if spec.kind == "upsert" else ""
    )
    return records(name, spec, something)


def check_decoded(case: Case) -> None:
    """Outputs whose values no function has decoded, though one should, go to ``case.unreadable``."""
    for output, spec in case.scenario.outputs.items():
        if spec.topic is not None and decoders.needs_code(spec.decode):
            decoded = case.run.decoded
            try:
                note = decoders.note(decoded, decoded.outputs if decoded is not None else {}, output, spec.decode)
                if note.undecodable:
                    what = times(note.undecodable, "value")
                    raise NotEvaluated(f"{what} of it cannot be decoded, the first at {note.first}")
            except NotEvaluated as gap:
                case.unreadable[output] = f"outputs: {output}: decode: {gap}"


def rewritten(case: Case, output: str) -> bool:
    """Whether rows of a table were written again: then an effect stands where it was written last, and not first."""
    query = "SELECT count(*) FROM history.output WHERE output = $output AND op <> 'insert'"
    return case.number(query, {"output": output}) > 0


def _last_of_each(visible: str, spec: OutputSpec) -> str:
    """The state that the topic's records leave, as compaction would (a key's records stand in order in one partition)."""
    structure = ", ".join(
        f"coalesce({', '.join(f'content->>{member(name)}' for name in documents.spellings(column))}, NULL)"
        for column in spec.identity
    )
    return f"""
    SELECT * FROM (
        SELECT * FROM ({visible})
        QUALIFY row_number() OVER (
            PARTITION BY "partition", "key" IS NULL, coalesce("key", encode(json_array({structure})::VARCHAR))
            ORDER BY "offset" DESC) = 1)
    WHERE content IS NOT NULL"""  # noqa: S608


def _table(case: Case, name: str, spec: OutputSpec) -> str:
    output = literal(name)
    query = """SELECT count(*) FILTER (op <> 'insert') > 0 AS changed,
                      count(*) FILTER (op IN ('update', 'delete') AND before IS NULL) AS blind,
                      count(*) FILTER (op IN ('delete', 'truncate')) AS gone
               FROM history.output WHERE output = $output"""
    row = case.rows(query, {"output": name})[0]
    source = (_SURVIVORS if row["changed"] else _WRITES).format(output=output)
    snapshot = _SNAPSHOT.format(output=output)
    if row["blind"]:
        case.no_stream[name] = f"{row['blind']} decoded changes of it do not say which row they changed"
    elif case.run.imported:
        case.no_stream[name] = "it was imported as a snapshot, and its commits are not known"
    elif _digest(case, source) != _digest(case, snapshot):
        case.no_stream[name] = "its decoded commits do not replay to its snapshot (an unlogged table, or DDL)"
    if spec.kind == "changelog":
        if name not in case.no_stream and not row["gone"]:
            return _WRITES.format(output=output)
        why = case.no_stream.get(name) or f"{row['gone']} decoded changes of it delete rows"
        case.unreadable[name] = f"it is a changelog, and its changes cannot be followed: {why}; declare it as upsert"
    return snapshot if name in case.no_stream else source


def _digest(case: Case, source: str) -> tuple[object, ...]:
    """Count and two independent 64-bit hashes, summed exactly: equal for equal multisets, in flat memory."""
    one, two = digest.of_content("content")
    query = f"SELECT count(*), sum({one}), sum({two}) FROM ({source})"  # noqa: S608
    return tuple(case.sql(query).fetchone() or ())
