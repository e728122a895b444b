"""A synthetic run of a correct pipeline, for testing checkers: input, batches, restarts, and writes to outputs of every kind.

A `World` holds writes in transactions, without positions: a damage removes, adds or changes a write, and offsets, commits and
times are assigned when the world is stored as a run. The tests generate worlds at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

#: The start of every run, in seconds since 1970. Batch b is planned 10 s times b later and committed 8 s after that.
WALL_START = 1_000_000.0

#: A number larger than any sum of a world's numbers.
OFF = 2**55

Identity = tuple[tuple[str, str], ...]
"""Identity columns and their values as text, as in witnesses."""


@dataclass(frozen=True)
class OutputModel:
    """One kind of output."""

    kind: str
    table: bool
    query: str
    identity: tuple[str, ...] = ("k",)
    parity: int | None = None
    """For appends: only input records with an even (0) or odd (1) offset have an effect in it."""

    def spec(self, name: str) -> dict[str, Any]:
        spec = {"table" if self.table else "topic": name, "kind": self.kind, "identity": list(self.identity)}
        return spec | ({"placement": "key"} if self.kind != "append" and not self.table else {})

    def takes(self, record: WorldRecord) -> bool:
        return record.n > 0 and (self.parity is None or record.offset % 2 == self.parity)


_APPEND = """SELECT _partition AS p, _offset AS o, k, n, _topic, _partition, _offset, _key, _partition AS _to_partition
             FROM "in" WHERE n > 0"""
_UPSERT = """SELECT k, sum(n)::BIGINT AS total, count(*) AS c, any_value(_partition) AS _partition, max(_offset) AS _offset,
             k AS _key FROM "in" WHERE n > 0 GROUP BY k"""
_CHANGELOG = """SELECT k, (sum(n) OVER w)::BIGINT AS total, count(*) OVER w AS c, _partition, _offset, _key
                FROM "in" WHERE n > 0 WINDOW w AS (PARTITION BY k ORDER BY _offset)"""

MODELS = {
    "events": OutputModel("append", False, _APPEND, ("p", "o")),
    "rows": OutputModel("append", True, _APPEND, ("p", "o")),
    "even": OutputModel("append", False, f"{_APPEND} AND _offset % 2 = 0", ("p", "o"), 0),
    "odd": OutputModel("append", False, f"{_APPEND} AND _offset % 2 = 1", ("p", "o"), 1),
    "latest": OutputModel("upsert", False, _UPSERT),
    "totals": OutputModel("upsert", True, _UPSERT),
    "log": OutputModel("changelog", False, _CHANGELOG),
    "journal": OutputModel("changelog", True, _CHANGELOG),
    "sums": OutputModel(
        "upsert", True, 'SELECT k, sum(n)::BIGINT AS total, count(*) AS c FROM "in" WHERE n > 0 GROUP BY k'
    ),
}
#: Outputs whose oracle names the input record that causes each effect.
CAUSED = tuple(name for name in MODELS if name != "sums")
APPENDS = ("events", "rows", "even", "odd")
TOPICS = tuple(name for name, model in MODELS.items() if not model.table)


@dataclass(frozen=True)
class WorldRecord:
    """One input record."""

    partition: int
    offset: int
    key: str
    n: int
    """Different for each record, and such that no two possible sums are equal: a total determines which records are in it.
    The pipeline filters out negative numbers."""
    batch: int
    visibility: str = "committed"
    end_offset: int | None = None
    """The offset of its transaction's marker; None if it was sent without a transaction."""
    end_ms: int | None = None


@dataclass
class WorldWrite:
    """One write to an output. ``values`` holds all its columns; None is a tombstone."""

    identity: Identity
    values: dict[str, Any] | None
    partition: int
    key: str
    insert: bool = False
    """For tables: insert a row even if there is one with this identity."""

    def falsify(self) -> None:
        """Replace its number by one that no sum in a world can reach."""
        assert self.values is not None
        column = "n" if "n" in self.values else "total"
        self.values = {**self.values, column: self.values[column] + OFF}


@dataclass
class Txn:
    """One transaction on one output."""

    output: str
    batch: int
    start: int
    """The driver start that made it."""
    at_ms: int
    writes: list[WorldWrite]
    visibility: str = "committed"


@dataclass(frozen=True)
class WorldBatch:
    ranges: dict[int, tuple[int, int]]
    planned_by: int
    committed_by: int | None
    sink_first: bool
    """For a replayed batch: the first attempt reached the sink's commit."""


