"""An excerpt of a history: a few identities with everything that belongs to them, small enough to be held in memory.

An excerpt is *closed*, because otherwise correct effects would look wrong: it holds, with an identity, all its writes (visible
or not), its rows in the snapshot and the input records that cause it; and with an input record, all identities that it causes.
What an output must hold is either asked of the oracle again, from that input, or stored (`onceproof.oracle.slice`).

Rows belong to *parts*, which are kept or removed as a whole: ``("effects", "0")`` is one such closed group of identities,
``("batch", "flights", "2")`` one batch. A row is kept if one of its parts is, or if it has no parts.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.history.run_record import FILE, SliceRecord, StoredScenario
from onceproof.history.schema import TABLES
from onceproof.history.writer import PARQUET, HistoryWriter
from onceproof.judge.case.case import Case
from onceproof.judge.findings import Witness
from onceproof.judge.slices.stored_rows import StoredRows
from onceproof.judge.witness import Row
from onceproof.oracle.contract.decoders import decoded_file
from onceproof.stores.contract import stores

Part = tuple[str, ...]
Identity = tuple[str, str]
"""Output and id, as in ``judge.expected``."""
Position = tuple[str, int, int]
"""Topic, partition, offset."""

MAX_ROWS = 20_000
_RECORD = re.compile(r"([\w.-]+)/(\d+)@(\d+)")
_WORD = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Mentions:
    """The positions, transactions and other words that a witness mentions."""

    records: frozenset[Position]
    xids: frozenset[int]
    words: frozenset[str]

    @classmethod
    def of(cls, witness: Witness) -> Mentions:
        text = "\n".join([witness.argument, witness.cause or "", *witness.positions])
        records = {(topic, int(partition), int(offset)) for topic, partition, offset in _RECORD.findall(text)}
        words = "|".join(re.escape(store.words.commit) for _, store in stores.items() if store.words.commit)
        commits = re.findall(rf"\b(?:{words}) (\d+)", text)
        return cls(frozenset(records), frozenset(map(int, commits)), frozenset(_WORD.findall(text)))


@dataclass
class Excerpt:
    """Rows per table, each with its parts."""

    outputs: tuple[str, ...]
    rows: dict[str, list[tuple[Row, frozenset[Part]]]] = field(default_factory=lambda: {name: [] for name in TABLES})
    parts: dict[Part, bool] = field(default_factory=dict)
    """Part -> whether it is near: it belongs to the excerpt's records or to their batches."""
    stored: StoredRows | None = None
    """What the outputs must hold; None if the oracle is asked again."""
    groups: dict[Identity, Part] = field(default_factory=dict)
    decoded: dict[str, pa.Table] = field(default_factory=dict)
    """Input topic -> its records as the user's function decoded them."""
    _columns: dict[str, pa.RecordBatch] = field(default_factory=dict)
    """Table -> all its rows as columns. Cached when first written: a search writes the excerpt dozens of times."""

    def add(self, table: str, row: Row, parts: Iterable[Part] = (), *, near: bool = True) -> None:
        row_parts = frozenset(parts)
        self.rows[table].append((row, row_parts))
        for part in row_parts:
            self.parts[part] = self.parts.get(part, False) or near

    def size(self) -> int:
        return sum(map(len, self.rows.values()))

    def kept(self, table: str, keep: Collection[Part]) -> Iterator[Row]:
        return (row for row, parts in self.rows[table] if _is_kept(parts, keep))

    def identities(self, keep: Collection[Part]) -> set[Identity]:
        return {identity for identity, part in self.groups.items() if part in keep}

    def write(
        self, case: Case, keep: Collection[Part], folder: Path, about: SliceRecord, expect: dict[str, Any]
    ) -> None:
        """Write it as a run directory. ``about`` goes into its ``run.json`` under ``slice``, ``expect`` into its scenario."""
        folder.mkdir(parents=True)
        with HistoryWriter(folder) as writer:
            for table in TABLES:
                writer.append(table, self._chosen(table, keep))
        for name, path in case.history.static.items():
            if ("table", name) in keep:
                (folder / "history" / "tables").mkdir(exist_ok=True)
                shutil.copyfile(path, folder / "history" / "tables" / path.name)
        records = {(row["topic"], row["partition"], row["offset"]) for row in self.kept("input", keep)}
        for topic, table in self.decoded.items():
            (folder / "history" / "decoded").mkdir(exist_ok=True)
            rows = zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
            chosen = table.filter(pa.array([row in records for row in rows], pa.bool_()))
            pq.write_table(chosen, decoded_file(folder, topic), **PARQUET)
        if self.stored is not None:
            self.stored.write(folder, self.identities(keep))
        faults = {row["index"] for row in self.kept("faults", keep)}
        record = case.run.model_copy(update={"scenario": self._scenario(case, faults, expect), "slice": about})
        (folder / FILE).write_text(json.dumps(record.to_json(), indent=2, default=str) + "\n", encoding="utf-8")

    def _chosen(self, table: str, keep: Collection[Part]) -> pa.RecordBatch:
        """The rows of `kept`, as columns."""
        rows = self.rows[table]
        if table not in self._columns or self._columns[table].num_rows != len(rows):
            self._columns[table] = pa.RecordBatch.from_pylist([dict(row) for row, _ in rows], schema=TABLES[table])
        chosen = [at for at, (_, parts) in enumerate(rows) if _is_kept(parts, keep)]
        return self._columns[table].take(pa.array(chosen, pa.int64()))

    def _scenario(self, case: Case, faults: Collection[int], expect: dict[str, Any]) -> StoredScenario:
        """The run's scenario with these outputs and faults only."""
        scenario = case.run.scenario
        if self.stored is not None:
            oracle = self.stored.oracle()
        else:
            # Reduce each setting of the oracle that has one entry per output.
            oracle = {
                key: {name: entry for name, entry in value.items() if name in self.outputs}
                if isinstance(value, dict) and value and set(value) <= set(scenario.outputs)
                else value
                for key, value in scenario.oracle.items()
            }
        return scenario.model_copy(
            update={
                "outputs": {name: spec for name, spec in scenario.outputs.items() if name in self.outputs},
                "chaos": [fault for index, fault in enumerate(scenario.chaos or []) if index in faults],
                "oracle": oracle,
                "expect": expect,
            }
        )


def _is_kept(parts: frozenset[Part], keep: Collection[Part]) -> bool:
    return not parts or any(part in keep for part in parts)
