"""Histories of a right pipeline, drawn by Hypothesis: input, batches, restarts, and what it wrote to outputs of every kind.

A `World` is made of writes in transactions, not of positions: a damage takes one away, adds or changes one, and offsets,
commits and times follow when the world is written to a stored run.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

#: Seconds since 1970 at which every run began. Batch b is planned 10 s times b later and committed 8 s after that.
WALL_START = 1_000_000.0

Identity = tuple[tuple[str, str], ...]
"""Identity columns with their values as text, as witnesses name an effect."""


@dataclass(frozen=True)
class Model:
    """One kind of output."""

    kind: str
    table: bool
    query: str
    identity: tuple[str, ...] = ("k",)
    parity: int | None = None
    """Append only: takes the input records with an even (0) or odd (1) offset."""

    def spec(self, name: str) -> dict[str, Any]:
        spec = {"table" if self.table else "topic": name, "kind": self.kind, "identity": list(self.identity)}
        return spec | ({"placement": "key"} if self.kind != "append" and not self.table else {})

    def takes(self, record: Record) -> bool:
        return record.n > 0 and (self.parity is None or record.offset % 2 == self.parity)


_APPEND = """SELECT _partition AS p, _offset AS o, k, n, _topic, _partition, _offset, _key, _partition AS _to_partition
             FROM "in" WHERE n > 0"""
_UPSERT = """SELECT k, sum(n)::BIGINT AS total, count(*) AS c, any_value(_partition) AS _partition, max(_offset) AS _offset,
             k AS _key FROM "in" WHERE n > 0 GROUP BY k"""
_CHANGELOG = """SELECT k, (sum(n) OVER w)::BIGINT AS total, count(*) OVER w AS c, _partition, _offset, _key
                FROM "in" WHERE n > 0 WINDOW w AS (PARTITION BY k ORDER BY _offset)"""

MODELS = {
    "events": Model("append", False, _APPEND, ("p", "o")),
    "rows": Model("append", True, _APPEND, ("p", "o")),
    "even": Model("append", False, f"{_APPEND} AND _offset % 2 = 0", ("p", "o"), 0),
    "odd": Model("append", False, f"{_APPEND} AND _offset % 2 = 1", ("p", "o"), 1),
    "latest": Model("upsert", False, _UPSERT),
    "totals": Model("upsert", True, _UPSERT),
    "log": Model("changelog", False, _CHANGELOG),
    "journal": Model("changelog", True, _CHANGELOG),
    "sums": Model("upsert", True, 'SELECT k, sum(n)::BIGINT AS total, count(*) AS c FROM "in" WHERE n > 0 GROUP BY k'),
}
#: The oracle says which input record each effect comes of.
CAUSED = tuple(name for name in MODELS if name != "sums")
APPENDS = ("events", "rows", "even", "odd")
TOPICS = tuple(name for name, model in MODELS.items() if not model.table)


@dataclass(frozen=True)
class Record:
    """One input record."""

    partition: int
    offset: int
    key: str
    n: int
    """Another one for each record, and chosen so that no two sums that can occur are equal: what stands somewhere says which
    records are in it. Negative: the pipeline filters it out."""
    batch: int
    visibility: str = "committed"
    end_offset: int | None = None
    """Where its transaction's marker stands; None: it was sent without a transaction."""
    end_ms: int | None = None


@dataclass
class Write:
    """One write to an output. ``values`` are all its columns; None deletes (a tombstone)."""

    identity: Identity
    values: dict[str, Any] | None
    partition: int
    key: str
    insert: bool = False
    """Tables: insert a row even where one of this identity stands."""


@dataclass
class Txn:
    """One transaction on one output."""

    output: str
    batch: int
    start: int
    """Which start of the driver made it."""
    at_ms: int
    writes: list[Write]
    visibility: str = "committed"


@dataclass(frozen=True)
class Batch:
    ranges: dict[int, tuple[int, int]]
    planned_by: int
    committed_by: int | None
    sink_first: bool
    """Where it was replayed: the first attempt reached the sink's commit."""


