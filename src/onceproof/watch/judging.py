"""Judges the windows of a watch, one after the other, from records that were added to them. Reads nothing itself.

Each window is a small history: its input, and the records that no earlier window has explained. The judge of whole runs opens it,
asks the oracle, and makes digests of both sides (`onceproof.judge`). Where these are equal, both are dropped. Where they differ, the
input records and the records concerned become a history of their own, which is judged like any other, so that findings have the
checkers' words.

A record that a window does not explain waits for the next one. It is *unmatched* as soon as its cause must have been read, and is
then compared with what earlier windows expected: it came late, it came again, or nothing explains it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from onceproof.base.words import times
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import StoredScenario
from onceproof.history.schema import VERSION
from onceproof.history.writer import HistoryWriter
from onceproof.judge.case.case import Case
from onceproof.judge.case.record_key import COLUMN
from onceproof.judge.findings import Finding
from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge
from onceproof.scenario.model import Scenario
from onceproof.values.canonical import literal
from onceproof.watch.compare import Compared, compare
from onceproof.watch.settled import Settled
from onceproof.watch.unmatched import Late, Lost, classify
from onceproof.watch.window import MOST_RECORDS, Positions, Window, following

#: At most so many input records, one for each structure of JSON values, are added to each window, so that all windows have the same fields.
_MOST_EXAMPLES = 64


# Premises of checkers about an imported history -> what is true of a window instead.
_WORDS = {
    "The history was imported as complete; it records no progress": "Since then the output was read past the end that it had when "
    "the grace period was over",
    "the history was imported: it records no faults": "a watch records no faults",
    "the history was imported: it records neither batches nor faults": "a watch records neither batches nor faults",
}

# Part of a doubt of `onceproof.judge.case.record_key`.
_ABOUT_KEYS = "has the key of an input record"


@dataclass
class Settlement:
    """What one window has shown."""

    window: Window
    due: dict[str, int] = field(default_factory=dict)
    """Output -> how many rows are expected of the window's input."""
    found: int = 0
    findings: list[Finding] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    """Rows of earlier windows that were reported as lost, and have arrived."""
    doubts: list[str] = field(default_factory=list)
    """What could not be judged, in sentences."""
    unjudged: bool = False
    """Whether the window's own rows were not compared."""

    @property
    def expected(self) -> int:
        return sum(self.due.values())

    @property
    def equal(self) -> bool:
        return not (self.findings or self.unjudged or self.doubts)


