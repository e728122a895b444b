"""The schedule of a Spark job, which `shrink` can make smaller: the number of input chunks, and the faults."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from onceproof.base.words import times
from onceproof.data import open_dataset
from onceproof.scenario.model import FaultSpec, InputSpec, Scenario
from onceproof.scenario.schedule import Removal


@dataclass(frozen=True)
class BatchSchedule:
    """Only the last chunk can be removed: batches are numbered from the first chunk on, so the faults keep their batches."""

    chunks: int
    faults: tuple[FaultSpec, ...]
    parts: tuple[int, ...] = ()

    def only(self, parts: Sequence[int]) -> BatchSchedule:
        return self

    def without_faults(self) -> BatchSchedule:
        return replace(self, faults=())

    def sizes(self) -> dict[str, int]:
        return {"chunks": self.chunks, "faults": len(self.faults)}

    def __str__(self) -> str:
        return f"{times(self.chunks, 'chunk')}, {times(len(self.faults), 'fault')}"

    def smaller(self) -> Iterator[Removal[BatchSchedule]]:
        if self.chunks > 1:
            yield Removal("the last chunk", [replace(self, chunks=self.chunks - 1)])
        for index, fault in enumerate(self.faults):
            rest = replace(self, faults=(*self.faults[:index], *self.faults[index + 1 :]))
            yield Removal(f"{fault.fault} {fault.target}, batch {fault.at.batch} @ {fault.at.point}", [rest])


@dataclass(frozen=True)
class WholeJob:
    """The scenario that `shrink` makes smaller; `of` builds the scenario of a smaller schedule."""

    scenario: Scenario

    @cached_property
    def schedule(self) -> BatchSchedule:
        return BatchSchedule(self.scenario.guaranteed_batches(), tuple(self.scenario.faults(FaultSpec)))

    def of(self, schedule: BatchSchedule, records_file: Path) -> Scenario:
        inputs = [self._fewer(spec, schedule.chunks) for spec in self.scenario.input]
        return self.scenario.model_copy(update={"input": inputs, "chaos": list(schedule.faults)})

    def execution_key(self, schedule: BatchSchedule) -> Hashable:
        return schedule.chunks, tuple(fault.model_dump_json() for fault in schedule.faults)

    def _fewer(self, spec: InputSpec, chunks: int) -> InputSpec:
        """The input, reduced to its first chunks, each as large as before."""
        if spec.chunks <= chunks:
            return spec
        rows = spec.rows or open_dataset(spec.dataset, spec.options, seed=self.scenario.seed).rows()
        return spec.model_copy(update={"rows": rows * chunks // spec.chunks, "chunks": chunks})


def hinted_schedules(whole: BatchSchedule, batches: Sequence[Collection[int]]) -> Iterator[BatchSchedule]:
    """Smaller schedules to try first. ``batches``: for each anomaly, the batches that its witnesses name.

    A hint keeps the faults that struck one of these batches (if none did, the last fault before), and the chunks until then.
    """
    kept: list[FaultSpec] = []
    for named in filter(None, batches):
        struck = [fault for fault in whole.faults if fault.at.batch in named]
        kept += struck or sorted((f for f in whole.faults if f.at.batch <= max(named)), key=lambda f: f.at.batch)[-1:]
    faults = tuple(fault for fault in whole.faults if fault in kept)
    if not faults:
        return
    last = max([fault.at.batch for fault in faults] + [batch for named in batches for batch in named])
    for chunks in (last + 1, last + 2):
        if chunks < whole.chunks:
            yield BatchSchedule(chunks, faults)
    if len(faults) < len(whole.faults):
        yield replace(whole, faults=faults)