@dataclass
class World:
    records: list[Record]
    lost: list[Record]
    """Acknowledged, and not in the log."""
    ends: dict[int, int]
    """Input partition -> its log's end, a marker's hole included."""
    batches: list[Batch]
    outputs: tuple[str, ...]
    a_state_a_batch: bool
    """Changelogs: one state for each key of a batch, or one for each record."""
    claim: dict[str, str]
    txns: list[Txn] = field(default_factory=list)
    progress: dict[int, int] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)

    def work(self) -> None:
        """What a right pipeline writes for these records."""
        self.txns = []
        for number, batch in enumerate(self.batches):
            for output in self.outputs:
                writes = list(self.writes_of(output, number))
                replayed = batch.committed_by != batch.planned_by
                if replayed and not batch.sink_first and not MODELS[output].table:
                    first = Txn(output, number, batch.planned_by, at(number, 3), deepcopy(writes), "aborted")
                    self.txns.append(first)
                late = replayed and not batch.sink_first
                start = batch.planned_by if batch.committed_by is None or not late else batch.committed_by
                self.txns.append(Txn(output, number, start, at(number, 6 if late else 3), writes))
        self.txns = [txn for txn in self.txns if txn.writes]
        self.progress = dict(self.ends)

    def writes_of(self, output: str, number: int) -> Iterator[Write]:
        model = MODELS[output]
        states: dict[str, Write] = {}
        for record in self.of_batch(number):
            if record.visibility != "committed" or not model.takes(record):
                continue
            if model.kind == "append":
                yield effect_of(record)
                continue
            states.pop(record.key, None)  # the last state of a batch stands where its last record does
            states[record.key] = self.state_at(record)
            if model.kind == "changelog" and not self.a_state_a_batch:
                yield states.pop(record.key)
        yield from states.values()

    def of_batch(self, number: int) -> list[Record]:
        return sorted((r for r in self.records if r.batch == number), key=lambda r: (r.partition, r.offset))

    def state_at(self, record: Record, *, dirty: bool = False) -> Write:
        """The state of a key after ``record``; ``dirty``: with uncommitted records counted too."""
        counted = [
            r.n
            for r in self.records
            if r.key == record.key and r.n > 0 and r.offset <= record.offset and (dirty or r.visibility == "committed")
        ]
        values = {"k": record.key, "total": sum(counted), "c": len(counted)}
        return Write((("k", record.key),), values, record.partition, record.key)

    def visible(self, output: str) -> list[tuple[Txn, Write]]:
        """What a reader sees after the run: of an upsert the last write of each identity."""
        seen = [(t, w) for t in self.txns if t.output == output and t.visibility == "committed" for w in t.writes]
        if MODELS[output].kind == "upsert":
            seen = [s for i, s in enumerate(seen) if all(later.identity != s[1].identity for _, later in seen[i + 1 :])]
        return seen

    def drop(self, write: Write) -> None:
        for txn in self.txns:
            txn.writes = [w for w in txn.writes if w is not write]
        self.txns = [txn for txn in self.txns if txn.writes]

    def starts(self) -> int:
        return 1 + max(max(b.planned_by, b.committed_by or 0) for b in self.batches)

    def store(self, run: Any) -> None:
        """Write it to a stored run."""
        run.document |= {"wall_start": WALL_START, **self.document}
        run.document["job"]["starts"] = self.starts()
        run.scenario["outputs"] = {name: MODELS[name].spec(name) for name in self.outputs}
        run.scenario["oracle"] = {"kind": "sql", "queries": {name: MODELS[name].query for name in self.outputs}}
        run.scenario["claim"] = self.claim
        for name, spec in run.scenario["outputs"].items():
            if MODELS[name].kind == "upsert":  # keeps last states only, in which no order is left to see
                spec["claim"] = {**self.claim, "order": "none"}
        self._store_input(run)
        for number, batch in enumerate(self.batches):
            _store_batch(run, number, batch)
        for index, txn in enumerate(sorted(self.txns, key=lambda t: t.at_ms)):
            _store_txn(run, index, txn)
        run.progress(self.progress)
        _store_partitions(run, self.outputs)

    def _store_input(self, run: Any) -> None:
        for partition, end in self.ends.items():
            records = {r.offset: r for r in [*self.records, *self.lost] if r.partition == partition}
            for offset in range(end):
                if (record := records.get(offset)) is None:
                    run.skip("in", partition)
                    continue
                value = {"k": record.key, "n": record.n}
                run.send(record.key, value, partition=partition, visibility=record.visibility)
                row = run.tables["input"][-1]
                row["timestamp_ms"] = at(record.batch, -2)
                if record.end_offset is not None:
                    producer = {"producer_id": 100 + partition, "producer_epoch": 0, "sequence": offset}
                    row.update(producer, txn_end_offset=record.end_offset, txn_end_ms=record.end_ms)
                if record in self.lost:
                    run.tables["input"].pop()


