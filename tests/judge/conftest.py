"""Builds small stored runs for everything that judges one: the judge, its checkers and its oracles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceproof.history.schema import TABLES, VERSION
from onceproof.history.writer import HistoryWriter

#: Table -> a row of it in which every column is null.
_NULLS = {table: dict.fromkeys(schema.names) for table, schema in TABLES.items()}


class StoredRun:
    """A small stored run, written row by row, for tests that build, damage and judge it.

    Offsets are assigned in order. A Postgres snapshot is what replaying the decoded changes gives, unless a test sets
    ``snapshot``.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.snapshot: dict[str, list[dict[str, str | None]]] = {}
        self.document: dict[str, Any] = {"schema": VERSION, "seed": 7, "drained": True, "drain_note": None}
        self.document["observed"] = True
        self.document["job"] = {"starts": 1, "died_before_fault": False, "traceback": None}
        self.scenario: dict[str, Any] = {
            "name": "small",
            "input": [{"topic": "in", "dataset": "numbers"}],
            "pipeline": {"command": ["job"]},
            "outputs": {},
        }
        self.keyed: set[str] = set()
        """Outputs with a record that has a key. Keys of other outputs are not compared, unless a test asks for it."""
        self._ends: dict[tuple[str, int], int] = {}
        self._commits = 0

    def send(
        self, key: str | None, value: Any, *, partition: int = 0, topic: str = "in", visibility: str = "committed"
    ) -> int:
        """Add one input record and return its offset. ``value`` is stored as JSON unless it is bytes or None."""
        offset = self.skip(topic, partition)
        raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        row = {"topic": topic, "partition": partition, "offset": offset, "key": key and key.encode(), "value": raw}
        seq = len(self.tables["sent"])
        self.add("sent", {"topic": topic, "seq": seq, "status": "acked", "partition": partition, "offset": offset})
        self.add("input", {**row, "timestamp_ms": 1_000 + offset, "visibility": visibility})
        return offset

    def add(self, table: str, row: dict[str, Any]) -> None:
        """Add one row; missing columns are null."""
        self.tables[table].append({**_NULLS[table], **row})

    def skip(self, topic: str, partition: int) -> int:
        """Use up one offset, as a transaction marker does."""
        offset = self._ends.get((topic, partition), 0)
        self._ends[topic, partition] = offset + 1
        return offset

    def record(
        self, output: str, row: Any, *, partition: int = 0, visibility: str = "committed", key: str | None = None
    ) -> None:
        """Add one record of a Kafka output. ``row`` is stored as JSON unless it is text or None."""
        content = row if row is None or isinstance(row, str) else json.dumps(row)
        where = {"partition": partition, "offset": self.skip(output, partition)}
        self.keyed |= {output} if key is not None else set()
        row = {"output": output, "op": "insert", **where, "key": key and key.encode(), "content": content}
        self.add("output", {**row, "visibility": visibility})

    def commit(self, output: str, *changes: tuple[str, dict[str, Any] | None, dict[str, Any] | None]) -> None:
        """Add one Postgres transaction of (op, before, after). Values of any type are stored as text."""
        order, xid = self._commits, 700 + self._commits
        self._commits += 1
        for op, before, after in changes:
            row = {"output": output, "op": op, "offset": self.skip(output, 0), "xid": xid, "commit_order": order}
            self.add("output", {**row, "content": _text(after), "before": _text(before), "visibility": "committed"})
        self.add("commits", {"commit_order": order, "xid": xid, "lsn": order, "changes": len(changes)})

    def insert(self, output: str, *rows: dict[str, Any]) -> None:
        self.commit(output, *(("insert", None, row) for row in rows))

    def batch(self, number: int, ranges: dict[int, tuple[int, int]], *, by: tuple[int, int | None] = (0, 0)) -> None:
        """Add a batch of query ``q``: partition -> offsets. ``by``: the driver starts that planned and committed it."""
        times = {"planned_at": float(number), "committed_at": None if by[1] is None else number + 0.5}
        for partition, (start, end) in ranges.items():
            where = {"query": "q", "batch": number, "topic": "in", "partition": partition}
            self.add(
                "batches",
                {
                    **where,
                    "start_offset": start,
                    "end_offset": end,
                    **times,
                    "planned_by": by[0],
                    "committed_by": by[1],
                },
            )

    def progress(self, ends: dict[int, int]) -> None:
        for partition, end in ends.items():
            where = {"query": "q", "batch": 0, "topic": "in", "partition": partition}
            self.add("progress", {**where, "end_offset": end})

    def fault(self, *, batch: int, hit: bool = True, fired: bool = True) -> None:
        """Add a crash of the driver in that batch, healed at once."""
        kind = {"fault": "crash", "target": "driver", "query": "q", "batch": batch, "point": "after-sink-commit"}
        at = {"armed_at": 0.0, "fired_at": batch + 0.1 if fired else None, "healed_at": batch + 0.2}
        index = len(self.tables["faults"])
        self.add("faults", {"index": index, **kind, **at, "hit": hit, "evidence": "it was seen"})

    def save(self) -> Path:
        """Write the run and return its directory."""
        self.path.mkdir(parents=True, exist_ok=True)
        for output, spec in self.scenario["outputs"].items():
            if spec.get("topic") is not None and output not in self.keyed:
                spec.setdefault("compare_key", False)
        with HistoryWriter(self.path) as writer:
            for table, rows in self.tables.items():
                writer.append(table, rows)
            for output, spec in self.scenario["outputs"].items():
                if spec.get("table") is not None:
                    rows = self.snapshot.get(output, self._replayed(output))
                    writer.append("snapshot", [{"output": output, "content": _text(row)} for row in rows])
        (self.path / "run.json").write_text(json.dumps({**self.document, "scenario": self.scenario}))
        return self.path

    def _replayed(self, output: str) -> list[dict[str, str | None]]:
        rows: list[dict[str, str | None]] = []
        for change in self.tables["output"]:
            if change["output"] == output:
                if change["op"] == "truncate":
                    rows.clear()
                if change["before"] is not None:
                    rows.remove(json.loads(change["before"]))
                if change["content"] is not None:
                    rows.append(json.loads(change["content"]))
        return rows


