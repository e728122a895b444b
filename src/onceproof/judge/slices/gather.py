"""Gathers an excerpt from an open case: everything that belongs to a few identities (`onceproof.judge.slices.excerpt`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceproof.judge.case.case import Case
from onceproof.judge.relations.effects import decoded
from onceproof.judge.slices.excerpt import MAX_ROWS, Excerpt, Identity, Mentions, Part, Position
from onceproof.judge.witness import Row
from onceproof.oracle.contract.decoders import decoded_file, needs_code
from onceproof.values.canonical import literal

#: A table with the rows of ``judge.changes``, without their contents.
WRITES = "judge.writes"


class Gatherer:
    """Collects one excerpt."""

    def __init__(self, case: Case, outputs: Iterable[str], mentions: Mentions) -> None:
        case.changes()
        case.uncommitted()
        # Decoding millions of writes takes long, so do it once for all slices of a run.
        decoded = 'SELECT output, "partition", "offset", xid, id FROM judge.changes'
        case.sql(f"CREATE TABLE IF NOT EXISTS {WRITES} AS {decoded}")
        self._case = case
        self._mentions = mentions
        self._excerpt = Excerpt(tuple(outputs))
        self._values = {"outputs": list(self._excerpt.outputs)}
        case.sql("CREATE OR REPLACE TEMP TABLE kept (output VARCHAR, id VARCHAR)")
        self._positions("named", sorted(mentions.records))

    def _positions(self, table: str, positions: Iterable[Position]) -> None:
        columns = '(topic VARCHAR, "partition" INTEGER, "offset" BIGINT)'
        self._case.sql(f"CREATE OR REPLACE TEMP TABLE {table} {columns}")
        insert = f"INSERT INTO {table} VALUES ($t, $p, $o)"  # noqa: S608
        for topic, partition, offset in positions:
            self._case.sql(insert, {"t": topic, "p": partition, "o": offset})

    def take(self, query: str, values: dict[str, Any] | None = None) -> None:
        """Add the identities that ``query`` gives: ``output`` and ``id``."""
        self._case.sql(
            f"""INSERT INTO kept SELECT DISTINCT output, id FROM ({query}) q
                WHERE id IS NOT NULL AND list_contains($outputs, output)
                AND NOT EXISTS (FROM kept k WHERE k.output = q.output AND k.id = q.id)""",  # noqa: S608
            {**self._values, **(values or {})},
        )

    def take_mentioned(self) -> None:
        """Add the identities whose records or causes the witness names."""
        self.take(f"""SELECT c.output, c.id FROM {WRITES} c JOIN judge.outputs o USING (output)
                      JOIN named n ON n.topic = o.named AND n."partition" = c."partition" AND n."offset" = c."offset" """)  # noqa: S608
        self.take('SELECT e.output, e.id FROM judge.expected e JOIN named USING (topic, "partition", "offset")')
        self.take('SELECT u.output, u.id FROM judge.uncommitted u JOIN named USING (topic, "partition", "offset")')

    def gather(self) -> Excerpt | None:
        """The excerpt; None if it is too large."""
        if not self._close():
            return None
        groups = self._groups()
        self._excerpt.groups = groups
        self._outputs(groups)
        self._input(groups)
        self._around()
        for part in groups.values():  # a lost effect of several records has no row that would have added its part
            self._excerpt.parts.setdefault(part, True)
        return self._excerpt if self._excerpt.size() <= MAX_ROWS else None

    def _close(self) -> bool:
        while True:
            before = self._case.number("SELECT count(*) FROM kept")
            if before > MAX_ROWS:
                return False
            self.take(_RELATIVES)
            if self._case.number("SELECT count(*) FROM kept") == before:
                return True

    def _groups(self) -> dict[Identity, Part]:
        """Identity -> its part. Identities that share a cause form one part: union-find over their causes."""
        parent: dict[Any, Any] = {}

        def root(node: Any) -> Any:
            while parent.setdefault(node, node) != node:
                node = parent[node]
            return node

        identities = [(r["output"], r["id"]) for r in self._case.rows("SELECT * FROM kept ORDER BY ALL")]
        for identity in identities:
            root(identity)
        for row in self._case.rows(_CAUSES):
            parent[root((row["output"], row["id"]))] = root((row["topic"], row["partition"], row["offset"]))
        number: dict[Any, int] = {}
        return {identity: ("effects", str(number.setdefault(root(identity), len(number)))) for identity in identities}

    def _outputs(self, groups: dict[Identity, Part]) -> None:
        excerpt, case = self._excerpt, self._case
        commits: dict[int, set[Part]] = defaultdict(set)
        for row in case.rows(_WRITES, self._values):
            identity = row.pop("id")
            parts = {groups[row["output"], identity]} if identity is not None else set()
            if row["commit_order"] is not None:
                commits[row["commit_order"]] |= parts
            excerpt.add("output", row, parts)
        for row in case.rows(_SINK_PROGRESS, self._values):
            near = row["commit_order"] in commits or row["xid"] in self._mentions.xids
            progress: Part = ("sink progress", row["output"], str(row["offset"]))
            commits[row["commit_order"]].add(progress)
            excerpt.add("output", row, [progress], near=near)
        excerpt.rows["output"].sort(key=_position)
        for row in case.rows("SELECT * FROM history.commits ORDER BY commit_order"):
            if row["commit_order"] in commits:
                excerpt.add("commits", row, commits[row["commit_order"]], near=False)
            elif row["xid"] in self._mentions.xids:
                excerpt.add("commits", row)
        for output in excerpt.outputs:
            if case.scenario.outputs[output].has_rows:
                for row in case.rows(_snapshot(case, output)):
                    content = {"output": output, "content": row["original"]}
                    excerpt.add("snapshot", content, [groups[output, row["id"]]])
        tables = "SELECT * FROM history.snapshot WHERE list_contains([x || '#progress' FOR x IN $outputs], output)"
        for row in case.rows(tables, self._values):
            excerpt.add("snapshot", row)

    def _input(self, groups: dict[Identity, Part]) -> None:
        parts: dict[Position, set[Part]] = defaultdict(set)
        for row in self._case.rows(_CAUSES):
            parts[row["topic"], row["partition"], row["offset"]].add(groups[row["output"], row["id"]])
        for row in self._case.rows(_UNCOMMITTED):
            parts[row["topic"], row["partition"], row["offset"]].add(
                ("input", row["topic"], str(row["partition"]), str(row["offset"]))
            )
        for topic, partition, offset in self._mentions.records:
            if not parts[topic, partition, offset]:
                parts[topic, partition, offset].add(("input", topic, str(partition), str(offset)))
        self._positions("wanted", parts)
        for spec in self._case.scenario.input:
            if needs_code(spec.decode):
                self._decoded(spec.topic, {offset for topic, _, offset in parts if topic == spec.topic})
        for table in ("input", "sent"):
            for row in self._case.rows(_WANTED.format(table=table)):
                self._excerpt.add(table, row, parts[row["topic"], row["partition"], row["offset"]])

    def _decoded(self, topic: str, offsets: set[int]) -> None:
        file = decoded_file(self._case.history.run_dir, topic)
        if file.is_file():
            self._excerpt.decoded[topic] = pq.read_table(file, filters=pc.field("offset").isin(sorted(offsets)))

    def _around(self) -> None:
        """Add batches, faults, progress and partitions. Those of the excerpt's records are near; others may be needed, too."""
        excerpt, case = self._excerpt, self._case
        partitions = {(row["topic"], row["partition"]) for row, _ in excerpt.rows["input"]}
        partitions |= {(topic, partition) for topic, partition, _ in self._mentions.records}
        near = {(row["query"], row["batch"]) for row in case.rows(_BATCHES_OF_CAUSES)}
        for row in case.rows('SELECT * FROM history.batches ORDER BY query, batch, topic, "partition"'):
            name = (row["query"], row["batch"])
            excerpt.add("batches", row, [("batch", row["query"], str(row["batch"]))], near=name in near)
        for row in case.rows('SELECT * FROM history.faults ORDER BY "index"'):
            of_near = any(row["batch"] == batch for _, batch in near)
            excerpt.add("faults", row, [("fault", str(row["index"]))], near=of_near)
        for table in ("progress", "partitions"):
            for row in case.rows(f"SELECT * FROM history.{table} ORDER BY ALL"):  # noqa: S608
                part: Part = (table, str(row.get("query")), row["topic"], str(row["partition"]))
                excerpt.add(table, row, [part], near=(row["topic"], row["partition"]) in partitions)
        for static in case.history.static:
            excerpt.parts["table", static] = True