def at(batch: int, seconds: float) -> int:
    """Wall clock ms, so long after batch ``batch`` was planned."""
    return int(1000 * (WALL_START + 10 * batch + seconds))


def effect_of(record: Record) -> Write:
    """What an append holds for one input record."""
    values = {"p": record.partition, "o": record.offset, "k": record.key, "n": record.n}
    return Write(identity(p=record.partition, o=record.offset), values, record.partition, record.key)


def identity(**columns: Any) -> Identity:
    return tuple((name, str(value)) for name, value in columns.items())


def _store_batch(run: Any, number: int, batch: Batch) -> None:
    run.batch(number, batch.ranges, by=(batch.planned_by, batch.committed_by))
    for row in run.tables["batches"]:
        if row["batch"] == number:
            row["planned_at"] = 10.0 * number
            row["committed_at"] = None if batch.committed_by is None else 10.0 * number + 8
    if batch.committed_by != batch.planned_by:
        point = "after-sink-commit" if batch.sink_first else "before-sink-commit"
        run.fault(batch=number)
        run.tables["faults"][-1].update(point=point, fired_at=10.0 * number + 4, healed_at=10.0 * number + 5)


def _store_txn(run: Any, index: int, txn: Txn) -> None:
    if MODELS[txn.output].table:
        run.commit(txn.output, *_changes(run, txn))
        run.tables["commits"][-1]["commit_time_us"] = 1000 * txn.at_ms
        return
    made = []
    for write in txn.writes:
        run.record(txn.output, write.values, partition=write.partition, visibility=txn.visibility)
        made.append(run.tables["output"][-1])
        made[-1].update(key=write.key.encode(), timestamp_ms=txn.at_ms - 500)
        made[-1].update(producer_id=500 + index, producer_epoch=0, sequence=len(made))
    if txn.visibility != "open":
        markers = {partition: run.skip(txn.output, partition) for partition in {w.partition for w in txn.writes}}
        for row in made:
            row.update(txn_end_offset=markers[row["partition"]], txn_end_ms=txn.at_ms)


def _changes(run: Any, txn: Txn) -> Iterator[tuple[str, dict[str, Any] | None, dict[str, Any] | None]]:
    keyed = MODELS[txn.output].kind == "upsert"
    standing: dict[Identity, dict[str, Any]] = run.__dict__.setdefault("standing", {}).setdefault(txn.output, {})
    for write in txn.writes:
        before = standing.get(write.identity) if keyed and not write.insert else None
        if write.values is None:
            yield "delete", standing.pop(write.identity), None
            continue
        yield ("insert" if before is None else "update"), before, write.values
        if not write.insert:
            standing[write.identity] = write.values


def _store_partitions(run: Any, outputs: tuple[str, ...]) -> None:
    """The logs' ends as a collector finds them: the last stable offset is the first open record's."""
    for topic in ("in", *(name for name in outputs if not MODELS[name].table)):
        rows = [
            r for r in run.tables["input" if topic == "in" else "output"] if r.get("output", r.get("topic")) == topic
        ]
        for (name, partition), end in sorted(run._ends.items()):
            if name == topic:
                unfinished = [r["offset"] for r in rows if r["partition"] == partition and r["visibility"] == "open"]
                offsets = {"start_offset": 0, "stable_offset": min(unfinished, default=end), "end_offset": end}
                run.add("partitions", {"topic": topic, "partition": partition, **offsets, "collected_ms": at(1000, 0)})