def _text(row: dict[str, Any] | None) -> str | None:
    """A Postgres row as the collector writes it: every value as text."""
    if row is None:
        return None
    texts = {name: None if value is None else str(value) for name, value in row.items()}
    return json.dumps(texts, separators=(",", ":"))


@pytest.fixture
def make_run() -> Callable[[Path], StoredRun]:
    """Makes an empty stored run in a folder that the test chooses."""
    return StoredRun


@pytest.fixture
def stored_run(tmp_path: Path) -> StoredRun:
    """An empty stored run without outputs."""
    return StoredRun(tmp_path / "run")


@pytest.fixture
def clean_run(stored_run: StoredRun) -> StoredRun:
    """A correct run: twelve records with three keys in two partitions, in two batches, written to a table and a topic."""
    return correct_run(stored_run)


def correct_run(run: StoredRun) -> StoredRun:
    """Fills in an empty run with what `clean_run` describes."""
    query = 'SELECT _partition AS p, _offset AS o, k, n, _topic, _partition, _offset, _key FROM "in" WHERE n >= 0'
    run.scenario["outputs"] = {
        "rows": {"table": "rows", "identity": ["p", "o"]},
        "events": {"topic": "events", "identity": ["p", "o"]},
    }
    run.scenario["oracle"] = {"kind": "sql", "queries": {"rows": query, "events": query}}
    run.scenario["claim"] = {"order": "per-key"}
    for number in range(2):
        rows = []
        for partition in range(2):
            for step in range(3):
                value = {"k": f"k{step}", "n": 100 * partition + 10 * number + step}
                offset = run.send(value["k"], value, partition=partition)
                rows.append({"p": partition, "o": offset, **value})
        run.insert("rows", *rows)
        for row in rows:
            run.record("events", row, partition=row["p"])
        # The marker of a transaction: a gap in the offsets that is not a loss.
        ends = {partition: run.skip("in", partition) for partition in range(2)}
        start = 4 * number
        run.batch(number, {p: (start, end + 1) for p, end in ends.items()})
    run.progress({0: 8, 1: 8})
    return run