def _position(item: tuple[Row, frozenset[Part]]) -> tuple[str, int, int]:
    row, _ = item
    return row["output"], -1 if row["partition"] is None else row["partition"], row["offset"]


# The causes of the kept identities, uncommitted records included: these cause nothing in ``judge.expected``.
_CAUSES = """
    SELECT DISTINCT output, id, topic, "partition", "offset" FROM judge.expected SEMI JOIN kept USING (output, id)
    WHERE "offset" IS NOT NULL
    UNION
    SELECT DISTINCT output, id, topic, "partition", "offset" FROM judge.uncommitted SEMI JOIN kept USING (output, id)
    WHERE "offset" IS NOT NULL
    ORDER BY ALL"""

_WANTED = """
    SELECT * FROM history.{table} SEMI JOIN wanted USING (topic, "partition", "offset")
    ORDER BY topic, "partition", "offset" """

# If effects have no single cause, or a committed one (the last record of a sum, say), it is unknown which uncommitted records
# count for which of them.
_UNCOMMITTED = """
    SELECT topic, "partition", "offset" FROM history.input WHERE visibility <> 'committed'
    AND EXISTS (FROM judge.uncommitted u SEMI JOIN kept USING (output, id) WHERE u."offset" IS NULL OR EXISTS (
        FROM history.input i WHERE i.topic = u.topic AND i."partition" = u."partition" AND i."offset" = u."offset"
        AND i.visibility = 'committed'))
    ORDER BY ALL LIMIT 1000"""