def histories(full: int) -> settings:
    """How many a test judges in `tox -e full`, at a quarter of a second of CPU time each; the other profiles say it themselves."""
    profile = settings.get_current_profile_name()
    said = settings.get_profile(profile).max_examples
    return settings(max_examples={"full": full, "gate": min(full, said)}.get(profile, said))


@st.composite
def worlds(
    draw: st.DrawFn, *, only: tuple[str, ...] = tuple(MODELS), outputs: int | None = None, restarted: bool = False
) -> World:
    """A clean world. ``only``: which outputs may be in it; ``outputs``: how many are; ``restarted``: some batch with data
    was planned by one start of the driver and committed by the next, which then ran another one by itself."""
    names = draw(st.permutations(only)) if outputs != len(only) else list(only)
    names = names[: outputs or draw(st.integers(1, min(2, len(only))))]
    parts = draw(st.integers(1, 2))
    count = draw(st.integers(1 + restarted, 4))
    records: list[Record] = []
    ends: dict[int, int] = {}
    ranges: list[dict[int, tuple[int, int]]] = [{} for _ in range(count)]
    most = draw(st.sampled_from([2, 3, 3, 30]))
    for partition in range(parts):
        offset = 0
        for number in range(count):
            start = offset
            for size, fate in draw(st.lists(st.tuples(st.integers(1, most), _FATES), min_size=restarted, max_size=2)):
                keys, kept = draw(st.integers(0, 2**size - 1)), draw(st.integers(0, 4**size - 1))
                chunk = [
                    Record(
                        partition,
                        offset + nth,
                        f"k{partition}{keys >> nth & 1}",
                        _number(len(records) + nth) * (-1 if kept >> 2 * nth & 3 == 3 else 1),
                        number,
                    )
                    for nth in range(size)
                ]
                offset += size
                if fate != "plain":
                    chunk = [replace(r, visibility=fate, end_offset=offset, end_ms=at(number, -1)) for r in chunk]
                    offset += 1
                records += chunk
            ranges[number][partition] = (start, offset)
        ends[partition] = offset
    for model in (MODELS[name] for name in names):
        if not any(model.takes(r) and r.visibility == "committed" for r in records):
            records.append(_one_more(model, ends, ranges, _number(len(records))))
    claim = {
        "order": draw(st.sampled_from(["per-key", "none", "per-partition"])),
        "atomic": draw(st.sampled_from(["none", "batch", "transaction"])),
    }
    world = World(records, [], ends, _attempts(draw, ranges, restarted), tuple(names), draw(st.booleans()), claim)
    world.work()
    return world


_FATES = st.sampled_from(["plain", "plain", "committed", "aborted"])


def _number(index: int) -> int:
    """Powers of two while they last, then numbers below 2**40 whose sums are not seen to meet."""
    return 2**index if index < 40 else pow(3, index, 2**40 - 87)


def _one_more(model: Model, ends: dict[int, int], ranges: list[dict[int, tuple[int, int]]], n: int) -> Record:
    """A record at the end of partition 0 that the output takes, so that it expects something."""
    offset = ends[0] + (model.parity is not None and ends[0] % 2 != model.parity)
    ranges[-1][0] = (ranges[-1][0][0], offset + 1)
    ends[0] = offset + 1
    return Record(0, offset, "k00", n, len(ranges) - 1)


def _attempts(draw: st.DrawFn, ranges: list[dict[int, tuple[int, int]]], restarted: bool) -> list[Batch]:
    crashed = draw(st.sets(st.integers(0, len(ranges) - 1 - restarted), min_size=int(restarted)))
    batches, start = [], 0
    for number, of_batch in enumerate(ranges):
        planned_by = start
        start += number in crashed
        batches.append(Batch(of_batch, planned_by, start, draw(st.booleans())))
    return batches
