"""Generates worlds (`onceproof.judge.synthetic`) with Hypothesis, and stores one as a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import assume, settings
from hypothesis import strategies as st

from onceproof.judge.checker import checkers
from onceproof.judge.synthetic.damage import Damage
from onceproof.judge.synthetic.world import (
    MODELS,
    WALL_START,
    Identity,
    OutputModel,
    Txn,
    World,
    WorldBatch,
    WorldRecord,
    at,
)

T = TypeVar("T")

#: Anomaly and name -> a checker's damage.
DAMAGES = {f"{anomaly}/{one.name}": (anomaly, one) for anomaly, checker in checkers.items() for one in checker.damages}


def store(world: World, run: Any) -> None:
    """Write the world to a stored run."""
    run.document |= {"wall_start": WALL_START, **world.document}
    run.document["job"]["starts"] = world.starts()
    run.scenario["outputs"] = {name: MODELS[name].spec(name) for name in world.outputs}
    run.scenario["oracle"] = {"kind": "sql", "queries": {name: MODELS[name].query for name in world.outputs}}
    run.scenario["claim"] = world.claim
    for name, spec in run.scenario["outputs"].items():
        if MODELS[name].kind == "upsert":  # it keeps last states only, which show no order
            spec["claim"] = {**world.claim, "order": "none"}
    _store_input(world, run)
    for number, batch in enumerate(world.batches):
        _store_batch(run, number, batch)
    for index, txn in enumerate(sorted(world.txns, key=lambda t: t.at_ms)):
        _store_txn(run, index, txn)
    run.progress(world.progress)
    _store_partitions(run, world.outputs)


def _store_input(world: World, run: Any) -> None:
    for partition, end in world.ends.items():
        records = {r.offset: r for r in [*world.records, *world.lost] if r.partition == partition}
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
            if record in world.lost:
                run.tables["input"].pop()


def _store_batch(run: Any, number: int, batch: WorldBatch) -> None:
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
    current: dict[Identity, dict[str, Any]] = run.__dict__.setdefault("current", {}).setdefault(txn.output, {})
    for write in txn.writes:
        before = current.get(write.identity) if keyed and not write.insert else None
        if write.values is None:
            yield "delete", current.pop(write.identity), None
            continue
        yield ("insert" if before is None else "update"), before, write.values
        if not write.insert:
            current[write.identity] = write.values


def _store_partitions(run: Any, outputs: tuple[str, ...]) -> None:
    """Add the ends of the logs as a collector finds them: the last stable offset is that of the first open record."""
    for topic in ("in", *(name for name in outputs if not MODELS[name].table)):
        rows = [
            r for r in run.tables["input" if topic == "in" else "output"] if r.get("output", r.get("topic")) == topic
        ]
        for (name, partition), end in sorted(run._ends.items()):
            if name == topic:
                unfinished = [r["offset"] for r in rows if r["partition"] == partition and r["visibility"] == "open"]
                offsets = {"start_offset": 0, "stable_offset": min(unfinished, default=end), "end_offset": end}
                run.add("partitions", {"topic": topic, "partition": partition, **offsets, "collected_ms": at(1000, 0)})


class Drawn:
    """A damage's choices, drawn by Hypothesis. Skips a world in which the damage cannot be applied."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw

    def one(self, items: Sequence[T]) -> T:
        assume(items)
        return self._draw(st.sampled_from(items))

    def some(self, items: Sequence[T], most: int = 4) -> list[T]:
        assume(items)
        chosen = self._draw(st.sets(st.integers(0, len(items) - 1), min_size=1, max_size=most))
        return [items[index] for index in sorted(chosen)]

    def number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def need(self, condition: object) -> None:
        assume(condition)


#: The number of histories per test in the gate.
_OF_THE_GATE = 5


def fit_for(damage: Damage) -> st.SearchStrategy[World]:
    """Generates clean worlds to which the damage may be applied."""
    return worlds(only=damage.only, outputs=damage.outputs, restarted=damage.restarted, crowded=damage.crowded)


def histories(full: int) -> settings:
    """The number of histories per test in `tox -e full`, at 0.25 s of CPU time each. The other profiles set their own.

    The gate judges five per test, so one hundred for all damages: `tox -e full` looks for the rare history.
    """
    profile = settings.get_current_profile_name()
    examples = settings.get_profile(profile).max_examples
    return settings(max_examples={"full": full, "gate": min(full, _OF_THE_GATE)}.get(profile, examples))


@st.composite
def worlds(
    draw: st.DrawFn,
    *,
    only: tuple[str, ...] = tuple(MODELS),
    outputs: int | None = None,
    restarted: bool = False,
    crowded: bool = False,
) -> World:
    """A clean world. ``only``: the outputs that it may have; ``outputs``: their number; ``restarted``: some batch with data
    was planned by one driver start and committed by the next, which then ran another batch alone; ``crowded``: a key has several records in
    a batch."""
    names = draw(st.permutations(only)) if outputs != len(only) else list(only)
    names = names[: outputs or draw(st.integers(1, min(2, len(only))))]
    parts = draw(st.integers(1, 2))
    count = draw(st.integers(1 + restarted, 4))
    records: list[WorldRecord] = []
    ends: dict[int, int] = {}
    ranges: list[dict[int, tuple[int, int]]] = [{} for _ in range(count)]
    least, most = (5, 30) if crowded else (1, draw(st.sampled_from([2, 3, 3, 30])))
    for partition in range(parts):
        offset = 0
        for number in range(count):
            start = offset
            for size, fate in draw(
                st.lists(st.tuples(st.integers(least, most), _FATES), min_size=int(restarted or crowded), max_size=2)
            ):
                keys, kept = draw(st.integers(0, 2**size - 1)), draw(st.integers(0, 4**size - 1))
                chunk = [
                    WorldRecord(
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
    """A power of two for small indices, then a number below 2**40 whose sums are unlikely to be equal."""
    return 2**index if index < 40 else pow(3, index, 2**40 - 87)


def _one_more(
    model: OutputModel, ends: dict[int, int], ranges: list[dict[int, tuple[int, int]]], n: int
) -> WorldRecord:
    """A record at the end of partition 0 that has an effect in the output, so that something is expected there."""
    offset = ends[0] + (model.parity is not None and ends[0] % 2 != model.parity)
    ranges[-1][0] = (ranges[-1][0][0], offset + 1)
    ends[0] = offset + 1
    return WorldRecord(0, offset, "k00", n, len(ranges) - 1)


def _attempts(draw: st.DrawFn, ranges: list[dict[int, tuple[int, int]]], restarted: bool) -> list[WorldBatch]:
    crashed = draw(st.sets(st.integers(0, len(ranges) - 1 - restarted), min_size=int(restarted)))
    batches, start = [], 0
    for number, of_batch in enumerate(ranges):
        planned_by = start
        start += number in crashed
        batches.append(WorldBatch(of_batch, planned_by, start, draw(st.booleans())))
    return batches