class Windows:
    """The windows of one watch. ``folder`` is private to it; ``remember_s`` as in `onceproof.watch.settled`."""

    def __init__(self, scenario: Scenario, folder: Path, remember_s: float) -> None:
        self.scenario = scenario
        self.closed: deque[Window] = deque()
        """Windows that are not settled yet, oldest first."""
        self.open = Window(0, {})
        self.lost = Lost()
        self.held: list[pa.RecordBatch] = []
        """Records of the outputs that no window has explained yet, in offset order within a partition."""
        self._settled = Settled(folder / "settled", remember_s)
        self._settled.folder.mkdir(mode=0o700)
        self._whole = self._directory(folder / "window")
        self._part = self._directory(folder / "differing")
        self._examples: dict[str, pa.Table] = {}
        self._blind = False
        self._keys = {n: spec.compare_key for n, spec in scenario.outputs.items() if spec.compare_key is not None}
        """Output -> whether the keys of its records are compared. If the scenario does not say it, the first window decides
        that explains some record of the output: before that, no key of a record can be compared with that of its input."""

    def begin(self, start: Positions, *, lead_in: bool = False) -> None:
        """Begin the first window, or the first after the lead-in, at these offsets of the input."""
        self.open = Window(self.open.number, dict(start), lead_in)

    def add_input(self, batch: pa.RecordBatch, now: float) -> None:
        """Add rows of the table ``input``. Closes the window if it is large: the rest of it is then the next window."""
        self.open.add(batch)
        if self.open.records >= MOST_RECORDS:
            self.close(self.closed[-1].seen if self.closed else {}, now)

    def add_output(self, batch: pa.RecordBatch) -> None:
        """Add rows of the table ``output``."""
        self.held.append(batch)

    def close(self, seen: Positions, now: float) -> None:
        """Close the window: the input has been read beyond all causes of the records before ``seen``."""
        window = self.open
        window.end = following(window.start, window.batches)
        window.seen, window.closed_at = dict(seen), now
        self.closed.append(window)
        self.open = Window(window.number + 1, window.end, window.lead_in)

    def waiting(self) -> int:
        """The number of records, of both sides, that are held in memory."""
        rows: int = sum(window.records for window in (*self.closed, self.open)) + sum(b.num_rows for b in self.held)
        return rows

    def settle(self, now: float) -> Settlement:
        """Judge the oldest closed window. Nothing has changed if it raises."""
        window = self.closed[0]
        result = Settlement(window)
        held = self.held
        if window.records or held:
            for _ in range(3):  # without what cannot be read, and with keys
                self._write(self._whole, [*self._teaching(), *window.batches], held)
                with open_case(self._whole.path) as case:
                    bad = self._unreadable(case, result) if case.unreadable else None
                    if bad is None and not self._demand_keys(case):
                        held = self._take(case, window, result, now, held)
                        break
                held = _without(held, bad or set())
            self._learn(window)
        self._settled.forget(now)
        self.held = held
        self.closed.popleft()
        return result

    def _take(
        self, case: Case, window: Window, result: Settlement, now: float, held: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """Compare, and return the records that later windows may explain."""
        if case.no_oracle is not None or case.unreadable:
            why = case.no_oracle or "; ".join(f"output {name}: {text}" for name, text in case.unreadable.items())
            if not window.records and sum(batch.num_rows for batch in held) <= MOST_RECORDS:
                return held  # the first window with input judges them: without any, the oracle cannot be asked
            result.doubts.append(f"window {window.number} ({window.ranges()}) cannot be judged: {why}")
            result.unjudged = self._blind = True
            return _from(held, window.seen)
        compared = compare(case, window)
        result.found = compared.found
        result.due = {output: len(hashes) for output, (hashes, *_) in compared.due.items()}
        undecided = self._decide_keys(case, compared)
        result.doubts += [doubt for doubt in case.doubts if not (undecided and _ABOUT_KEYS in doubt)]
        for output, (hashes, *causes) in compared.due.items():
            self._settled.add(window.number, now, output, hashes, causes, lead_in=window.lead_in)
        if compared.differs and not window.lead_in:
            result.findings += self._named(case, compared, result)
            self.lost.add(compared.missing, window.number, any_content=undecided)
        late, findings, doubts = classify(
            compared.unmatched, self.lost, self._settled, self.scenario, blind=self._blind
        )
        result.late += late
        result.findings += findings
        result.doubts += doubts
        return [] if compared.carried is None else compared.carried.to_batches()

    def _named(self, case: Case, compared: Compared, result: Settlement) -> list[Finding]:
        """The findings of the judge about what differs."""
        assert compared.inputs is not None and compared.outputs is not None
        # Whether keys are compared does not follow from these few records.
        self._set_keys(self._part, {name: COLUMN in case.expectations[name].columns for name in case.expectations})
        self._write(self._part, compared.inputs.to_batches(), compared.outputs.to_batches())
        verdict = judge(self._part.path)
        named = [_worded(finding) for finding in verdict.findings if finding.allowed is None]
        if not verdict.findings:
            result.doubts.append(
                f"window {result.window.number} differs, and no checker names it: {verdict.reasons[0]}"
            )
        return named

    def _demand_keys(self, case: Case) -> bool:
        """Whether keys are compared from now on that were not: records without keys, of input with keys, have lost them."""
        keyed = 'SELECT count("key") FROM history.input'
        written = "SELECT count(*) FROM history.output WHERE output = $output"
        lost = [name for name in case.not_compared if case.number(written, {"output": name}) and case.number(keyed)]
        if not lost:
            return False
        self._keys |= dict.fromkeys(lost, True)
        self._set_keys(self._whole, self._keys)
        return True

    def _decide_keys(self, case: Case, compared: Compared) -> set[str]:
        """Let this window decide which keys are compared from now on. Returns the outputs for which it cannot."""
        known = dict(self._keys)
        for name in compared.explained - known.keys():
            self._keys[name] = COLUMN in case.expectations[name].columns
        if self._keys != known:
            self._set_keys(self._whole, self._keys)
        return case.expectations.keys() - self._keys.keys()

    def _set_keys(self, directory: RunDir, keys: Mapping[str, bool]) -> None:
        document = self.scenario.to_json()
        for name, compared in keys.items():
            document["outputs"][name]["compare_key"] = compared
        stored = StoredScenario.model_validate(document)
        if stored != directory.run.scenario:
            directory.update(scenario=stored)

    def _unreadable(self, case: Case, result: Settlement) -> set[tuple[str, int, int]] | None:
        """The records that are not JSON objects, because of which an output cannot be read. None if that is not the reason."""
        query = """SELECT output, "partition", "offset" FROM history.output
            WHERE content IS NULL OR NOT coalesce(TRY(json_type(content)) = 'OBJECT', false) ORDER BY 1, 2, 3"""
        bad = [row for row in case.sql(query).fetchall() if self.scenario.outputs[row[0]].decode == "json"]
        for output in dict.fromkeys(row[0] for row in bad):
            places = [row for row in bad if row[0] == output]
            where = f"{self.scenario.outputs[output].topic}/{places[0][1]}@{places[0][2]}"
            result.doubts.append(
                f"{times(len(places), 'record')} of output {output} cannot be read as a JSON object, the first at {where}"
            )
        return {(row[0], row[1], row[2]) for row in bad} or None

    def _teaching(self) -> list[pa.RecordBatch]:
        tables = list(self._examples.values())
        if not tables:
            return []
        rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in ("topic", "partition", "offset")])
        batches: list[pa.RecordBatch] = rows.combine_chunks().to_batches()
        return batches

    def _learn(self, window: Window) -> None:
        """Keep a record of each structure of JSON values that was not seen before: later windows then have its fields too."""
        if not window.records or len(self._examples) >= _MOST_EXAMPLES:
            return
        file = self._whole.history / "input.parquet"
        query = f"""SELECT topic || coalesce(TRY(json_structure(decode("value")))::VARCHAR, '') AS structure, topic,
                           min(("partition", "offset")) AS first
                    FROM read_parquet({literal(str(file))}) GROUP BY ALL ORDER BY ALL"""  # noqa: S608
        with duckdb.connect() as db:
            found = db.execute(query).fetchall()
        rows = pa.Table.from_batches(window.batches)
        for structure, topic, first in found:
            if structure not in self._examples and len(self._examples) < _MOST_EXAMPLES:
                partition, offset = first.values() if isinstance(first, dict) else first
                example = _one(rows, topic, partition, offset)
                if example is not None:
                    self._examples[structure] = example

    def _directory(self, path: Path) -> RunDir:
        """A run directory whose history is written again for each window. Like an import, it has no batches and no faults."""
        directory = RunDir.below(path)
        scenario = StoredScenario.of(self.scenario)
        directory.update(schema=VERSION, scenario=scenario, imported=True, drained=True, observed=True, job=None)
        return directory

    def _write(self, directory: RunDir, inputs: list[pa.RecordBatch], outputs: list[pa.RecordBatch]) -> None:
        with HistoryWriter(directory.path) as writer:
            for table, batches in (("input", inputs), ("output", outputs)):
                for batch in batches:
                    writer.append(table, batch)


