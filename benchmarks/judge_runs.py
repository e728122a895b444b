"""Writes runs of generated records, some of them damaged, for `benchmarks/judge.py` and the tests of the judge."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceproof.history.schema import TABLES, VERSION
from onceproof.history.writer import HistoryWriter

PARTITIONS, BATCHES, KEYS = 6, 200, 100_000
EACH = 5
"""How many records are damaged in each of the four ways."""

QUERY = """SELECT _partition AS src_partition, _offset AS src_offset, id, key, origin, dest, delay, fare, booked_at,
                  _topic, _partition, _offset, _key FROM flights"""
AIRPORTS = np.array(["EWR", "JFK", "LGA", "ATL", "ORD", "LAX", "SFO", "DEN"])


@dataclass
class Damage:
    """Which records are damaged, and how, by partition and offset of the input."""

    lost: set[tuple[int, int]] = field(default_factory=set)
    doubled: set[tuple[int, int]] = field(default_factory=set)
    wrong: set[tuple[int, int]] = field(default_factory=set)
    late: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Record -> the next record with its key. Their effects change places."""

    @classmethod
    def spread(cls, each_partition: int, keys: int) -> Damage:
        """Spread ``EACH`` damages of each kind over the whole run, at different places."""
        damage = cls()
        room = each_partition - 2 * keys
        spots = iter([(n % PARTITIONS, room * (2 * n + 1) // (8 * EACH)) for n in range(4 * EACH)])
        for _ in range(EACH):
            damage.lost.add(next(spots))
            damage.doubled.add(next(spots))
            damage.wrong.add(next(spots))
            partition, offset = next(spots)
            damage.late[partition, offset] = (partition, offset + keys)
        return damage

    @classmethod
    def at_random(
        cls, each_partition: int, keys: int, seed: int, *, each: int = EACH, only: str | None = None
    ) -> Damage:
        """Damage ``each`` records of each kind (of one kind, with ``only``) at random places."""
        damage, choose = cls(), random.Random(seed)  # noqa: S311 (places, not secrets)
        kinds = [only] if only is not None else ["lost", "doubled", "wrong", "late"] * each
        # Apart by more than the two members of a late pair, so that no damage hides another.
        spots = choose.sample(range((each_partition - 2 * keys) // (2 * keys)), len(kinds))
        for kind, spot in zip(kinds, spots, strict=True):
            partition, offset = choose.randrange(PARTITIONS), spot * 2 * keys + choose.randrange(keys)
            if kind == "late":
                damage.late[partition, offset] = (partition, offset + keys)
            else:
                getattr(damage, kind).add((partition, offset))
        return damage

    def named(self) -> set[tuple[str, str]]:
        kinds = {
            "lost-write": self.lost,
            "duplicate": self.doubled,
            "wrong-value": self.wrong,
            "reordered": set(self.late),
        }
        return {(kind, f"flights/{p}@{offset}") for kind, spots in kinds.items() for p, offset in spots}


def keys_of(size: int) -> int:
    """How many keys each partition has."""
    return min(KEYS // PARTITIONS, size // PARTITIONS // 8)


def write_run(
    folder: Path, size: int, kind: str, damage: Damage, keys: int | None = None, batches: int = BATCHES
) -> None:
    """Write a run directory with ``size`` input records and, except for the damage, as many effects."""
    each = size // PARTITIONS
    keys = keys_of(size) if keys is None else keys
    folder.mkdir(parents=True)
    with HistoryWriter(folder) as writer:
        written = [
            0
        ] * PARTITIONS  # offsets used so far in the output; for Postgres the changes so far, in the first element
        for batch in range(batches):
            start, end = each * batch // batches, each * (batch + 1) // batches
            for partition in range(PARTITIONS):
                _write_input(writer, partition, start, end, keys)
                offsets = _effects(partition, start, end, damage)
                if kind == "kafka":
                    _write_topic(writer, batch, partition, offsets, written, keys, damage)
                else:
                    _write_table(writer, batch, partition, offsets, written, keys, damage)
            if kind == "postgres":
                row = {"commit_order": batch, "xid": 700 + batch, "lsn": batch, "commit_time_us": 1_000_000 * batch}
                writer.append(
                    "commits",
                    [{**row, "changes": sum(len(_effects(p, start, end, damage)) for p in range(PARTITIONS))}],
                )
            writer.append("batches", list(_batches(batch, start, end)))
        where = [{"query": "q", "batch": batches - 1, "topic": "flights", "partition": p} for p in range(PARTITIONS)]
        writer.append("progress", [{**row, "end_offset": each} for row in where])
        writer.append("partitions", list(_partitions(kind, each, written)))
    (folder / "run.json").write_text(json.dumps(_document(size, kind)))


def _document(size: int, kind: str) -> dict[str, object]:
    output = {"topic": "departures"} if kind == "kafka" else {"table": "departures"}
    scenario = {
        "name": f"{kind}-{size}",
        "input": [{"topic": "flights", "dataset": "numbers"}],
        "pipeline": {"command": ["job"]},
        "outputs": {"departures": {**output, "identity": ["src_partition", "src_offset"]}},
        "oracle": {"kind": "sql", "queries": {"departures": QUERY}},
        "claim": {"delivery": "effectively-once", "order": "per-key"},
    }
    job = {"starts": 1, "died_before_fault": False, "traceback": None}
    return {
        "schema": VERSION,
        "seed": 7,
        "drained": True,
        "drain_note": None,
        "observed": True,
        "job": job,
        "wall_start": 0,
        "scenario": scenario,
    }


def _effects(partition: int, start: int, end: int, damage: Damage) -> np.ndarray:
    """Return the input offsets whose effects one batch writes, in the order of its writes."""
    offsets = np.arange(start, end)
    for (p, early), (_, later) in damage.late.items():
        if p == partition:
            offsets[offsets == early], offsets[offsets == later] = -later - 1, -early - 1
    offsets = np.where(offsets < 0, -offsets - 1, offsets)
    lost = [offset for p, offset in damage.lost if p == partition]
    again = [offset for p, offset in damage.doubled if p == partition and start <= offset < end]
    return np.concatenate([offsets[~np.isin(offsets, lost)], np.array(again, dtype=offsets.dtype)])


def _fields(partition: int, offsets: np.ndarray, keys: int) -> dict[str, pa.Array]:
    """Return the columns of these input records as text."""
    key = (offsets * 7919 % keys) * PARTITIONS + partition
    number = offsets * PARTITIONS + partition
    return {
        "id": pa.array(number).cast(pa.string()),
        "key": pc.binary_join_element_wise("N", pc.utf8_lpad(pa.array(key).cast(pa.string()), 7, "0"), ""),
        "origin": pa.array(AIRPORTS[number % 3]),
        "dest": pa.array(AIRPORTS[number * 31 % 8]),
        "delay": pa.array(number * 17 % 400 - 20).cast(pa.string()),
        "fare": pa.array(np.char.mod("%.2f", number * 37 % 90000 / 100 + 0.01)),
        "booked_at": pc.binary_join_element_wise(
            "2013-01-", pc.utf8_lpad(pa.array(number % 28 + 1).cast(pa.string()), 2, "0"), "T06:15:00Z", ""
        ),
    }


QUOTED = {"key", "origin", "dest", "booked_at"}


def _json(fields: dict[str, pa.Array], quoted: set[str]) -> pa.Array:
    parts: list[pa.Array | str] = []
    for n, (name, values) in enumerate(fields.items()):
        mark = '"' if name in quoted else ""
        parts += [f'{mark_before(n, fields, quoted)}"{name}":{mark}', values]
    last = list(fields)[-1]
    return pc.binary_join_element_wise(*parts, '"}' if last in quoted else "}", "")


def mark_before(n: int, fields: dict[str, pa.Array], quoted: set[str]) -> str:
    return "{" if n == 0 else '",' if list(fields)[n - 1] in quoted else ","


def _write_input(writer: HistoryWriter, partition: int, start: int, end: int, keys: int) -> None:
    offsets = np.arange(start, end)
    fields = _fields(partition, offsets, keys)
    rows = len(offsets)
    common = {
        "topic": pa.array(["flights"] * rows),
        "partition": pa.array(np.full(rows, partition, np.int32)),
        "offset": pa.array(offsets),
    }
    _append(
        writer,
        "input",
        rows,
        {
            **common,
            "key": fields["key"].cast(pa.binary()),
            "value": _json(fields, QUOTED).cast(pa.binary()),
            "timestamp_ms": pa.array(offsets),
            "visibility": pa.array(["committed"] * rows),
        },
    )
    _append(
        writer,
        "sent",
        rows,
        {**common, "seq": pa.array(offsets * PARTITIONS + partition), "status": pa.array(["acked"] * rows)},
    )


def _content(
    partition: int, offsets: np.ndarray, keys: int, damage: Damage, quoted: set[str] | None
) -> tuple[pa.Array, pa.Array]:
    fields = _fields(partition, offsets, keys)
    key = fields["key"]
    wrong = pa.array(np.isin(offsets, [offset for p, offset in damage.wrong if p == partition]))
    fields["delay"] = pc.if_else(wrong, "9999", fields["delay"])
    own = {
        "src_partition": pa.array([str(partition)] * len(offsets)),
        "src_offset": pa.array(offsets).cast(pa.string()),
    }
    fields = {**own, **fields}
    return key, _json(fields, QUOTED if quoted is None else set(fields))


def _write_topic(
    writer: HistoryWriter,
    batch: int,
    partition: int,
    offsets: np.ndarray,
    written: list[int],
    keys: int,
    damage: Damage,
) -> None:
    rows, first = len(offsets), written[partition]
    key, content = _content(partition, offsets, keys, damage, None)
    end = first + rows
    written[partition] = end + 1  # the transaction's marker also takes an offset
    _append(
        writer,
        "output",
        rows,
        {
            **_constant(
                rows,
                output="departures",
                op="insert",
                visibility="committed",
                partition=partition,
                producer_id=1000 + batch,
                producer_epoch=0,
                txn_end_offset=end,
                txn_end_ms=1000 * batch + 900,
            ),
            "offset": pa.array(np.arange(first, end)),
            "key": key.cast(pa.binary()),
            "content": content,
            "timestamp_ms": pa.array(np.full(rows, 1000 * batch + 500)),
            "sequence": pa.array(np.arange(rows, dtype=np.int32)),
        },
    )


def _write_table(
    writer: HistoryWriter,
    batch: int,
    partition: int,
    offsets: np.ndarray,
    written: list[int],
    keys: int,
    damage: Damage,
) -> None:
    rows, first = len(offsets), written[0]
    _, content = _content(partition, offsets, keys, damage, set())
    written[0] = first + rows
    _append(
        writer,
        "output",
        rows,
        {
            **_constant(
                rows, output="departures", op="insert", visibility="committed", xid=700 + batch, commit_order=batch
            ),
            "offset": pa.array(np.arange(first, first + rows)),
            "content": content,
        },
    )
    _append(writer, "snapshot", rows, {**_constant(rows, output="departures"), "content": content})


def _batches(batch: int, start: int, end: int) -> Iterator[dict[str, object]]:
    for partition in range(PARTITIONS):
        where = {"query": "q", "batch": batch, "topic": "flights", "partition": partition}
        times = {"planned_at": float(batch), "planned_by": 0, "committed_at": batch + 0.95, "committed_by": 0}
        yield {**where, **times, "start_offset": start, "end_offset": end}


def _partitions(kind: str, each: int, written: list[int]) -> Iterator[dict[str, object]]:
    for partition in range(PARTITIONS):
        ends = {"flights": each} | ({"departures": written[partition]} if kind == "kafka" else {})
        for topic, end in ends.items():
            yield {
                "topic": topic,
                "partition": partition,
                "start_offset": 0,
                "stable_offset": end,
                "end_offset": end,
                "collected_ms": 1000 * BATCHES,
            }


def _constant(rows: int, **values: int | str) -> dict[str, pa.Array]:
    return {name: pa.repeat(pa.scalar(value), rows) for name, value in values.items()}


def _append(writer: HistoryWriter, table: str, rows: int, columns: dict[str, pa.Array]) -> None:
    """Write batches that each become a row group, as in a real run; columns that are not given are null."""
    schema = TABLES[table]
    arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows, f.type) for f in schema]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for first in range(0, rows, 16_384):
        writer.append(table, whole.slice(first, 16_384))
