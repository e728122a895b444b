"""The schedule of a Spark job, which `shrink` can make smaller: the faults, the chunks of input, and the records of each chunk."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from onceproof.base.words import times
from onceproof.data import rows_of
from onceproof.scenario.model import FaultSpec, InputSpec, Scenario
from onceproof.scenario.schedule import Removal


@dataclass(frozen=True)
class BatchSchedule:
    """Only the last chunks can be removed: batches are numbered from the first chunk on, so the faults keep their batches."""

    chunks: int
    records: int
    """The records of a chunk, at most: of each chunk the first ones are fed."""
    faults: tuple[FaultSpec, ...]
    parts: tuple[int, ...] = ()

    def only(self, parts: Sequence[int]) -> BatchSchedule:
        return self

    def without_faults(self) -> BatchSchedule:
        return replace(self, faults=())

    def sizes(self) -> dict[str, int]:
        return {"chunks": self.chunks, "records of a chunk": self.records, "faults": len(self.faults)}

    def __str__(self) -> str:
        chunks = f"{times(self.chunks, 'chunk')} of {times(self.records, 'record')}"
        return f"{chunks}, {times(len(self.faults), 'fault')}"

    def smaller(self) -> Iterator[Removal[BatchSchedule]]:
        """Large removals first: an execution takes seconds, and half of what is left is often not needed."""
        for index, fault in enumerate(self.faults):
            rest = replace(self, faults=(*self.faults[:index], *self.faults[index + 1 :]))
            yield Removal(f"{fault.fault} {fault.target}, batch {fault.at.batch} @ {fault.at.point}", [rest])
        for fewer in _fewer(self.chunks):
            what = "the last chunk" if fewer == 1 else f"the last {fewer} chunks"
            yield Removal(what, [replace(self, chunks=self.chunks - fewer)])
        for fewer in _fewer(self.records):
            what = f"{times(fewer, 'record')} of each chunk"
            yield Removal(what, [replace(self, records=self.records - fewer)])


def _fewer(count: int) -> Iterator[int]:
    """How many to remove of ``count``, of which one must stay: half, a quarter, ..., one."""
    fewer = count // 2
    while fewer:
        yield fewer
        fewer //= 2


@dataclass(frozen=True)
class WholeJob:
    """The scenario that `shrink` makes smaller; `of` builds the scenario of a smaller schedule."""

    scenario: Scenario

    @cached_property
    def schedule(self) -> BatchSchedule:
        records = max(-(-rows_of(spec, self.scenario.seed) // spec.chunks) for spec in self.scenario.input)
        return BatchSchedule(self.scenario.guaranteed_batches(), records, tuple(self.scenario.faults(FaultSpec)))

    def of(self, schedule: BatchSchedule, records_file: Path) -> Scenario:
        inputs = [self._fewer(spec, schedule) for spec in self.scenario.input]
        return self.scenario.model_copy(update={"input": inputs, "chaos": list(schedule.faults)})

    def execution_key(self, schedule: BatchSchedule) -> Hashable:
        return schedule.chunks, schedule.records, tuple(fault.model_dump_json() for fault in schedule.faults)

    def _fewer(self, spec: InputSpec, schedule: BatchSchedule) -> InputSpec:
        """The input, reduced to its first records, in fewer or smaller chunks of equal size."""
        rows = rows_of(spec, self.scenario.seed)
        if spec.chunks <= schedule.chunks and rows <= schedule.records * spec.chunks:
            return spec
        chunks = min(spec.chunks, schedule.chunks)
        left = min(rows * chunks // spec.chunks, schedule.records * chunks)
        return spec.model_copy(update={"rows": left, "chunks": chunks})


def hinted_schedules(whole: BatchSchedule, batches: Sequence[Collection[int]]) -> Iterator[BatchSchedule]:
    """Smaller schedules to try first. ``batches``: for each anomaly, the batches that its witnesses name.

    A hint keeps the faults that struck one of these batches (if none did, the last fault before), and the chunks until then; the
    first ones of a single record each.
    """
    kept: list[FaultSpec] = []
    for named in filter(None, batches):
        struck = [fault for fault in whole.faults if fault.at.batch in named]
        kept += struck or sorted((f for f in whole.faults if f.at.batch <= max(named)), key=lambda f: f.at.batch)[-1:]
    faults = tuple(fault for fault in whole.faults if fault in kept)
    if not faults:
        return
    last = max([fault.at.batch for fault in faults] + [batch for named in batches for batch in named])
    for records in sorted({1, whole.records}):
        for chunks in (last + 1, last + 2):
            if chunks <= whole.chunks and (chunks, records) != (whole.chunks, whole.records):
                yield BatchSchedule(chunks, records, faults)
    if len(faults) < len(whole.faults):
        yield replace(whole, faults=faults)