_RELATIVES = f"""
    SELECT e.output, e.id FROM judge.expected e
    SEMI JOIN (SELECT topic, "partition", "offset" FROM ({_CAUSES}) UNION FROM named) USING (topic, "partition", "offset")"""  # noqa: S608

_BATCHES_OF_CAUSES = f"""
    SELECT DISTINCT b.query, b.batch FROM judge.batches b
    JOIN (SELECT topic, "partition", "offset" FROM ({_CAUSES}) UNION FROM named) c USING (topic, "partition")
    WHERE c."offset" >= b.start_offset AND c."offset" < b.end_offset"""  # noqa: S608

# Every write of the kept identities. A tombstone in a topic is matched by its key, and a truncate concerns all identities.
_WRITES = f"""
    WITH written AS (
        SELECT output, "partition", "offset", id FROM {WRITES} SEMI JOIN kept USING (output, id)),
    keyed AS (
        SELECT h.output, h."partition", h."key", min(w.id) AS id FROM written w JOIN history.output h
            ON h.output = w.output AND h."partition" = w."partition" AND h."offset" = w."offset"
        WHERE h."key" IS NOT NULL GROUP BY ALL),
    chosen AS (
        FROM written
        UNION
        SELECT h.output, h."partition", h."offset", k.id FROM history.output h JOIN keyed k USING (output, "partition", "key")
        WHERE h.content IS NULL AND h.raw IS NULL
        UNION
        SELECT output, "partition", "offset", NULL FROM history.output WHERE op = 'truncate' AND list_contains($outputs, output))
    SELECT h.*, r.id FROM history.output h JOIN chosen r
        ON r.output = h.output AND coalesce(r."partition", -1) = coalesce(h."partition", -1) AND r."offset" = h."offset" """  # noqa: S608

_SINK_PROGRESS = """
    SELECT * FROM history.output WHERE list_contains([x || '#progress' FOR x IN $outputs], output) ORDER BY output, "offset"
    LIMIT 2000"""


def _snapshot(case: Case, output: str) -> str:
    source = f"""SELECT content, content AS original, NULL::INTEGER AS "partition", NULL::BIGINT AS "offset", NULL::BIGINT AS xid,
                        NULL::BIGINT AS commit_order, NULL::BLOB AS "key" FROM history.snapshot WHERE output = {literal(output)}"""  # noqa: S608
    return f"SELECT id, original FROM ({decoded(case, output, source, 'original')}) SEMI JOIN kept USING (output, id)"  # noqa: S608