@dataclass
class World:
    records: list[WorldRecord]
    lost: list[WorldRecord]
    """Records that were acknowledged but are not in the log."""
    ends: dict[int, int]
    """Input partition -> the end of its log, including the offsets of markers."""
    batches: list[WorldBatch]
    outputs: tuple[str, ...]
    a_state_a_batch: bool
    """For changelogs: one state per batch and key if True, else one per record."""
    claim: dict[str, str]
    txns: list[Txn] = field(default_factory=list)
    progress: dict[int, int] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)

    def work(self) -> None:
        """Fill in what a correct pipeline writes for these records."""
        self.txns = []
        for number, batch in enumerate(self.batches):
            for output in self.outputs:
                writes = list(self.writes_of(output, number))
                replayed = batch.committed_by != batch.planned_by
                late = replayed and not batch.sink_first
                if late and not MODELS[output].table:
                    first = Txn(output, number, batch.planned_by, at(number, 3), deepcopy(writes), "aborted")
                    self.txns.append(first)
                start = batch.planned_by if batch.committed_by is None or not late else batch.committed_by
                self.txns.append(Txn(output, number, start, at(number, 6 if late else 3), writes))
        self.txns = [txn for txn in self.txns if txn.writes]
        self.progress = dict(self.ends)

    def writes_of(self, output: str, number: int) -> Iterator[WorldWrite]:
        model = MODELS[output]
        states: dict[str, WorldWrite] = {}
        for record in self.of_batch(number):
            if record.visibility != "committed" or not model.takes(record):
                continue
            if model.kind == "append":
                yield effect_of(record)
                continue
            states.pop(record.key, None)  # the batch's state of a key takes the place of the key's last record
            states[record.key] = self.state_at(record)
            if model.kind == "changelog" and not self.a_state_a_batch:
                yield states.pop(record.key)
        yield from states.values()

    def of_batch(self, number: int) -> list[WorldRecord]:
        return sorted((r for r in self.records if r.batch == number), key=lambda r: (r.partition, r.offset))

    def is_committed(self, number: int) -> bool:
        """Whether the batch exists and was committed; other damage may have ended the job before it."""
        return number < len(self.batches) and self.batches[number].committed_by is not None

    def state_at(self, record: WorldRecord, *, dirty: bool = False) -> WorldWrite:
        """The state of a key after ``record``. With ``dirty``, uncommitted records count too."""
        counted = [
            r.n
            for r in self.records
            if r.key == record.key and r.n > 0 and r.offset <= record.offset and (dirty or r.visibility == "committed")
        ]
        values = {"k": record.key, "total": sum(counted), "c": len(counted)}
        return WorldWrite((("k", record.key),), values, record.partition, record.key)

    def visible(self, output: str) -> list[tuple[Txn, WorldWrite]]:
        """What a reader sees after the run: in an upsert output, the last write of each identity."""
        seen = [(txn, write) for txn in self.committed(output) for write in txn.writes]
        if MODELS[output].kind == "upsert":
            seen = [s for i, s in enumerate(seen) if all(later.identity != s[1].identity for _, later in seen[i + 1 :])]
        return seen

    def last_of_each(self, output: str) -> list[tuple[Txn, WorldWrite]]:
        """The last visible write of each identity."""
        return list({write.identity: (txn, write) for txn, write in self.visible(output)}.values())

    def committed(self, output: str) -> list[Txn]:
        return [txn for txn in self.txns if txn.output == output and txn.visibility == "committed"]

    def replayed(self) -> set[int]:
        """Batches that one driver start planned, and another one (or none) committed."""
        return {n for n, batch in enumerate(self.batches) if batch.committed_by != batch.planned_by}

    def before(self, txn: Txn, other: Txn) -> None:
        """Commit ``other`` right before ``txn``."""
        self.txns.insert(self._index(txn), other)

    def after(self, txn: Txn, other: Txn) -> None:
        """Commit ``other`` right after ``txn``."""
        self.txns.insert(1 + self._index(txn), other)

    def _index(self, txn: Txn) -> int:
        return next(index for index, one in enumerate(self.txns) if one is txn)

    def drop(self, write: WorldWrite) -> None:
        for txn in self.txns:
            txn.writes = [w for w in txn.writes if w is not write]
        self.txns = [txn for txn in self.txns if txn.writes]

    def starts(self) -> int:
        return 1 + max(max(b.planned_by, b.committed_by or 0) for b in self.batches)


def at(batch: int, seconds: float) -> int:
    """The wall clock in ms, ``seconds`` after batch ``batch`` was planned."""
    return int(1000 * (WALL_START + 10 * batch + seconds))


def effect_of(record: WorldRecord) -> WorldWrite:
    """The write of an append output for one input record."""
    values = {"p": record.partition, "o": record.offset, "k": record.key, "n": record.n}
    return WorldWrite(identity(p=record.partition, o=record.offset), values, record.partition, record.key)


def identity(**columns: Any) -> Identity:
    return tuple((name, str(value)) for name, value in columns.items())