def _worded(finding: Finding) -> Finding:
    """The same finding, without the premise that a whole history was imported."""
    for imported, read_on in _WORDS.items():
        witnesses = [replace(w, argument=w.argument.replace(imported, read_on)) for w in finding.witnesses]
        unsettled = None if finding.unsettled is None else finding.unsettled.replace(imported, read_on)
        undecided = None if finding.undecided is None else finding.undecided.replace(imported, read_on)
        finding = replace(finding, witnesses=tuple(witnesses), unsettled=unsettled, undecided=undecided)
    return finding


def _one(rows: pa.Table, topic: str, partition: int, offset: int) -> pa.Table | None:
    same = pc.and_(
        pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["partition"], partition)),
        pc.equal(rows["offset"], offset),
    )
    found = rows.filter(same)
    return found.combine_chunks() if found.num_rows else None


def _without(held: list[pa.RecordBatch], bad: set[tuple[str, int, int]]) -> list[pa.RecordBatch]:
    """The records except these."""
    kept = []
    for batch in held:
        places = zip(*(batch.column(name).to_pylist() for name in ("output", "partition", "offset")), strict=True)
        kept.append(batch.filter(pa.array([place not in bad for place in places], pa.bool_())))
    return kept


def _from(held: list[pa.RecordBatch], seen: Positions) -> list[pa.RecordBatch]:
    """The records at or after these positions."""
    kept = []
    for batch in held:
        places = zip(*(batch.column(name).to_pylist() for name in ("output", "partition", "offset")), strict=True)
        later = [offset >= seen.get((output, partition), 0) for output, partition, offset in places]
        kept.append(batch.filter(pa.array(later, pa.bool_())))
    return kept
